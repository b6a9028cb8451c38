// EXPECT: memra: the device needs a default-constructible member type `Event`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::EventNeedsStream<MEMRA_TEST_CORRECTED>>());
