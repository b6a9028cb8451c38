// Portable kernels that move rows: append, read_rows, gather_rows, copy_rows, repack, draft_write, argmax_rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>
#include <memra/detail/portable_plane.hpp>
#include <memra/launch.hpp>
#include <memra/layout.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// append: item (group, row, 0) encodes 32 elements of K, (group, row, 1) of V. Same bytes as the host's AppendBody.
struct PortableAppend {
  PortableTarget k;
  PortableTarget v;
  const float* k_in;
  const float* v_in;
  const std::int32_t* pos_d;
  std::size_t capacity;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const PortableTarget& plane = item.z == 0 ? k : v;
    if (item.x * portable_group >= plane.width) return;
    std::size_t phys = 0;
    if (!portable_row(*pos_d, item.y, plane, capacity, phys)) return;
    portable_encode(plane, phys, item.x, (item.z == 0 ? k_in : v_in) + item.y * plane.width);
  }
};

/// read_rows: item (group, row). `first` is a stream row.
struct PortableReadRows {
  PortableSource plane;
  std::size_t first;
  float* out;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t at = item.x * portable_group;
    const std::size_t n = plane.width - at < portable_group ? plane.width - at : portable_group;
    portable_decode(plane, plane.phys(first + item.y), at, n, out + item.y * plane.width + at);
  }
};

/// gather_rows: item (group, i). An index outside the table gives quiet NaN.
struct PortableGatherRows {
  PortableSource table;
  const std::int32_t* index;
  float* out;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::size_t at = item.x * portable_group;
    const std::size_t n = table.width - at < portable_group ? table.width - at : portable_group;
    float* y = out + item.y * table.width + at;
    const std::int32_t row = index[item.y];
    if (row < 0 || static_cast<std::size_t>(row) >= table.rows) {
      for (std::size_t i = 0; i < n; ++i) y[i] = f32_from_bits(f32_nan_bits);
      return;
    }
    portable_decode(table, static_cast<std::size_t>(row), at, n, y);
  }
};

/// What a copy moves at a time: the widest that addresses, strides and sizes are multiples of.
/// May alias: the bytes are floats, blocks or anything else.
struct __attribute__((may_alias, aligned(16))) Word16 {
  std::uint64_t part[2];
};
struct __attribute__((may_alias, aligned(4))) Word4 {
  std::uint32_t part;
};

/// copy_rows: item (word, row).
template <class Word>
struct PortableCopyRows {
  std::byte* dst;
  std::size_t dst_stride;
  const std::byte* src;
  std::size_t src_stride;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const auto* from = reinterpret_cast<const Word*>(src + item.y * src_stride);
    auto* to = reinterpret_cast<Word*>(dst + item.y * dst_stride);
    to[item.x] = from[item.x];
  }
};

/// repack: item (block, row) moves the parts of one block as bytes, so that nothing is rounded.
struct PortableRepack {
  PortableTarget dst;
  std::size_t dst_row;
  PortableSource src;
  std::size_t src_row;
  std::size_t quant_bytes;
  std::size_t fifth_bytes;
  std::size_t scale_bytes;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const BlockCursor to = dst.at(dst_row + item.y, item.x);
    const ConstBlockCursor from = src.at(src_row + item.y, item.x);
    for (std::size_t i = 0; i < quant_bytes; ++i) to.quants[i] = from.quants[i];
    for (std::size_t i = 0; i < fifth_bytes; ++i) to.fifths[i] = from.fifths[i];
    for (std::size_t i = 0; i < scale_bytes; ++i) to.scales[i] = from.scales[i];
  }
};

/// draft_write: item (element, row, 0) writes K, (element, row, 1) writes V.
struct PortableDraftWrite {
  DraftView d;
  const float* k;
  const float* v;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const std::int64_t phys = std::int64_t{*d.len_d} + static_cast<std::int64_t>(item.y) - d.first_row();
    if (*d.len_d < 0 || phys < 0 || phys >= static_cast<std::int64_t>(d.phys_rows)) return;
    const std::size_t width = d.n_kv * d.head_dim;
    float* to = (item.z == 0 ? d.k : d.v) + static_cast<std::size_t>(phys) * width;
    to[item.x] = (item.z == 0 ? k : v)[item.y * width + item.x];
  }
};

/// argmax_rows: one row per item; the first of the largest, NaN never wins, a row of NaN only gives -1.
struct PortableArgmax {
  const float* x;
  std::size_t n;
  std::int32_t* out;

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const float* row = x + item.x * n;
    std::int32_t best = -1;
    float top = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const float v = row[i];
      if (v == v && (best < 0 || v > top)) {
        top = v;
        best = static_cast<std::int32_t>(i);
      }
    }
    out[item.x] = best;
  }
};

}  // namespace memra::detail
