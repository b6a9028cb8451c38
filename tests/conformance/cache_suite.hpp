// Cache and DflashKv on a device of any kind: byte for byte what HostDev does. Needs no kernels.
#pragma once

#include <algorithm>
#include <conformance/bytes.hpp>
#include <conformance/report.hpp>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/plan.hpp>
#include <optional>
#include <string>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace memra_conformance {

namespace detail {

using memra_test::Tokens;

template <class Dev>
void equals(Report& r, const memra::Cache<Dev>& cache, const Tokens& tokens, const std::string& when) {
  const auto got = memra_test::image(cache);
  const auto want = memra_test::straight(cache.config(), tokens);
  r.that(got == want, when + ": differs in " + memra_test::difference(got, want));
}

inline std::vector<memra::ModelConfig> models() {
  return {memra_test::hybrid_model(), memra_test::attention_model(), memra_test::recurrent_model(),
          memra_test::kinds_model()};
}

/// Feeds a prompt, speculates and takes back; the same calls on any device.
template <class Dev>
memra_test::Image speculate(memra::Cache<Dev>& cache, Report& r, std::size_t prompt = 5) {
  Tokens tokens = memra_test::stream(prompt);
  r.that(memra_test::feed_by(cache, tokens, 3), "feed");
  auto snap = memra::check(cache.snapshot());
  for (std::size_t round = 0; round < 5; ++round) {
    r.that(cache.snapshot_into(snap), "snapshot_into");
    const Tokens draft = memra_test::stream(4, static_cast<std::uint32_t>(round + 20));
    r.that(memra_test::feed_by(cache, draft, 4), "verify");
    const std::size_t accept = round % 5;
    auto back = cache.rollback(snap, accept);
    if (!r.that(back, "rollback")) break;
    const Tokens kept = memra_test::part(draft, 0, accept);
    if (back->replay != 0) r.that(memra_test::feed_by(cache, kept, 2), "replay");
    tokens = memra_test::join(tokens, kept);
    equals(r, cache, tokens, "after round " + std::to_string(round));
  }
  return memra_test::image(cache);
}

/// What a draft cache says and all its committed rows from its first physical one on.
template <class Dev>
Bytes draft_image(const memra::DflashKv<Dev>& kv) {
  Bytes out;
  for (const std::size_t n : {kv.len(), kv.floor(), kv.resident(), kv.base()}) out.push_back(static_cast<std::byte>(n));
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    for (const float* plane : {kv.k(l), kv.v(l)}) {
      const Bytes rows =
          read(kv.device(), reinterpret_cast<const std::byte*>(plane), (kv.len() - kv.base()) * kv.row_bytes());
      out.insert(out.end(), rows.begin(), rows.end());
    }
  }
  return out;
}

/// Writes `rows` rows of every layer as a kernel would: where the device says that the rows begin.
template <class Dev>
void draft_write(memra::DflashKv<Dev>& kv, const typename memra::DflashKv<Dev>::Rows& rows, std::uint64_t seed,
                 Report& r) {
  for (std::size_t l = 0; l < kv.n_layer(); ++l) {
    const memra::DraftView view = rows.view(l);
    const auto int_at = [&](const std::int32_t* at) {
      std::int32_t n = -1;
      r.that(kv.device().download(reinterpret_cast<std::byte*>(&n), reinterpret_cast<const std::byte*>(at), 4),
             "download of a position");
      return static_cast<std::size_t>(n);
    };
    r.that(int_at(view.len_d) == rows.first(), "len_d is not the first row");
    if (view.base_d != nullptr) r.that(int_at(view.base_d) == kv.base(), "base_d is not the base");
    for (float* plane : {view.k, view.v}) {
      const std::size_t row = kv.config().n_kv * kv.config().head_dim;
      const auto x = Numbers(seed + l * 2 + (plane == view.k ? 0 : 1)).reals(rows.rows() * row);
      r.that(kv.device().upload(reinterpret_cast<std::byte*>(plane + (rows.first() - kv.base()) * row),
                                reinterpret_cast<const std::byte*>(x.data()), x.size() * sizeof(float)),
             "upload of rows");
    }
  }
}

inline memra::DflashCfg draft_config(bool all_windowed) {
  memra::DflashCfg cfg;
  cfg.n_layer = 2;
  cfg.n_kv = 2;
  cfg.head_dim = 8;
  cfg.block_size = 4;
  cfg.sliding_window = 6;
  if (!all_windowed) cfg.layer_sliding = {true, false};
  return cfg;
}

/// A prompt, two rounds, publication, restore, truncate; the same calls on any device.
template <class Dev>
std::vector<Bytes> draft_story(Dev& dev, Dev& other, bool all_windowed, Report& r) {
  std::vector<Bytes> seen;
  const memra::DflashCfg cfg = draft_config(all_windowed);
  auto kv = memra::check(memra::DflashKv<Dev>::create(dev, cfg, 40));
  draft_write(kv, memra::check(kv.begin_rows(17)), 1, r);
  r.that(kv.commit(), "commit");
  for (std::uint64_t round = 0; round < 2; ++round) {
    draft_write(kv, memra::check(kv.begin_block(4)), 100 + round, r);
    draft_write(kv, memra::check(kv.begin_rows(2 + round)), 200 + round, r);
    r.that(kv.commit(), "commit");
    seen.push_back(draft_image(kv));
  }
  r.that(!kv.export_tail(0) && !kv.export_tail(kv.len() + 1), "a tail of nothing, or beyond len");
  const auto tail = kv.export_tail(17);
  if (!r.that(tail.has_value(), "export_tail(17) gave nothing")) return seen;
  for (Dev* target : {&dev, &other}) {
    memra::Status why;
    auto back = memra::DflashKv<Dev>::from_tail(*target, cfg, 24, *tail, &why);
    if (!r.that(back.has_value(), "from_tail: " + why.message())) continue;
    r.that(back->len() == 17 && back->resident() == 7, "len or resident after from_tail");
    seen.push_back(draft_image(*back));  // the zeroes below the tail included
    draft_write(*back, memra::check(back->begin_rows(3)), 300, r);
    r.that(back->commit(), "commit");
    seen.push_back(draft_image(*back));
  }
  r.that(kv.truncate(18), "truncate");
  seen.push_back(draft_image(kv));
  auto cold = memra::check(memra::DflashKv<Dev>::create_cold_at(dev, cfg, 40, 9));
  seen.push_back(draft_image(cold));
  r.that(!cold.export_tail(9), "a cold cache has no rows to publish");
  return seen;
}

/// A prompt and rounds through a ring of 24 rows that moves in one piece and in several, with a pinned tail.
template <class Dev>
std::vector<Bytes> ring_story(Dev& dev, Report& r) {
  std::vector<Bytes> seen;
  memra::DflashCfg cfg = draft_config(true);
  cfg.ring = true;
  auto kv = memra::check(memra::DflashKv<Dev>::create(dev, cfg, 200));
  r.that(kv.plan().phys_rows == 24, "a ring of another size");
  r.that(!kv.begin_rows(11).ok(), "more rows than a ring takes in a call");
  const float* const k = kv.k(0);
  for (std::uint64_t turn = 0; kv.len() < 150; ++turn) {
    draft_write(kv, memra::check(kv.begin_block(4)), 1000 + turn, r);
    draft_write(kv, memra::check(kv.begin_rows(1 + turn * 7 % 10)), 2000 + turn, r);
    r.that(kv.commit(), "commit");
    if (turn == 3) r.that(kv.pin(kv.len()), "pin");
    r.that(kv.len() - kv.base() <= 24 && kv.base() + 5 <= std::max<std::size_t>(kv.len(), 5),
           "the window is not there");
    seen.push_back(draft_image(kv));
  }
  r.that(kv.k(0) == k, "the planes have moved");
  const std::size_t upto = kv.pinned();
  r.that(upto != 0 && kv.base() > upto, "the pinned rows are still there");
  r.that(!kv.export_tail(upto + 1), "a tail of rows that are gone");
  const auto tail = kv.export_tail(upto);
  if (!r.that(tail.has_value(), "the pinned tail is gone")) return seen;
  auto back = memra::DflashKv<Dev>::from_tail(dev, cfg, 200, *tail);
  if (r.that(back.has_value(), "from_tail")) seen.push_back(draft_image(*back));
  r.that(!kv.truncate(kv.base()).ok(), "a truncate to rows whose window is gone");
  r.that(kv.truncate(kv.len() - 5), "truncate");
  seen.push_back(draft_image(kv));
  return seen;
}

}  // namespace detail

template <class Make>
std::vector<Property> cache_properties() {
  using Dev = DevOf<Make>;
  using Cache = memra::Cache<Dev>;
  std::vector<Property> out;
  out.push_back({"C1 C2 a cache holds what was fed, however it was cut into steps", [](Report& r) {
                   for (const auto& cfg : detail::models()) {
                     for (const std::size_t rows : {1U, 3U, 11U}) {
                       Made<Make> made;
                       auto cache = memra::check(Cache::create(made.dev(), cfg, 12));
                       const auto tokens = memra_test::stream(11);
                       r.that(memra_test::feed_by(cache, tokens, rows), "feed");
                       detail::equals(r, cache, tokens, "steps of " + std::to_string(rows));
                     }
                   }
                 }});
  out.push_back({"C5 C6 C7 rounds of snapshot, verify, rollback and replay are those of HostDev", [](Report& r) {
                   for (const auto& cfg : detail::models()) {
                     Made<Make> made;
                     memra::HostDev host;
                     auto cache = memra::check(Cache::create(made.dev(), cfg, 40));
                     auto reference = memra::check(memra::Cache<memra::HostDev>::create(host, cfg, 40));
                     const auto got = detail::speculate(cache, r);
                     const auto want = detail::speculate(reference, r);
                     r.that(got == want, "differs from HostDev in " + memra_test::difference(got, want));
                   }
                 }});
  out.push_back({"C5 a snapshot keeps its bytes, and reset starts afresh", [](Report& r) {
                   Made<Make> made;
                   auto cache = memra::check(Cache::create(made.dev(), memra_test::hybrid_model(), 40));
                   const auto a = memra_test::stream(6);
                   const auto b = memra_test::stream(9, 2);
                   r.that(memra_test::feed_by(cache, a), "feed");
                   const auto snap = memra::check(cache.snapshot());
                   for (int i = 0; i < 3; ++i) {
                     r.that(memra_test::feed_by(cache, b, 4), "feed");
                     r.that(cache.rollback(snap, 0), "rollback");
                     detail::equals(r, cache, a, "back to the snapshot, time " + std::to_string(i));
                   }
                   r.that(cache.reset(), "reset");
                   r.that(!cache.rollback(snap, 0).ok(), "a snapshot from before a reset was not refused");
                   r.that(memra_test::feed_by(cache, b, 2), "feed");
                   detail::equals(r, cache, b, "after a reset");
                 }});
  out.push_back({"C3 C11 stages on several devices hold the same bytes", [](Report& r) {
                   const auto cfg = memra_test::hybrid_model();
                   const std::size_t n = cfg.layers.size();
                   Made<Make> a, b, c;
                   Dev* const three[] = {&a.dev(), &b.dev(), &a.dev(), &c.dev()};
                   const std::size_t fence[] = {0, 2, 4, 4, n};
                   auto cache = memra::check(Cache::create_ppn(three, fence, cfg, 40));
                   detail::speculate(cache, r);
                   std::size_t total = 0;
                   for (const auto& d : cache.plan().devices) total += d.rows_bytes + d.state_bytes + d.extra_bytes;
                   r.that(total == cache.plan().totals.total_bytes, "the plan's sum is not its total");
                 }});
  out.push_back({"C4 a published prefix makes a cache on the same and on another device", [](Report& r) {
                   const auto cfg = memra_test::hybrid_model();
                   Made<Make> made, other;
                   auto cache = memra::check(Cache::create(made.dev(), cfg, 30));
                   const auto prompt = memra_test::stream(9);
                   r.that(memra_test::feed_by(cache, prompt, 4), "feed");
                   const auto snap = memra::check(cache.snapshot());
                   r.that(memra_test::feed_by(cache, memra_test::stream(5, 3), 5), "feed");
                   auto prefix = memra::check(cache.export_prefix(snap));
                   for (Dev* dev : {&made.dev(), &other.dev()}) {
                     auto back = memra::check(Cache::from_prefix(*dev, cfg, 20, prefix));
                     detail::equals(r, back, prompt, "from_prefix");
                     r.that(memra_test::feed_by(back, memra_test::stream(4, 5), 2), "feed");
                     detail::equals(r, back, memra_test::join(prompt, memra_test::stream(4, 5)), "and goes on");
                   }
                 }});
  out.push_back({"C6 rings that wrap go back as far as they hold a window, and no further", [](Report& r) {
                   const std::vector<memra::ModelConfig> cfgs{memra_test::kinds_model(), memra_test::ring_model()};
                   for (const auto& cfg : cfgs) {
                     Made<Make> made, other;
                     memra::HostDev host;
                     auto cache = memra::check(Cache::create(made.dev(), cfg, 160));
                     auto reference = memra::check(memra::Cache<memra::HostDev>::create(host, cfg, 160));
                     const auto got = detail::speculate(cache, r, 90);
                     const auto want = detail::speculate(reference, r, 90);
                     r.that(got == want, "differs from HostDev in " + memra_test::difference(got, want));
                     const auto snap = memra::check(cache.snapshot());
                     const auto prefix = memra::check(cache.export_prefix(snap));
                     auto back = memra::check(Cache::from_prefix(other.dev(), cfg, 140, prefix));
                     r.that(memra_test::image(back) == got, "a cache from the prefix of a ring holds other bytes");
                     r.that(memra_test::feed_by(cache, memra_test::stream(26, 6), 13), "feed");
                     const auto there = memra_test::image(cache);
                     r.that(!cache.rollback(snap, 0).ok(), "a rollback beyond what a ring holds was not refused");
                     r.that(!cache.export_prefix(snap).ok(), "an export beyond what a ring holds was not refused");
                     r.that(memra_test::image(cache) == there, "a refusal moved something");
                   }
                 }});
  out.push_back({"S6 a cache over memory that the engine owns", [](Report& r) {
                   const auto cfg = memra_test::hybrid_model();
                   Made<Make> made;
                   const auto plan = memra::check(memra::plan(
                       cfg, 40, memra::Placement::single(cfg.layers.size(), memra::plane_gap_of(made.dev()))));
                   std::vector<typename Dev::Buffer> owned;
                   std::vector<memra::AdoptedBlock> blocks;
                   for (const auto slab : {memra::SlabKind::rows, memra::SlabKind::state, memra::SlabKind::extra}) {
                     owned.push_back(memra::check(made.dev().alloc(plan.devices[0].bytes(slab))));
                     r.that(made.dev().fill(owned.back().data(), std::byte{0x7f}, owned.back().size()), "fill");
                     blocks.push_back({owned.back().data(), owned.back().size()});
                   }
                   memra::CacheOptions options;
                   options.blocks = blocks;
                   {
                     auto cache = memra::check(Cache::create(made.dev(), cfg, 40, options));
                     detail::speculate(cache, r);
                     const auto at = reinterpret_cast<const std::byte*>(cache.pos_d(0));
                     r.that(at >= owned[0].data() && at < owned[0].data() + owned[0].size(), "not the engine's memory");
                   }
                   r.that(made.dev().fill(owned[0].data(), std::byte{1}, owned[0].size()), "the memory is still ours");
                 }});
  out.push_back({"C8 C13 refusals change nothing", [](Report& r) {
                   Made<Make> made;
                   const auto cfg = memra_test::hybrid_model();
                   auto cache = memra::check(Cache::create(made.dev(), cfg, 12));
                   auto stranger = memra::check(Cache::create(made.dev(), cfg, 12));
                   const auto tokens = memra_test::stream(7);
                   r.that(memra_test::feed_by(cache, tokens, 7), "feed");
                   const auto foreign = memra::check(stranger.snapshot());
                   const auto own = memra::check(cache.snapshot());
                   r.that(!cache.begin_step(0).ok() && !cache.begin_step(6).ok(),
                          "a step of 0 rows, or beyond max_ctx");
                   r.that(!cache.advance().ok(), "advance without a step");
                   r.that(!cache.rollback(foreign, 0).ok(), "rollback to another cache's snapshot");
                   r.that(!cache.rollback(own, 1).ok(), "rollback that accepts what was never committed");
                   detail::equals(r, cache, tokens, "after refusals");
                 }});
  out.push_back({"D1 D2 D4 D5 D7 a draft cache is that of HostDev, tails included", [](Report& r) {
                   for (const bool windowed : {true, false}) {
                     Made<Make> made, other;
                     memra::HostDev host, host_other;
                     const auto got = detail::draft_story(made.dev(), other.dev(), windowed, r);
                     const auto want = detail::draft_story(host, host_other, windowed, r);
                     r.that(got.size() == want.size() && !want.empty(), "the stories have another length");
                     for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
                       r.that(got[i] == want[i], "chapter " + std::to_string(i) + " differs from HostDev");
                     }
                   }
                 }});
  out.push_back({"D8 a ring of draft rows is that of HostDev, moves and pinned tails included", [](Report& r) {
                   Made<Make> made;
                   memra::HostDev host;
                   const auto got = detail::ring_story(made.dev(), r);
                   const auto want = detail::ring_story(host, r);
                   r.that(got.size() == want.size() && want.size() > 20, "the stories have another length");
                   for (std::size_t i = 0; i < want.size() && i < got.size(); ++i) {
                     r.that(got[i] == want[i], "chapter " + std::to_string(i) + " differs from HostDev");
                   }
                 }});
  return out;
}

}  // namespace memra_conformance
