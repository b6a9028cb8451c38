// The table in the guide of examples/custom_device: who calls an operation of a device. Each call of memra is made on
// devices that count, and the row of an operation must name the calls that used it, and no others.
#include <cstddef>
#include <cstdint>
#include <custom_device/custom_dev.hpp>
#include <fstream>
#include <map>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <support/catch.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <type_traits>
#include <utility>

namespace guide_table_cpp {
namespace {

using memra::DevOp;
using memra_test::stream;
using Used = std::map<std::string, std::set<std::string>>;  // call -> operations

template <class Inner>
class Watched {
  using Dev = memra::CountingDev<Inner>;
  using Cache = memra::Cache<Dev>;
  using Draft = memra::DflashKv<Dev>;

 public:
  explicit Watched(Used& used) : used_(used) {}

  void all() {
    caches();
    rounds();
    drafts();
  }

 private:
  /// Does `f` and writes down what it asked of either device.
  template <class F>
  auto call(const std::string& name, const F& f) {
    a_.reset();
    b_.reset();
    auto done = f();
    for (std::size_t i = 0; i < memra::n_dev_ops; ++i) {
      const auto op = static_cast<DevOp>(i);
      if (a_.counters().calls(op) + b_.counters().calls(op) != 0) used_[name].insert(to_string(op));
    }
    used_[name];
    if constexpr (std::is_same_v<decltype(done), memra::Status>) {
      memra::check(done);
    } else {
      return memra::check(std::move(done));
    }
  }

  void caches() {
    auto c = call("create_pp2", [&] { return Cache::create_pp2(a_, b_, 4, cfg_, 40); });
    call("create", [&] { return Cache::create(a_, cfg_, 40); });
    memra::check(memra_test::feed(c, stream(4)));
    auto snap = call("snapshot", [&] { return c.snapshot(); });
    auto step = call("begin_step", [&] { return c.begin_step(3); });
    memra::check(memra_test::stand_in::forward(c, step, stream(3)));
    call("advance", [&] { return c.advance(); });
    call("snapshot_into", [&] { return c.snapshot_into(snap); });
    const auto logits = memra::check(b_.zeros(cfg_.n_vocab * sizeof(float)));
    for (int i = 0; i < 2; ++i) {
      call("park_logits", [&] { return c.park_logits(reinterpret_cast<const float*>(logits.data())); });
    }
    const auto prefix = call("export_prefix", [&] { return c.export_prefix(snap); });
    call("from_prefix", [&] { return Cache::from_prefix(a_, cfg_, 40, prefix); });
    memra_test::TapeWriter out;
    call("send_state", [&] { return memra::send_state(out, prefix, {}); });
    memra_test::TapeReader in(out.tape);
    memra::HandoverTarget<Dev> target;
    target.stages = {&a_};
    target.config = cfg_;
    target.max_ctx = 40;
    call("receive_state", [&] { return memra::receive_state(in, target); });
    call("rollback", [&] { return c.rollback(snap, 0); });
    call("reset", [&] { return c.reset(); });
    if constexpr (memra::LaunchDev<Inner>) {
      auto by = call("begin_device_step", [&] { return c.begin_device_step(1); });
      memra::check(memra_test::stand_in::forward(c, by, stream(1)));
      call("advance_d", [&] { return c.advance_d(); });
      call("catch_up", [&] { return c.catch_up(); });
    }
  }

  void rounds() {
    memra::CacheOptions options;
    options.rounds.rows = 3;
    options.rounds.replay = true;
    if constexpr (memra::LaunchDev<Inner>) options.rounds.planes = options.rounds.stash = true;
    auto c = call("create", [&] { return Cache::create(a_, cfg_, 40, options); });
    for (const auto by : {memra::Strategy::replay, memra::Strategy::planes, memra::Strategy::stash}) {
      if (!memra::LaunchDev<Inner> && by != memra::Strategy::replay) continue;
      for (const bool kept : {true, false}) {
        memra::check(c.reset());
        auto round = call("begin_round", [&] { return c.begin_round(2, by); });
        write(c, round);
        if (kept) {
          call("commit", [&] { return round.commit(1); });
        } else {
          call("abandon", [&] { return round.abandon(); });
        }
      }
      if (by == memra::Strategy::replay) continue;
      memra::check(c.reset());
      auto round = memra::check(c.begin_round(2, by));
      write(c, round);
      const auto word = memra::check(a_.zeros(sizeof(std::int32_t)));
      const auto* accept = reinterpret_cast<const std::int32_t*>(word.data());
      call("commit_d", [&] { return round.commit_d(accept); });
      call("catch_up", [&] { return c.catch_up(); });
      memra::check(c.reset());
      round = memra::check(c.begin_round(2, by));
      write(c, round);
      memra::check(round.commit(2));
      call("begin_step", [&] { return c.begin_step(1); });  // brings the current plane home
      memra::check(c.reset());
      round = memra::check(c.begin_round(2, by));
      write(c, round);
      memra::check(round.commit(2));
      call("snapshot", [&] { return c.snapshot(); });
    }
  }
  /// Takes every layer's views; nobody looks at what is there.
  void write(Cache& c, memra::Round<Dev>& round) {
    for (std::size_t il = 0; il < c.n_layer(); ++il) {
      for (std::size_t nth = 0; c.kv(il, nth); ++nth) memra::check(round.kv_write(il, nth));
      for (std::size_t nth = 0; c.recur(il, nth); ++nth) memra::check(round.recur(il, nth));
    }
  }

  void drafts() {
    memra::DflashCfg cfg;
    cfg.n_layer = cfg.n_kv = 1;
    cfg.block_size = 2;
    cfg.head_dim = 32;
    cfg.sliding_window = 2;
    call("create_cold_at", [&] { return Draft::create_cold_at(a_, cfg, 40, 6); });
    for (const bool ring : {false, true}) {
      cfg.ring = ring;
      auto kv = call("create", [&] { return Draft::create(a_, cfg, 40); });
      for (int i = 0; i < 8; ++i) {
        if (i == 2 && ring) memra::check(kv.pin(4));  // taken by the first move
        call("begin_rows", [&] { return kv.begin_rows(2); });
        call("commit", [&] { return kv.commit(); });
      }
      call("begin_block", [&] { return kv.begin_block(2); });
      std::optional<memra::DflashKvTail<Dev>> tail;
      call("export_tail", [&] {
        tail = kv.export_tail(16);
        return memra::Status();
      });
      REQUIRE(tail.has_value());
      call("from_tail", [&] {
        REQUIRE(Draft::from_tail(a_, cfg, 40, *tail).has_value());
        REQUIRE(Draft::from_tail(b_, cfg, 40, *tail).has_value());
        return memra::Status();
      });
      call("truncate", [&] { return kv.truncate(15); });
    }
  }

  Used& used_;
  Dev a_, b_;
  memra::ModelConfig cfg_ = memra_test::hybrid_model();
};

std::string guide() {
  std::ifstream in(MEMRA_TEST_FIXTURES "/../../examples/custom_device/README.md");
  std::stringstream all;
  all << in.rdbuf();
  return all.str();
}
/// The last cell of each row of the table, by the operation its first one names.
std::map<std::string, std::string> callers(const std::string& text) {
  std::map<std::string, std::string> rows;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("| `", 0) != 0 || line.size() < 4) continue;
    const std::size_t end = line.rfind(" |");
    const std::size_t last = line.rfind(" | ", end - 1);
    const std::string first = line.substr(0, line.find(" | ", 2));
    for (std::size_t i = 0; i < memra::n_dev_ops; ++i) {
      const char* op = to_string(static_cast<DevOp>(i));
      if (first.find(std::string("`") + op + "(") != std::string::npos) rows[op] = line.substr(last, end - last);
    }
  }
  return rows;
}
/// What the table says and memra does not do, or the other way round.
std::set<std::string> differences(const std::string& text, const Used& used) {
  std::set<std::string> wrong;
  const auto rows = callers(text);
  for (std::size_t i = 0; i < memra::n_dev_ops; ++i) {
    const std::string op = to_string(static_cast<DevOp>(i));
    if (!rows.contains(op)) wrong.insert(op + " has no row");
    if (!rows.contains(op)) continue;
    for (const auto& [call, ops] : used) {
      const bool named = rows.at(op).find("`" + call + "`") != std::string::npos;
      if (named != ops.contains(op)) wrong.insert(op + (named ? " is not called by " : " is called by ") + call);
    }
  }
  return wrong;
}

TEST_CASE("the guide's table names who calls an operation, and nobody else", "[conformance]") {
  Used used;
  Watched<memra::HostDev>(used).all();
  Watched<CustomDev>(used).all();
  const std::string text = guide();
  std::string all;
  for (const std::string& s : differences(text, used)) all += s + "\n";
  INFO(all);
  REQUIRE(all.empty());

  // Red arms: a call that is not named, one that is named and not made, a row that is missing.
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return changed.replace(at, from.size(), to);
  };
  REQUIRE(differences(with("`catch_up`", "your engine"), used) ==
          std::set<std::string>{"download is called by catch_up"});
  REQUIRE(differences(with("| `synchronize()` | yes | | waits; reports what failed since the last call | ",
                           "| `synchronize()` | yes | | waits; reports what failed since the last call | `advance`, "),
                      used) == std::set<std::string>{"synchronize is not called by advance"});
  REQUIRE(differences(with("| `move(", "| `moves("), used) == std::set<std::string>{"move has no row"});
}

}  // namespace
}  // namespace guide_table_cpp
