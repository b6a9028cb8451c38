// Does not compile: see the guide beside it.
#include "../custom_dev.hpp"

struct MutableSource : CustomDev {
  memra::Status upload(std::byte* dst, std::byte* host, std::size_t n) noexcept { return move(dst, host, n); }
};

static_assert(memra::check_kv_dev<MutableSource>());
