// Encoding f32 into the formats of planes and back, for both layouts, on the host.
//
// The block formats store what ggml's reference routines store, byte for byte, wherever those are defined. Where they
// are not, ours are, and the same on every compiler, flag set, vector width and device:
//
// - Block formats: a NaN input counts as +0, an infinity as the largest finite f32 of its sign.
// - If d is not finite, or so small that 1/d is not, the block's quants are 0.
// - A scale d that rounds to infinity in f16 is stored as 65504 of its sign; the quants still come from the f32 d.
// - The min of q5_1 is not clamped: beyond f16 it is stored as the infinity that rounding gives, as ggml stores it. If
//   it is a zero, its sign is that of the block's first zero.
// - A q8_0 or q5_1 block of zeros has d = +0; a q4_0 one has d = -0 and quants 8, as ggml's division by -8 gives.
// - f16, bf16, fp8: nearest even. A NaN becomes the quiet NaN of its sign (0x7E00, 0x7FC0, 0x7F). Beyond f16 is
// infinity;
//   beyond fp8's 448, infinity included, is 448 (0x7E). f32 is copied bit for bit.
// - Decoding rounds d * q once and, for q5_1, d * q + min twice. A block whose stored scale or min is NaN, which no
//   encoder writes, decodes to NaN of unspecified payload.
//
// The rounding mode must be to nearest and subnormals on (no FTZ or DAZ), as a program starts.
#pragma once

#include <cstddef>
#include <memra/detail/codec_blocks.hpp>
#include <memra/format.hpp>
#include <memra/layout.hpp>
#include <memra/views.hpp>

namespace memra {

namespace detail {

/// Calls f.template operator()<F>() for the format known at run time only.
template <class Fn>
constexpr void with_format(Format format, const Fn& f) {
  switch (format) {
    case Format::f32:
      return f.template operator()<Format::f32>();
    case Format::f16:
      return f.template operator()<Format::f16>();
    case Format::bf16:
      return f.template operator()<Format::bf16>();
    case Format::q8_0:
      return f.template operator()<Format::q8_0>();
    case Format::q5_1:
      return f.template operator()<Format::q5_1>();
    case Format::q4_0:
      return f.template operator()<Format::q4_0>();
    case Format::fp8_e4m3:
      return f.template operator()<Format::fp8_e4m3>();
  }
}

/// Cursor over interleaved blocks that start at `p`. ggml stores scales first, then fifth bits, then quants.
template <class Cursor, class Byte>
constexpr Cursor blocks_cursor(Format format, Byte* p) noexcept {
  const FormatFacts f = facts(format);
  return {p + f.scale_bytes + f.fifth_bytes, p + f.scale_bytes, p, f.block_bytes, f.block_bytes, f.block_bytes};
}

/// Where byte `byte` of a row's part is.
constexpr std::size_t part_offset(const SubPlane& part, std::size_t rows, std::size_t row, std::size_t byte) noexcept {
  const std::size_t column = part.columns == 1 ? 0 : byte / column_bytes;
  return part.offset + (column * rows + row) * part.row_bytes + (byte - column * column_bytes);
}

/// Calls `run` with a cursor over the blocks of physical row `row` from `first` on, `first`, and for how many blocks
/// its strides hold, until block `end`: once, but a column of a split plane at a time.
template <class Cursor, class Byte, class Run>
constexpr void for_cursors(const BasicPlaneView<Byte>& plane, std::size_t row, std::size_t first, std::size_t end,
                           const Run& run) noexcept {
  const FormatFacts f = facts(plane.shape.format);
  if (plane.shape.layout == Layout::blocks || f.block_elems == 1) {  // one part; the host's attention is here per key
    const std::size_t block = row * (plane.shape.width / f.block_elems) + first;
    return run(blocks_cursor<Cursor>(plane.shape.format, plane.data + block * f.block_bytes), first, end - first);
  }
  const SubPlanes parts = sub_planes(plane.shape);
  const auto at = [&](std::size_t part, std::size_t block_bytes) {
    return plane.data + part_offset(parts.part[part], plane.shape.rows, row, first * block_bytes);
  };
  const bool whole = f.scale_bytes == 0 || parts.part[parts.count - 1].columns == 1;
  const std::size_t most = whole ? end : column_bytes / f.scale_bytes;
  while (first < end) {
    const std::size_t left = most - first % most;
    const std::size_t n = left < end - first ? left : end - first;
    Byte* const scales = at(parts.count - 1, f.scale_bytes);
    Byte* const fifths = f.fifth_bytes == 0 ? scales : at(1, f.fifth_bytes);
    run(Cursor{at(0, f.quant_bytes), fifths, scales, f.quant_bytes, f.fifth_bytes, f.scale_bytes}, first, n);
    first += n;
  }
}

/// Cursor over one block of a physical row.
template <class Cursor, class Byte>
constexpr Cursor row_cursor(const BasicPlaneView<Byte>& plane, std::size_t row, std::size_t block) noexcept {
  Cursor r{};
  const auto keep = [&](const Cursor& c, std::size_t, std::size_t) { r = c; };
  for_cursors<Cursor>(plane, row, block, block + 1, keep);
  return r;
}

/// The same plane, of a format that the compiler knows: what depends on it is worked out before a row is met.
template <Format F, class Byte>
constexpr BasicPlaneView<Byte> of_format(const BasicPlaneView<Byte>& plane) noexcept {
  BasicPlaneView<Byte> r = plane;
  r.shape.format = F;
  return r;
}

}  // namespace detail

// Not inlined: one call per row is nothing, and g++ would warn of the branches for formats that the caller rules out.

/// Encodes `n` elements into contiguous blocks of the `blocks` layout.
///
/// @param x    [n] f32
/// @param dst  [row_bytes(format, n)] any alignment; must not overlap x
/// @pre whole_blocks(format, n)
[[gnu::noinline]] inline void encode(Format format, const float* x, std::byte* dst, std::size_t n) noexcept {
  if (n == 0) return;  // nor is there a block to step into: the pointers may be null
  detail::with_format(format, [=]<Format F>() {
    detail::encode_blocks<F>(x, n / facts(F).block_elems, detail::blocks_cursor<detail::BlockCursor>(F, dst));
  });
}

/// Decodes `n` elements from contiguous blocks of the `blocks` layout.
///
/// @param src  [row_bytes(format, n)] any alignment; must not overlap y
/// @param y    [n] f32
/// @pre whole_blocks(format, n)
[[gnu::noinline]] inline void decode(Format format, const std::byte* src, float* y, std::size_t n) noexcept {
  if (n == 0) return;  // nor is there a block to step into: the pointers may be null
  detail::with_format(format, [=]<Format F>() {
    detail::decode_blocks<F>(detail::blocks_cursor<detail::ConstBlockCursor>(F, src), n / facts(F).block_elems, y);
  });
}

/// Encodes one row into a plane of any layout.
///
/// @param plane     in host memory
/// @param phys_row  physical row (stream row - plane.base), below plane.phys_rows()
/// @param x         [plane.shape.width] f32
[[gnu::noinline]] inline void encode_row(const PlaneView& plane, std::size_t phys_row, const float* x) noexcept {
  if (plane.shape.width == 0) return;  // as above
  detail::with_format(plane.shape.format, [&]<Format F>() {
    constexpr std::size_t elems = facts(F).block_elems;
    const PlaneView p = detail::of_format<F>(plane);
    detail::for_cursors<detail::BlockCursor>(p, phys_row, 0, p.shape.width / elems,
                                             [&](const detail::BlockCursor& to, std::size_t block, std::size_t blocks) {
                                               detail::encode_blocks<F>(x + block * elems, blocks, to);
                                             });
  });
}

/// Decodes elements [first, first + n) of one row of a plane of any layout.
///
/// @param plane     in host memory
/// @param phys_row  physical row (stream row - plane.base), below plane.phys_rows()
/// @param y         [n] f32
/// @pre first and n are whole blocks; first + n <= plane.shape.width
[[gnu::noinline]] inline void decode_row(const ConstPlaneView& plane, std::size_t phys_row, std::size_t first,
                                         std::size_t n, float* y) noexcept {
  if (n == 0) return;
  detail::with_format(plane.shape.format, [&]<Format F>() {
    constexpr std::size_t elems = facts(F).block_elems;
    const std::size_t from = first / elems;
    const ConstPlaneView p = detail::of_format<F>(plane);
    detail::for_cursors<detail::ConstBlockCursor>(
        p, phys_row, from, from + n / elems,
        [&](const detail::ConstBlockCursor& at, std::size_t block, std::size_t blocks) {
          detail::decode_blocks<F>(at, blocks, y + (block - from) * elems);
        });
  });
}

}  // namespace memra
