// EXPECT: memra: the device needs `Status synchronize() noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::SyncTakesArgument<MEMRA_TEST_CORRECTED>>());
