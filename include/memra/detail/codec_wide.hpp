// The block codecs sixteen lanes at a time: the same bytes and bits as <memra/detail/codec_scalar.hpp>, which says what
// they are. Blocks that hold a NaN or an infinity, or whose scale is not usable, are left to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/codec_scalar.hpp>
#include <memra/detail/half.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/simd_pack.hpp>

namespace memra::detail {

inline constexpr std::int32_t magnitude_mask = 0x7FFFFFFF;
inline constexpr std::int32_t signed_inf_bits = 0x7F800000;

/// stored_scale for a scale that is not NaN.
inline std::uint16_t fast_stored_scale(float d) noexcept {
  const std::uint16_t h = fast_f32_to_f16(d);
  return (h & 0x7FFFU) == 0x7C00U ? static_cast<std::uint16_t>(h - 1U) : h;
}

/// Smallest and largest element of a block. Floats are compared as integers of the same order, so that NaN and infinity
/// show up at the ends; -0 is below +0.
struct BlockRange {
  std::int32_t lowest;
  std::int32_t highest;

  static constexpr std::int32_t key(std::int32_t bits) noexcept { return bits ^ ((bits >> 31) & magnitude_mask); }
  bool finite() const noexcept { return highest < signed_inf_bits && lowest > -1 - signed_inf_bits; }
  float min() const noexcept { return f32_from_bits(static_cast<std::uint32_t>(key(lowest))); }
  float max() const noexcept { return f32_from_bits(static_cast<std::uint32_t>(key(highest))); }
};
template <class Simd>
inline BlockRange block_range(const F32x16<Simd>& a, const F32x16<Simd>& b) noexcept {
  using I = I32x16<Simd>;
  const I magnitude = I::broadcast(magnitude_mask);
  const auto key = [&](const I& v) { return v ^ (shift_right_signed(v, 31) & magnitude); };
  const I ka = key(bits(a));
  const I kb = key(bits(b));
  return {min_lane(min(ka, kb)), max_lane(max(ka, kb))};
}

template <class Simd>
inline void wide_encode_q8_0(const float* x, std::byte* quants, std::byte* scale) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const F a = F::load(x);
  const F b = F::load(x + 16);
  const I magnitude = I::broadcast(magnitude_mask);
  const std::int32_t top = max_lane(max(bits(a) & magnitude, bits(b) & magnitude));
  if (top >= signed_inf_bits) return scalar_encode_q8_0(x, quants, scale);
  const float d = f32_from_bits(static_cast<std::uint32_t>(top)) / 127.0F;
  const F id = F::broadcast(inverse_scale(d));
  const I sign = I::broadcast(~magnitude_mask);
  const I below_half = I::broadcast(0x3EFFFFFF);
  const auto round = [&](const F& v) {
    const F t = v * id;
    return truncate(t + F::from_bits((bits(t) & sign) | below_half));
  };
  narrow_i8(round(a), quants);
  narrow_i8(round(b), quants + 16);
  store_bytes(scale, fast_stored_scale(d));
}

template <class Simd>
inline void wide_encode_q5_1(const float* x, std::byte* quants, std::byte* fifths, std::byte* scale) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const F a = F::load(x);
  const F b = F::load(x + 16);
  const BlockRange range = block_range(a, b);
  float min = range.min();
  const float d = (range.max() - min) / 31.0F;
  if (!range.finite() || f32_bits(d) >= f32_inf_bits) return scalar_encode_q5_1(x, quants, fifths, scale);
  if (min == 0.0F) {
    const float* zero = x;
    while (*zero != 0.0F) ++zero;
    min = *zero;
  }
  const F id = F::broadcast(inverse_scale(d));
  const F lowest = F::broadcast(min);
  const F half = F::broadcast(0.5F);
  const I q0 = truncate((a - lowest) * id + half);
  const I q1 = truncate((b - lowest) * id + half);
  const I low_bits = I::broadcast(15);
  narrow_u8((q0 & low_bits) | ((q1 & low_bits) << 4), quants);
  store_bytes(fifths, top_bits(q0 << 27) | top_bits(q1 << 27) << 16);
  const std::uint32_t pair = fast_stored_scale(d) | static_cast<std::uint32_t>(fast_f32_to_f16(min)) << 16;
  store_bytes(scale, static_cast<std::uint16_t>(pair));
  store_bytes(scale + 2, static_cast<std::uint16_t>(pair >> 16));
}

template <class Simd>
inline void wide_encode_q4_0(const float* x, std::byte* quants, std::byte* scale) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const F a = F::load(x);
  const F b = F::load(x + 16);
  const BlockRange range = block_range(a, b);
  float largest = range.max();
  if (largest == -range.min()) {
    const float* first = x;
    while (*first != largest && *first != -largest) ++first;
    largest = largest == 0.0F ? 0.0F : *first;
  } else if (largest < -range.min()) {
    largest = range.min();
  }
  const float d = largest / -8.0F;
  const float id = inverse_scale(d);
  if (!range.finite() || (id == 0.0F && d != 0.0F)) return scalar_encode_q4_0(x, quants, scale);
  const F inverse = F::broadcast(id);
  const F offset = F::broadcast(8.5F);
  const F highest = F::broadcast(15.5F);
  const I q0 = truncate(min(a * inverse + offset, highest));
  const I q1 = truncate(min(b * inverse + offset, highest));
  narrow_u8(q0 | (q1 << 4), quants);
  store_bytes(scale, fast_stored_scale(d));
}

template <class Simd>
inline void wide_decode_q8_0(const std::byte* quants, const std::byte* scale, float* y) noexcept {
  using F = F32x16<Simd>;
  const F d = F::broadcast(fast_f16_to_f32(load_bytes<std::uint16_t>(scale)));
  (d * F::from_int(widen_i8<Simd>(quants))).store(y);
  (d * F::from_int(widen_i8<Simd>(quants + 16))).store(y + 16);
}

template <class Simd>
inline void wide_decode_q5_1(const std::byte* quants, const std::byte* fifths, const std::byte* scale,
                             float* y) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const F d = F::broadcast(fast_f16_to_f32(load_bytes<std::uint16_t>(scale)));
  const F min = F::broadcast(fast_f16_to_f32(load_bytes<std::uint16_t>(scale + 2)));
  const auto fifth = load_bytes<std::uint32_t>(fifths);
  const I b = widen_u8<Simd>(quants);
  const I q0 = (b & I::broadcast(15)) | spread_bits<Simd>(fifth & 0xFFFFU, 16);
  const I q1 = (b >> 4) | spread_bits<Simd>(fifth >> 16, 16);
  (d * F::from_int(q0) + min).store(y);
  (d * F::from_int(q1) + min).store(y + 16);
}

template <class Simd>
inline void wide_decode_q4_0(const std::byte* quants, const std::byte* scale, float* y) noexcept {
  using F = F32x16<Simd>;
  using I = I32x16<Simd>;
  const F d = F::broadcast(fast_f16_to_f32(load_bytes<std::uint16_t>(scale)));
  const I b = widen_u8<Simd>(quants);
  const I eight = I::broadcast(8);
  (d * F::from_int((b & I::broadcast(15)) - eight)).store(y);
  (d * F::from_int((b >> 4) - eight)).store(y + 16);
}

}  // namespace memra::detail
