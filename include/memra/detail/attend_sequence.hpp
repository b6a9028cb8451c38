// One sequence in the table of attend_batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/kv_range.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/layout.hpp>
#include <memra/views.hpp>
#include <type_traits>

namespace memra::detail {

/// A sequence's planes in each form in which kernels want them, worked out on the host when the table is made.
struct alignas(64) AttendSequence {
  /// K's and V's sub-planes as a copy engine wants them described, and whether they are: `describe` of kernel sets that
  /// use one fills these. First, so that they are aligned as the entry is.
  std::byte k_boxes[max_sub_planes][128] = {};
  std::byte v_boxes[max_sub_planes][128] = {};
  bool described = false;
  KvReadView kv;  ///< at.rows is not the call's
  PortableSource k;
  PortableSource v;  ///< K's if V is a part of it
  KvRange range;

  explicit AttendSequence(const KvReadView& view) noexcept : kv(view), k(view.k), v(values_of(view)), range(view) {}
};

static_assert(std::is_trivially_copyable_v<AttendSequence> && sizeof(AttendSequence) % 64 == 0);

}  // namespace memra::detail
