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

/// A part of a plane whose rows lie one after another.
struct SubPlane {
  std::size_t offset = 0;     ///< bytes from the start of the plane
  std::size_t row_bytes = 0;  ///< bytes of one row; rows follow each other without gaps
};

/// A run of bytes inside a plane.
struct Segment {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

inline constexpr std::size_t max_sub_planes = 3;
/// Alignment of every sub-plane of a `split` plane: the widest load of a GPU thread.
inline constexpr std::size_t sub_plane_alignment = 16;

/// The sub-planes of a plane.
struct SubPlanes {
  std::array<SubPlane, max_sub_planes> part{};
  std::size_t count = 0;
  std::size_t bytes = 0;  ///< payload of the plane: up to the end of the last row of the last part
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
    r.count = 1;
    r.bytes = s.rows * blocks * f.block_bytes;
    return r;
  }
  std::size_t end = 0;
  for (const std::size_t part_bytes : {f.quant_bytes, f.fifth_bytes, f.scale_bytes}) {
    if (part_bytes == 0) continue;
    const std::size_t offset = (end + sub_plane_alignment - 1) / sub_plane_alignment * sub_plane_alignment;
    r.part[r.count++] = {offset, blocks * part_bytes};
    end = offset + s.rows * blocks * part_bytes;
  }
  r.bytes = end;
  return r;
}

/// Row ranges whose ends are multiples of this are whole segments. Both layouts of today keep rows apart.
constexpr std::size_t tile_rows(Layout) noexcept {
  return 1;
}

/// The byte runs that hold rows [first, first + n), one per sub-plane.
/// @pre first + n <= s.rows, both multiples of tile_rows
struct Segments {
  std::array<Segment, max_sub_planes> run{};
  std::size_t count = 0;
};
constexpr Segments segments(const PlaneShape& s, std::size_t first, std::size_t n) noexcept {
  const SubPlanes parts = sub_planes(s);
  Segments r;
  r.count = parts.count;
  for (std::size_t i = 0; i < parts.count; ++i) {
    r.run[i] = {parts.part[i].offset + first * parts.part[i].row_bytes, n * parts.part[i].row_bytes};
  }
  return r;
}

}  // namespace memra
