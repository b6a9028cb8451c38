// One memory block of a cache: allocated from the device, or adopted from the engine.
#pragma once

#include <cstddef>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <optional>
#include <utility>

namespace memra {

/// Memory an engine hands over for one device object. It stays the engine's: nothing is freed.
struct AdoptedBlock {
  std::byte* data = nullptr;  ///< on that device, plane_alignment aligned; nullptr: allocate instead
  std::size_t bytes = 0;      ///< at least what the plan says
};

namespace detail {

template <class Dev>
class Slab {
 public:
  Slab() = default;

  /// @param adopted  memory of at least `bytes`, aligned (check_blocks has looked), or data nullptr
  /// @param zeroed  whether every byte must be zero, in stream order, before anything else touches it
  static Result<Slab> make(Dev& dev, std::size_t bytes, bool zeroed, const AdoptedBlock& adopted) noexcept {
    Slab s;
    s.bytes_ = bytes;
    if (bytes == 0) return s;
    if (adopted.data != nullptr) {
      s.data_ = adopted.data;
      if (zeroed) {
        if (Status f = dev.fill(s.data_, std::byte{0}, bytes); !f) return f;
      }
      return s;
    }
    auto made = zeroed ? dev.zeros(bytes) : dev.alloc(bytes);
    if (!made) return made.status();
    s.owned_.emplace(*std::move(made));
    s.data_ = s.owned_->data();
    return s;
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::optional<typename Dev::Buffer> owned_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}  // namespace memra
