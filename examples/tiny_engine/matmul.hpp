// y[r][o] = sum_k x[r][k] w[o][k], weights kept as stored. A row's bits do not depend on the rows beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/error.hpp>
#include <memra/launch.hpp>
#include <memra/views.hpp>
#include <tiny_engine/lanes.hpp>

namespace tiny {

/// How a weight matrix is stored.
enum class WeightType : std::uint8_t { f32, f16, bf16 };

MEMRA_HD constexpr std::size_t weight_bytes(WeightType t) noexcept {
  return t == WeightType::f32 ? 4 : 2;
}

/// A weight matrix on a device: [n_out][n_in], row after row.
struct MatrixView {
  const std::byte* data = nullptr;
  WeightType type = WeightType::f32;
  std::size_t n_out = 0;
  std::size_t n_in = 0;
};

namespace internal {

/// Outputs of one work item. Its weights (16 rows of a few thousand inputs) stay in a near cache while all rows pass.
/// Compilers that make device code get one output of one row per item instead: there, items are plentiful and small.
#if MEMRA_DEVICE_COMPILE()
inline constexpr std::size_t item_outputs = 1;
inline constexpr std::size_t item_rows = 1;
#else
inline constexpr std::size_t item_outputs = 16;
inline constexpr std::size_t item_rows = static_cast<std::size_t>(-1);  // all
#endif

// Rows that reuse one converted weight vector, and outputs that run beside each other. The sums of a tile must fit in
// registers: 16 of 512 bits, or 8 lanes-of-16 halves in 16 of 256 bits. Neither number changes a bit of any result.
#if defined(__AVX512F__)
inline constexpr std::size_t tile_rows = 8;
inline constexpr std::size_t tile_outputs = 2;
#else
inline constexpr std::size_t tile_rows = 4;
inline constexpr std::size_t tile_outputs = 1;
#endif
/// A single row is bound by memory: four outputs give four streams of weights and hide the latency of the additions.
inline constexpr std::size_t single_row_outputs = 4;

template <WeightType T>
MEMRA_HD inline void load_weights(Lanes& a, const std::byte* p) noexcept {
  if constexpr (T == WeightType::f32) {
    load_f32(a, p);
  } else if constexpr (T == WeightType::f16) {
    load_f16(a, p);
  } else {
    load_bf16(a, p);
  }
}

}  // namespace internal

/// One item of the grid's x: the outputs [16 x, 16 x + 16) of all rows (see item_outputs, item_rows).
template <WeightType T>
struct MatmulBody {
  const std::byte* w = nullptr;  ///< [n_out][n_in]
  const float* x = nullptr;      ///< [rows][n_in]
  float* y = nullptr;            ///< [rows][n_out]; must not overlap x
  std::size_t n_out = 0;
  std::size_t n_in = 0;
  std::size_t rows = 0;
  bool add = false;  ///< y += instead of y =

  MEMRA_HD void operator()(const memra::Item& item) const noexcept {
    const std::size_t first = item.x * internal::item_outputs;
    const std::size_t last = first + internal::item_outputs < n_out ? first + internal::item_outputs : n_out;
    if constexpr (internal::item_rows == 1) {
      outputs<1, 1>(item.y, first, last);
    } else {
      std::size_t r = 0;
      for (; r + internal::tile_rows <= rows; r += internal::tile_rows) {
        outputs<internal::tile_rows, internal::tile_outputs>(r, first, last);
      }
      rest<internal::tile_rows - 1>(r, first, last);
    }
  }

 private:
  /// The rows after the last whole tile: as many as there are, in one pass.
  template <std::size_t N>
  MEMRA_HD void rest(std::size_t r, std::size_t first, std::size_t last) const noexcept {
    if constexpr (N != 0) {
      if (rows - r == N) {
        outputs<N, N == 1 ? internal::single_row_outputs : internal::tile_outputs>(r, first, last);
      } else {
        rest<N - 1>(r, first, last);
      }
    }
  }

  template <std::size_t R, std::size_t O>
  MEMRA_HD void outputs(std::size_t r, std::size_t first, std::size_t last) const noexcept {
    std::size_t o = first;
    for (; o + O <= last; o += O) tile<R, O>(r, o);
    for (; o < last; ++o) tile<R, 1>(r, o);
  }

  template <std::size_t R, std::size_t O>
  MEMRA_HD void tile(std::size_t r, std::size_t o) const noexcept {
    constexpr std::size_t bytes = weight_bytes(T);
    const std::byte* wp[O];
    const float* xp[R];
    Lanes acc[R * O];
    for (std::size_t j = 0; j < O; ++j) wp[j] = w + (o + j) * n_in * bytes;
    for (std::size_t i = 0; i < R; ++i) {
      xp[i] = x + (r + i) * n_in;
      for (std::size_t j = 0; j < O; ++j) clear(acc[i * O + j]);
    }
    std::size_t k = 0;
    for (; k + lane_count <= n_in; k += lane_count) {
      Lanes wv[O];
      for (std::size_t j = 0; j < O; ++j) internal::load_weights<T>(wv[j], wp[j] + k * bytes);
      for (std::size_t i = 0; i < R; ++i) {
        Lanes xv;
        load(xv, xp[i] + k);
        for (std::size_t j = 0; j < O; ++j) add_product(acc[i * O + j], xv, wv[j]);
      }
    }
    if (k < n_in) {  // the last lanes have nothing to add
      Lanes wv[O];
      for (std::size_t j = 0; j < O; ++j) {
        std::byte padded[lane_count * bytes] = {};
        std::memcpy(padded, wp[j] + k * bytes, (n_in - k) * bytes);
        internal::load_weights<T>(wv[j], padded);
      }
      for (std::size_t i = 0; i < R; ++i) {
        Lanes xv;
        load_part(xv, xp[i] + k, n_in - k);
        for (std::size_t j = 0; j < O; ++j) add_product(acc[i * O + j], xv, wv[j]);
      }
    }
    float sum[(R * O + 3) / 4 * 4];
    fold_all<0>(acc, sum);
    for (std::size_t i = 0; i < R; ++i) {
      for (std::size_t j = 0; j < O; ++j) {
        float* out = y + (r + i) * n_out + o + j;
        *out = add ? *out + sum[i * O + j] : sum[i * O + j];
      }
    }
  }

  /// Folds the tile's sums from S on, four at a time.
  template <std::size_t S, std::size_t N>
  MEMRA_HD static void fold_all(const Lanes (&acc)[N], float* sum) noexcept {
    constexpr std::size_t last = N - 1;
    fold4(acc[S], acc[S + 1 < N ? S + 1 : last], acc[S + 2 < N ? S + 2 : last], acc[S + 3 < N ? S + 3 : last], sum + S);
    if constexpr (S + 4 < N) fold_all<S + 4>(acc, sum);
  }
};

/// y = x w^T for `rows` rows, or y += x w^T.
/// @param x  [rows][n_in]   @param y  [rows][n_out]; must not overlap x
template <memra::LaunchDev Dev>
memra::Status matmul(Dev& dev, const MatrixView& w, const float* x, std::size_t rows, float* y,
                     bool add = false) noexcept {
  const memra::Grid grid{rows == 0 ? 0 : (w.n_out + internal::item_outputs - 1) / internal::item_outputs,
                         internal::item_rows == 1 ? rows : 1, 1};
  switch (w.type) {
    case WeightType::f32:
      return memra::launch(dev, "matmul_f32", grid,
                           MatmulBody<WeightType::f32>{w.data, x, y, w.n_out, w.n_in, rows, add});
    case WeightType::f16:
      return memra::launch(dev, "matmul_f16", grid,
                           MatmulBody<WeightType::f16>{w.data, x, y, w.n_out, w.n_in, rows, add});
    case WeightType::bf16:
      return memra::launch(dev, "matmul_bf16", grid,
                           MatmulBody<WeightType::bf16>{w.data, x, y, w.n_out, w.n_in, rows, add});
  }
  return {};
}

}  // namespace tiny
