// C3 for rounds: what they cost, to the byte, and which strategy the plan takes.
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/plan.hpp>
#include <memra/round_views.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/placements.hpp>
#include <support/stand_in.hpp>
#include <support/test_dev.hpp>
#include <vector>

namespace round_plan_cpp {
namespace {

using memra::ErrorKind;
using memra::Placement;
using memra::RoundOptions;
using memra::Strategy;
using memra_test::attention_model;
using memra_test::Devices;
using memra_test::placements;
using memra_test::recurrent_of;
using memra_test::round_hybrid;
using memra_test::round_recurrent;

memra::Plan planned(const memra::ModelConfig& cfg, const RoundOptions& o) {
  return memra::check(memra::plan(cfg, 16, Placement::single(cfg.layers.size()), o));
}

RoundOptions paid(std::size_t rows, bool replay, bool planes, bool stash) {
  RoundOptions o;
  o.rows = rows;
  o.replay = replay;
  o.planes = planes;
  o.stash = stash;
  return o;
}

/// 48 layers: conv 10240 x 3, ssm 48 x 128 x 128.
memra::ModelConfig large() {
  memra::ModelConfig cfg;
  for (int i = 0; i < 48; ++i) cfg.layers.push_back(memra::recurrent(recurrent_of(16, 48, 128, 128, 4)));
  return cfg;
}

TEST_CASE("C3 rounds of a 48-layer model: bytes by hand", "[plan][round]") {
  const auto p = planned(large(), paid(16, true, true, true));
  const auto& r = p.round;
  REQUIRE(r.replay_bytes == 156893184);
  REQUIRE(r.plane_bytes == 48ULL * 16 * 48 * 128 * 128 * 4);
  REQUIRE(r.conv_row_bytes == 48ULL * 16 * 10240 * 4);
  // k 16 x 128, u 48 x 128, decay 48 floats per row.
  REQUIRE(r.stash_bytes == 48ULL * 16 * (2048 + 6144 + 48) * 4);
  REQUIRE(r.table_bytes == 256 + 48 * sizeof(memra::RecurView));
  REQUIRE(p.totals.round_bytes == r.total_bytes());
  REQUIRE(planned(large(), {}).totals.round_bytes == 0);
  REQUIRE(planned(large(), {}).totals.total_bytes + r.total_bytes() <= p.totals.total_bytes);
}

TEST_CASE("C3 with rounds: the parts are the sum, and the sum is what is allocated", "[plan][round]") {
  for (const auto& cfg : {round_hybrid(), attention_model(), round_recurrent()}) {
    for (const auto& place : placements(cfg.layers.size())) {
      for (int bits = 0; bits < 8; ++bits) {
        for (const std::size_t gap : {0U, 300U}) {
          CAPTURE(place.name, bits, gap);
          Devices d(gap);
          memra::CacheOptions o;
          o.rounds = paid(5, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0);
          const auto c = memra::check(d.create(place, cfg, 20, o));
          const memra::PlanTotals& t = c.plan().totals;
          REQUIRE(d.live_bytes() == t.total_bytes);
          REQUIRE(t.round_bytes == c.plan().round.total_bytes());
          REQUIRE(t.k_bytes + t.v_bytes + t.grouped_bytes + t.conv_bytes + t.ssm_bytes + t.second_buffer_bytes +
                      t.round_bytes + t.mirror_bytes + t.tail_pad_bytes + t.pad_bytes ==
                  t.total_bytes);
          for (std::size_t i = 0; i < c.plan().planes.size(); ++i) {
            const auto& a = c.plan().planes[i];
            REQUIRE(a.offset % memra::plane_alignment == 0);
            REQUIRE(a.offset + a.payload + a.tail_pad + gap <= c.plan().devices[a.device].bytes(a.slab));
            for (std::size_t j = 0; j < i; ++j) {
              const auto& b = c.plan().planes[j];
              if (a.device != b.device || a.slab != b.slab) continue;
              REQUIRE(b.offset + b.payload + b.tail_pad + gap <= a.offset);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("R1 the plan chooses by bytes moved, within the budget, and says so", "[plan][round]") {
  RoundOptions o;
  o.rows = 2;
  REQUIRE(planned(large(), o).round.automatic == Strategy::planes);  // as much as one more pass over the state
  o.rows = 8;
  const auto free = planned(large(), o).round;
  REQUIRE(free.automatic == Strategy::stash);
  REQUIRE((free.stash && !free.planes && !free.replay));
  o.budget_bytes = free.stash_bytes + free.conv_row_bytes;
  REQUIRE(planned(large(), o).round.automatic == Strategy::stash);
  --o.budget_bytes;
  const auto status = memra::plan(large(), 16, Placement::single(48), o).status();
  REQUIRE(status.kind() == ErrorKind::bad_argument);
  REQUIRE(std::string(status.text()).find("budget") != std::string::npos);
  // A stash of many rows of a small state costs more than a copy of it.
  memra::ModelConfig small;
  small.layers = {memra::recurrent(recurrent_of(1, 1, 4, 4, 4))};
  o.rows = 32;
  o.budget_bytes = planned(small, {}).totals.snapshot_bytes;
  REQUIRE(planned(small, o).round.automatic == Strategy::replay);
  // Columns that no stash takes.
  memra::ModelConfig tall;
  tall.layers = {memra::recurrent(recurrent_of(1, 1, 4096, 1, 1))};
  o.budget_bytes = static_cast<std::size_t>(-1);
  REQUIRE(planned(tall, o).round.automatic == Strategy::planes);
  REQUIRE(memra::plan(tall, 16, Placement::single(1), paid(4, false, false, true)).status().kind() ==
          ErrorKind::bad_argument);
  // Nothing recurrent costs nothing.
  o.budget_bytes = 0;
  REQUIRE(planned(attention_model(), o).round.automatic == Strategy::planes);
  // Asked for by name: all of them, and the better one is what automatic means.
  REQUIRE(planned(large(), paid(8, true, true, true)).round.automatic == Strategy::stash);
  REQUIRE(planned(large(), paid(2, true, true, true)).round.automatic == Strategy::planes);
  REQUIRE(planned(large(), paid(8, true, true, false)).round.automatic == Strategy::planes);
  REQUIRE(planned(large(), paid(2, true, false, true)).round.automatic == Strategy::stash);
  REQUIRE(planned(large(), paid(2, true, false, false)).round.automatic == Strategy::replay);
}

TEST_CASE("rounds that cannot be are refused by the plan", "[plan][round]") {
  REQUIRE(memra::plan(large(), 16, Placement::single(48), paid(65, true, false, false)).status().kind() ==
          ErrorKind::bad_argument);
  REQUIRE(memra::plan(large(), 16, Placement::single(48), paid(64, true, true, true)).ok());
  memra::ModelConfig huge;
  huge.layers = {memra::recurrent(recurrent_of(1, std::size_t{1} << 28, 1 << 14, 1 << 14, 1))};
  REQUIRE(memra::plan(huge, 16, Placement::single(1), paid(64, false, true, false)).status().kind() ==
          ErrorKind::bad_argument);
}

}  // namespace
}  // namespace round_plan_cpp
