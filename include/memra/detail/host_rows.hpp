// Host kernels that move rows: append, read_rows, gather_rows, copy_rows, repack.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memra/codec.hpp>
#include <memra/detail/codec_scalar.hpp>
#include <memra/format.hpp>
#include <memra/launch.hpp>
#include <memra/layout.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// append: row i of the call is encoded into the physical row of stream row *pos_d + i, each row by itself, so one call
/// of many rows and many calls of one row write the same bytes. Item (i, 0) writes K, item (i, 1) writes V.
struct AppendBody {
  KvWriteView kv;
  const float* k;
  const float* v;

  void operator()(const Item& item) const noexcept {
    const PlaneView& plane = item.y == 0 ? kv.k : kv.v;
    const float* src = item.y == 0 ? k : v;
    // A negative position writes nothing (see StepPos). Positions are data: this is asked where the kernel runs.
    const std::size_t row = static_cast<std::size_t>(*kv.at.pos_d) + item.x;
    if (*kv.at.pos_d < 0 || row >= kv.at.capacity || !plane.holds(row)) return;
    encode_row(plane, plane.phys(row), src + item.x * plane.shape.width);
  }
};

/// read_rows: decodes stream row first + x.
struct ReadRowsBody {
  ConstPlaneView plane;
  std::size_t first;
  float* out;

  void operator()(const Item& item) const noexcept {
    const std::size_t width = plane.shape.width;
    decode_row(plane, plane.phys(first + item.x), 0, width, out + item.x * width);
  }
};

/// gather_rows: decodes row index[x] of the table; an index outside it gives a row of quiet NaN.
struct GatherRowsBody {
  TableView table;
  const std::int32_t* index;
  float* out;

  void operator()(const Item& item) const noexcept {
    float* y = out + item.x * table.width;
    const std::int32_t row = index[item.x];
    if (row < 0 || static_cast<std::size_t>(row) >= table.rows) {
      for (std::size_t i = 0; i < table.width; ++i) y[i] = std::numeric_limits<float>::quiet_NaN();
      return;
    }
    decode(table.format, table.data + static_cast<std::size_t>(row) * row_bytes(table.format, table.width), y,
           table.width);
  }
};

/// copy_rows: row x is a run of row_bytes bytes.
struct CopyRowsBody {
  std::byte* dst;
  std::size_t dst_stride;
  const std::byte* src;
  std::size_t src_stride;
  std::size_t bytes;

  void operator()(const Item& item) const noexcept {
    std::memcpy(dst + item.x * dst_stride, src + item.x * src_stride, bytes);
  }
};

/// repack: moves the parts of every block of row x as bytes, so that nothing is rounded.
struct RepackBody {
  PlaneView dst;
  std::size_t dst_row;
  ConstPlaneView src;
  std::size_t src_row;

  void operator()(const Item& item) const noexcept {
    const FormatFacts f = facts(src.shape.format);
    if (src.shape.layout == dst.shape.layout || f.block_elems == 1) {
      const Segments to = segments(dst.shape, dst_row + item.x, 1);
      const Segments from = segments(src.shape, src_row + item.x, 1);
      for (std::size_t s = 0; s < from.count; ++s) {
        std::memcpy(dst.data + to[s].offset, src.data + from[s].offset, from[s].bytes);
      }
      return;
    }
    for (std::size_t b = 0; b < src.shape.width / f.block_elems; ++b) {
      const BlockCursor to = row_cursor<BlockCursor>(dst, dst_row + item.x, b);
      const ConstBlockCursor from = row_cursor<ConstBlockCursor>(src, src_row + item.x, b);
      std::memcpy(to.quants, from.quants, f.quant_bytes);
      if (f.fifth_bytes != 0) std::memcpy(to.fifths, from.fifths, f.fifth_bytes);
      std::memcpy(to.scales, from.scales, f.scale_bytes);
    }
  }
};

}  // namespace memra::detail
