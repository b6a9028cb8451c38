// The ops of a device through ops_for: S8, C10, rounds, and stored bytes equal to those of HostDev. Include the
// device's kernels.
#pragma once

#include <array>
#include <conformance/bytes.hpp>
#include <conformance/report.hpp>
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/ops.hpp>
#include <memra/workspace.hpp>
#include <string>
#include <support/batch_case.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace memra_conformance {

namespace detail {

inline memra::ModelConfig kernel_model() {
  memra::RecurrentSpec r;
  r.n_k_heads = 1;
  r.n_v_heads = 2;
  r.d_k = 32;
  r.d_v = 32;
  r.d_conv = 4;
  memra::AttentionSpec a = memra_test::attention_spec();
  memra::AttentionSpec w = a;
  w.window = 5;
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(r), memra::full_attention(a), memra::full_attention(w)};
  return cfg;
}
inline memra::CacheOptions kernel_options() {
  memra::CacheOptions options;
  options.rounds.rows = 4;
  options.rounds.replay = options.rounds.planes = options.rounds.stash = true;
  return options;
}

/// A model of kernels only: reads rows of random numbers, lives on one device.
template <class Dev>
class KernelModel {
 public:
  static constexpr std::size_t max_rows = 24;

  explicit KernelModel(Dev& dev)
      : dev_(&dev),
        cache(memra::check(memra::Cache<Dev>::create(dev, kernel_model(), max_rows, kernel_options()))),
        ws_(memra::check(memra::Workspace<Dev>::create(dev, cache.plan().workspace_bytes(max_rows)))),
        x_(filled(max_rows * 128, 1)),
        q_(filled(max_rows * 128, 2)),
        gate_(filled(max_rows * 2, 3)),
        beta_(filled(max_rows * 2, 4)),
        weight_(filled(128 * 4, 5)),
        out_(memra::check(dev.zeros(max_rows * 448 * sizeof(float)))) {}

  memra::Status forward(std::size_t rows) {
    auto step = cache.begin_step(rows);
    if (!step) return step.status();
    if (auto s = layers(*step); !s) return s;
    return cache.advance();
  }
  /// A round of 4 rows of which the first `accept` are kept, or that is given up.
  memra::Result<memra::RolledBack> round(memra::Strategy by, std::size_t accept, bool keep = true) {
    auto round = cache.begin_round(4, by);
    if (!round) return round.status();
    if (auto s = layers(*round); !s) return s;
    if (keep) return round->commit(accept);
    if (auto s = round->abandon(); !s) return s;
    return memra::RolledBack{cache.pos(), 0};
  }

  /// Every result of every op so far.
  Bytes results() { return read(*dev_, out_.data(), out_.size()); }

 private:
  template <class Views>
  memra::Status layers(Views& step) {
    const memra::ops_for<Dev> ops(*dev_);
    const std::size_t at = cache.pos();
    const auto row = [&](const auto& b, std::size_t width) { return reinterpret_cast<float*>(b.data()) + at * width; };
    const auto out = [&](std::size_t width, std::size_t first) {
      return reinterpret_cast<float*>(out_.data()) + first * max_rows + at * width;
    };
    auto recur = step.recur(0);
    if (!recur) return recur.status();
    memra::ConvArgs conv;
    conv.x = row(x_, 128);
    conv.weight = reinterpret_cast<const float*>(weight_.data());
    conv.y = out(128, 0);
    if (auto s = ops.conv_update(*recur, conv); !s) return s;
    memra::ScanArgs scan;
    scan.q = conv.y;
    scan.k = conv.y + 32;
    scan.v = conv.y + 64;
    scan.q_stride = scan.k_stride = scan.v_stride = 128;
    scan.g = row(gate_, 2);
    scan.beta = row(beta_, 2);
    scan.out = out(64, 128);
    if (auto s = ops.delta_scan(*recur, scan); !s) return s;
    for (const std::size_t il : {1U, 2U}) {
      auto w = step.kv_write(il);
      if (!w) return w.status();
      if (auto s = ops.append(*w, row(x_, 64), row(q_, 64)); !s) return s;
      auto read = step.kv_read(il);
      if (!read) return read.status();
      memra::AttendArgs attend;
      attend.q = row(q_, 128);
      attend.out = out(128, il == 1 ? 192 : 320);
      attend.n_heads = 4;
      attend.scale = 0.2F;
      if (auto s = ops.attend(*read, attend, ws_.view()); !s) return s;
    }
    return {};
  }
  typename Dev::Buffer filled(std::size_t n, std::uint64_t seed) {
    auto x = Numbers(seed).reals(n);
    if (seed == 3) {
      for (float& g : x) g = g - 1.0F;  // log decay: below 0
    }
    auto b = memra::check(dev_->alloc(n * sizeof(float)));
    memra::check(dev_->upload(b.data(), reinterpret_cast<const std::byte*>(x.data()), n * sizeof(float)));
    return b;
  }

  Dev* dev_;

 public:
  memra::Cache<Dev> cache;

 private:
  memra::Workspace<Dev> ws_;
  typename Dev::Buffer x_, q_, gate_, beta_, weight_, out_;
};

inline void no_kernels(Report& r) {
  r.not_checked("the device has no member type kernels");
}

}  // namespace detail

template <class Dev>
constexpr bool has_kernels = requires {
  typename Dev::kernels;
};

template <class Make>
std::vector<Property> kernel_properties() {
  using Dev = DevOf<Make>;
  std::vector<Property> out;
  out.push_back({"C10 rows of one call, of many, and replayed after a rollback give the same bits", [](Report& r) {
                   if constexpr (has_kernels<Dev>) {
                     Made<Make> made;
                     detail::KernelModel<Dev> whole(made.dev());
                     r.that(whole.forward(20), "20 rows at once");
                     const Bytes want = whole.results();
                     r.that(!want.empty() && !all(want, want.size(), std::byte{0}), "no results");
                     for (const std::vector<std::size_t>& cuts :
                          {std::vector<std::size_t>(20, 1), {7, 13}, {1, 16, 3}, {19, 1}}) {
                       detail::KernelModel<Dev> cut(made.dev());
                       for (const std::size_t rows : cuts) r.that(cut.forward(rows), std::to_string(rows) + " rows");
                       r.that(cut.results() == want, "results depend on the cut into " + std::to_string(cuts.size()));
                       r.that(memra_test::image(cut.cache) == memra_test::image(whole.cache), "so does the state");
                     }
                     detail::KernelModel<Dev> back(made.dev());
                     r.that(back.forward(9), "9 rows");
                     const auto snap = memra::check(back.cache.snapshot());
                     r.that(back.forward(6), "6 rows");
                     const auto owed = back.cache.rollback(snap, 4);
                     if (!r.that(owed, "rollback")) return;
                     r.that(back.forward(owed->replay), "replay");
                     r.that(back.forward(7), "7 rows");
                     r.that(back.results() == want, "results depend on the rollback");
                     r.that(memra_test::image(back.cache) == memra_test::image(whole.cache), "so does the state");
                   } else {
                     detail::no_kernels(r);
                   }
                 }});
  out.push_back(
      {"R1 R3 R4 rounds of every strategy, kept or given up, leave the bits of a straight run", [](Report& r) {
         if constexpr (has_kernels<Dev>) {
           Made<Make> made;
           detail::KernelModel<Dev> whole(made.dev());
           r.that(whole.forward(20), "20 rows at once");
           for (const memra::Strategy by : std::array<memra::Strategy, 3>{
                    memra::Strategy::replay, memra::Strategy::planes, memra::Strategy::stash}) {
             detail::KernelModel<Dev> m(made.dev());
             r.that(m.forward(3), "3 rows");
             for (const std::size_t accept : std::array<std::size_t, 5>{0, 2, 4, 1, 3}) {
               r.that(m.round(by, 0, false), "a round that is given up");
               const auto left = m.round(by, accept);
               if (!r.that(left, "a round")) return;
               if (left->replay != 0) r.that(m.forward(left->replay), "replay");
             }
             r.that(m.forward(7), "7 rows");
             const std::string name(memra::to_string(by));
             r.that(m.results() == whole.results(), "results depend on rounds by " + name);
             r.that(memra_test::image(m.cache) == memra_test::image(whole.cache), name + ": so does the state");
           }
         } else {
           detail::no_kernels(r);
         }
       }});
  out.push_back({"C10 append stores the bytes that HostDev stores, in every format and layout", [](Report& r) {
                   if constexpr (has_kernels<Dev>) {
                     using memra::Format;
                     for (const Format f : {Format::f32, Format::f16, Format::bf16, Format::q8_0, Format::q5_1,
                                            Format::q4_0, Format::fp8_e4m3}) {
                       for (const auto layout : {memra::Layout::blocks, memra::Layout::split}) {
                         memra::ModelConfig cfg;
                         cfg.layers = {memra::full_attention(memra_test::attention_spec(f, f, layout))};
                         const auto run = [&](auto& dev) {
                           using D = std::remove_reference_t<decltype(dev)>;
                           auto cache = memra::check(memra::Cache<D>::create(dev, cfg, 8));
                           const auto x = Numbers(9).reals(7 * 64);
                           auto at = memra::check(dev.alloc(x.size() * sizeof(float)));
                           memra::check(dev.upload(at.data(), reinterpret_cast<const std::byte*>(x.data()), at.size()));
                           auto step = memra::check(cache.begin_step(7));
                           const auto* rows = reinterpret_cast<const float*>(at.data());
                           memra::check(memra::ops_for<D>(dev).append(memra::check(step.kv_write(0)), rows, rows));
                           memra::check(cache.advance());
                           return memra_test::image(cache);
                         };
                         Made<Make> made;
                         memra::HostDev host;
                         r.that(run(made.dev()) == run(host), std::string(memra::to_string(f)) + " differs");
                       }
                     }
                   } else {
                     detail::no_kernels(r);
                   }
                 }});
  out.push_back({"C10 sequences that attend in one launch get the bits of a call each", [](Report& r) {
                   if constexpr (has_kernels<Dev>) {
                     Made<Make> made;
                     memra_test::KvShape s;
                     const memra_test::BatchOn<Dev> b(made.dev(), s, {89, 5, 70, 40}, 3);
                     for (const std::vector<memra_test::Turn>& turns : std::vector<std::vector<memra_test::Turn>>{
                              {{88, 1}, {4, 1}, {69, 1}, {39, 1}}, {{70, 17}, {0, 5}, {60, 0}, {-3, 2}}}) {
                       r.that(b.together(made.dev(), turns) == b.alone(made.dev(), turns), "the bits differ");
                     }
                   } else {
                     detail::no_kernels(r);
                   }
                 }});
  out.push_back({"S8 a workspace that is too small is refused before anything runs", [](Report& r) {
                   if constexpr (has_kernels<Dev>) {
                     Made<Make> made;
                     auto& dev = made.dev();
                     memra::ModelConfig cfg;
                     cfg.layers = {memra::full_attention(memra_test::attention_spec())};
                     auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 8));
                     const std::size_t bytes = cache.plan().workspace_bytes(2);
                     auto ws = memra::check(memra::Workspace<Dev>::create(dev, bytes));
                     auto x = memra::check(dev.zeros(2 * 128 * sizeof(float)));
                     auto y = memra::check(dev.alloc(2 * 128 * sizeof(float)));
                     memra::check(dev.fill(y.data(), std::byte{0x5a}, y.size()));
                     const auto* rows = reinterpret_cast<const float*>(x.data());
                     const memra::ops_for<Dev> ops(dev);
                     auto step = memra::check(cache.begin_step(2));
                     memra::check(ops.append(memra::check(step.kv_write(0)), rows, rows));
                     memra::AttendArgs a;
                     a.q = rows;
                     a.out = reinterpret_cast<float*>(y.data());
                     a.n_heads = 4;
                     const auto view = memra::check(step.kv_read(0));
                     for (const auto& small :
                          std::array{memra::WorkspaceView{ws.view().data, bytes - 1},
                                     memra::WorkspaceView{nullptr, bytes}, memra::WorkspaceView{}}) {
                       const memra::Status s = ops.attend(view, a, small);
                       r.that(s.kind() == memra::ErrorKind::bad_argument, "attend said: " + s.message());
                     }
                     r.that(all(read(dev, y.data(), y.size()), y.size(), std::byte{0x5a}), "the output was written");
                     r.that(ops.attend(view, a, ws.view()), "the workspace of the plan");
                     r.that(all(read(dev, y.data(), y.size()), y.size(), std::byte{0}), "values of 0 give 0");
                   } else {
                     detail::no_kernels(r);
                   }
                 }});
  return out;
}

}  // namespace memra_conformance
