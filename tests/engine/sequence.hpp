// One sequence of the tiny model with its decoder, the oracle it must equal, and byte comparison of both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <engine/rig.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

namespace seq {

using Dev = memra::HostDev;
using Cache = memra::Cache<Dev>;

inline const char* const prompts[] = {"Ge1:1 In the beginning", "Ps23:1 The LORD is my", "Joh3:16 For God so",
                                      "Mt5:3 Blessed are the"};

inline const tiny::ModelFiles& model() {
  static const tiny::ModelFiles files = memra::check(tiny::load_model(rig::fixture("tiny")));
  return files;
}

struct Sequence : rig::Rig {
  Sequence(memra::Format k, memra::Format v, std::size_t stages, std::size_t ctx,
           memra::Layout layout = memra::Layout::blocks, bool draft_ring = false)
      : Rig(model(), rig::Options{k, v, ctx, 64, stages, false, layout, draft_ring}) {
    decoder.emplace(*trunk, *cache, &*drafter);
  }

  tiny::Generated plain(std::size_t n) { return decoder->plain(how(n)); }
  tiny::Generated speculative(std::size_t n, memra::DraftArm arm = memra::DraftArm::clip,
                              memra::Strategy strategy = memra::Strategy::automatic) {
    return decoder->speculative(how(n, arm, strategy));
  }
  static tiny::GenerateOptions how(std::size_t n, memra::DraftArm arm = memra::DraftArm::clip,
                                   memra::Strategy strategy = memra::Strategy::automatic) {
    tiny::GenerateOptions o;
    o.max_tokens = n;
    o.ignore_eos = true;
    o.arm = arm;
    o.strategy = strategy;
    return o;
  }

  std::optional<tiny::Decoder<Dev>> decoder;
};

/// A cache fed exactly these tokens one at a time, without a drafter: what every other way must equal.
inline std::unique_ptr<Sequence> one_by_one(memra::Format k, memra::Format v, std::span<const std::int32_t> tokens,
                                            std::size_t ctx, memra::Layout layout = memra::Layout::blocks) {
  auto s = std::make_unique<Sequence>(k, v, 1, ctx, layout);
  for (const std::int32_t& t : tokens) s->trunk->forward(*s->cache, {&t, 1}, 1);
  return s;
}

/// Empty if both caches are in the same state to the last byte, else the name of what differs first.
inline std::string difference(const Cache& a, const Cache& b) {
  for (const Cache* c : {&a, &b}) {
    for (std::size_t il = 0; il < c->n_layer(); ++il) {
      if (const auto kv = c->kv(il); kv && static_cast<std::size_t>(*kv->pos_d) != c->pos()) return "pos_d";
    }
  }
  return rig::first_difference(rig::look(a), rig::look(b));
}

/// Empty if both draft caches hold the same committed rows from `first` on, or from where a ring still has them.
inline std::string difference(const memra::DflashKv<Dev>& a, const memra::DflashKv<Dev>& b, std::size_t first = 0) {
  if (a.len() != b.len()) return "draft length";
  first = std::max({first, a.base(), b.base()});
  const std::size_t skip_a = (first - a.base()) * a.row_bytes() / sizeof(float);
  const std::size_t skip_b = (first - b.base()) * a.row_bytes() / sizeof(float);
  const std::size_t bytes = (a.len() - first) * a.row_bytes();
  for (std::size_t l = 0; l < a.n_layer(); ++l) {
    if (std::memcmp(a.k(l) + skip_a, b.k(l) + skip_b, bytes) != 0) return "draft K of layer " + std::to_string(l);
    if (std::memcmp(a.v(l) + skip_a, b.v(l) + skip_b, bytes) != 0) return "draft V of layer " + std::to_string(l);
  }
  return {};
}

inline std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The next block's hidden rows for one arm, [b][hidden].
inline std::vector<float> block_rows(Sequence& s, memra::DraftArm arm) {
  const std::size_t b = s.drafter->config().block_size;
  const float* rows = s.drafter->run_block(s.decoder->next(), b, arm);
  return {rows, rows + b * s.drafter->config().hidden};
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace seq
