// PoisonDev: a device whose undefined memory is never harmless.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <memra/detail/wrap_dev.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <new>
#include <optional>

namespace memra {

namespace detail {

struct PoisonPolicy : WrapPolicy {
  // NaN in every format that is read from here: 0x7fa07fa0 is a signalling NaN as f32, each half 0x7fa0 a signalling
  // NaN as bf16 and a NaN as f16 (also where it lands on a block's f16 scale).
  static constexpr unsigned char low = 0xa0;
  static constexpr unsigned char high = 0x7f;

  std::optional<std::byte> byte;  // instead of the pattern

  /// One write of the whole allocation, so that a guarding device beneath knows that nobody overran anything.
  template <class Dev>
  Status poison(Dev& dev, const WrapBlock& at) const noexcept {
    if (byte) return dev.fill(at.data, *byte, at.size);
    const std::unique_ptr<std::byte[]> pattern(new (std::nothrow) std::byte[at.size]);
    if (!pattern) return dev.fill(at.data, std::byte{0xff}, at.size);  // NaN too, only not a signalling one
    for (std::size_t i = 0; i < at.size; ++i) pattern[i] = std::byte{i % 2 == 0 ? low : high};
    return dev.upload(at.data, pattern.get(), at.size);
  }

  template <class Dev>
  Status born(Dev& dev, const WrapBlock& at, bool zeroed) const noexcept {
    return zeroed ? Status{} : poison(dev, at);
  }
  template <class Dev>
  void dying(Dev* dev, const WrapBlock& at) const noexcept {
    if (dev != nullptr) static_cast<void>(poison(*dev, at).ok());  // a free cannot report
  }
};

}  // namespace detail

/// A KvDev over `Dev` that fills the memory of `alloc` before it hands it out, and all memory just before it is freed,
/// with signalling NaNs (as f32; NaN as bf16 and f16, too) or with a byte of your choice. What reads a row nobody
/// wrote, or a buffer that is gone, then shows it. `zeros` stays zero.
///
/// Poison is written in stream order through the wrapped device: one upload per allocation and one per free (one fill
/// with a chosen byte). Wrap it in a CountingDev, not the other way round, if those should not be counted. Buffers that
/// outlive the wrapper are freed without poison.
template <class Dev>
class PoisonDev : public detail::WrapDev<Dev, detail::PoisonPolicy> {
  using Base = detail::WrapDev<Dev, detail::PoisonPolicy>;

 public:
  using Base::Base;

  /// The 32-bit word that fresh memory is full of, little end first.
  static constexpr unsigned pattern = 0x7fa07fa0U;

  /// From now on poison is this byte.
  void poison_with(std::byte value) noexcept { this->policy().byte = value; }
  /// From now on poison is `pattern`.
  void poison_with_nan() noexcept { this->policy().byte.reset(); }
};

static_assert(check_kv_dev<PoisonDev<HostDev>>());

}  // namespace memra
