// One step's keys in shared memory: where K and V of 16 keys per warp lie, and how they get there.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/detail/portable_plane.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// What the copy engine brings at a time: the keys of a step in one sub-plane. Of quants that is a box as high as a
/// step has keys, at byte `at` of the plane's rows; of scales and fifth bits a run in each column from `at` on.
struct AttendBox {
  const CUtensorMap* map;
  int at;
  unsigned base;  ///< stream row that is the plane's first
  unsigned to;    ///< from the step's part on
  bool columns;
};

/// Where a step's rows come from: a plane, and what the copy engine knows of it.
struct AttendSource {
  const PortableSource& plane;
  const CUtensorMap* maps;
};

/// One kv head's part of a plane, a step of `keys` rows at a time.
///
/// Shared memory of a step, every part a multiple of 1,024 bytes from its start: quants as boxes [keys][width], width
/// 128, 64 or 32 bytes, 16-byte pieces swizzled as the copy engine does (bits 7 and up of the offset are added without
/// carry to bits 4 and up), so that the eight rows of a matrix load lie in different banks; scales [columns][keys][16];
/// fifth bits likewise.
/// @tparam Dims  elements of a head that are copied
template <Format F, unsigned StepKeys, unsigned Dims>
struct AttendStage {
  static constexpr unsigned keys = StepKeys;
  static constexpr unsigned dims = Dims;
  using Facts = AttendFormat<F>;
  static constexpr bool fives = F == Format::q5_1;
  static constexpr unsigned scale_bytes = fives ? 4 : 2;  ///< of a block
  static constexpr unsigned row_bytes = dims / 32 * Facts::group_bytes;
  static constexpr unsigned width = row_bytes % 128 == 0 ? 128 : row_bytes % 64 == 0 ? 64 : 32;
  /// Of a head's scales, and of its fifth bits; a small head has its neighbours' beside it.
  static constexpr unsigned columns =
      dims / 32 * scale_bytes < column_bytes ? 1 : dims / 32 * scale_bytes / column_bytes;
  static constexpr unsigned scales_bytes = columns * keys * column_bytes;  ///< of all keys
  // From the start of the step's part.
  static constexpr unsigned scales_at = keys * row_bytes;
  static constexpr unsigned fifths_at = scales_at + (Facts::blocks ? scales_bytes : 0);
  static constexpr unsigned used = fifths_at + (fives ? scales_bytes : 0);
  static constexpr unsigned bytes = (used + 1023) / 1024 * 1024;
  static constexpr unsigned quant_boxes = row_bytes / width;
  static constexpr unsigned boxes = quant_boxes + (Facts::blocks ? 1 : 0) + (fives ? 1 : 0);
  /// What a row of a column is to the copy engine, whose boxes have at most 256 elements a side.
  static constexpr unsigned row_words = column_bytes / 8;

  static constexpr unsigned n_maps = fives ? 3 : Facts::blocks ? 2 : 1;
  CUtensorMap maps[n_maps];  ///< quants, scales, fifth bits; set by `describe`
  PortableSource plane;
  bool wide;  ///< sub-planes of whole words; else interleaved blocks

  AttendStage(const PortableSource& p, bool split) noexcept : maps(), plane(p), wide(split || !Facts::blocks) {}

  /// Where in its column a head's first block is.
  __host__ __device__ static unsigned column_offset(unsigned element) {
    return element / 32 * scale_bytes % column_bytes;
  }
  /// Offset of byte `byte` of the scales of key 0. Those of a key after another are column_bytes apart.
  __host__ __device__ static constexpr unsigned scale_at(unsigned byte) {
    return byte / column_bytes * keys * column_bytes + byte % column_bytes;
  }
  __device__ static unsigned word_at(unsigned key, unsigned byte) { return key * column_bytes + scale_at(byte); }
  /// Offset of 16-byte piece `piece` of a key's quants.
  __device__ static unsigned piece_at(unsigned key, unsigned piece) {
    const unsigned at = key * width + (piece * 16 & (width - 1));
    return piece * 16 / width * keys * width + (at ^ ((at >> 3) & (width - 1) & ~15U));
  }

  /// Element `e` of a key's head, from the step's part at `part`. For block formats.
  /// @param offset  column_offset of the head
  __device__ float value(std::uint32_t part, unsigned key, unsigned e, unsigned offset) const {
    const unsigned block = e / 32;
    const unsigned byte = Facts::nibbles ? e % 16 : e % 32;
    const unsigned piece = block * (Facts::group_bytes / 16) + byte / 16;
    const std::uint32_t q = load_shared_byte(part + piece_at(key, piece) + byte % 16);
    const unsigned at = offset + block * scale_bytes;
    const __half2 scale = half2_of(load_shared_4(part + scales_at + word_at(key, at & ~3U)));
    const float d = (at & 2U) != 0 ? __high2float(scale) : __low2float(scale);
    if constexpr (F == Format::q8_0) return __fmul_rn(d, static_cast<float>(static_cast<std::int8_t>(q)));
    const std::uint32_t nibble = e % 32 < 16 ? q & 15U : q >> 4;
    if constexpr (F == Format::q4_0) return __fmul_rn(d, static_cast<float>(nibble) - 8.0F);
    // Heads' fifth bits lie as their scales do.
    const std::uint32_t fifths = load_shared_4(part + fifths_at + word_at(key, at));
    const std::uint32_t x = nibble | (fifths >> e % 32 & 1U) << 4;
    return __fadd_rn(__fmul_rn(d, static_cast<float>(x)), __high2float(scale));
  }

  /// Describes the plane to the copy engine. False if it cannot take it.
  bool describe(const CudaApi::Driver& driver) noexcept {
    if (!wide || driver.encode_map == nullptr || plane.quant_row % 16 != 0 || plane.rows > 0x7fffffffU / row_words)
      return false;
    if (Facts::blocks && plane.scale_row != column_bytes) return false;
    constexpr CUtensorMapSwizzle swizzle = width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                           : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                         : CU_TENSOR_MAP_SWIZZLE_32B;
    bool ok = describe(driver, maps[0], plane.first.quants, CU_TENSOR_MAP_DATA_TYPE_UINT8, swizzle, plane.quant_row,
                       {plane.quant_row, plane.rows}, {width, keys});
    const auto columns_of = [&](CUtensorMap& map, const std::byte* from) {
      const std::size_t there = plane.width / 32 * scale_bytes / column_bytes;
      return describe(driver, map, from, CU_TENSOR_MAP_DATA_TYPE_INT64, CU_TENSOR_MAP_SWIZZLE_NONE, plane.column,
                      {plane.rows * row_words, there}, {keys * row_words, columns});
    };
    if constexpr (Facts::blocks) ok = ok && columns_of(maps[1], plane.first.scales);
    if constexpr (fives) ok = ok && columns_of(maps[2], plane.first.fifths);
    return ok;
  }

  /// Box `i` of a step. Rows before and after the plane's become zeros.
  /// @param element  of the plane's rows: first of the head's
  /// @param part     of this plane in a step's
  __device__ static AttendBox box(const AttendSource& from, unsigned i, unsigned element, unsigned part) {
    const auto base = static_cast<unsigned>(from.plane.base);
    if (i < quant_boxes) {
      const auto at = static_cast<int>(element / 32 * Facts::group_bytes + i * width);
      return {from.maps, at, base, part + i * keys * width, false};
    }
    const bool scales = i == quant_boxes;
    return {from.maps + (scales ? 1 : 2), static_cast<int>(element / 32 * scale_bytes / column_bytes), base,
            part + (scales ? scales_at : fifths_at), true};
  }

  /// By all threads, two per key, without the copy engine. Rows outside [lo, hi) become zeros.
  /// @param from  `plane`, or another of the same shape
  __device__ void copy(const PortableSource& from, std::uint32_t to, unsigned first, unsigned lo, unsigned hi,
                       unsigned element) const {
    constexpr unsigned n = row_bytes / 16;
    const unsigned key = threadIdx.x / 2;
    const bool valid = first + key >= lo && first + key < hi;
    const std::size_t row = valid ? first + key - from.base : 0;
    if (!wide) {
      copy_blocks(from, to, row, valid, element);
      return;
    }
    const std::byte* const quants = from.first.quants + row * from.quant_row + element / 32 * Facts::group_bytes;
#pragma unroll 2
    for (unsigned i = threadIdx.x % 2; i < n; i += 2) copy_16_async(to + piece_at(key, i), quants + i * 16, valid);
    if constexpr (Facts::blocks) {
      const unsigned at = word_at(key, column_offset(element));
#pragma unroll 1
      for (unsigned i = threadIdx.x % 2 * 4; i < dims / 32 * scale_bytes; i += 8) {
        const ConstBlockCursor c = from.at(row, element / 32 + i / scale_bytes);
        copy_4_async(to + scales_at + at + scale_at(i), c.scales, valid);
        if constexpr (fives) copy_4_async(to + fifths_at + at + scale_at(i), c.fifths, valid);
      }
    }
  }

 private:
  using Pair = std::array<std::size_t, 2>;

  /// @param stride  bytes, of the second dimension
  static bool describe(const CudaApi::Driver& driver, CUtensorMap& map, const std::byte* from, CUtensorMapDataType type,
                       CUtensorMapSwizzle swizzle, std::size_t stride, Pair size, Pair box) noexcept {
    const cuuint64_t sizes[2] = {size[0], size[1]};
    const cuuint64_t strides[1] = {stride};
    const cuuint32_t box_size[2] = {static_cast<cuuint32_t>(box[0]), static_cast<cuuint32_t>(box[1])};
    const cuuint32_t step[2] = {1, 1};
    return driver.encode_map(&map, type, 2, const_cast<std::byte*>(from), sizes, strides, box_size, step,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

  /// Blocks of 34, 24 or 18 bytes, aligned to 2: through registers, and waited for.
  __device__ static void copy_blocks(const PortableSource& from, std::uint32_t to, std::size_t row, bool valid,
                                     unsigned element) {
    if constexpr (Facts::blocks) {
      const unsigned key = threadIdx.x / 2;
#pragma unroll 1
      for (unsigned group = threadIdx.x % 2; group < dims / 32; group += 2) {
        const ConstBlockCursor c = from.at(row, element / 32 + group);
        const auto half = [&](const std::byte* p, unsigned n) {
          return valid ? reinterpret_cast<const std::uint16_t*>(p)[n] : std::uint16_t{0};
        };
        const auto word = [&](const std::byte* p, unsigned n) {
          return std::uint32_t{half(p, 2 * n)} | std::uint32_t{half(p, 2 * n + 1)} << 16;
        };
#pragma unroll
        for (unsigned n = 0; n < Facts::group_bytes / 4; ++n) {
          store_shared(to + piece_at(key, group * (Facts::group_bytes / 16) + n / 4) + n % 4 * 4, word(c.quants, n));
        }
        const unsigned at = word_at(key, column_offset(element) + group * scale_bytes);
        if constexpr (F == Format::q5_1) {
          store_shared(to + scales_at + at, word(c.scales, 0));
          store_shared(to + fifths_at + at, word(c.fifths, 0));
        } else {
          store_shared_half(to + scales_at + at, half(c.scales, 0));
        }
      }
    }
  }
};

}  // namespace memra::detail
