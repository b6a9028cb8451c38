// What the ops take beside the views of a step: queries, inputs, results, scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/format.hpp>

namespace memra {

/// Scratch an op may use: device memory owned by the caller (see Workspace).
struct WorkspaceView {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// Query side of attend.
struct AttendArgs {
  const float* q = nullptr;  ///< [rows][n_heads][head_dim_k]; query head h reads kv head h / (n_heads / n_kv_heads)
  float* out = nullptr;      ///< [rows][n_heads][head_dim_v]; every element is written
  std::size_t n_heads = 0;   ///< a multiple of n_kv_heads
  float scale = 1.0F;        ///< scores are scale * (q . k)
};

/// Depthwise causal convolution over the raw inputs, then the ring keeps the newest d_conv - 1 of them.
struct ConvArgs {
  const float* x = nullptr;       ///< [rows][conv_dim] raw inputs
  const float* weight = nullptr;  ///< [conv_dim][d_conv], newest tap last
  const float* bias = nullptr;    ///< [conv_dim] or nullptr
  float* y = nullptr;             ///< [rows][conv_dim]; must not overlap x
  bool silu = true;               ///< y = silu(conv)
};

/// Inputs of a scan, one row per token; what they do says the view's ScanRule. Mamba calls k, q and v B, C and x.
struct ScanArgs {
  const float* q = nullptr;     ///< [rows][n_k][d_k]; rows q_stride elements apart. Delta rules: L2-normalised
  const float* k = nullptr;     ///< [rows][n_k][d_k]; rows k_stride elements apart. Delta rules: L2-normalised
  const float* v = nullptr;     ///< [rows][n_v][d_v]; rows v_stride elements apart
  const float* g = nullptr;     ///< log decay, <= 0: [rows][n_v]; kda: [rows][n_v][d_k]; mamba1: dt >= 0, [rows][d_v]
  const float* beta = nullptr;  ///< [rows][n_v]; linear: nullptr for ones; mamba1: not read
  float* out = nullptr;         ///< [rows][n_v][d_v]
  std::size_t q_stride = 0;     ///< 0: dense
  std::size_t k_stride = 0;
  std::size_t v_stride = 0;
  const float* a = nullptr;  ///< mamba1: [d_v][d_k] A, < 0
};

/// The two arms of draft attention. They agree bit for bit as long as masked rows are finite.
enum class DraftArm : std::uint8_t {
  clip,       ///< reads visible rows only
  full_scan,  ///< scores every row below len + block_rows and masks
};

/// Attention of a draft block: every query sees its visible committed rows and all rows of the block.
struct DraftAttendArgs {
  const float* q = nullptr;  ///< [block_rows][n_heads][head_dim]; query i is at position *len_d + i
  float* out = nullptr;      ///< [block_rows][n_heads][head_dim]
  std::size_t n_heads = 0;   ///< a multiple of n_kv
  float scale = 1.0F;
  DraftArm arm = DraftArm::clip;
};

/// A table whose rows gather_rows decodes, such as an embedding.
struct TableView {
  const std::byte* data = nullptr;  ///< [rows][width] in `format`, blocks layout
  Format format = Format::f32;
  std::size_t rows = 0;
  std::size_t width = 0;
};

}  // namespace memra
