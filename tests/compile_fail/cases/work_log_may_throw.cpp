// EXPECT: memra: if the device has a `work_log`, it must be `std::shared_ptr<const memra::WorkLog> work_log() noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::WorkLogMayThrow<MEMRA_TEST_CORRECTED>>());
