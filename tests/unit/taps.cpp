// Tap sinks: rows carry their origin, survive the accepted part of a rollback, and never outgrow their buffer.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memra/cache.hpp>
#include <memra/host_ops.hpp>
#include <memra/taps.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/kernel_model.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace taps_cpp {
namespace {

using memra::ErrorKind;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::feed;
using memra_test::hybrid_model;
using memra_test::join;
using memra_test::part;
using memra_test::placements;
using memra_test::stream;
using memra_test::TestDev;
using memra_test::Tokens;
using Cache = memra::Cache<TestDev>;
using Snapshot = memra::CacheSnapshot<TestDev>;
using Sink = memra::DflashTapSink<TestDev>;

constexpr std::size_t hidden = 6;

/// True if the sink's rows are those of tokens [origin, origin + rows) of `t`, slot by slot.
bool rows_of(const Sink& sink, const Tokens& t) {
  for (std::size_t r = 0; r < sink.rows(); ++r) {
    for (std::size_t s = 0; s < sink.n_taps(); ++s) {
      const std::size_t pos = sink.origin() + r;
      const auto want =
          memra_test::stand_in::row(memra_test::stand_in::kind_tap, sink.layer_ids()[s], 0, hidden, t[pos], pos);
      if (std::memcmp(sink.data() + r * sink.row_floats() + s * hidden, want.data(), hidden * sizeof(float)) != 0) {
        return false;
      }
    }
  }
  return true;
}

TEST_CASE("taps: fc slot order, origin, rows, across rollbacks", "[taps]") {
  const Tokens t = stream(40);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    Devices d;
    Cache c = memra::check(d.create(placements(cfg.layers.size())[2], cfg, 40));
    REQUIRE(feed(c, part(t, 0, 10)).ok());
    REQUIRE(c.dflash_taps() == nullptr);
    REQUIRE(c.arm_taps(memra::check(Sink::create(d.dev[2], {1, 0}, hidden, 12))).ok());
    const Sink& sink = *c.dflash_taps();
    REQUIRE((sink.origin() == 10 && sink.rows() == 0 && sink.cap_rows() == 12 && sink.row_floats() == 2 * hidden));
    const Snapshot s = memra::check(c.snapshot());
    const float* const data = sink.data();

    auto step = memra::check(c.begin_step(5));
    REQUIRE((c.n_layer() < 3 || !step.tap(2)));
    REQUIRE((step.tap(1)->data == data && step.tap(0)->data == data + hidden && step.tap(0)->rows == 5));
    REQUIRE((step.tap(0)->row_stride == 2 * hidden && step.tap(0)->hidden == hidden));
    REQUIRE(c.arm_taps(memra::check(Sink::create(d.dev[2], {1}, hidden, 12))).kind() == ErrorKind::bad_state);
    REQUIRE(memra_test::stand_in::forward(c, step, join(part(t, 10, 3), stream(2, 4))).ok());
    REQUIRE(sink.rows() == 0);  // not committed yet
    REQUIRE(c.advance().ok());
    REQUIRE(sink.rows() == 5);
    REQUIRE(!rows_of(sink, t));  // red arm: two of them are of another stream

    REQUIRE(c.rollback(s, 3).ok());
    REQUIRE((sink.rows() == 3 && sink.origin() == 10));
    REQUIRE(rows_of(sink, t));  // the accepted ones, before any replay
    if (c.replay_owed() != 0) {
      REQUIRE(feed(c, part(t, 10, 2)).ok());
      REQUIRE(sink.rows() == 3);
      REQUIRE(rows_of(sink, t));
    }
    REQUIRE(feed(c, part(t, c.pos(), 20 - c.pos())).ok());
    REQUIRE((sink.rows() == 10 && rows_of(sink, t)));
    REQUIRE(c.begin_step(3).status().kind() == ErrorKind::bad_state);  // 12 rows hold positions 10 to 21
    REQUIRE(feed(c, part(t, 20, 2)).ok());
    REQUIRE((sink.rows() == 12 && rows_of(sink, t) && sink.data() == data));
    REQUIRE(c.begin_step(1).status().kind() == ErrorKind::bad_state);

    auto taken = c.take_taps();
    REQUIRE((taken && taken->rows() == 12 && taken->data() == data && rows_of(*taken, t)));
    REQUIRE((!c.take_taps() && c.dflash_taps() == nullptr));
    REQUIRE(feed(c, part(t, 22, 3)).ok());
    REQUIRE(c.arm_taps(std::move(*taken)).ok());  // again, from here on
    REQUIRE((c.dflash_taps()->origin() == 25 && c.dflash_taps()->rows() == 0));
    REQUIRE(c.reset().ok());
    REQUIRE((c.dflash_taps()->origin() == 0 && c.dflash_taps()->rows() == 0));
    REQUIRE(feed(c, part(t, 0, 4)).ok());
    REQUIRE((c.dflash_taps()->rows() == 4 && rows_of(*c.dflash_taps(), t)));
  }
}

TEST_CASE("taps: a rollback below the origin arms the sink again where the next step starts", "[taps]") {
  const Tokens t = stream(40);
  for (const auto& cfg : {hybrid_model(), attention_model()}) {
    for (const std::size_t accept : {0U, 1U, 2U, 4U, 6U}) {
      CAPTURE(accept);
      Devices d;
      Cache c = memra::check(d.create(placements(cfg.layers.size())[0], cfg, 40));
      REQUIRE(feed(c, part(t, 0, 10)).ok());
      const Snapshot s = memra::check(c.snapshot());
      REQUIRE(feed(c, part(t, 10, 2)).ok());
      REQUIRE(c.arm_taps(memra::check(Sink::create(d.dev[0], {0}, hidden, 8))).ok());  // origin 12, 2 above s
      REQUIRE(feed(c, part(t, 12, 4)).ok());
      const auto r = memra::check(c.rollback(s, accept));
      const Sink& sink = *c.dflash_taps();
      REQUIRE(sink.origin() == std::min<std::size_t>(12, r.pos));
      REQUIRE(sink.origin() + sink.rows() <= c.len());
      REQUIRE(rows_of(sink, t));
      REQUIRE(feed(c, part(t, r.pos, 4)).ok());
      REQUIRE(sink.origin() + sink.rows() >= r.pos + 4);
      REQUIRE(rows_of(sink, t));
    }
  }
}

TEST_CASE("taps: back by one snapshot and forward by a later one leaves no hole in the rows", "[taps]") {
  const Tokens t = stream(20);
  const auto cfg = memra_test::recurrent_model();
  Devices d;
  Cache c = memra::check(d.create(placements(cfg.layers.size())[0], cfg, 40));
  const Snapshot early = memra::check(c.snapshot());
  REQUIRE(feed(c, part(t, 0, 3)).ok());
  REQUIRE(c.arm_taps(memra::check(Sink::create(d.dev[0], {0}, hidden, 16))).ok());
  const Snapshot late = memra::check(c.snapshot());
  REQUIRE(memra::check(c.rollback(early, 3)).replay == 3);
  REQUIRE(c.dflash_taps()->origin() == 0);  // below the former origin: starts again there
  REQUIRE(memra::check(c.rollback(late, 0)).pos == 3);
  REQUIRE(c.dflash_taps()->origin() == 3);  // tokens 0 to 2 were never fed since: their rows hold nothing
  REQUIRE(feed(c, part(t, 3, 2)).ok());
  REQUIRE(c.dflash_taps()->rows() == 2);
  REQUIRE(rows_of(*c.dflash_taps(), t));
}

TEST_CASE("taps: a failed advance commits no row, and a tainted cache keeps the sink until it is repaired", "[taps]") {
  const auto cfg = hybrid_model();
  const Tokens t = stream(20);
  Devices d;
  Cache c = memra::check(d.create(placements(cfg.layers.size())[0], cfg, 40));
  REQUIRE(feed(c, part(t, 0, 4)).ok());
  const Snapshot s = memra::check(c.snapshot());
  REQUIRE(c.arm_taps(memra::check(Sink::create(d.dev[0], {0, 5}, hidden, 8))).ok());
  REQUIRE(feed(c, part(t, 4, 2)).ok());
  auto step = memra::check(c.begin_step(2));
  REQUIRE(memra_test::stand_in::forward(c, step, part(t, 6, 2)).ok());
  d.arm(1);
  REQUIRE(!c.advance().ok());
  d.arm(0);
  REQUIRE((c.tainted() && c.dflash_taps()->rows() == 2));
  REQUIRE((!step.tap(0) && !c.take_taps()));
  REQUIRE(c.rollback(s, 2).ok());
  auto sink = c.take_taps();
  REQUIRE((sink && sink->rows() == 2 && rows_of(*sink, t)));
}

TEST_CASE("taps: steps that were replayed without them leave no rows that were never written", "[taps]") {
  memra::HostDev dev;
  memra_test::KernelModel<memra::HostDev> m(dev, 64);
  REQUIRE(m.feed(2).ok());
  const auto snap = memra::check(m.cache.snapshot());
  for (int i = 0; i < 2; ++i) REQUIRE(m.feed(8).ok());  // the rows that the replays would have written
  REQUIRE(m.cache.rollback(snap, 0).ok());
  using HostSink = memra::DflashTapSink<memra::HostDev>;
  REQUIRE(m.cache.arm_taps(memra::check(HostSink::create(dev, {0}, 8, 4))).ok());
  REQUIRE(m.feed(1).ok());
  REQUIRE((m.cache.dflash_taps()->origin() == 2 && m.cache.dflash_taps()->rows() == 1));
  // What ten replays of a step of one row do to the position.
  const std::int32_t pos = 13;
  REQUIRE(dev.store_i32(const_cast<std::int32_t*>(m.cache.pos_d(0)), &pos, 1).ok());
  m.cache.replayed(10);
  REQUIRE(m.cache.catch_up().ok());
  REQUIRE((m.cache.dflash_taps()->origin() == 13 && m.cache.dflash_taps()->rows() == 0));
  REQUIRE(m.feed(4).ok());
  REQUIRE((m.cache.dflash_taps()->origin() == 13 && m.cache.dflash_taps()->rows() == 4));
}

TEST_CASE("taps: refusals of create and arm", "[taps]") {
  const auto cfg = hybrid_model();
  Devices d;
  Cache c = memra::check(d.create(placements(cfg.layers.size())[0], cfg, 16));
  const auto kind = [&](std::vector<std::size_t> ids, std::size_t h, std::size_t cap) {
    return Sink::create(d.dev[0], std::move(ids), h, cap).status().kind();
  };
  REQUIRE(kind({}, 4, 4) == ErrorKind::bad_argument);
  REQUIRE(kind({1}, 0, 4) == ErrorKind::bad_argument);
  REQUIRE(kind({1}, 4, 0) == ErrorKind::bad_argument);
  REQUIRE(kind({1, 2, 1}, 4, 4) == ErrorKind::bad_argument);
  REQUIRE(kind({1}, std::size_t{1} << 62, 4) == ErrorKind::bad_argument);
  REQUIRE(kind({1}, std::size_t{1} << 31, std::size_t{1} << 31) == ErrorKind::bad_argument);
  d.arm(1);
  REQUIRE(kind({1}, 4, 4) == ErrorKind::out_of_memory);
  d.arm(0);
  Sink sink = memra::check(Sink::create(d.dev[0], {1, 8}, 4, 4));
  const memra::Status s = c.arm_taps(std::move(sink));
  REQUIRE((s.kind() == ErrorKind::bad_argument && std::string(s.text()).find("layer 8 of 8") != std::string::npos));
  REQUIRE(sink.data() != nullptr);  // NOLINT(bugprone-use-after-move): a refusal keeps it
  Sink good = memra::check(Sink::create(d.dev[0], {1, 7}, 4, 4));
  REQUIRE(c.arm_taps(std::move(good)).ok());
  REQUIRE(c.arm_taps(std::move(good)).kind() == ErrorKind::bad_argument);  // NOLINT(bugprone-use-after-move)
  REQUIRE(c.dflash_taps()->cap_rows() == 4);
  REQUIRE(c.begin_step(5).status().kind() == ErrorKind::bad_state);
}

}  // namespace
}  // namespace taps_cpp
