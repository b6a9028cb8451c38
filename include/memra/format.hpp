// Element formats of K, V and state planes as constexpr facts. The codecs are in <memra/codec.hpp>.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace memra {

enum class Format : std::uint8_t { f32, f16, bf16, q8_0, q5_1, q4_0, fp8_e4m3 };

/// All formats, in declaration order.
inline constexpr std::array<Format, 7> all_formats = {Format::f32,  Format::f16,  Format::bf16,    Format::q8_0,
                                                      Format::q5_1, Format::q4_0, Format::fp8_e4m3};

/// What a plane stores per block. Formats without blocks have blocks of one element.
struct FormatFacts {
  std::string_view name;
  std::size_t block_elems;  ///< elements per block
  std::size_t block_bytes;  ///< bytes per block: the sum of the three below
  std::size_t quant_bytes;  ///< q8_0: int8[32]; q5_1, q4_0: nibbles[16]; otherwise the element itself
  std::size_t fifth_bytes;  ///< q5_1: the fifth bits, u32
  std::size_t scale_bytes;  ///< q8_0, q4_0: f16 d; q5_1: f16 d, f16 min
};

/// Block sizes are those of ggml's block_q8_0, block_q5_1 and block_q4_0; fp8 is OCP e4m3fn.
constexpr FormatFacts facts(Format format) noexcept {
  switch (format) {
    case Format::f32:
      return {"f32", 1, 4, 4, 0, 0};
    case Format::f16:
      return {"f16", 1, 2, 2, 0, 0};
    case Format::bf16:
      return {"bf16", 1, 2, 2, 0, 0};
    case Format::q8_0:
      return {"q8_0", 32, 34, 32, 0, 2};
    case Format::q5_1:
      return {"q5_1", 32, 24, 16, 4, 4};
    case Format::q4_0:
      return {"q4_0", 32, 18, 16, 0, 2};
    case Format::fp8_e4m3:
      return {"fp8", 1, 1, 1, 0, 0};
  }
  return {"", 1, 0, 0, 0, 0};
}

constexpr std::string_view to_string(Format format) noexcept {
  return facts(format).name;
}

/// "q8_0" -> Format::q8_0; nullopt for a name that is none of ours.
constexpr std::optional<Format> parse_format(std::string_view name) noexcept {
  for (const Format f : all_formats) {
    if (facts(f).name == name) return f;
  }
  return std::nullopt;
}

/// True if `n` elements are a whole number of blocks.
constexpr bool whole_blocks(Format format, std::size_t n) noexcept {
  return n % facts(format).block_elems == 0;
}

/// Bytes of `n` elements.
/// @pre whole_blocks(format, n), and the product fits (plan() checks both for sizes from outside)
constexpr std::size_t row_bytes(Format format, std::size_t n) noexcept {
  return n / facts(format).block_elems * facts(format).block_bytes;
}

/// How the rows of a plane lie in memory.
///
/// - `blocks`: ggml's interleaved order, row after row: [rows][width / block_elems] blocks.
/// - `split`: one sub-plane per part, each starting on a multiple of 16 bytes: quants [rows][width/32][32 or 16], then
///   fifth bits and scales, 4 and 2 (q5_1: 4) bytes a block, in columns of 16 bytes: [row's bytes / 16][rows][16], or
///   [rows][row's bytes] where those are no multiple of 16. Formats without blocks have one sub-plane, equal to
///   `blocks`. See layout.hpp.
enum class Layout : std::uint8_t { blocks, split };

constexpr std::string_view to_string(Layout layout) noexcept {
  return layout == Layout::blocks ? "blocks" : "split";
}

}  // namespace memra
