// Elements of a recurrent state sixteen at a time: loaded as f32, stored with one rounding.
#pragma once

#include <cstddef>
#include <memra/detail/codec_elements.hpp>
#include <memra/detail/simd.hpp>
#include <memra/detail/simd_pack.hpp>
#include <memra/format.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// Elements [i, i + 16) of a state in format Fmt: f32, f16 or bf16.
template <Format Fmt, class Simd>
inline F32x16<Simd> load_elems(const StateElems& s, std::size_t i) noexcept {
  if constexpr (Fmt == Format::f32) {
    return F32x16<Simd>::load(s.f32 + i);
  } else {
    const I32x16<Simd> h = widen_u16<Simd>(reinterpret_cast<const std::byte*>(s.bits + i));
    if constexpr (Fmt == Format::f16) return wide_f16_to_f32(h);
    return F32x16<Simd>::from_bits(h << 16);
  }
}

template <Format Fmt, class Simd>
inline void store_elems(const StateElems& s, std::size_t i, const F32x16<Simd>& x) noexcept {
  if constexpr (Fmt == Format::f32) {
    x.store(s.f32 + i);
  } else {
    narrow_u16(Fmt == Format::f16 ? wide_f32_to_f16(x) : wide_f32_to_bf16(x), reinterpret_cast<std::byte*>(s.bits + i));
  }
}

/// What a load gives after a store.
template <Format Fmt, class Simd>
inline F32x16<Simd> round_elems(const F32x16<Simd>& x) noexcept {
  if constexpr (Fmt == Format::f16) return wide_f16_to_f32(wide_f32_to_f16(x));
  if constexpr (Fmt == Format::bf16) return F32x16<Simd>::from_bits(wide_f32_to_bf16(x) << 16);
  return x;
}

/// Calls f.template operator()<Fmt>() for the format of a state.
template <class Fn>
inline void with_state_format(Format format, const Fn& f) noexcept {
  if (format == Format::f16) return f.template operator()<Format::f16>();
  if (format == Format::bf16) return f.template operator()<Format::bf16>();
  return f.template operator()<Format::f32>();
}

}  // namespace memra::detail
