// Weighted values: the second products of attend's kernel.
#pragma once

#include <cstdint>
#include <memra/cuda/attend_mma.cuh>
#include <memra/cuda/attend_tile.cuh>
#include <memra/cuda/attend_weigh.cuh>

namespace memra::detail {

template <class Block>
struct CudaAttendAdd : CudaAttendWeigh<Block> {
  using Base = CudaAttendWeigh<Block>;
  using Base::Base;
  using Base::columns;
  using Base::group;
  using Base::group_begin_if;
  using Base::group_commit_if;
  using Base::group_wait_if;
  using Base::groups;
  using Base::owners_at;
  using Base::ranges_at;
  using Base::step_keys;
  using Base::v;
  using Base::v_bf16;
  using Base::warps;
  using Base::weights_bytes;
  using typename Base::KStage;
  using typename Base::Place;
  using typename Base::Sums;
  using typename Base::Values;
  using typename Base::VStage;
  static constexpr Format KF = Block::k_format;
  static constexpr Format VF = Block::v_format;
  static constexpr unsigned Tiles = Block::n_tiles;

  /// Keys of a step from `end` on, which nobody sees and the copy engine has brought with the others: their scales, and
  /// V's elements that are not in blocks, become zeros. Such rows may never have been written: what happens to be in
  /// their memory must not look like values beyond halves, which take time. Until the next barrier each lane reads only
  /// what it has seen to itself.
  __device__ void blank(const Place& at, std::uint32_t part, unsigned end) const {
    const unsigned own = at.warp * 16 + at.lane / 2;
    if (AttendFormat<KF>::blocks && own >= end) {
      constexpr unsigned half = column_bytes / 2;
      const std::uint32_t scales = part + KStage::scales_at + KStage::word_at(own, 0) + at.lane % 2 * half;
#pragma unroll 1
      for (unsigned i = 0; i < half * KStage::columns; i += 4) {
        store_shared(scales + KStage::scale_at(i / half * column_bytes) + i % half, 0);
      }
    }
    const std::uint32_t v_part = part + KStage::bytes;
    if constexpr (AttendFormat<VF>::blocks) {
      const unsigned from = share_of_scales(at);
#pragma unroll 1
      for (unsigned i = 0; i < share_bytes; i += 4) {
        if ((from + i) / column_bytes % step_keys >= end) store_shared(v_part + VStage::scales_at + from + i, 0);
      }
    } else if (own >= end) {
#pragma unroll 1
      for (unsigned i = at.lane % 2; i < VStage::row_bytes / 16; i += 2) {
#pragma unroll
        for (unsigned word = 0; word < 16; word += 4) store_shared(v_part + VStage::piece_at(own, i) + word, 0);
      }
    }
    barrier_publish();
    __syncwarp();
  }

  /// Bytes of a step's scales of V that a lane looks at, and the first of them.
  static constexpr unsigned share_bytes = VStage::scales_bytes / step_keys / 2;
  __device__ static unsigned share_of_scales(const Place& at) {
    return at.warp * 32 * share_bytes + at.lane * share_bytes;
  }

  /// Whether this lane finds, among a share of the step's scales, one that halves do not hold. A small head sees its
  /// neighbours' too.
  __device__ bool wild_scales(const Place& at, std::uint32_t part) const {
    if constexpr (AttendFormat<VF>::blocks) {
      const __half2 most =
          __floats2half2_rn(AttendFormat<VF>::most_scale,
                            VF == Format::q5_1 ? AttendFormat<VF>::most_offset : AttendFormat<VF>::most_scale);
      const std::uint32_t own = part + KStage::bytes + VStage::scales_at + share_of_scales(at);
      bool tame = true;
#pragma unroll
      for (unsigned i = 0; i < share_bytes; i += 4)
        tame = __hble2(__habs2(half2_of(load_shared_4(own + i))), most) && tame;
      return !tame;
    }
    return false;
  }

  /// o += V^T times weights, for this warp's elements.
  /// @param wild  whether some scale does not fit into halves
  /// @param edge  first key, from the chunk's on, of a step that some column does not see all of; else -1
  /// @param meanwhile  done once: while products are on their way where `copies_later`, else before
  template <class Meanwhile>
  __device__ void add(const Place& at, std::uint32_t part, unsigned turn, bool wild, int edge, Sums& o,
                      const Meanwhile& meanwhile) const {
    constexpr bool later = Base::copies_later;
    if constexpr (!later) meanwhile();
    const std::uint32_t weights = at.base + turn * weights_bytes;
    if constexpr (AttendFormat<VF>::blocks) {
      if (wild) {
#pragma unroll
        for (unsigned i = 0; i < groups; ++i) add_wild(at, part, i, weights, o);
      }
    } else if (edge >= 0 && block_any(wild_values(at, part))) {
      if constexpr (later) meanwhile();
      return add_by_rows(at, part, weights, edge, o);
    }
    const std::uint32_t operand = AttendOperand<group>(weights, at.lane).at;
    // While some are multiplied others are decoded, if there are registers for it.
    constexpr unsigned ahead = step_keys >= 64 && groups * Tiles <= 8 ? 2 : 1;
#pragma unroll 1
    for (unsigned key = 0; key < step_keys; key += 32 * ahead) {
      std::uint32_t a[ahead][groups][2][2][4];
#pragma unroll
      for (unsigned n = 0; n < ahead; ++n) {
#pragma unroll
        for (unsigned i = 0; i < groups; ++i) load_values(at, part, i, key + 32 * n, a[n][i]);
        products(a[n], operand + AttendOperand<group>::step((key / 16 + 2 * n) * Tiles * 256), o);
      }
      if (later && key == 0) meanwhile();
      group_wait_if();
    }
  }

  /// Keys [key, key + 32) of group i.
  __device__ void load_values(const Place& at, std::uint32_t part, unsigned i, unsigned key,
                              std::uint32_t (&a)[2][2][4]) const {
    constexpr unsigned wide = column_bytes;
    Values::template load<wide>(part + at.v_quants[i] + key * VStage::width, VStage::width,
                                part + at.v_scales[i] + key * wide, part + at.v_fifths[i] + key * wide, at.v_upper[i],
                                at.v_bits, a);
  }

  __device__ static void products(const std::uint32_t (&a)[groups][2][2][4], std::uint32_t weights, Sums& o) {
    group_begin_if();
#pragma unroll
    for (unsigned step = 0; step < 2; ++step) {
#pragma unroll
      for (unsigned i = 0; i < 2 * groups; ++i) {
        multiply<group, v_bf16>(o[i], a[i / 2][step][i % 2], weights + AttendOperand<group>::step(step * Tiles * 256));
      }
    }
    group_commit_if();
  }

  /// V of keys whose values do not fit into halves, or are not finite: added one by one, in f32, to the columns that
  /// give them weight; then their scales become 0.
  __device__ void add_wild(const Place& at, std::uint32_t part, unsigned i, std::uint32_t weights, Sums& o) const {
    constexpr unsigned wide = column_bytes;
    const std::uint32_t scales = part + at.v_scales[i] - 2 * at.t * wide;
    for (unsigned first = 0; first < step_keys; first += 32) {
      const std::uint32_t word = load_shared_4(scales + (first + at.lane) * wide);
      const __half2 size = __habs2(half2_of(word));
      bool wild = !(__half2float(VF != Format::q5_1 && at.v_upper[i] ? __high2half(size) : __low2half(size)) <=
                    AttendFormat<VF>::most_scale);
      if constexpr (VF == Format::q5_1) {
        wild = wild || !(__half2float(__high2half(size)) <= AttendFormat<VF>::most_offset);
      }
      for (unsigned all = __ballot_sync(0xffffffffU, wild); all != 0; all &= all - 1) {
        const unsigned key = first + static_cast<unsigned>(__ffs(static_cast<int>(all))) - 1;
        add_one(at, part, weights, i, key, o);
        __syncwarp();
        if (at.lane == 0) {
          if constexpr (VF == Format::q5_1) {
            store_shared(scales + key * wide, 0);
          } else {
            store_shared_half(scales + key * wide + (at.v_upper[i] ? 2 : 0), 0);
          }
          barrier_publish();
        }
        __syncwarp();
      }
    }
  }

  __device__ void add_one(const Place& at, std::uint32_t part, std::uint32_t weights, unsigned i, unsigned key,
                          Sums& o) const {
    const unsigned offset = VStage::column_offset(at.v_element);
    float x[4];  // tile, half
#pragma unroll
    for (unsigned n = 0; n < 4; ++n) {
      x[n] =
          v.value(part + KStage::bytes, key, (at.warp * groups + i) * 32 + Values::element(n / 2, at.g, n % 2), offset);
    }
#pragma unroll
    for (unsigned tile = 0; tile < Tiles; ++tile) {
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        const std::uint32_t w = load_shared_4(weights + ((key / 16 * Tiles + tile) * 2 + key / 8 % 2) * 128 +
                                              (2 * at.t + j) * 16 + key % 8 / 2 * 4);
        const float p = __half2float(key % 2 == 0 ? __low2half(half2_of(w)) : __high2half(half2_of(w)));
        if (p == 0.0F) continue;
#pragma unroll
        for (unsigned n = 0; n < 4; ++n) {
          float& sum = o[2 * i + n / 2][tile][n % 2 * 2 + j];
          sum = __fmaf_rn(p, x[n], sum);
        }
      }
    }
  }

  /// Whether this lane finds an infinity or NaN among its keys' elements of the warp's group.
  __device__ bool wild_values(const Place& at, std::uint32_t part) const {
    bool wild = false;
    for (unsigned key = at.lane; key < step_keys; key += 32) {
      constexpr unsigned pieces = groups * AttendFormat<VF>::group_bytes / 16;
      for (unsigned i = 0; i < pieces; ++i) {
        const uint4 w = load_shared_16(part + KStage::bytes + v.piece_at(key, at.warp * pieces + i));
        wild = wild || AttendFormat<VF>::wild(w.x) || AttendFormat<VF>::wild(w.y) || AttendFormat<VF>::wild(w.z) ||
               AttendFormat<VF>::wild(w.w);
      }
    }
    return wild;
  }

  /// As `add`, where V has values that are not finite in keys that some columns do not see: those must not meet even
  /// weights of 0. Row by row, with the keys it does not see as zeros, for its columns: the bits are those of a call
  /// that has this row alone.
  __device__ void add_by_rows(const Place& at, std::uint32_t part, std::uint32_t weights, int first, Sums& o) const {
    const auto* const ranges = reinterpret_cast<const uint2*>(at.shared + ranges_at);
    const auto* const owners = reinterpret_cast<const uint2*>(at.shared + owners_at);
    const std::uint32_t operand = AttendOperand<group>(weights, at.lane).at;
#pragma unroll 1
    for (unsigned row = at.row_a; row <= at.row_b; ++row) {
      const unsigned begin = row * at.heads < at.first_column ? 0 : row * at.heads - at.first_column;
      const uint2 seen = ranges[begin];
      Sums x;
#pragma unroll
      for (unsigned i = 0; i < 2 * groups; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 4 * Tiles; ++j) x[i][j / 4][j % 4] = o[i][j / 4][j % 4];
      }
#pragma unroll 1
      for (unsigned key = 0; key < step_keys; key += 32) {
        std::uint32_t a[groups][2][2][4];
#pragma unroll
        for (unsigned i = 0; i < groups; ++i) {
          load_values(at, part, i, key, a[i]);
#pragma unroll
          for (unsigned j = 0; j < 16; ++j) {
            const unsigned own = static_cast<unsigned>(first) + key + j / 8 * 16 + j % 4 / 2 * 8 + 2 * at.t;
            const std::uint32_t low = own >= seen.x && own < seen.y ? 0x0000FFFFU : 0;
            const std::uint32_t high = own + 1 >= seen.x && own + 1 < seen.y ? 0xFFFF0000U : 0;
            a[i][j / 8][j / 4 % 2][j % 4] &= low | high;
          }
        }
        products(a, operand + AttendOperand<group>::step(key / 16 * Tiles * 256), x);
        group_wait_if();
      }
#pragma unroll
      for (unsigned i = 0; i < Tiles; ++i) {
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          if (owners[8 * i + 2 * at.t + j % 2].x != row) continue;
#pragma unroll
          for (unsigned n = 0; n < 2 * groups; ++n) o[n][i][j] = x[n][i][j];
        }
      }
    }
  }
};

}  // namespace memra::detail
