// Does not compile: see the guide beside it.
#include "../custom_dev.hpp"

struct SharedBuffer : CustomDev {
  struct Buffer {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
    std::byte* data() const noexcept { return memory.get(); }
    std::size_t size() const noexcept { return bytes; }
  };
};

static_assert(memra::check_kv_dev<SharedBuffer>());
