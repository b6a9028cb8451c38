// EXPECT: memra: the device needs `Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::FillTakesInt<MEMRA_TEST_CORRECTED>>());
