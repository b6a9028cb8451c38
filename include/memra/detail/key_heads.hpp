// Which key head a value head reads, for kernels.
#pragma once

#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// KeyHeadMap of one layer with its divisions by totals done on the host and the rest in 32 bits: a division of 64 bits
/// is hundreds of instructions, and the first load of keys waits for it.
struct KeyHeads {
  std::uint32_t first_v, all_k, group, first;
  bool grouped;

  /// @pre fits(r)
  explicit KeyHeads(const RecurView& r) noexcept
      : first_v(static_cast<std::uint32_t>(r.map.first_v)),
        all_k(static_cast<std::uint32_t>(r.map.total_k == 0 ? r.n_k_heads : r.map.total_k)),
        group(static_cast<std::uint32_t>((r.map.total_v == 0 ? r.n_v_heads : r.map.total_v) / all_k)),
        first(0),
        grouped(r.map.mode == KeyHeadMode::grouped) {
    if (r.n_k_heads != all_k) first = grouped ? first_v / group : first_v % all_k;
  }
  static bool fits(const RecurView& r) noexcept {
    return r.map.total_v <= 0x7fffffffU && r.map.total_k <= 0x7fffffffU && r.map.first_v <= 0x3fffffffU;
  }

  MEMRA_HD std::uint32_t of(std::uint32_t h) const noexcept {
    const std::uint32_t global = grouped ? (first_v + h) / group : (first_v + h) % all_k;
    return global < first ? global + all_k - first : global - first;
  }
  /// No value head below h reads the same key head: one writer each. Heads of a group are neighbours; interleaved ones
  /// come round after all key heads.
  MEMRA_HD bool reads_first(std::uint32_t h) const noexcept {
    return grouped ? h == 0 || (first_v + h) % group == 0 : h < all_k;
  }
};

}  // namespace memra::detail
