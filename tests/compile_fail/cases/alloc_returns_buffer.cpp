// EXPECT: memra: the device needs `Result<Buffer> alloc(std::size_t bytes) noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::AllocReturnsBuffer<MEMRA_TEST_CORRECTED>>());
