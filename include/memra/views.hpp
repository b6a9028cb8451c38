// What kernels receive: trivially copyable descriptions of planes and positions. No ownership, no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/half.hpp>
#include <memra/detail/platform.hpp>
#include <memra/format.hpp>
#include <memra/layout.hpp>
#include <string_view>
#include <type_traits>

namespace memra {

/// Rows of every ring are a multiple of this, so that a tile of the attention grid is never split.
inline constexpr std::size_t ring_tile = 64;

/// One K or V plane. Row r of the stream is physical row r - base (a flat plane has base 0), in a ring row r mod
/// phys_rows.
///
/// Resident are rows [base, base + phys_rows) at most. A ring's base is what the host knew when it made the view: good
/// for checks on the host. Kernels go by position and window instead, because a captured launch replays with another
/// position: a step is only begun if every window fits in the ring.
template <class Byte>
struct BasicPlaneView {
  Byte* data = nullptr;   ///< device address, plane_alignment aligned
  PlaneShape shape = {};  ///< shape.rows is phys_rows
  std::size_t base = 0;   ///< stream row held by physical row 0; in a ring the oldest row that is there
  bool ring = false;      ///< phys_rows is then a multiple of ring_tile

  constexpr std::size_t phys_rows() const noexcept { return shape.rows; }
  /// False for a row that is outside a flat plane; a ring has a place for every row.
  MEMRA_HD constexpr bool holds(std::size_t row) const noexcept {
    return ring || (row >= base && row - base < shape.rows);
  }
  /// Where stream row `row` is, if it is there.
  MEMRA_HD constexpr std::size_t phys(std::size_t row) const noexcept { return ring ? row % shape.rows : row - base; }
  constexpr explicit operator bool() const noexcept { return data != nullptr; }
  /// A writable view is also a readable one. A template, because a conversion to the own type is never called.
  template <class Other, std::enable_if_t<!std::is_const_v<Byte> && std::is_same_v<Other, const Byte>, int> = 0>
  constexpr operator BasicPlaneView<Other>() const noexcept {  // NOLINT(google-explicit-constructor)
    return {data, shape, base, ring};
  }
};
using PlaneView = BasicPlaneView<std::byte>;
using ConstPlaneView = BasicPlaneView<const std::byte>;

/// Where a call stands in the stream. The position is data on the device: a captured launch replays with another one.
/// A negative position marks a stream that ran out of rows (see detail/device_pos.hpp): kernels then write no row and
/// see none.
struct StepPos {
  const std::int32_t* pos_d = nullptr;  ///< device: rows before this call; write slot of its first row
  std::size_t rows = 0;                 ///< rows of this call (t)
  std::size_t pos_bound = 0;            ///< host: *pos_d is at most this; for grid sizes only
  std::size_t capacity = 0;             ///< rows the planes hold; kernels write nothing at or beyond it
};

/// One attention layer as append writes it.
struct KvWriteView {
  PlaneView k;  ///< [rows][n_kv_heads * head_dim_k]
  PlaneView v;  ///< [rows][n_kv_heads * head_dim_v]; empty with v_in_k
  std::size_t n_kv_heads = 0;
  std::size_t head_dim_k = 0;
  std::size_t head_dim_v = 0;
  StepPos at = {};
  bool v_in_k = false;  ///< V is the first head_dim_v elements of each head's K (MLA)
};

/// One attention layer as attend reads it. Row i of a call sees stream rows [lo, *pos_d + i + 1) where lo is 0, or with
/// a window max(0, *pos_d + i + 1 - window): the window counts the current token.
struct KvReadView {
  ConstPlaneView k;
  ConstPlaneView v;  ///< empty with v_in_k
  std::size_t n_kv_heads = 0;
  std::size_t head_dim_k = 0;
  std::size_t head_dim_v = 0;
  std::size_t window = 0;  ///< 0: none
  StepPos at = {};
  bool v_in_k = false;  ///< V is the first head_dim_v elements of each head's K (MLA)
};

/// Rows that stand for `stride` tokens each, as a step writes and reads them. Row g is that of tokens [g * stride,
/// (g + 1) * stride) and is written by the last of them.
struct GroupedView {
  PlaneView rows;  ///< [max_ctx / stride][dim]
  std::size_t stride = 1;
  StepPos at = {};

  /// Rows that row `i` of a call at `pos` sees: those of whole groups, its own among them if it ends one.
  MEMRA_HD constexpr std::size_t seen(std::int32_t pos, std::size_t i) const noexcept {
    return pos < 0 ? 0 : (static_cast<std::size_t>(pos) + i + 1) / stride;
  }
  /// Whether row `i` of a call at `pos` ends a group: it writes row seen(pos, i) - 1.
  MEMRA_HD constexpr bool ends(std::int32_t pos, std::size_t i) const noexcept {
    const std::size_t token = static_cast<std::size_t>(pos < 0 ? 0 : pos) + i;
    return pos >= 0 && token < at.capacity && (token + 1) % stride == 0;
  }
};

/// Which key head a value head reads.
enum class KeyHeadMode : std::uint8_t {
  grouped,      ///< Hugging Face: h / (n_v / n_k)
  interleaved,  ///< GGUF: h mod n_k
};

/// The mapping, for a whole layer (totals 0) or for a shard that holds value heads [first_v, first_v + n_v) of
/// `total_v` and, of `total_k` key heads, all of them or the run of n_k that starts with the one its first value head
/// reads.
struct KeyHeadMap {
  KeyHeadMode mode = KeyHeadMode::grouped;
  std::size_t first_v = 0;
  std::size_t total_v = 0;
  std::size_t total_k = 0;

  friend constexpr bool operator==(const KeyHeadMap&, const KeyHeadMap&) = default;

  /// Key head, among the n_k held here, of value head h of the n_v held here.
  MEMRA_HD constexpr std::size_t key_head(std::size_t h, std::size_t n_k, std::size_t n_v) const noexcept {
    const std::size_t all_v = total_v == 0 ? n_v : total_v;
    const std::size_t all_k = total_k == 0 ? n_k : total_k;
    const std::size_t group = all_v / all_k;
    const std::size_t global = mode == KeyHeadMode::grouped ? (first_v + h) / group : (first_v + h) % all_k;
    if (n_k == all_k) return global;
    const std::size_t first = mode == KeyHeadMode::grouped ? first_v / group : first_v % all_k;
    return (global + all_k - first) % all_k;
  }

  /// True if every value head reads a key head that is held here.
  constexpr bool fits(std::size_t n_k, std::size_t n_v) const noexcept {
    const std::size_t all_v = total_v == 0 ? n_v : total_v;
    const std::size_t all_k = total_k == 0 ? n_k : total_k;
    if (n_k == 0 || n_v == 0 || n_k > all_k || all_v % all_k != 0 || n_v > all_v || first_v > all_v - n_v) return false;
    if (n_k == all_k) return true;
    // The key heads read are a run that starts with the first one's: grouped, it ends with the last value head's;
    // interleaved, each value head reads the next. No loop: the counts come from outside and may be absurd.
    const std::size_t group = all_v / all_k;
    const std::size_t run = mode == KeyHeadMode::grouped ? (first_v + n_v - 1) / group - first_v / group + 1 : n_v;
    return run <= n_k;
  }
};

/// How a recurrent state moves on by a token. S is one head's ssm, [d_v][d_k]; k, q of d_k, v of d_v elements.
enum class ScanRule : std::uint8_t {
  gated_delta,  ///< S <- e^g S; u = beta (v - S k); S <- S + u k^T; out = S q / sqrt(d_k): a decay per value head
  kda,          ///< the same with a decay per key channel: column i of S is multiplied by e^g[i]
  linear,       ///< S <- e^g S; u = beta v; S <- S + u k^T; out = S q: Mamba-2 (g = dt A, beta = dt), lightning
  mamba1,       ///< S[c][i] <- e^(g[c] A[c][i]) S[c][i] + (g[c] v[c]) k[i]; out = S q: g is dt, k is B, q is C
  none,         ///< no ssm: a convolution alone
};

inline constexpr std::size_t all_scan_rules = 5;

constexpr std::string_view to_string(ScanRule rule) noexcept {
  switch (rule) {
    case ScanRule::gated_delta:
      return "gated_delta";
    case ScanRule::kda:
      return "kda";
    case ScanRule::linear:
      return "linear";
    case ScanRule::mamba1:
      return "mamba1";
    case ScanRule::none:
      return "none";
  }
  return "unknown";
}

/// Numeric classes of a recurrent scan. Each gives its own bits, within the other's error of the same numbers.
enum class ScanClass : std::uint8_t {
  sequential,  ///< token by token: what decoding, rounds and replays do
  chunked,     ///< a prompt in chunks of scan_chunk tokens, for which it must be asked (Cache::begin_step)
};

/// Tokens of a chunk. Chunks lie on an absolute grid: the first token of each is at a multiple of this. A call of the
/// chunked class starts on the grid; where it ends, a last chunk may be shorter.
inline constexpr std::size_t scan_chunk = 64;

constexpr std::string_view to_string(ScanClass scan) noexcept {
  return scan == ScanClass::sequential ? "sequential" : "chunked";
}

/// What conv_update and delta_scan do with the state.
enum class RoundMode : std::uint8_t {
  none,    ///< a plain step: conv and ssm move on in place
  planes,  ///< conv stays; the ssm after token t goes to plane (current + 1 + t) mod n_planes, the current one stays
  stash,   ///< conv and ssm stay
};

/// Where a round keeps what its commit needs. A kernel that takes a RecurView with another mode than `none` must fill
/// these: raw conv inputs in both modes, planes in the one, k, u and decay in the other.
struct RecurRound {
  RoundMode mode = RoundMode::none;
  const std::int32_t* plane_d = nullptr;  ///< device: index of the current ssm plane; nullptr: 0, which is `ssm`
  float* planes = nullptr;                ///< [n_planes - 1][n_v_heads][d_v][d_k]: planes 1, 2, ...
  std::size_t n_planes = 1;
  float* conv_rows = nullptr;         ///< [rows][conv_dim] raw inputs of the round
  float* k = nullptr;                 ///< [rows][n_k_heads][d_k] as the scan got it
  float* u = nullptr;                 ///< [rows][n_v_heads][d_v] beta (v - S^T k)
  float* decay = nullptr;             ///< [rows][n_v_heads] e^g; kda: [rows][n_v_heads][d_k]
  std::uint16_t* planes16 = nullptr;  ///< in the place of `planes` if the ssm is kept in 16 bits
};

/// Elements of a recurrent state in the format they are kept in, read and written as f32. A store rounds to nearest
/// even. One of the two addresses is set.
struct StateElems {
  float* f32 = nullptr;
  std::uint16_t* bits = nullptr;  ///< f16 or bf16
  Format format = Format::f32;

  MEMRA_HD float load(std::size_t i) const noexcept {
    if (format == Format::f32) return f32[i];
    return format == Format::f16 ? detail::f16_to_f32(bits[i]) : detail::bf16_to_f32(bits[i]);
  }
  MEMRA_HD void store(std::size_t i, float x) const noexcept {
    if (format == Format::f32) {
      f32[i] = x;
    } else {
      bits[i] = format == Format::f16 ? detail::f32_to_f16(x) : detail::f32_to_bf16(x);
    }
  }
  /// What a load gives after a store of x.
  MEMRA_HD float rounded(float x) const noexcept {
    if (format == Format::f32) return x;
    return format == Format::f16 ? detail::f16_to_f32(detail::f32_to_f16(x))
                                 : detail::bf16_to_f32(detail::f32_to_bf16(x));
  }
  MEMRA_HD StateElems operator+(std::size_t n) const noexcept {
    return format == Format::f32 ? StateElems{f32 + n, nullptr, format} : StateElems{nullptr, bits + n, format};
  }
  std::byte* data() const noexcept {
    return format == Format::f32 ? reinterpret_cast<std::byte*>(f32) : reinterpret_cast<std::byte*>(bits);
  }
  constexpr explicit operator bool() const noexcept { return f32 != nullptr || bits != nullptr; }
};

/// Current state of one recurrent layer, updated in place. A state that is kept in 16 bits has its address in conv16 or
/// ssm16 and a null one here, so that a kernel for f32 cannot take it for its own; `conv_state` and `plane_state` serve
/// all formats.
struct RecurView {
  float* conv = nullptr;  ///< [conv_dim][d_conv - 1] raw inputs, oldest first
  float* ssm = nullptr;   ///< [n_v_heads][d_v][d_k]: column of S contiguous
  float* ssm_alt =
      nullptr;  ///< scratch of the same size for kernels that cannot update in place; nullptr unless asked for
  std::size_t n_k_heads = 0;
  std::size_t n_v_heads = 0;
  std::size_t d_k = 0;
  std::size_t d_v = 0;
  std::size_t d_conv = 0;
  KeyHeadMap map = {};
  std::size_t rows = 0;  ///< rows of this call (t)
  StepPos at = {};       ///< position and capacity of the stream; without a pos_d the call always fits
  RecurRound round = {};
  ScanRule rule = ScanRule::gated_delta;
  std::size_t conv_channels = 0;  ///< 0: 2 * d_k * n_k + d_v * n_v
  Format conv_format = Format::f32;
  Format ssm_format = Format::f32;
  std::uint16_t* conv16 = nullptr;
  std::uint16_t* ssm16 = nullptr;
  std::uint16_t* ssm_alt16 = nullptr;
  ScanClass scan = ScanClass::sequential;  ///< how a kernel is to go through the call's tokens; chunked: in no round

  /// False if the call would pass the stream's capacity or the stream ran out before, or if a call of the chunked class
  /// starts off the grid: kernels then change nothing.
  MEMRA_HD bool fits() const noexcept {
    if (at.pos_d == nullptr) return true;
    const std::int32_t pos = *at.pos_d;
    return pos >= 0 && static_cast<std::size_t>(pos) + rows <= at.capacity &&
           (scan == ScanClass::sequential || static_cast<std::size_t>(pos) % scan_chunk == 0);
  }
  /// The layer has a chunked class.
  MEMRA_HD constexpr bool has_chunks() const noexcept {
    return rule == ScanRule::gated_delta && ssm_format == Format::f32;
  }
  /// Plane `i` of the ssm: 0 is `ssm` itself.
  MEMRA_HD constexpr float* plane(std::size_t i) const noexcept {
    return i == 0 ? ssm : round.planes + (i - 1) * n_v_heads * d_v * d_k;
  }
  /// Index of the current plane.
  MEMRA_HD std::size_t current() const noexcept {
    return round.plane_d == nullptr ? 0 : static_cast<std::size_t>(*round.plane_d);
  }

  /// Where the rule has q, k and v in its convolution: all q channels, then all k, then all v.
  MEMRA_HD constexpr std::size_t conv_dim() const noexcept {
    return conv_channels != 0 ? conv_channels : 2 * d_k * n_k_heads + d_v * n_v_heads;
  }
  MEMRA_HD constexpr std::size_t ssm_elems() const noexcept { return n_v_heads * d_v * d_k; }
  MEMRA_HD constexpr StateElems conv_state() const noexcept { return {conv, conv16, conv_format}; }
  MEMRA_HD constexpr StateElems plane_state(std::size_t i) const noexcept {
    if (ssm_format == Format::f32) return {plane(i), nullptr, ssm_format};
    return {nullptr, i == 0 ? ssm16 : round.planes16 + (i - 1) * ssm_elems(), ssm_format};
  }
  /// Decays that a value head has per token in a stash.
  MEMRA_HD constexpr std::size_t decay_width() const noexcept { return rule == ScanRule::kda ? d_k : 1; }
  /// What kernels for the first kind of recurrent layer take: gated delta in f32.
  MEMRA_HD constexpr bool plain() const noexcept {
    return rule == ScanRule::gated_delta && conv_format == Format::f32 && ssm_format == Format::f32;
  }
};

/// One layer of a draft KV cache: f32 rows [phys_rows][n_kv * head_dim], committed rows first, then the block's. Row r
/// of the stream is physical row r - first_row(), also in a ring, whose rows are copied to the front when it is full.
///
/// A captured launch replays with other lengths, and over a ring that has moved, if its len_bound was raised to the
/// cache's cap: length and first row are data on the device.
struct DraftView {
  float* k = nullptr;
  float* v = nullptr;
  std::size_t n_kv = 0;
  std::size_t head_dim = 0;
  std::size_t window = 0;  ///< 0: none. Key visible to position p iff key >= max(p - (window-1), floor)
  std::size_t floor = 0;   ///< rows below are never visible
  std::size_t base = 0;    ///< stream row held by physical row 0; in a ring when the view was made
  std::size_t phys_rows = 0;
  const std::int32_t* len_d = nullptr;   ///< device: committed rows; the block's rows are [*len_d, *len_d + block_rows)
  std::size_t len_bound = 0;             ///< host: *len_d is at most this
  std::size_t block_rows = 0;            ///< rows of the block in this call
  const std::int32_t* base_d = nullptr;  ///< device: what a ring has in the place of base; nullptr: base

  /// Stream row held by physical row 0.
  MEMRA_HD constexpr std::int64_t first_row() const noexcept {
    return base_d != nullptr ? std::int64_t{*base_d} : static_cast<std::int64_t>(base);
  }
  /// Most committed rows that a query may meet, for the size of scratch.
  MEMRA_HD constexpr std::size_t most_keys() const noexcept { return len_bound < phys_rows ? len_bound : phys_rows; }
};

static_assert(std::is_trivially_copyable_v<StateElems> && std::is_trivially_copyable_v<GroupedView> &&
              std::is_trivially_copyable_v<KvWriteView> && std::is_trivially_copyable_v<KvReadView> &&
              std::is_trivially_copyable_v<RecurView> && std::is_trivially_copyable_v<DraftView>);

}  // namespace memra
