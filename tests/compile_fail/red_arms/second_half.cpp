// EXPECT: memra: the device needs `Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept`
// EXPECT: that nobody says
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::MoveReturnsVoid<MEMRA_TEST_CORRECTED>>());
