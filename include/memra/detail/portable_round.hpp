// Portable kernels that end a round: round_commit serves the host, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memra/detail/platform.hpp>
#include <memra/detail/strict_fp.hpp>
#include <memra/launch.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>

namespace memra::detail {

/// round_apply, a part of the elements of one value head (x) of one layer (y) of one cache (z) per item. Definition:
/// see RoundApplyBody in host_round.hpp.
struct PortableRoundApply {
  static constexpr std::size_t parts = 64;  ///< per head: neighbouring items read neighbouring elements

  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  static constexpr Grid grid(const RoundCommit& c, std::size_t n) noexcept { return {c.heads * parts, c.n_layers, n}; }

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const RoundCommit c = RoundCommit::of(one, many, item.z);
    if (item.y >= c.n_layers) return;
    const RecurView r = c.layers[item.y];
    const auto accept = static_cast<std::size_t>(c.accepted());
    const std::size_t h = item.x / parts;
    if (c.mode != RoundMode::stash || h >= r.n_v_heads || accept == 0) return;
    const std::size_t n = r.d_k;
    const float* k = r.round.k + r.map.key_head(h, r.n_k_heads, r.n_v_heads) * n;
    const StateElems s = r.plane_state(r.current());
    const std::size_t width = r.decay_width();
    for (std::size_t i = item.x % parts; i < n; i += parts) {
      const float* decay = r.round.decay + h * width + (width == 1 ? 0 : i);
      for (std::size_t v = 0; v < r.d_v; ++v) {
        const std::size_t at = (h * r.d_v + v) * n + i;
        float y = s.load(at);
        for (std::size_t t = 0; t < accept; ++t) {
          y = s.rounded(product(y, decay[t * r.n_v_heads * width]) +
                        product(k[t * r.n_k_heads * n + i], r.round.u[(t * r.n_v_heads + h) * r.d_v + v]));
        }
        s.store(at, y);
      }
    }
  }
};

/// round_commit, a block of channels (x) of one layer (y) of one cache (z) per item: the conv columns move on by the
/// accepted inputs. The first item of each cache moves its position, plane and generation, which no other item reads.
struct RoundCommitBody {
  static constexpr std::size_t channels = 256;  ///< per item

  RoundCommit one;
  const RoundCommit* many;  ///< nullptr: `one`

  /// At least one item per cache: it moves the words.
  static constexpr Grid grid(const RoundCommit& c, std::size_t n) noexcept {
    return {c.conv_dim == 0 ? 1 : (c.conv_dim + channels - 1) / channels, c.n_layers == 0 ? 1 : c.n_layers, n};
  }

  MEMRA_HD void operator()(const Item& item) const noexcept {
    const RoundCommit c = RoundCommit::of(one, many, item.z);
    const std::int32_t accept = c.accepted();
    if (item.x == 0 && item.y == 0) move_words(c, accept);
    if (item.y >= c.n_layers || accept == 0) return;
    const RecurView r = c.layers[item.y];
    const std::size_t kept = r.d_conv - 1;
    const std::size_t width = r.conv_dim();
    const std::size_t first = item.x * channels;
    const auto a = static_cast<std::size_t>(accept);
    for (std::size_t ch = first; ch < first + channels && ch < width; ++ch) {
      const StateElems ring = r.conv_state() + ch * kept;
      // Ascending, so that an entry is read before it is overwritten.
      for (std::size_t j = 0; j < kept; ++j) {
        ring.store(j, a + j < kept ? ring.load(a + j) : r.round.conv_rows[(a + j - kept) * width + ch]);
      }
    }
  }

  /// What one item of each cache does, whatever else the others do.
  MEMRA_HD static void move_words(const RoundCommit& c, std::int32_t accept) noexcept {
    const std::int32_t rows = c.verified();
    if (rows < 0) return;
    RoundWords& w = *c.words;
    w.generation = next_generation(w.generation);
    const std::int32_t pos = *c.pos_d;
    if (pos < 0) return;
    // Of rows that did not all fit the kernels kept nothing that could be accepted: the stream ends here.
    const bool fits = rows <= c.capacity - pos;
    if (!fits || c.asked() != accept) w.status = 1;
    if (!fits) {
      *c.pos_d = ~pos;
      return;
    }
    *c.pos_d = pos + accept;
    if (c.mode == RoundMode::planes) w.plane = (w.plane + accept) % c.n_planes;
  }
};

}  // namespace memra::detail
