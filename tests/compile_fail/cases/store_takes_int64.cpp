// EXPECT: memra: the device needs `Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n)
// EXPECT: noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::StoreTakesInt64<MEMRA_TEST_CORRECTED>>());
