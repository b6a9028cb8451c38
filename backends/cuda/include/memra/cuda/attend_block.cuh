// What the parts of attend's kernel share: shape, shared memory, where a thread stands.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/cuda/api.hpp>
#include <memra/cuda/attend_grid.cuh>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_stage.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/detail/attend_sequence.hpp>
#include <memra/ops.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// @tparam Dk      K's head dimension
/// @tparam Tiles   of 8 columns, a column being a (row, query head)
/// @tparam Warps   each scores 16 keys of a step; two, or one or two warpgroups, whose products are their own where the
///                 target has those
/// @tparam Groups  of 32 elements of V for each warp
template <Format KF, Format VF, unsigned Dk, unsigned Tiles, unsigned Warps, unsigned Groups>
struct CudaAttendBlock {
  static constexpr Format k_format = KF;
  static constexpr Format v_format = VF;
  static constexpr unsigned dk = Dk;
  static constexpr unsigned n_tiles = Tiles;
  /// Eight columns are too few for a warpgroup's products. Both kinds give the same bits: tests/gpu/attend.cu.
  static constexpr bool group = Warps >= 4 && Tiles > 1;
  static constexpr unsigned groups = Groups;
  static constexpr unsigned warps = Warps;
  static constexpr unsigned block_threads = 32 * warps;
  /// Kernels of 8 columns: one wave is all of their blocks (see cuda_attend_chunks), if they come evenly. Where one
  /// more finds room some multiprocessors get it and others one less, and the wave takes that much longer.
  static constexpr bool even = Tiles == 1 && groups == 1 && Warps <= 4;
  /// Blocks that a multiprocessor runs at a time.
  static constexpr unsigned running_blocks = Warps > 4 ? 1 : Tiles > 1 ? 2 : Warps == 2 ? 8 : 5 - groups;
  /// Where it runs several of 8 columns, it has registers for a quarter more: those of the fold, whose blocks then
  /// begin beside the last of these. The compiler needs no more.
  static constexpr unsigned least_blocks = even ? running_blocks * 5 / 4 : running_blocks;
  /// There are registers to spare: 64 columns of wide heads have none.
  static constexpr bool roomy = Tiles == 1 || (groups == 1 && Warps <= 4);
  static constexpr bool waits_itself = true;
  static constexpr unsigned step_keys = 16 * warps;
  static constexpr unsigned chunk_unit = step_keys < 64 ? 64 : step_keys;  ///< CudaAttendShape::unit
  static constexpr unsigned slice_dims = 32 * groups * warps;              ///< of V
  static constexpr unsigned columns = 8 * Tiles;
  static constexpr unsigned most_stages = 3;
  /// Shared memory of a multiprocessor, less what the system takes of each block.
  static constexpr std::size_t multiprocessor_bytes = 227 * 1024;
  /// Bytes of steps that a multiprocessor's blocks must have on their way.
  static constexpr std::size_t enough_bytes = 64 * 1024;
  static constexpr bool k_bf16 = AttendFormat<KF>::bf16;
  static constexpr bool v_bf16 = AttendFormat<VF>::bf16;
  /// Halves that a query's element is the sum of: with the first alone bf16 would lose what planes of it have kept.
  static constexpr unsigned terms = k_bf16 ? 2 : 1;
  using Keys = AttendKeys<KF>;
  using Values = AttendValues<VF>;
  using KStage = AttendStage<KF, step_keys, Dk>;
  using VStage = AttendStage<VF, step_keys, slice_dims>;
  using Sums = float[2 * groups][Tiles][4];

  CudaAttendShape shape;
  KStage k;
  VStage v;
  const float* q;  ///< [rows][n_heads][dk]
  float scale;     ///< times log2 e
  float* partials;
  unsigned slices;      ///< of a head's V: blocks that share a kv head and chunk
  unsigned tiles;       ///< of columns
  unsigned stages = 2;  ///< steps in shared memory
  bool mapped = false;  ///< copied by the copy engine

  CudaAttendBlock(const KvReadView& kv, const AttendArgs& a, const CudaAttendShape& s, float* to) noexcept
      : shape(s),
        k(PortableSource(kv.k), kv.k.shape.layout == Layout::split),
        v(PortableSource(kv.v), kv.v.shape.layout == Layout::split),
        q(a.q),
        scale(a.scale * 1.44269504F),  // scores come out in units of log2: the weights are powers of two
        partials(to),
        slices(static_cast<unsigned>(kv.head_dim_v / slice_dims)),
        tiles(static_cast<unsigned>((s.rows * (a.n_heads / kv.n_kv_heads) + columns - 1) / columns)) {}

  /// Shared memory of which `even` kernels take so much that no block more finds room.
  static constexpr std::size_t even_bytes = multiprocessor_bytes / (running_blocks + 1) + 512;
  static constexpr std::size_t bytes_with(unsigned steps) noexcept {
    const std::size_t needed = steps_at + steps * step_bytes;
    return even && needed < even_bytes ? even_bytes : needed;
  }
  std::size_t shared_bytes() const noexcept { return bytes_with(stages); }

  /// As many steps on their way as leave room for another block beside this one; two, if the multiprocessor's blocks
  /// together then have enough on their way: more than that is no gain, and for some a loss.
  /// @param limit  shared memory that a block may have
  static unsigned stages_within(std::size_t limit) noexcept {
    if (even && running_blocks * step_bytes >= enough_bytes &&
        bytes_with(2) <= multiprocessor_bytes / running_blocks - 1024)
      return 2;
    // Four blocks to a multiprocessor, or three, two, one.
    constexpr std::array<std::size_t, 4> rooms{55, 74, 112, 227};
    for (std::size_t i = 0; i < rooms.size(); ++i) {
      const std::size_t most = rooms[i] * 1024 < limit ? rooms[i] * 1024 : limit;
      for (unsigned n = most_stages; n > 2; --n) {
        if (bytes_with(n) <= most) return n;
      }
    }
    return 2;
  }
  void complete(const CudaApi::Driver& driver) noexcept {
    mapped = k.describe(driver) && v.describe(driver);
    stages = stages_within(driver.shared_bytes);
  }

  /// Blocks that a multiprocessor of the H200 holds at a time: its registers are enough for `running_blocks`.
  static std::size_t resident(std::size_t limit) noexcept {
    const std::size_t n = multiprocessor_bytes / (bytes_with(stages_within(limit)) + 1024);
    return n < running_blocks ? (n == 0 ? 1 : n) : running_blocks;
  }

  // Shared memory: weights of two steps [keys / 16][Tiles][2][8][8] halves; q [terms][dk / 16][Tiles][2][8][8]; per
  // warp and column maxima (then sums of weights, then exponents); factors of scores; per column keys it sees; its row,
  // and where chunk 0 would have its partial result if the first that the row sees has the first; a byte per warp:
  // whether its scores passed the top, or V's scales what halves hold; what the copy engine brings; barriers; steps.
  static constexpr unsigned step_bytes = KStage::bytes + VStage::bytes;
  static constexpr unsigned boxes = KStage::boxes + VStage::boxes;
  static_assert(boxes <= 32);
  static constexpr unsigned weights_bytes = Tiles * step_keys * 16;
  static constexpr unsigned queries_at = 2 * weights_bytes;
  static constexpr unsigned maxima_at = queries_at + terms * Dk * Tiles * 16;
  static constexpr unsigned factors_at = maxima_at + (warps + 1) * columns * 4;
  static constexpr unsigned ranges_at = factors_at + columns * 4;
  static constexpr unsigned owners_at = ranges_at + columns * 8;
  static constexpr unsigned flags_at = owners_at + columns * 8;
  static constexpr unsigned boxes_at = flags_at + 16;
  static constexpr unsigned barriers_at = boxes_at + boxes * sizeof(AttendBox);
  static constexpr unsigned steps_at = (barriers_at + 8 * most_stages + 1023) / 1024 * 1024;

  /// A warpgroup waits for its last warp at every product: its warps start copies while products are on their way, if
  /// three steps find room in half a multiprocessor. With two they would come late.
  static constexpr bool copies_later = group && steps_at + most_stages * step_bytes <= 112 * 1024;

  struct Place {
    unsigned warp, lane, g, t;
    unsigned heads;  ///< query heads of a kv head
    unsigned first_column, row_a, row_b;
    unsigned kv_head, chunk, slice;
    unsigned chunks;                ///< that this block takes, from `chunk` on
    unsigned k_element, v_element;  ///< of the planes' rows: first that the block reads
    // From a step's part on: what this lane loads of K, and of V's groups, key 2 t for scales and fifth bits.
    unsigned k_quants, k_scales;
    unsigned v_quants[groups], v_scales[groups], v_fifths[groups];
    uint2 v_bits;                    ///< where a lane's fifth bits are: AttendValues::lane_bits
    bool v_upper[groups];            ///< half of a word that the scale is
    unsigned size;                   ///< of chunks
    const AttendSequence* sequence;  ///< of a batch
    std::byte* shared;
    std::uint32_t base;
  };

  /// `kept`, where there are registers for it.
  __device__ static std::uint32_t keep(std::uint32_t v) {
    if constexpr (roomy) return kept(v);
    return v;
  }

  /// Keys [x, y) that row `row` of the pass sees; none: both the same.
  __device__ uint2 span(std::int32_t pos, unsigned row) const {
    const AttendSpan s = shape.span(pos, row);
    return {static_cast<unsigned>(s.lo < s.hi ? s.lo : s.hi), static_cast<unsigned>(s.hi)};
  }

  __device__ static void group_begin_if() {
    if constexpr (group) group_begin();
  }
  __device__ static void group_commit_if() {
    if constexpr (group) group_commit();
  }
  __device__ static void group_wait_if() {
    if constexpr (group) group_wait();
  }
};

}  // namespace memra::detail
