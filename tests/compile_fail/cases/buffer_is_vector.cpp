// EXPECT: memra: the device needs a member type `Buffer`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::BufferIsVector<MEMRA_TEST_CORRECTED>>());
