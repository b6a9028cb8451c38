// What the tests of the hand-over share: a prompt that was prefilled, and what a receiver of it must end up with.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memra/dflash_kv.hpp>
#include <memra/handover.hpp>
#include <optional>
#include <string>
#include <support/placed_on.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace memra_test {

inline constexpr std::size_t handed_rows = 9;
inline constexpr std::size_t ctx_there = 24;

inline memra::HandoverTag tag_of(unsigned seed = 1) {
  memra::HandoverTag tag;
  for (std::size_t i = 0; i < tag.fingerprint.size(); ++i) tag.fingerprint[i] = static_cast<std::byte>(i * 5 + seed);
  return tag;
}

inline memra::DflashCfg drafter() {
  memra::DflashCfg d;
  d.n_layer = 2;
  d.n_kv = 2;
  d.head_dim = 6;
  d.block_size = 3;
  d.sliding_window = 4;
  return d;
}
inline float draft_value(std::size_t l, bool v, std::size_t row, std::size_t e) {
  return stand_in::value(200 + l, v ? 1 : 0, 0, e, 0, row);
}

/// A cache fed the first rows of a stream of tokens, with logits parked and a drafter beside it.
template <class Dev>
struct Prefilled {
  Prefilled(const std::vector<Dev*>& devs, const std::vector<std::size_t>& fence, const memra::ModelConfig& model,
            std::size_t rows = handed_rows, std::size_t ctx = 16)
      : cfg(model),
        tokens(stream(rows + 6)),
        cache(memra::check(memra::Cache<Dev>::create_ppn(devs, fence, cfg, ctx))),
        draft(memra::check(memra::DflashKv<Dev>::create(*devs.back(), drafter(), ctx))) {
    memra::check(feed_by(cache, part(tokens, 0, rows), 4));
    logits.resize(cfg.n_vocab);
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.25F * static_cast<float>(i) - 1;
    Dev& last = cache.stage_dev(devs.size() - 1);
    const std::size_t bytes = logits.size() * sizeof(float);
    auto row = memra::check(last.alloc(bytes));
    memra::check(last.upload(row.data(), reinterpret_cast<const std::byte*>(logits.data()), bytes));
    memra::check(cache.park_logits(reinterpret_cast<const float*>(row.data())));
    memra::check(draft.begin_rows(rows).status());
    const std::size_t width = drafter().n_kv * drafter().head_dim;
    for (std::size_t l = 0; l < drafter().n_layer; ++l) {
      for (const bool v : {false, true}) {
        std::vector<float> x(rows * width);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = draft_value(l, v, i / width, i % width);
        auto* at = const_cast<float*>(v ? draft.v(l) : draft.k(l));
        memra::check(draft.device().upload(reinterpret_cast<std::byte*>(at),
                                           reinterpret_cast<const std::byte*>(x.data()), x.size() * sizeof(float)));
      }
    }
    memra::check(draft.commit());
    tail = draft.export_tail(rows);
  }

  memra::ModelConfig cfg;
  Tokens tokens;
  std::vector<float> logits;
  memra::Cache<Dev> cache;
  memra::DflashKv<Dev> draft;
  std::optional<memra::DflashKvTail<Dev>> tail;
};

template <class Dev>
memra::HandoverTarget<Dev> target_of(const std::vector<Dev*>& devs, const std::vector<std::size_t>& fence,
                                     const memra::ModelConfig& cfg) {
  memra::HandoverTarget<Dev> t;
  t.stages = devs;
  t.fence = fence;
  t.config = cfg;
  t.max_ctx = ctx_there;
  t.tag = tag_of();
  t.draft = drafter();
  return t;
}

/// Everything a received state must be: the bits of a straight run, the logits, the tail; and it goes on as one.
/// @return what is wrong, or ""
template <class Dev>
std::string wrong_with(memra::HandedOver<Dev>& got, const memra::ModelConfig& cfg, const Tokens& tokens,
                       const std::vector<float>& logits, bool with_tail, std::size_t rows = handed_rows) {
  if (const Image a = image(got.cache), b = straight(cfg, part(tokens, 0, rows)); a != b) return difference(a, b);
  const auto parked = got.cache.last_logits_dev();
  if (parked.has_value() != !logits.empty()) return "parked logits";
  if (parked) {
    std::vector<float> there(parked->n);
    memra::check(got.cache.stage_dev(got.cache.n_stages() - 1)
                     .download(reinterpret_cast<std::byte*>(there.data()),
                               reinterpret_cast<const std::byte*>(parked->data), there.size() * sizeof(float)));
    if (there != logits || parked->pos != rows) return "the bits of the logits";
  }
  if (got.tail.has_value() != with_tail) return "the tail";
  if (got.tail) {
    auto kv = memra::DflashKv<Dev>::from_tail(*got.tail->dev, drafter(), rows + 8, *got.tail);
    if (!kv || kv->len() != rows) return "the tail's shape";
    const std::size_t width = drafter().n_kv * drafter().head_dim;
    for (std::size_t l = 0; l < drafter().n_layer; ++l) {
      for (const bool v : {false, true}) {
        std::vector<float> x(rows * width);
        memra::check(got.tail->dev->download(reinterpret_cast<std::byte*>(x.data()),
                                             reinterpret_cast<const std::byte*>(v ? kv->v(l) : kv->k(l)),
                                             x.size() * sizeof(float)));
        for (std::size_t i = got.tail->base * width; i < x.size(); ++i) {
          if (x[i] != draft_value(l, v, i / width, i % width)) return "a row of the tail";
        }
      }
    }
  }
  if (!feed(got.cache, part(tokens, rows, 6))) return "feeding on";
  if (const Image a = image(got.cache), b = straight(cfg, tokens); a != b) return "then " + difference(a, b);
  return "";
}

}  // namespace memra_test
