// One step's keys in shared memory: where K and V of 16 keys per warp lie, and how they get there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/detail/portable_plane.hpp>
#include <memra/format.hpp>

namespace memra::detail {

/// Rows of 16-byte pieces whose number is odd: eight rows of a matrix load then lie in different banks.
constexpr unsigned attend_stride(unsigned bytes) noexcept {
  return (bytes / 16 | 1U) * 16;
}
/// For n / divisor by one multiplication: right for n < 2^16.
constexpr std::uint32_t attend_reciprocal(unsigned divisor) noexcept {
  return divisor == 1 ? 0 : static_cast<std::uint32_t>((0x100000000ULL + divisor - 1) / divisor);
}
__device__ inline unsigned attend_divide(unsigned n, std::uint32_t reciprocal) {
  return reciprocal == 0 ? n : __umulhi(n, reciprocal);
}

/// One kv head's part of a plane, copied in steps of `keys` rows.
///
/// Shared memory of a step: quants [keys][stride]; scales, of K [keys][groups] halves, of V [words][keys] words in the
/// order of AttendValues::slot; then fifth bits as words, likewise.
template <Format F, bool Keys>
struct AttendStage {
  using Facts = AttendFormat<F>;

  PortableSource plane;
  bool wide;      ///< sub-planes of whole words; else interleaved blocks
  unsigned dims;  ///< elements of a head that are copied
  unsigned keys;
  unsigned stride;
  unsigned scales_at;  ///< from the start of the step's part
  unsigned fifths_at;
  unsigned bytes;  ///< of a step's part
  std::uint32_t by_pieces;
  std::uint32_t by_words;

  AttendStage(const PortableSource& p, bool split, unsigned n_dims, unsigned n_keys) noexcept
      : plane(p), wide(split || !Facts::blocks), dims(n_dims), keys(n_keys) {
    stride = attend_stride(n_dims / 32 * Facts::group_bytes);
    by_pieces = attend_reciprocal(pieces());
    by_words = attend_reciprocal(scale_words());
    scales_at = n_keys * stride;
    fifths_at = scales_at + (Facts::blocks ? n_keys * scale_words() * 4 : 0);
    bytes = fifths_at + (F == Format::q5_1 ? n_keys * n_dims / 32 * 4 : 0);
  }

  __host__ __device__ unsigned pieces() const { return dims / 32 * Facts::group_bytes / 16; }
  __host__ __device__ unsigned scale_words() const { return dims / Facts::scale_word_elems; }

  /// Starts copying rows [first, first + keys) of the stream into `to`; rows outside [lo, hi) become zeros.
  /// @param element  of the plane's rows: first of the head's
  __device__ void copy(std::uint32_t to, std::size_t first, std::size_t lo, std::size_t hi, std::size_t element) const {
    if (wide) {
      copy_wide(to, first, lo, hi, element);
    } else {
      copy_blocks(to, first, lo, hi, element);
    }
  }

 private:
  __device__ static unsigned word_slot(unsigned key) { return key / 16 * 16 + AttendValues<F>::slot(key % 16); }

  __device__ void copy_wide(std::uint32_t to, std::size_t first, std::size_t lo, std::size_t hi,
                            std::size_t element) const {
    const unsigned n = pieces();
    const std::byte* const quants = plane.first.quants + element / 32 * Facts::group_bytes;
    for (unsigned i = threadIdx.x; i < keys * n; i += blockDim.x) {
      const unsigned key = attend_divide(i, by_pieces);
      const unsigned piece = i - key * n;
      const std::size_t row = first + key;
      const bool valid = row >= lo && row < hi;
      copy_16_async(to + key * stride + piece * 16,
                    valid ? quants + (row - plane.base) * plane.quant_row + piece * 16 : quants, valid);
    }
    if constexpr (Facts::blocks) {
      const std::byte* const scales = plane.first.scales + element / 32 * (F == Format::q5_1 ? 4 : 2);
      copy_words(to + scales_at, scales, plane.scale_row, scale_words(), by_words, first, lo, hi);
    }
    if constexpr (F == Format::q5_1) {
      copy_words(to + fifths_at, plane.first.fifths + element / 32 * 4, plane.fifth_row, scale_words(), by_words, first,
                 lo, hi);
    }
  }

  __device__ void copy_words(std::uint32_t to, const std::byte* from, std::size_t row_bytes, unsigned n,
                             std::uint32_t by, std::size_t first, std::size_t lo, std::size_t hi) const {
    for (unsigned i = threadIdx.x; i < keys * n; i += blockDim.x) {
      const unsigned key = attend_divide(i, by);
      const unsigned word = i - key * n;
      const std::size_t row = first + key;
      const bool valid = row >= lo && row < hi;
      copy_4_async(to + 4 * (Keys ? i : word * keys + word_slot(key)),
                   valid ? from + (row - plane.base) * row_bytes + word * 4 : from, valid);
    }
  }

  /// Blocks of 34, 24 or 18 bytes, aligned to 2: through registers, without waiting being hidden.
  __device__ void copy_blocks(std::uint32_t to, std::size_t first, std::size_t lo, std::size_t hi,
                              std::size_t element) const {
    if constexpr (Facts::blocks) {
      const unsigned groups = dims / 32;
      for (unsigned i = threadIdx.x; i < keys * groups; i += blockDim.x) {
        const unsigned key = i / groups;
        const unsigned group = i - key * groups;
        const std::size_t row = first + key;
        const bool valid = row >= lo && row < hi;
        const ConstBlockCursor c = plane.at(valid ? row - plane.base : 0, element / 32 + group);
        const auto half = [&](const std::byte* p, unsigned n) {
          return valid ? reinterpret_cast<const std::uint16_t*>(p)[n] : std::uint16_t{0};
        };
#pragma unroll
        for (unsigned n = 0; n < Facts::group_bytes / 2; ++n) {
          store_shared_half(to + key * stride + group * Facts::group_bytes + 2 * n, half(c.quants, n));
        }
        if constexpr (F == Format::q5_1) {
          const unsigned at = (group * keys + word_slot(key)) * 4;
          store_shared(to + scales_at + at, half(c.scales, 0) | std::uint32_t{half(c.scales, 1)} << 16);
          store_shared(to + fifths_at + at, half(c.fifths, 0) | std::uint32_t{half(c.fifths, 1)} << 16);
        } else if constexpr (Keys) {
          store_shared_half(to + scales_at + (key * groups + group) * 2, half(c.scales, 0));
        } else {
          store_shared_half(to + scales_at + (group / 2 * keys + word_slot(key)) * 4 + group % 2 * 2,
                            half(c.scales, 0));
        }
      }
    }
  }
};

}  // namespace memra::detail
