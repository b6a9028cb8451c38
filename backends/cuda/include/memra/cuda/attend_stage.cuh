// One step's keys in shared memory: where K and V of 16 keys per warp lie, and how they get there.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/detail/portable_plane.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// One copy of the copy engine.
struct AttendBox {
  const CUtensorMap* map;
  unsigned to;  ///< from the step's start
  int x;        ///< first byte of a row
  int y;        ///< added to the row
  int unused;
};

/// One kv head's part of a plane, a step of `keys` rows at a time.
///
/// Shared memory of a step, every part a multiple of 1,024 bytes from its start: quants as boxes [keys][width], width
/// 128, 64 or 32 bytes, 16-byte pieces swizzled as the copy engine does (bits 7 and up of the offset are added without
/// carry to bits 4 and up), so that the eight rows of a matrix load lie in different banks; scales as boxes [keys][16];
/// fifth bits likewise.
template <Format F, unsigned StepKeys>
struct AttendStage {
  static constexpr unsigned keys = StepKeys;
  using Facts = AttendFormat<F>;
  static constexpr unsigned scale_bytes = F == Format::q5_1 ? 4 : 2;  ///< of a block

  CUtensorMap map;  ///< of the quants; set by `describe`
  PortableSource plane;
  bool wide;      ///< sub-planes of whole words; else interleaved blocks
  unsigned dims;  ///< elements of a head that are copied
  unsigned width;
  unsigned width_shift;
  unsigned scales_at;  ///< from the start of the step's part
  unsigned fifths_at;
  unsigned bytes;  ///< of a step's part

  AttendStage(const PortableSource& p, bool split, unsigned n_dims) noexcept
      : map(), plane(p), wide(split || !Facts::blocks), dims(n_dims) {
    width_shift = row_bytes() % 128 == 0 ? 7 : row_bytes() % 64 == 0 ? 6 : 5;
    width = 1U << width_shift;
    scales_at = keys * row_bytes();
    fifths_at = scales_at + (Facts::blocks ? keys * boxes(scale_bytes) * 16 : 0);
    bytes = (fifths_at + (F == Format::q5_1 ? keys * boxes(4) * 16 : 0) + 1023) / 1024 * 1024;
  }

  __host__ __device__ unsigned row_bytes() const { return dims / 32 * Facts::group_bytes; }
  /// Boxes of 16 bytes that hold a key's scales or fifth bits; a small head shares its box with neighbours.
  __host__ __device__ unsigned boxes(unsigned block_bytes) const {
    const unsigned n = dims / 32 * block_bytes;
    return n < 16 ? 1 : n / 16;
  }
  /// Where in its boxes a head's first block is.
  __host__ __device__ static unsigned box_offset(std::size_t element, unsigned block_bytes) {
    return static_cast<unsigned>(element / 32 * block_bytes % 16);
  }
  /// Offset of word `byte` / 4 of a key's scales.
  __device__ static unsigned word_at(unsigned key, unsigned byte) {
    return byte / 16 * keys * 16 + key * 16 + byte % 16;
  }
  /// Offset of 16-byte piece `piece` of a key's quants.
  __device__ unsigned piece_at(unsigned key, unsigned piece) const {
    const unsigned at = key * width + (piece * 16 & (width - 1));
    return (piece * 16 >> width_shift) * keys * width + (at ^ ((at >> 3) & (width - 1) & ~15U));
  }

  /// Element `e` of a key's head, from the step's part at `part`. For block formats.
  /// @param offset  box_offset of the head's scales
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

  /// Describes the quants to the copy engine. False if it cannot take them, or the rest is not whole pieces.
  bool describe(const CudaApi::Driver& driver) noexcept {
    if (!wide || driver.encode_map == nullptr || plane.quant_row % 16 != 0 || plane.rows > 0x7fffffffU) return false;
    if (Facts::blocks && (plane.scale_row % 16 != 0 || plane.fifth_row % 16 != 0)) return false;
    const CUtensorMapSwizzle swizzle = width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_32B;
    const cuuint64_t size[2] = {plane.quant_row, plane.rows};
    const cuuint64_t stride[1] = {plane.quant_row};
    const cuuint32_t box[2] = {width, keys};
    const cuuint32_t step[2] = {1, 1};
    return driver.encode_map(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<std::byte*>(plane.first.quants), size,
                             stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

  /// Boxes of a step's quants.
  __host__ __device__ unsigned quant_boxes() const { return row_bytes() >> width_shift; }
  __host__ __device__ unsigned quant_bytes() const { return keys * row_bytes(); }

  /// What the copy engine brings for a step: boxes of `keys` rows, as they are; rows before and after the plane's
  /// become zeros.
  /// @param to       of this part, from the step's on
  /// @param element  of the plane's rows: first of the head's
  /// @param y        added to the row
  __device__ void list(AttendBox* out, unsigned to, std::size_t element, int y) const {
    const auto first = static_cast<unsigned>(element / 32 * Facts::group_bytes);
    for (unsigned i = 0; i < quant_boxes(); ++i) {
      out[i] = {&map, to + i * keys * width, static_cast<int>(first + i * width), y, 0};
    }
  }

  /// By all threads, two per key: scales and fifth bits, which are too narrow for the copy engine.
  /// @param row   of the plane, for the step's first key
  /// @param half  which of a key's two threads copies if there is work for one
  __device__ void copy_narrow(std::uint32_t to, std::int64_t row, std::size_t element, unsigned half) const {
    if constexpr (Facts::blocks) {
      const unsigned key = threadIdx.x / 2;
      const unsigned own = threadIdx.x % 2;
      const bool valid = row + key >= 0 && row + key < static_cast<std::int64_t>(plane.rows);
      const bool fifths = F == Format::q5_1 && own == 1;
      if (F != Format::q5_1 && own != half) return;
      const std::byte* const from =
          (fifths ? plane.first.fifths : plane.first.scales) +
          static_cast<std::size_t>(valid ? row + key : 0) * (fifths ? plane.fifth_row : plane.scale_row) +
          element / 32 * scale_bytes / 16 * 16;
      to += (fifths ? fifths_at : scales_at) + key * 16;
      copy_16_async(to, from, valid);
      for (unsigned i = 1; i < boxes(scale_bytes); ++i) copy_16_async(to + i * keys * 16, from + i * 16, valid);
    }
  }

  /// By all threads, two per key, without the copy engine. Rows outside [lo, hi) become zeros.
  __device__ void copy(std::uint32_t to, std::size_t first, std::size_t lo, std::size_t hi, std::size_t element) const {
    const unsigned n = row_bytes() / 16;
    const unsigned key = threadIdx.x / 2;
    const bool valid = first + key >= lo && first + key < hi;
    const std::size_t row = valid ? first + key - plane.base : 0;
    if (!wide) {
      copy_blocks(to, row, valid, element);
      return;
    }
    const std::byte* const quants = plane.first.quants + row * plane.quant_row + element / 32 * Facts::group_bytes;
#pragma unroll 2
    for (unsigned i = threadIdx.x % 2; i < n; i += 2) copy_16_async(to + piece_at(key, i), quants + i * 16, valid);
    if constexpr (Facts::blocks) {
      copy_words(to + scales_at, plane.first.scales + row * plane.scale_row, key, element, scale_bytes, valid);
    }
    if constexpr (F == Format::q5_1) {
      copy_words(to + fifths_at, plane.first.fifths + row * plane.fifth_row, key, element, 4, valid);
    }
  }

 private:
  /// @param from  the row's first byte
  __device__ void copy_words(std::uint32_t to, const std::byte* from, unsigned key, std::size_t element,
                             unsigned block_bytes, bool valid) const {
    const unsigned offset = box_offset(element, block_bytes);
    from += element / 32 * block_bytes;
#pragma unroll 1
    for (unsigned i = threadIdx.x % 2 * 4; i < dims / 32 * block_bytes; i += 8) {
      copy_4_async(to + word_at(key, offset + i), from + i, valid);
    }
  }

  /// Blocks of 34, 24 or 18 bytes, aligned to 2: through registers, and waited for.
  __device__ void copy_blocks(std::uint32_t to, std::size_t row, bool valid, std::size_t element) const {
    if constexpr (Facts::blocks) {
      const unsigned key = threadIdx.x / 2;
#pragma unroll 1
      for (unsigned group = threadIdx.x % 2; group < dims / 32; group += 2) {
        const ConstBlockCursor c = plane.at(row, element / 32 + group);
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
        const unsigned at = word_at(key, box_offset(element, scale_bytes) + group * scale_bytes);
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
