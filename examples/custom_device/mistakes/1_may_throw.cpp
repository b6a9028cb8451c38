// Does not compile: see the guide beside it.
#include "../custom_dev.hpp"

struct MayThrow : CustomDev {
  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) { return move(dst, src, n); }
};

static_assert(memra::check_kv_dev<MayThrow>());
