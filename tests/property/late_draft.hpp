// A draft cache that moves with the trunk on devices that fail late; its rows are the taps of the trunk's first layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memra/dflash_kv.hpp>
#include <memra/launch.hpp>
#include <memra/speculation.hpp>
#include <memra/views.hpp>
#include <optional>
#include <property/reference.hpp>
#include <property/script.hpp>
#include <string>
#include <support/stand_in.hpp>

namespace property {

/// Rows [*len_d, ...) become what the taps say, K and V alike.
struct TapsToRowsBody {
  memra::DraftView w;
  const float* taps;

  void operator()(const memra::Item& item) const noexcept {
    const std::size_t row = static_cast<std::size_t>(*w.len_d) + item.x - static_cast<std::size_t>(w.first_row());
    if (row >= w.phys_rows) return;
    for (float* plane : {w.k, w.v}) {
      std::memcpy(plane + row * tap_hidden, taps + item.x * tap_hidden, tap_hidden * sizeof(float));
    }
  }
};

template <class Dev>
struct LateDraft {
  using Kv = memra::DflashKv<Dev>;

  Kv kv;
  std::optional<memra::Speculation<Dev>> spec = {};
  std::size_t base = kv.base();  ///< where its ring stood when it was last seen
  bool sure = false;             ///< it was waited for since it was made, or since its ring moved

  static memra::DflashCfg config(bool ring) {
    memra::DflashCfg c;
    c.n_layer = c.n_kv = 1;
    c.head_dim = tap_hidden;
    c.block_size = 2;
    c.sliding_window = 4;  // a ring of 2 * 6 + 2 rows
    c.ring = ring;
    return c;
  }

  /// A move reads every row that stays: which of them arrived is known when it was waited for.
  void note_move() {
    sure = sure && base == kv.base();
    base = kv.base();
  }

  /// Of one that was waited for: its rows are those of `tokens`.
  static void expect_rows(const Kv& kv, const Tokens& tokens, std::size_t tapped) {
    expect(kv.len() == tokens.size() && !kv.tainted(), "a draft stands elsewhere, or is tainted");
    const std::size_t first = std::max({kv.floor(), kv.resident(), kv.base()});
    const std::size_t seen = tokens.size() - std::min(tokens.size(), kv.config().sliding_window - 1);
    expect(first <= std::max(seen, kv.floor()), "a draft lost rows of its window");
    for (std::size_t r = first; r < tokens.size(); ++r) {
      const auto want = memra_test::stand_in::row(memra_test::stand_in::kind_tap, tapped, 0, tap_hidden, tokens[r], r);
      for (const float* plane : {kv.k(0), kv.v(0)}) {
        expect(std::memcmp(plane + (r - kv.base()) * tap_hidden, want.data(), tap_hidden * sizeof(float)) == 0,
               "draft row " + std::to_string(r) + " is something else");
      }
    }
  }
};

}  // namespace property
