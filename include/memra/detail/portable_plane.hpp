// Planes as kernels see them: addresses and strides worked out on the host, codecs of up to one block at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/codec.hpp>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/platform.hpp>
#include <memra/format.hpp>
#include <memra/layout.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Elements that one item encodes or decodes: the block of every block format.
inline constexpr std::size_t portable_group = 32;

constexpr std::size_t portable_groups(std::size_t width) noexcept {
  return (width + portable_group - 1) / portable_group;
}

static_assert(facts(Format::q5_1).fifth_bytes == facts(Format::q5_1).scale_bytes);

/// Where the blocks of a plane are. Block b of row r has its quants at quants + r * quant_row + b * quant_stride; fifth
/// bits and scales likewise, but a column further each 16 bytes. Formats without blocks have blocks of one element and
/// quants only.
template <class Byte, class Cursor>
struct PortablePlane {
  Cursor first;  ///< of row 0
  std::size_t quant_row;
  std::size_t scale_row;
  std::size_t column;  ///< distance of the columns of fifth bits, and of scales; column_bytes where rows are whole
  std::size_t rows;
  std::size_t base;
  std::size_t width;
  Format format;
  bool ring;

  explicit PortablePlane(const BasicPlaneView<Byte>& p) noexcept
      : first(row_cursor<Cursor>(p, 0, 0)),
        rows(p.shape.rows),
        base(p.base),
        width(p.shape.width),
        format(p.shape.format),
        ring(p.ring) {
    const SubPlanes parts = sub_planes(p.shape);
    quant_row = parts.part[0].row_bytes;
    scale_row = parts.part[parts.count - 1].row_bytes;
    column = scale_row == column_bytes ? rows * column_bytes : column_bytes;
  }

  /// As BasicPlaneView::holds.
  MEMRA_HD bool holds(std::size_t row) const noexcept { return ring || (row >= base && row - base < rows); }
  /// Physical row of a stream row that is there.
  MEMRA_HD std::size_t phys(std::size_t row) const noexcept { return ring ? row % rows : row - base; }

  /// Becomes a plane of the same format, layout and width with other rows, elsewhere.
  MEMRA_HD void take(const PortablePlane& other) noexcept {
    first.quants = other.first.quants;
    first.fifths = other.first.fifths;
    first.scales = other.first.scales;
    rows = other.rows;
    column = scale_row == column_bytes ? rows * column_bytes : column_bytes;
    base = other.base;
  }

  MEMRA_HD Cursor at(std::size_t row, std::size_t block) const noexcept {
    // Fifth bits lie as their scales do.
    const std::size_t byte = block * first.scale_stride;
    const std::size_t narrow = row * scale_row + byte / column_bytes * column + byte % column_bytes;
    return {first.quants + row * quant_row + block * first.quant_stride,
            first.fifths + narrow,
            first.scales + narrow,
            first.quant_stride,
            first.fifth_stride,
            first.scale_stride};
  }
};
using PortableSource = PortablePlane<const std::byte, ConstBlockCursor>;
using PortableTarget = PortablePlane<std::byte, BlockCursor>;

/// Encodes n <= 32 elements: one block, or as many single elements. x is the row's first element.
MEMRA_HD inline void portable_encode(const PortableTarget& p, std::size_t row, std::size_t group,
                                     const float* x) noexcept {
  const std::size_t first = group * portable_group;
  const std::size_t n = p.width - first < portable_group ? p.width - first : portable_group;
  switch (p.format) {
    case Format::f32:
      return scalar_encode_blocks<Format::f32>(x + first, n, p.at(row, first));
    case Format::f16:
      return scalar_encode_blocks<Format::f16>(x + first, n, p.at(row, first));
    case Format::bf16:
      return scalar_encode_blocks<Format::bf16>(x + first, n, p.at(row, first));
    case Format::fp8_e4m3:
      return scalar_encode_blocks<Format::fp8_e4m3>(x + first, n, p.at(row, first));
    case Format::q8_0:
      return scalar_encode_blocks<Format::q8_0>(x + first, 1, p.at(row, group));
    case Format::q5_1:
      return scalar_encode_blocks<Format::q5_1>(x + first, 1, p.at(row, group));
    case Format::q4_0:
      return scalar_encode_blocks<Format::q4_0>(x + first, 1, p.at(row, group));
  }
}

/// Decodes elements [first, first + n) of a row, n <= 32; a whole block where the format has blocks.
MEMRA_HD inline void portable_decode(const PortableSource& p, std::size_t row, std::size_t first, std::size_t n,
                                     float* y) noexcept {
  switch (p.format) {
    case Format::f32:
      return scalar_decode_blocks<Format::f32>(p.at(row, first), n, y);
    case Format::f16:
      return scalar_decode_blocks<Format::f16>(p.at(row, first), n, y);
    case Format::bf16:
      return scalar_decode_blocks<Format::bf16>(p.at(row, first), n, y);
    case Format::fp8_e4m3:
      return scalar_decode_blocks<Format::fp8_e4m3>(p.at(row, first), n, y);
    case Format::q8_0:
      return scalar_decode_blocks<Format::q8_0>(p.at(row, first / portable_group), 1, y);
    case Format::q5_1:
      return scalar_decode_blocks<Format::q5_1>(p.at(row, first / portable_group), 1, y);
    case Format::q4_0:
      return scalar_decode_blocks<Format::q4_0>(p.at(row, first / portable_group), 1, y);
  }
}

/// Physical row of stream row *pos_d + i, or false if the call must not touch it: a negative position (see StepPos), at
/// or beyond `capacity`, or outside a flat plane.
MEMRA_HD inline bool portable_row(std::int64_t pos, std::size_t i, const PortableTarget& p, std::size_t capacity,
                                  std::size_t& phys) noexcept {
  if (pos < 0) return false;
  const std::size_t r = static_cast<std::size_t>(pos) + i;
  if (r >= capacity || !p.holds(r)) return false;
  phys = p.phys(r);
  return true;
}

}  // namespace memra::detail
