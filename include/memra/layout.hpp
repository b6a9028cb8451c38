// Where the rows of a plane are: the one description that append, attend, export, restore and repack go through.
#pragma once

#include <array>
#include <cstddef>
#include <memra/detail/checked_math.hpp>
#include <memra/detail/platform.hpp>
#include <memra/format.hpp>

namespace memra {

/// Shape of one plane: `rows` physical rows of `width` elements.
struct PlaneShape {
  Format format = Format::f32;
  Layout layout = Layout::blocks;
  std::size_t rows = 0;   ///< physical rows
  std::size_t width = 0;  ///< elements per row: n_kv_heads * head_dim

  friend constexpr bool operator==(const PlaneShape&, const PlaneShape&) = default;
};

/// A part of a plane: columns, each [rows][row_bytes], one after another without gaps.
struct SubPlane {
  std::size_t offset = 0;     ///< bytes from the start of the plane
  std::size_t row_bytes = 0;  ///< bytes of one row in one column
  std::size_t columns = 1;
};

/// A run of bytes inside a plane.
struct Segment {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

inline constexpr std::size_t max_sub_planes = 3;
/// Alignment of every sub-plane of a `split` plane: the widest load of a GPU thread.
inline constexpr std::size_t sub_plane_alignment = 16;
/// Bytes of a row in a column of a `split` plane's fifth bits or scales, where rows are whole columns: what a kernel
/// that reads one head's keys one after another then finds side by side. Else rows stay whole, in one column.
inline constexpr std::size_t column_bytes = 16;

/// The sub-planes of a plane.
struct SubPlanes {
  std::array<SubPlane, max_sub_planes> part{};
  std::size_t count = 0;
  std::size_t columns = 0;  ///< of all parts
  std::size_t bytes = 0;    ///< payload of the plane: up to the end of the last row of the last part
};

namespace detail {

/// As sub_planes, for sizes from outside. Invalid if a size does not fit.
constexpr CheckedSize checked_plane_bytes(const PlaneShape& s) noexcept {
  const FormatFacts f = facts(s.format);
  const CheckedSize blocks = CheckedSize(s.rows) * (s.width / f.block_elems);
  if (s.layout == Layout::blocks || f.block_elems == 1) return blocks * f.block_bytes;
  CheckedSize end = blocks * f.quant_bytes;
  if (f.fifth_bytes != 0) end = align_up(end, sub_plane_alignment) + blocks * f.fifth_bytes;
  return align_up(end, sub_plane_alignment) + blocks * f.scale_bytes;
}

}  // namespace detail

/// @pre the plane's bytes fit in std::size_t (plan() refuses others)
constexpr SubPlanes sub_planes(const PlaneShape& s) noexcept {
  const FormatFacts f = facts(s.format);
  const std::size_t blocks = s.width / f.block_elems;
  SubPlanes r;
  if (s.layout == Layout::blocks || f.block_elems == 1) {
    r.part[0] = {0, blocks * f.block_bytes};
    r.count = r.columns = 1;
    r.bytes = s.rows * blocks * f.block_bytes;
    return r;
  }
  std::size_t end = 0;
  for (const std::size_t part_bytes : {f.quant_bytes, f.fifth_bytes, f.scale_bytes}) {
    if (part_bytes == 0) continue;
    const std::size_t offset = (end + sub_plane_alignment - 1) / sub_plane_alignment * sub_plane_alignment;
    const std::size_t row = blocks * part_bytes;
    const bool quants = r.count == 0;
    const std::size_t columns = quants || row == 0 || row % column_bytes != 0 ? 1 : row / column_bytes;
    r.part[r.count++] = {offset, row / columns, columns};
    r.columns += columns;
    end = offset + s.rows * row;
  }
  r.bytes = end;
  return r;
}

/// Row ranges whose ends are multiples of this are whole segments. Both layouts of today keep rows apart.
constexpr std::size_t tile_rows(Layout) noexcept {
  return 1;
}

/// The byte runs that hold rows [first, first + n), one per column of each sub-plane, in the order of their offsets.
struct Segments {
  SubPlanes parts;
  std::size_t rows = 0;  ///< of the plane
  std::size_t first = 0;
  std::size_t n = 0;
  std::size_t count = 0;

  constexpr Segment operator[](std::size_t i) const noexcept {
    std::size_t p = 0;
    for (; i >= parts.part[p].columns; ++p) i -= parts.part[p].columns;
    const SubPlane& part = parts.part[p];
    return {part.offset + (i * rows + first) * part.row_bytes, n * part.row_bytes};
  }
};

/// @pre first + n <= s.rows, both multiples of tile_rows
constexpr Segments segments(const PlaneShape& s, std::size_t first, std::size_t n) noexcept {
  const SubPlanes parts = sub_planes(s);
  return {parts, s.rows, first, n, parts.columns};
}

}  // namespace memra
