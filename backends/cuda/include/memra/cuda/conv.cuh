// conv_update on CUDA: tokens in chunks, a channel per thread. Same bits as the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/math.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/format.hpp>
#include <memra/launch.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// An output depends on d_conv inputs and nothing else, so chunks of tokens are independent. Only the first chunk of a
/// channel reads the ring, and the thread that has it writes the new one afterwards.
/// Taps: d_conv where the inputs of a token are to stay in registers for the next ones; 0: any d_conv, inputs read
/// again.
template <unsigned Taps>
struct CudaConv {
  static constexpr unsigned block_threads = 128;
  static constexpr std::size_t most_chunk = 32;
  /// Threads that keep the largest GPUs of today busy: more tokens than this many per channel are chunked.
  static constexpr std::size_t enough_threads = std::size_t{1} << 18;

  RecurView r;
  ConvArgs a;
  std::uint32_t channels;
  std::uint32_t chunk;
  std::uint32_t head;  ///< tokens of the first chunk: at least those that read the ring

  CudaConv(const RecurView& view, const ConvArgs& args) noexcept
      : r(view), a(args), channels(static_cast<std::uint32_t>(view.conv_dim())), chunk(1), head(1) {
    const std::size_t share = view.rows * channels / enough_threads;
    chunk = static_cast<std::uint32_t>(share < 1 ? 1 : share < most_chunk ? share : most_chunk);
    const auto kept = static_cast<std::uint32_t>(view.d_conv - 1);
    head = chunk < kept ? kept : chunk;
  }

  static bool fits(const RecurView& r) noexcept {
    return r.conv_format == Format::f32 && r.conv_dim() <= 0x7fffffffU && r.d_conv <= 0x7fffffffU &&
           r.rows <= 65535 * most_chunk && (Taps == 0 || r.d_conv == Taps);
  }

  Grid grid() const noexcept {
    const std::size_t rest = r.rows <= head ? 0 : (r.rows - head + chunk - 1) / chunk;
    return {(channels + block_threads - 1) / block_threads, 1 + rest, 1};
  }

  /// Item: (block of channels, chunk).
  __device__ void block(const Item& item) const {
    const std::uint32_t c = static_cast<std::uint32_t>(item.x) * block_threads + threadIdx.x;
    if (c >= channels) return;
    const std::size_t first = item.y == 0 ? 0 : head + (item.y - 1) * chunk;
    std::size_t end = first + (item.y == 0 ? head : chunk);
    if (end > r.rows) end = r.rows;
    const float bias = a.bias != nullptr ? a.bias[c] : 0.0F;
    if constexpr (Taps == 0) {
      if (!r.fits()) return;
      for (std::size_t t = first; t < end; ++t) {
        float y = bias;
        for (std::size_t j = 0; j < r.d_conv; ++j) y = y + product(a.weight[c * r.d_conv + j], input(c, t, j));
        a.y[t * channels + c] = a.silu ? silu(y) : y;
        if (r.round.mode != RoundMode::none && r.d_conv > 1)
          r.round.conv_rows[t * channels + c] = a.x[t * channels + c];
      }
      if (item.y != 0 || r.round.mode != RoundMode::none) return;
      // Ascending, so that an entry is read before it is overwritten.
      for (std::size_t j = 0; j + 1 < r.d_conv; ++j) r.conv[c * (r.d_conv - 1) + j] = input(c, r.rows, j);
    } else {
      constexpr unsigned kept = Taps - 1;
      float w[Taps];
#pragma unroll
      for (unsigned j = 0; j < Taps; ++j) w[j] = a.weight[c * Taps + j];
      float x[kept + group];  // the inputs before a group of tokens, then the group's
#pragma unroll
      for (unsigned j = 0; j < kept; ++j) x[j] = input(c, first, j);
      float last[kept];
      const bool moves = item.y == 0 && r.round.mode == RoundMode::none;
      if (moves) {
#pragma unroll
        for (unsigned j = 0; j < kept; ++j) last[j] = input(c, r.rows, j);
      }
      if (!r.fits()) return;
      const float* from = a.x + first * channels + c;
      float* to = a.y + first * channels + c;
      float* keep = r.round.mode == RoundMode::none ? nullptr : r.round.conv_rows + first * channels + c;
      for (auto left = static_cast<int>(end - first); left > 0; left -= static_cast<int>(group)) {
#pragma unroll
        for (int i = 0; i < static_cast<int>(group); ++i) {
          if (i < left) x[kept + i] = *from;
          from += channels;
        }
#pragma unroll
        for (int i = 0; i < static_cast<int>(group); ++i) {
          float y = bias;
#pragma unroll
          for (unsigned j = 0; j < Taps; ++j) y = y + product(w[j], x[i + j]);
          if (a.silu) y = silu(y);
          if (i < left) *to = y;
          to += channels;
          if (keep == nullptr) continue;
          if (i < left) *keep = x[kept + i];
          keep += channels;
        }
#pragma unroll
        for (unsigned j = 0; j < kept; ++j) x[j] = x[group + j];
      }
      if (!moves) return;
#pragma unroll
      for (unsigned j = 0; j < kept; ++j) r.conv[c * kept + j] = last[j];
    }
  }

 private:
  static constexpr unsigned group = 4;  ///< tokens whose inputs are loaded together

  /// Input at time t - (d_conv - 1) + j; the ring comes before token 0.
  __device__ float input(std::size_t c, std::size_t t, std::size_t j) const {
    const std::size_t kept = (Taps == 0 ? r.d_conv : Taps) - 1;
    return t + j < kept ? r.conv[c * kept + t + j] : a.x[(t + j - kept) * channels + c];
  }

  /// silu_f32 in fewer instructions. Its exponential is that of exp_f32 wherever 1 + e^-x depends on it; below, the sum
  /// is 1 anyway. Above, 2^(n-1) and 2 are factors that do not round.
  static __device__ float silu(float x) {
    using C = ExpConstants;
    const float z = fminf(fmaxf(-x, -80.0F), C::highest);  // NaN comes back through the quotient
    const float shifted = product(z, C::log2_e) + C::round;
    const float n = shifted - C::round;
    const float f = (z - product(n, C::ln2_high)) - product(n, C::ln2_low);
    float p = product(C::p4, f) + C::p3;
    p = product(p, f) + C::p2;
    p = product(p, f) + C::p1;
    p = product(p, f) + C::p0;
    const float y = (product(product(p, f), f) + f) + 1.0F;
    const float half = f32_from_bits((f32_bits(shifted) << 23) + (126U << 23));
    return quotient(x, 1.0F + product(product(y, half), 2.0F));
  }
};

}  // namespace memra::detail
