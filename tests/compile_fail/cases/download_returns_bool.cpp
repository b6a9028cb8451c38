// EXPECT: memra: the device needs `Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept`
#include <concepts/near_misses.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::DownloadReturnsBool<MEMRA_TEST_CORRECTED>>());
