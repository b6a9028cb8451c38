// EXPECT: memra: the device needs a default-constructible member type `Event`, `Status publish(Event&) noexcept` and
// EXPECT: `Status wait(const Event&) noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::PublishReturnsVoid<MEMRA_TEST_CORRECTED>>());
