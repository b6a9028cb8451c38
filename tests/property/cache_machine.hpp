// A Cache and what the rules say of it, side by side: every operation is done to both, and both must agree.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <optional>
#include <property/engine_memory.hpp>
#include <property/reference.hpp>
#include <property/script.hpp>
#include <property/stacks.hpp>
#include <string>
#include <support/placed_on.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace property {

/// Bugs planted into what the machine calls, for the self test.
enum class CachePlant {
  none,
  conv_not_restored,     ///< a rollback leaves one byte of conv behind
  refresh_does_nothing,  ///< snapshot_into says ok and keeps the former contents
  accept_is_clamped,     ///< an accept that is too large is cut instead of refused
  export_leaks,          ///< an export that fails keeps a buffer
  mirror_forgotten,      ///< the last stage's pos_d is not moved by advance
  replay_untold,         ///< the engine does not say that a graph was queued again
  chunks_are_plain,      ///< a chunked step's kernels go through its rows as a plain one's
  sent_is_spoiled,       ///< the received cache has another byte of V, or of ssm
  margin_is_written,     ///< a byte beside the engine's own memory changes
};

inline memra::ModelConfig model_of(unsigned kind, unsigned k, unsigned v, unsigned layout) {
  constexpr std::size_t n = std::size(memra::all_formats);
  const memra::Format fk = memra::all_formats[k % n];
  const memra::Format fv = memra::all_formats[v % n];
  const memra::Layout l = layout % 2 == 0 ? memra::Layout::blocks : memra::Layout::split;
  switch (kind % 6) {
    case 0:
      return memra_test::attention_model(fk, fv, l);
    case 1:
      return memra_test::recurrent_model();
    case 2:
      return memra_test::ring_model(fk, fv, l);
    case 3:
      return memra_test::kinds_model(fk, fv, l);
    default:
      return memra_test::hybrid_model(fk, fv, l);
  }
}

/// setup: model kind, K format, V format, layout, placement and context, then (behind the devices' choice) which kinds
/// of memory are the engine's own and whether the shortest create that will do is used.
template <class Dev>
class CacheMachine {
  using Cache = memra::Cache<Dev>;
  using Snapshot = memra::CacheSnapshot<Dev>;

 public:
  CacheMachine(const std::vector<unsigned>& setup, CachePlant plant)
      : plant_(plant), cfg_(model_of(at(setup, 0), at(setup, 1), at(setup, 2), at(setup, 3))), ref_(cfg_) {
    placements_ = memra_test::placements(cfg_.layers.size());
    where_ = placements_[at(setup, 4) % placements_.size()];
    short_calls_ = at(setup, 5) / 16 % 2 == 0;
    for (const Part& p : ref_.parts()) {
      if (const auto* r = std::get_if<memra::RecurrentSpec>(&p.spec)) {
        hybrid_ = true;
        has_chunks_ = has_chunks_ || (r->rule == memra::ScanRule::gated_delta && r->ssm_format == memra::Format::f32);
      }
      const auto* a = std::get_if<memra::AttentionSpec>(&p.spec);
      if (a == nullptr || a->ring_slack == 0) continue;
      rings_.push_back({a->window, (a->window + a->ring_slack + 63) / 64 * 64});
      max_ctx_ = long_ctx;
    }
    if (has_chunks_ && at(setup, 4) / placements_.size() % 4 == 3) max_ctx_ = long_ctx;  // more than one chunk
    create(at(setup, 5) / 2 % 8);
    remember_addresses();
    written_.assign(ref_.parts().size(), false);
  }

  void apply(const Op& op) {
    const std::size_t live = d_.live();
    may_keep_ = 0;
    fault_ = op.fault;
    switch (op.code) {
      case 'f':
        feed(op, 1 + op.a % (rings_.empty() ? 6 : max_step), false);
        break;
      case 'c':
        chunk(op);
        break;
      case 'b':
        begin(op.a % 14, op.b, op.c % 16 == 0);
        break;
      case 'w':
        write(op.a);
        break;
      case 'a':
        advance();
        break;
      case 's':
        snapshot(held_[op.a % 4]);
        break;
      case 'r':
        rollback(held_[op.a % 4], op.b, op.c);
        break;
      case 'd':
        held_[op.a % 4] = {};
        break;
      case 'm':
        move_snapshot(op.a % 4, op.b % 4);
        break;
      case 'z':
        reset();
        break;
      case 'p':
        park(op.a);
        break;
      case 't':
        arm_taps(op.a);
        break;
      case 'u':
        take_taps();
        break;
      case 'x':
        publish(held_[op.a % 4], op.b, op.c % 4 == 0, op.c / 4 % 8);
        break;
      case 'o':
        hand_over(op);
        break;
      case 'v':
        move_cache();
        break;
      case 'g':
        device_feed(op);
        break;
      case 'h':
        replay_graph(op);
        break;
      case 'q':
        repair();
        break;
      default:
        break;  // 'l': only look
    }
    if (failed_) expect(d_.live() <= live + may_keep_, "a failed call kept memory");
    const bool look_close = op.code == 'l' || failed_ || !guarded<Dev>;
    failed_ = false;
    compare(look_close);
  }

  void finish() {
    fault_ = 0;
    repair();
    take_taps();  // a sink may have no place for what is owed
    for (std::size_t owed = rows_.size() - pos_; owed != 0; owed = rows_.size() - pos_) {
      feed({}, std::min<std::size_t>(owed, 6), false);
    }
    compare(true);
    d_.expect_guards_whole();
    for (auto& h : held_) h = {};
    step_.reset();
    old_step_.reset();
    cache_.reset();
    memory_->expect_margins_whole();
    memory_.reset();
    kept_.clear();
    d_.expect_guards_whole();
    expect(d_.live() == 0, "memory was left when everything was gone");
  }

  std::size_t taints = 0;
  std::size_t replays = 0;
  std::size_t refusals = 0;
  std::size_t stale = 0;
  std::size_t published = 0;
  std::size_t lapped = 0;  ///< rollbacks that a ring refused
  std::size_t faults = 0;
  std::size_t graphs = 0;   ///< recorded steps that were queued again
  std::size_t chunks = 0;   ///< chunked steps that were committed
  std::size_t adopted = 0;  ///< caches made in the engine's own memory
  std::size_t pairs = 0;    ///< caches made by create_pp2
  std::size_t handed = 0;   ///< states that were sent and taken
  std::size_t turned = 0;   ///< states that were sent and not taken

 private:
  /// What a captured step bakes: addresses. Its tokens and its position are data on the device.
  struct Graph {
    std::size_t rows = 0;
    std::vector<PartView> views;
  };

  struct Held {
    std::optional<Snapshot> snap;
    Tokens tokens;
    std::vector<bool> chunked = {};  ///< [tokens]
    bool whole = false;
    bool stale = false;
    bool foreign = false;

    bool valid() const { return whole && !stale && !foreign; }
  };

  static unsigned at(const std::vector<unsigned>& v, std::size_t i) { return i < v.size() ? v[i] : 0; }
  std::vector<Dev*> devs(const memra_test::PlacedOn& p) {
    std::vector<Dev*> out;
    for (const std::size_t d : p.devices) out.push_back(&d_.dev[d]);
    return out;
  }

  /// Windows and rows of the rings, and whether all of them hold the window of position `at` and all rows up to `end`.
  struct Ring {
    std::size_t window;
    std::size_t rows;
  };
  bool rings_hold(std::size_t at, std::size_t end) const {
    return std::all_of(rings_.begin(), rings_.end(), [&](const Ring& r) {
      const std::size_t need = at < r.window ? 0 : at - (r.window - 1);
      return need == end || need >= oldest(r);
    });
  }
  std::size_t oldest(const Ring& r) const { return high_ < r.rows ? 0 : high_ - r.rows; }
  void wrote(std::size_t at, std::size_t n) { high_ = std::max(high_, std::min(at + n, max_ctx_)); }

  /// Most rows of a step: a ring keeps the window of the first of them until the last is written.
  std::size_t most_in_ring() const {
    std::size_t most = max_ctx_;
    for (const Ring& r : rings_) most = std::min(most, r.rows - (r.window - 1));
    return most;
  }

  /// The machine's cache, in memory of which `own` kinds are the engine's.
  void create(unsigned own) {
    memory_.emplace(devs(where_), where_.fence, cfg_, max_ctx_, own);
    for (unsigned how = 0; how < 4; ++how) {
      const auto wrong = memory_->wrong(how);
      const std::size_t calls = d_.calls();
      memra::CacheOptions options;
      options.blocks = wrong;
      expect(wrong.empty() || Cache::create_ppn(devs(where_), where_.fence, cfg_, max_ctx_, options).status().kind() ==
                                  memra::ErrorKind::bad_argument,
             "memory was taken that is too little, in the wrong place or handed over twice");
      expect(d_.calls() == calls, "create: a refusal asked something of a device");
    }
    memra::CacheOptions options;
    options.blocks = memory_->blocks();
    cache_.emplace(memra::check(made_of(devs(where_), options)));
    adopted += own != 0 ? 1 : 0;
    guard<Dev>(*cache_);
    for (std::size_t il = 0; il < cfg_.layers.size(); ++il) {
      std::size_t s = 0;
      while (s + 1 < where_.devices.size() && where_.fence[s + 1] <= il) ++s;
      expect(cache_->stage_of(il) == s && &cache_->dev(il) == &d_.dev[where_.devices[s]],
             "layer " + std::to_string(il) + " is on another stage or device");
    }
  }
  memra::Result<Cache> made_of(const std::vector<Dev*>& stages, const memra::CacheOptions& options) {
    const bool fits = short_calls_ && where_.fence.back() == cfg_.layers.size();
    if (fits && stages.size() == 1) return Cache::create(*stages[0], cfg_, max_ctx_, options);
    if (!fits || stages.size() != 2) return Cache::create_ppn(stages, where_.fence, cfg_, max_ctx_, options);
    ++pairs;
    return Cache::create_pp2(*stages[0], *stages[1], where_.fence[1], cfg_, max_ctx_, options);
  }

  /// One call of the library under the operation's fault. `allowed`: the model's verdict without a fault.
  template <class F>
  auto call(bool allowed, const char* name, const F& f) {
    const std::size_t calls = d_.calls();
    d_.arm(fault_, where_.devices);
    auto result = f();
    const bool fired = d_.disarm();
    const memra::Status& s = status_of(result);
    faults += fired ? 1 : 0;
    refusals += allowed ? 0 : 1;
    const std::string who = std::string(name) + ": ";
    expect(allowed || ahead_ || d_.calls() == calls, who + "a refusal asked something of a device");
    expect(s.ok() == (allowed && !fired), who + (s.ok() ? "went well and should not have" : s.message()));
    const auto k = s.kind();
    const bool refused = k == memra::ErrorKind::bad_argument || k == memra::ErrorKind::bad_state;
    expect(s.ok() || refused == !allowed, who + "the wrong kind of failure: " + s.message());
    failed_ = failed_ || !s.ok();
    return result;
  }
  static const memra::Status& status_of(const memra::Status& s) { return s; }
  template <class T>
  static const memra::Status& status_of(const memra::Result<T>& r) {
    return r.status();
  }

  bool taps_hold(std::size_t t) const {
    return !taps_ || (pos_ >= tap_origin_ && t <= tap_cap_ && pos_ - tap_origin_ <= tap_cap_ - t);
  }

  bool begin(std::size_t n, unsigned branch, bool chunked) {
    const bool on_grid = has_chunks_ && pos_ % 64 == 0;
    const bool allowed = !tainted_ && n != 0 && n <= max_ctx_ - pos_ && n <= most_in_ring() && !(open_ && hybrid_) &&
                         taps_hold(n) && (on_grid || !chunked);
    if (n > most_rows && n <= max_ctx_ - pos_) return false;  // not the library's affair: the model has no room
    auto step = call(allowed, "begin_step", [&] {
      return chunked ? cache_->begin_step(n, memra::ScanClass::chunked) : cache_->begin_step(n);
    });
    if (!step) return false;
    expect(step->pos() == pos_ && step->rows() == n && step->scan_class() == class_of(chunked),
           "begin_step: another position, row count or class");
    open_chunked_ = chunked;
    scan_ = scan_ || chunked;
    old_step_ = step_;
    step_.emplace(*std::move(step));
    open_ = true;
    spoiled_ = false;
    wrote(pos_, n);
    choose_tokens(n, branch);
    if (old_step_) {
      expect(!old_step_->kv_read(0).ok() && !old_step_->recur(0).ok() && !old_step_->tap(0) &&
                 old_step_->scan_class() == memra::ScanClass::sequential,
             "an ended step gave a view");
    }
    return true;
  }

  /// The tokens of a step of `n` rows: a replay feeds what is owed.
  void choose_tokens(std::size_t n, unsigned branch) {
    open_tokens_ = memra_test::part(rows_, pos_, std::min(n, rows_.size() - pos_));
    for (std::size_t i = open_tokens_.size(); i < n; ++i) {
      open_tokens_.push_back(static_cast<Token>((branch * 5 + i + pos_) % 7));
    }
    written_.assign(written_.size(), false);
  }
  /// The open step's tokens are fed for good.
  void commit_tokens() {
    const Tokens now = memra_test::join(memra_test::part(rows_, 0, pos_), open_tokens_);
    pos_ = now.size();
    if (now.size() > rows_.size()) rows_ = now;
    chunked_.resize(pos_, open_chunked_);
    chunks += open_chunked_ ? 1 : 0;
    ref_.become(rows_, chunked_);
  }

  bool write_one(std::size_t p) {
    const auto& parts = ref_.parts();
    if (std::holds_alternative<memra::SharedKvSpec>(parts[p].spec)) {
      expect(!step_->kv_write(parts[p].layer, parts[p].nth).ok(), "a layer that shares gave its donor's rows");
      return written_[p] = true;
    }
    const bool first = p == 0 || parts[p].layer != parts[p - 1].layer;
    const bool allowed = open_ && !tainted_ && !written_[p];
    auto s = call(allowed, "write", [&] {
      if (plant_ == CachePlant::chunks_are_plain && open_chunked_ && allowed) return write_plain(parts[p]);
      return write_part(*cache_, *step_, parts[p], open_tokens_, first);
    });
    if (allowed) written_[p] = true;  // the view was taken, whatever became of the kernel
    if (!s) spoiled_ = spoiled_ || allowed;
    return s.ok();
  }
  /// What an engine does that does not look at the view's class.
  memra::Status write_plain(const Part& part) {
    auto w = view_part(*step_, part);
    if (!w) return w.status();
    if (auto* r = std::get_if<memra::RecurView>(&*w)) r->scan = memra::ScanClass::sequential;
    return fill_part(cache_->dev(part.layer), *w, part, open_tokens_);
  }
  /// A part of the open step, written or not.
  void write(unsigned a) {
    if (step_) write_one(a % ref_.parts().size());
  }

  void advance() {
    bool all = true;
    for (const bool w : written_) all = all && w;
    if (open_ && all && spoiled_) return;  // an engine whose kernel failed does not commit
    const bool allowed = !tainted_ && open_ && all;
    auto s = call(allowed, "advance", [&] { return cache_->advance(); });
    if (!allowed) return;
    if (!s) return taint();
    if (plant_ == CachePlant::mirror_forgotten) {
      const auto old = static_cast<std::int32_t>(pos_);
      const std::size_t last = cache_->n_stages() - 1;
      memra::check(cache_->stage_dev(last).store_i32(const_cast<std::int32_t*>(cache_->pos_d(last)), &old, 1));
    }
    if (plant_ == CachePlant::margin_is_written && memory_->buffers() != 0) memory_->spoil_margin();
    open_ = false;
    commit_tokens();
    if (taps_) tap_rows_ = std::max(tap_rows_, pos_ - tap_origin_);
  }

  /// A chunked step, and now and then what leads to where one may begin: the rows up to the grid, or a new prompt.
  void chunk(const Op& op) {
    const unsigned fault = std::exchange(fault_, 0);
    const std::size_t off = pos_ % 64;
    const bool rest = !tainted_ && !open_ && has_chunks_;
    if (rest && off != 0 && op.b % 4 < 2 && pos_ - off + 64 < max_ctx_) {
      while (pos_ % 64 != 0) {
        const std::size_t before = pos_;
        feed({}, std::min({max_step, 64 - pos_ % 64, most_in_ring()}), false);
        if (pos_ == before) break;  // a tap sink is full
      }
    } else if (rest && off != 0 && op.b % 4 == 2) {
      reset();
    }
    fault_ = fault;
    std::size_t n = op.a % 3 == 0 ? 64 : op.a % 3 == 1 ? 1 + op.a % 24 : 9 + op.a;
    if (op.c / 8 % 4 != 0) n = std::min({n, std::max<std::size_t>(max_ctx_ - pos_, 1), most_in_ring()});
    feed(op, n, true);
  }
  void feed(const Op& op, std::size_t n, bool chunked) {
    if (!begin(n, op.b, chunked)) return;
    const unsigned fault = std::exchange(fault_, op.c % 2 == 0 ? fault_ : 0);  // meets a kernel, or advance
    for (std::size_t p = 0; p < written_.size(); ++p) {
      if (!write_one(p)) return;
      if (op.c % 8 == 7 && p == op.b % written_.size()) return;  // gives up half way
    }
    fault_ = op.c % 2 == 0 ? 0 : fault;
    advance();
  }

  /// Where the stage that is furthest stands: an advance that fails half way leaves some of them ahead.
  std::size_t furthest_stage() {
    std::size_t furthest = 0;
    for (std::size_t s = 0; s < cache_->n_stages(); ++s) {
      std::int32_t at = 0;
      std::memcpy(&at, get(cache_->stage_dev(s), cache_->pos_d(s), sizeof at).data(), sizeof at);
      furthest = std::max(furthest, static_cast<std::size_t>(at < 0 ? ~at : at));
    }
    return furthest;
  }

  /// Steps whose position only the device knows, then the host's question where they ended.
  void device_feed(const Op& op) {
    const unsigned fault = std::exchange(fault_, 0);
    const unsigned where = op.c / 4 % 3;  // the fault meets a kernel, an advance on the device, or the question
    bool ran_out = false;
    bool failed = false;
    bool ahead = false;
    for (unsigned k = 0; k < 1 + op.c % 4 && !ran_out; ++k) {
      const std::size_t n = 1 + (op.a + k) % 4;
      auto step = call(!tainted_ && !taps_ && !(open_ && hybrid_), "begin_device_step",
                       [&] { return cache_->begin_device_step(n); });
      if (!step) break;
      step_.emplace(*std::move(step));
      open_ = true;
      open_chunked_ = spoiled_ = false;
      longest_ = std::max(longest_, n);
      wrote(pos_, n);
      choose_tokens(n, op.b);
      const bool last = k == op.c % 4;
      fault_ = where == 0 && last ? fault : 0;
      for (std::size_t p = 0; p < written_.size() && !failed; ++p) failed = !write_one(p);
      if (failed) break;
      fault_ = where == 1 && last ? fault : 0;
      auto s = call(true, "advance_d", [&] { return cache_->advance_d(); });
      ahead = ahead || s.ok();
      if (!s) {
        failed = true;
        taint();
        break;
      }
      open_ = false;
      ran_out = pos_ + n > max_ctx_;
      if (!ran_out) commit_tokens();
      expect(cache_->pos_bound() >= pos_, "pos_bound is below what is committed");
    }
    const std::size_t furthest = ahead ? furthest_stage() : 0;
    d_.arm(where == 2 ? fault : 0, where_.devices);
    auto s = cache_->catch_up();
    if (d_.disarm()) {
      expect(!s.ok() && !cache_->tainted(), "catch_up: a failure of the device was lost, or tainted");
      ++faults;
      s = cache_->catch_up();
    }
    if (!failed) expect(s.ok() == !ran_out, "catch_up: " + s.message());
    if (ahead) wrote(furthest, longest_);
    if (ran_out) taint();
    fault_ = 0;
  }

  /// Records a step of `n` rows; being recorded, it runs once, too.
  void record(std::size_t n, unsigned branch) {
    auto step = memra::check(cache_->begin_device_step(n));
    open_chunked_ = false;
    longest_ = std::max(longest_, n);
    wrote(pos_, n);
    choose_tokens(n, branch);
    graph_.emplace();
    graph_->rows = n;
    for (const Part& p : ref_.parts()) {
      graph_->views.push_back(memra::check(view_part(step, p)));
      memra::check(fill_part(cache_->dev(p.layer), graph_->views.back(), p, open_tokens_));
    }
    memra::check(cache_->advance_d());
  }
  /// All that a replay queues.
  memra::Status queue_graph() {
    for (std::size_t p = 0; p < ref_.parts().size(); ++p) {
      const Part& part = ref_.parts()[p];
      if (auto s = fill_part(cache_->dev(part.layer), graph_->views[p], part, open_tokens_); !s) return s;
    }
    for (std::size_t s = 0; s < cache_->n_stages(); ++s) {
      const MoveBody move{const_cast<std::int32_t*>(cache_->pos_d(s)), static_cast<std::int32_t>(graph_->rows),
                          static_cast<std::int32_t>(max_ctx_)};
      if (auto f = move_pos(cache_->stage_dev(s), move); !f) return f;
    }
    return {};
  }

  /// A recorded step that is queued again, wherever the cache has been since: the device moves on alone, the host is
  /// told by how much at most, and what comes next finds out by itself.
  void replay_graph(const Op& op) {
    const unsigned fault = std::exchange(fault_, 0);
    if (tainted_ || open_ || taps_) return;  // what begin_device_step refuses is not replayed either
    const std::size_t start = pos_;
    std::size_t most = start;
    bool ran_out = false;
    const auto ran = [&] {
      ran_out = ran_out || pos_ + graph_->rows > max_ctx_;
      if (!ran_out) commit_tokens();
      most = std::min(most + graph_->rows, max_ctx_);
    };
    if (!graph_ || op.c % 8 == 7) {
      if (start == max_ctx_) return;
      record(std::min<std::size_t>(1 + op.a % 4, max_ctx_ - start), op.b);
      ran();
    }
    const unsigned asks = op.c / 8 % 4;  // who finds out
    memra::Status s;
    d_.arm(op.b % 2 == 0 ? fault : 0, where_.devices);
    for (unsigned k = 0; k <= op.a / 4 % 3 && s.ok(); ++k) {
      open_chunked_ = false;
      choose_tokens(graph_->rows, op.b + k);
      s = queue_graph();
      if (plant_ != CachePlant::replay_untold) cache_->replayed(graph_->rows);  // the one that failed has run in part
      ++graphs;
      if (s.ok()) ran();
    }
    const bool fired = d_.disarm();
    faults += fired ? 1 : 0;
    expect(s.ok() == !fired, "a launch failed without a fault, or did not");
    expect(cache_->pos() == start, "replayed moved pos, which only the device knows");
    if (!s) return give_up_graph();
    expect(cache_->pos_bound() == most, "replayed: pos_bound is " + std::to_string(cache_->pos_bound()));
    wrote(furthest_stage(), longest_);
    if (ran_out) taint();
    ahead_ = true;
    if (asks == 1) snapshot(held_[op.b % 4]);
    if (asks == 2) rollback(held_[op.b % 4], op.a, 0);
    if (asks == 3) publish(held_[op.b % 4], op.a, false, 0);
    ahead_ = false;
    if (ran_out && tainted_) {
      const bool told = cache_->tainted();
      expect(cache_->catch_up().ok() == told, "a stream that ran out of rows is reported never, or twice");
    } else {
      ask(op.b % 2 == 1 ? fault : 0);
    }
  }
  /// catch_up under a fault, and again without.
  void ask(unsigned fault) {
    d_.arm(fault, where_.devices);
    const auto s = cache_->catch_up();
    if (!d_.disarm()) return expect(s.ok(), "catch_up: " + s.message());
    expect(!s.ok() && !cache_->tainted(), "catch_up: a failure of the device was lost, or tainted");
    ++faults;
    memra::check(cache_->catch_up());
  }
  /// A graph that died half way: any of its kernels may have run, on any stage.
  void give_up_graph() {
    for (Held& h : held_) {
      if (rings_.empty() && h.snap && h.valid() && rollback(h, 0, 0)) return;
    }
    reset();
  }

  void snapshot(Held& h) {
    const bool rest = !tainted_ && !open_ && pos_ == rows_.size();
    if (!h.snap) {
      auto s = call(rest, "snapshot", [&] { return cache_->snapshot(); });
      if (!s) return;
      h.snap.emplace(*std::move(s));
      h.foreign = false;
    } else {
      const bool allowed = rest && !h.foreign;
      auto s = call(allowed, "snapshot_into", [&] {
        return plant_ == CachePlant::refresh_does_nothing && allowed ? memra::Status() : cache_->snapshot_into(*h.snap);
      });
      if (allowed) h.whole = s.ok();
      if (!s) return;
    }
    h.tokens = rows_;
    h.chunked = chunked_;
    h.whole = true;
    h.stale = false;
  }

  void after_cut(std::size_t pos, std::size_t end) {
    pos_ = pos;
    rows_.resize(end);
    chunked_.resize(pos);
    ref_.become(rows_, chunked_);
    open_ = tainted_ = spoiled_ = false;
    for (Held& h : held_) {
      if (!h.snap || h.foreign || h.tokens.size() <= end) continue;
      stale += h.stale ? 0 : 1;
      h.stale = true;
    }
    if (parked_ && parked_at_.size() > end) parked_ = false;
    if (!taps_) return;
    tap_rows_ = std::min(tap_rows_, end - std::min(end, tap_origin_));
    if (tap_origin_ > pos || tap_origin_ + tap_rows_ < pos) tap_origin_ = pos, tap_rows_ = 0;
  }

  bool rollback(Held& h, unsigned b, unsigned c) {
    if (!h.snap) return false;
    const std::size_t since = rows_.size() - std::min(rows_.size(), h.tokens.size());
    std::size_t accept = b % (since + 1);
    if (c % 8 == 6) accept = since + 1 + b % 3;
    if (c % 8 == 7) accept = static_cast<std::size_t>(-1) - b % 3;
    const std::size_t kept = h.tokens.size() + std::min(accept, since);
    const bool allowed = h.valid() && accept <= since && rings_hold(hybrid_ ? h.tokens.size() : kept, kept);
    if (h.valid() && accept <= since && !allowed) ++lapped;
    const bool clamp = plant_ == CachePlant::accept_is_clamped && h.valid();
    auto r =
        call(allowed, "rollback", [&] { return cache_->rollback(*h.snap, clamp ? std::min(accept, since) : accept); });
    if (!allowed) return false;
    if (!r) {
      taint();
      return false;
    }
    expect(memra_test::part(rows_, 0, h.tokens.size()) == h.tokens, "model: a valid snapshot is no prefix");
    const std::size_t end = h.tokens.size() + accept;
    if (hybrid_) chunked_ = h.chunked;
    scan_ = any(h.chunked);
    after_cut(hybrid_ ? h.tokens.size() : end, end);
    if (rows_.empty()) high_ = 0;
    expect(r->pos == pos_ && r->replay == rows_.size() - pos_, "rollback: another pos or replay");
    replays += r->replay != 0 ? 1 : 0;
    if (plant_ == CachePlant::conv_not_restored) {
      if (const auto l = cache_->recur(0)) memra_test::spoil(cache_->dev(0), l->conv_data);
    }
    return true;
  }

  void move_snapshot(std::size_t from, std::size_t to) {
    if (!held_[from].snap) return;
    Held taken = std::move(held_[from]);
    // What was moved from is refused; then it gets its own value back, or the other slot does.
    expect(!held_[from].snap->valid() && !cache_->rollback(*held_[from].snap, 0).ok() &&
               !cache_->snapshot_into(*held_[from].snap).ok(),
           "a moved-from snapshot was taken");
    held_[from] = {};
    held_[to] = std::move(taken);
  }

  void reset() {
    auto s = call(true, "reset", [&] { return cache_->reset(); });
    if (!s) return taint();
    after_cut(0, 0);
    high_ = restored_ = 0;
    parked_ = scan_ = false;
    tap_origin_ = tap_rows_ = 0;
  }

  void park(unsigned a) {
    const bool allowed = !tainted_ && !open_;
    Dev& dev = cache_->stage_dev(cache_->n_stages() - 1);
    std::vector<float> row(cfg_.n_vocab);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(a * 31 + i) + 0.25F;
    auto place = memra::check(dev.alloc(row.size() * sizeof(float)));
    memra::check(dev.upload(place.data(), reinterpret_cast<const std::byte*>(row.data()), place.size()));
    auto s = call(allowed, "park_logits", [&] { return cache_->park_logits(reinterpret_cast<float*>(place.data())); });
    if (!allowed) return;
    may_keep_ = 1;  // the parking place
    parked_ = s.ok();
    parked_at_ = memra_test::part(rows_, 0, pos_);
    parked_row_ = row;
  }

  void arm_taps(unsigned a) {
    const std::size_t last = cfg_.layers.size() - 1;
    const std::size_t calls = d_.calls();
    Dev& dev = cache_->dev(last);
    auto sink = memra::check(memra::DflashTapSink<Dev>::create(dev, {last, 1 % last}, tap_hidden, 4 + a % 40));
    const std::size_t ours = d_.calls() - calls;
    const bool allowed = !tainted_ && !open_;
    auto s = call(allowed, "arm_taps", [&] { return cache_->arm_taps(std::move(sink)); });
    expect(d_.calls() == calls + ours, "arm_taps asked something of a device");
    if (!s) return;
    expect(!cache_->arm_taps(std::move(sink)).ok(), "a moved-from sink was armed");
    taps_ = true;
    tap_origin_ = pos_;
    tap_rows_ = 0;
    tap_cap_ = 4 + a % 40;
  }

  void take_taps() {
    auto sink = cache_->take_taps();
    expect(sink.has_value() == (taps_ && !tainted_), "take_taps: a sink where none was, or none");
    if (!sink) return;
    expect(sink->origin() == tap_origin_ && sink->rows() == tap_rows_, "take_taps: another origin or row count");
    std::vector<float> got(tap_rows_ * sink->row_floats());
    memra::check(sink->device().download(reinterpret_cast<std::byte*>(got.data()),
                                         reinterpret_cast<const std::byte*>(sink->data()), got.size() * sizeof(float)));
    for (std::size_t r = 0; r < tap_rows_; ++r) {
      for (std::size_t s = 0; s < sink->n_taps(); ++s) {
        const std::size_t pos = tap_origin_ + r;
        const auto want = memra_test::stand_in::row(memra_test::stand_in::kind_tap, sink->layer_ids()[s], 0, tap_hidden,
                                                    rows_[pos], pos);
        expect(std::memcmp(want.data(), got.data() + r * sink->row_floats() + s * tap_hidden,
                           tap_hidden * sizeof(float)) == 0,
               "take_taps: row " + std::to_string(r) + " is another token's");
      }
    }
    taps_ = false;
  }

  bool exportable(const Held& h) const {
    return h.snap && !tainted_ && h.valid() && !h.tokens.empty() && rings_hold(h.tokens.size(), h.tokens.size());
  }
  /// @param own  kinds of memory that are the engine's in the cache made of it
  void publish(Held& h, unsigned to, bool go_on, unsigned own) {
    if (!h.snap) return;
    const bool allowed = exportable(h);
    auto p = call(allowed, "export_prefix", [&] {
      auto made = cache_->export_prefix(*h.snap);
      if (!made && allowed && plant_ == CachePlant::export_leaks) {
        for (Dev& d : d_.dev) d.disarm();
        kept_.push_back(memra::check(d_.dev[0].alloc(8)));
        d_.arm(1, {1});
        static_cast<void>(d_.dev[1].synchronize().ok());  // so that a fault has fired
      }
      return made;
    });
    if (!p) return;
    ++published;
    expect(p->pos() == h.tokens.size(), "export_prefix: another position");
    expect(p->scan_class() == class_of(any(h.chunked)), "export_prefix: another class");
    const bool parked = parked_ && parked_at_ == h.tokens;
    expect(p->has_logits() == parked, "export_prefix: logits of another position, or none");
    const auto& there = placements_[to % placements_.size()];
    const auto devices = devs(there);
    if (to % 5 == 4) {
      const std::size_t too_few = h.tokens.size() - 1;
      const auto refused = Cache::from_prefix_ppn(devices, there.fence, cfg_, too_few, *p);
      expect(!refused.ok(), "from_prefix: into fewer rows than the prefix has");
      memra::CachePrefix<Dev> moved(*std::move(p));
      expect(p->pos() == 0 && !p->has_logits() && !Cache::from_prefix(*devices[0], cfg_, max_ctx_, *p).ok(),
             "a moved-from prefix was taken");
      *p = std::move(moved);
    }
    std::optional<EngineMemory<Dev>> memory;
    memory.emplace(devices, there.fence, cfg_, max_ctx_, own);
    may_keep_ += memory->buffers();
    memra::CacheOptions options;
    options.blocks = memory->blocks();
    const std::size_t before = d_.live();
    auto made = call(true, "from_prefix", [&] {
      if (short_calls_ && devices.size() == 1) return Cache::from_prefix(*devices[0], cfg_, max_ctx_, *p, options);
      return Cache::from_prefix_ppn(devices, there.fence, cfg_, max_ctx_, *p, options);
    });
    if (!made) {
      expect(d_.live() == before, "from_prefix failed and kept memory");
      memory->expect_margins_whole();
      return;
    }
    adopted += own != 0 ? 1 : 0;
    expect_made(*made, h.tokens, h.chunked, parked);
    if (go_on) go_on_with(*std::move(made), std::move(memory), there, Tokens(h.tokens), h.chunked, parked);
  }

  /// Of a cache that was made of the state after `tokens`.
  void expect_made(const Cache& made, const Tokens& tokens, const std::vector<bool>& chunked, bool parked) {
    guard<Dev>(made);
    expect(made.scan_class() == class_of(any(chunked)), "what was made of a state is of another class");
    const bool here = tokens.size() <= pos_ && std::equal(chunked.begin(), chunked.end(), chunked_.begin());
    if (!here) ref_.become(tokens, chunked);  // a replay went, or is to go, through them in another class
    expect_holds(made, tokens, tokens.size(), parked);
    if (!here) ref_.become(rows_, chunked_);
  }
  /// The history continues with another cache.
  void go_on_with(Cache&& made, std::optional<EngineMemory<Dev>>&& memory, const memra_test::PlacedOn& there,
                  const Tokens& tokens, const std::vector<bool>& chunked, bool parked) {
    where_ = there;
    *cache_ = std::move(made);
    memory_->expect_margins_whole();
    memory_.reset();
    memory_.emplace(*std::move(memory));
    for (Held& other : held_) other.foreign = true;
    step_.reset();  // belongs to the cache that is gone
    old_step_.reset();
    graph_.reset();
    rows_ = tokens;
    chunked_ = chunked;
    pos_ = rows_.size();
    high_ = restored_ = pos_;
    longest_ = 0;
    ref_.become(rows_, chunked_);
    open_ = open_chunked_ = tainted_ = taps_ = spoiled_ = false;
    scan_ = any(chunked_);
    parked_ = parked;
    remember_addresses();
  }

  /// The state goes over a link: what the sender says is recorded, harmed or not, and played to a receiver; then the
  /// sender is told what that one said. The fault meets the one or the other.
  void hand_over(const Op& op) {
    const unsigned fault = std::exchange(fault_, 0);
    const bool at_sender = op.c % 4 == 3;
    const Held& h = held_[op.a % 4];
    std::optional<memra::CachePrefix<Dev>> prefix;
    if (op.a / 4 % 4 == 0 && exportable(h)) prefix.emplace(memra::check(cache_->export_prefix(*h.snap)));
    const Tokens tokens = prefix ? h.tokens : rows_;
    const std::vector<bool> chunked = prefix ? h.chunked : chunked_;
    const bool parked = parked_ && !tainted_ && parked_at_ == tokens;
    const std::size_t message = op.b % 2 == 0 ? std::size_t{64} << 20 : std::size_t{4} << 10;
    const auto send = [&](auto& link) {
      return prefix ? memra::send_state(link, *prefix, tag(), nullptr, message)
                    : memra::send_state(link, *cache_, tag(), nullptr, message);
    };
    memra_test::TapeWriter first;
    fault_ = at_sender ? fault : 0;
    const bool rest = !tainted_ && !open_ && pos_ == rows_.size() && pos_ != 0;
    const auto sent = call(prefix || rest, "send_state", [&] { return send(first); });
    if (!prefix && !rest) return expect(first.tape.empty(), "send_state: refused and said something");

    Stream s{first.tape, tokens, chunked, parked};
    fault_ = at_sender ? 0 : fault;
    const unsigned others =
        any(chunked) && op.c % 4 == 1 ? 4 : op.c / 4 % 12;  // those with a class of their own are few
    const unsigned harm = sent.ok() ? others : 0;
    memra_test::Bytes said;
    const memra::Status why = receive(s, harm, sent.ok(), op, said);
    // Told the same as before it says the same; so does a received cache that the history has gone on with.
    if (why.ok() && op.b / 2 % 4 != 0) return;
    memra_test::AnsweredWriter again(said);
    const memra::Status heard = send(again);
    const auto verdicts = said.size() / 256;
    const bool told = verdicts != 0 && said[(verdicts - 1) * 256] != std::byte{0};
    expect(said.size() % 256 == 0 && verdicts <= 2, "a receiver said something that is no verdict");
    expect(told == (!why.ok() && told), "a receiver that took the state said that it did not");
    expect(heard.kind() == (why.ok() ? memra::ErrorKind::ok
                            : told   ? why.kind()
                                     : memra::ErrorKind::link_failure),
           "the sender heard something else than the receiver said: " + heard.message() + "; " + why.message());
    if (sent.ok() && verdicts != 0 && (verdicts == 2 || !told)) {
      expect(again.tape == first.tape, "a sender that was told to go on said something else than before");
    }
    const bool by_refusal = why.kind() == memra::ErrorKind::bad_argument || why.kind() == memra::ErrorKind::corrupt ||
                            why.kind() == memra::ErrorKind::unsupported;
    expect(!by_refusal || told, "a receiver refused and told nobody");
  }

  struct Stream {
    memra_test::Bytes tape;
    Tokens tokens;
    std::vector<bool> chunked;
    bool parked;
  };
  static memra::HandoverTag tag() {
    memra::HandoverTag t;
    t.fingerprint[3] = std::byte{0x42};
    t.numeric_class = 5;
    return t;
  }

  /// @param harm   what is wrong with the stream or the target, below; else nothing
  /// @param whole  the sender said all of it
  memra::Status receive(Stream& s, unsigned harm, bool whole, const Op& op, memra_test::Bytes& said) {
    const memra_test::PlacedOn there = placements_[op.b % placements_.size()];
    memra::HandoverTarget<Dev> t;
    t.stages = devs(there);
    t.fence = there.fence;
    t.config = cfg_;
    t.max_ctx = max_ctx_;
    t.tag = tag();
    t.scan = memra::ScanClass::chunked;
    const std::size_t somewhere = s.tape.empty() ? 0 : (op.a * 7919 + op.b * 104729 + op.c * 31) % s.tape.size();
    bool taken = whole;
    bool asks = true;  // it may ask something of a device before it is refused
    switch (harm) {
      case 1:
        t.max_ctx = s.tokens.size() - 1;
        taken = asks = false;
        break;
      case 2:
        t.tag.fingerprint[31] = std::byte{1};
        taken = asks = false;
        break;
      case 3:
        t.tag.numeric_class = 0;
        taken = asks = false;
        break;
      case 4:
        t.scan = memra::ScanClass::sequential;
        taken = asks = !any(s.chunked);
        break;
      case 5:
        s.tape[somewhere] ^= std::byte{1} << op.a % 8;
        taken = false;
        break;
      case 6:
        s.tape.resize(somewhere);
        taken = false;
        break;
      case 7:
        t.config.n_vocab += 1;
        taken = asks = false;
        break;
      case 8:
        t.config = another_engine(t.config);
        break;
      default:
        break;
    }
    std::optional<EngineMemory<Dev>> memory;
    memory.emplace(t.stages, t.fence, cfg_, max_ctx_, harm == 8 ? 0 : op.a / 16 * 2 + op.c / 48 % 2);
    may_keep_ += memory->buffers();
    t.options.blocks = memory->blocks();
    std::vector<memra::AdoptedBlock> wrong;
    if (harm == 9 && !(wrong = memory->wrong(op.a)).empty()) {
      t.options.blocks = wrong;
      taken = asks = false;
    }
    const std::size_t before = d_.live();
    const std::size_t calls = d_.calls();
    memra_test::TapeReader link(s.tape);
    d_.arm(fault_, there.devices);
    auto got = memra::receive_state(link, t);
    const bool fired = d_.disarm();
    said = link.said;
    faults += fired ? 1 : 0;
    refusals += taken ? 0 : 1;
    const memra::Status why = got.status();
    expect(why.ok() == (taken && !fired),
           "receive_state: " + (why.ok() ? "went well and should not have" : why.message()));
    expect(asks || d_.calls() == calls, "receive_state: a refusal asked something of a device");
    if (!why.ok()) {
      ++turned;
      failed_ = true;
      const auto k = why.kind();
      const bool of_device = k == memra::ErrorKind::device_failure || k == memra::ErrorKind::device_lost ||
                             k == memra::ErrorKind::out_of_memory;
      const bool of_stream =
          k == memra::ErrorKind::corrupt || k == memra::ErrorKind::unsupported || k == memra::ErrorKind::link_failure;
      expect(of_device == fired, "receive_state: the wrong kind of failure: " + why.message());
      expect(fired || of_stream == asks, "receive_state: the wrong kind of refusal: " + why.message());
      expect(d_.live() == before, "receive_state failed and kept memory");
      memory->expect_margins_whole();
      return why;
    }
    ++handed;
    adopted += memory->buffers() != 0 ? 1 : 0;
    expect(!got->tail, "receive_state: a tail that nobody sent");
    if (plant_ == CachePlant::sent_is_spoiled) spoil_made(got->cache);
    expect_made(got->cache, s.tokens, s.chunked, s.parked);
    if (harm != 8 && op.b / 8 % 2 == 0) {
      go_on_with(std::move(got->cache), std::move(memory), there, s.tokens, s.chunked, s.parked);
    }
    return why;
  }
  /// What each side has to itself: query heads, a second buffer, room in rings.
  static memra::ModelConfig another_engine(memra::ModelConfig cfg) {
    for (memra::LayerSpec& layer : cfg.layers) {
      for (memra::StateSpec& state : layer.states) {
        auto* r = std::get_if<memra::RecurrentSpec>(&state);
        if (r != nullptr && r->rule != memra::ScanRule::none) r->second_buffer = !r->second_buffer;
        auto* a = std::get_if<memra::AttentionSpec>(&state);
        if (a == nullptr) continue;
        a->n_heads *= 2;
        if (a->ring_slack != 0) a->ring_slack += 40;
      }
    }
    return cfg;
  }
  void spoil_made(const Cache& made) {
    if (const auto l = made.recur(0)) return memra_test::spoil(made.dev(0), l->ssm_data);
    if (const auto l = made.kv(0)) memra_test::spoil(made.dev(0), l->v.data);
  }

  void move_cache() {
    Cache other(std::move(*cache_));
    const Cache& gone = *cache_;
    expect(gone.pos() == 0 && gone.len() == 0 && gone.n_layer() == 0 && !gone.kv(0) && !gone.last_logits_dev(),
           "a moved-from cache still shows something");
    expect(!cache_->begin_step(1).ok() && !cache_->advance().ok() && !cache_->reset().ok() && !cache_->snapshot().ok(),
           "a moved-from cache did something");
    *cache_ = std::move(other);
  }

  /// What an engine does after trouble: back to a snapshot that is good, or to the start.
  void repair() {
    if (!tainted_ && !open_) return;
    for (Held& h : held_) {
      const bool reached = h.snap && h.valid() && rings_hold(h.tokens.size(), h.tokens.size() + 1);
      if (reached && rollback(h, 1, 0)) return;
    }
    if (tainted_ || open_) reset();
  }

  void taint() {
    tainted_ = true;
    ++taints;
  }

  void remember_addresses() {
    addresses_.clear();
    for (std::size_t s = 0; s < cache_->n_stages(); ++s) addresses_.push_back(cache_->pos_d(s));
    for (const Part& p : ref_.parts()) {
      if (std::holds_alternative<memra::RecurrentSpec>(p.spec)) {
        addresses_.push_back(cache_->recur(p.layer, p.nth)->ssm_data);
      } else if (std::holds_alternative<memra::GroupedRowsSpec>(p.spec)) {
        addresses_.push_back(cache_->grouped(p.layer, p.nth)->rows.data);
      } else {
        addresses_.push_back(cache_->kv(p.layer, p.nth)->k.data);
        addresses_.push_back(cache_->kv(p.layer, p.nth)->v.data);
      }
    }
  }

  static Bytes get(Dev& dev, const void* at, std::size_t n) {
    Bytes b(n);
    memra::check(dev.download(b.data(), static_cast<const std::byte*>(at), n));
    return b;
  }

  /// Byte for byte: attention rows [0, tokens), recurrent state at `pos`, every mirror.
  void expect_holds(const Cache& c, const Tokens& tokens, std::size_t pos, bool parked) {
    const bool settled = !c.tainted() && !(&c == &*cache_ && open_);
    for (std::size_t p = 0; p < ref_.parts().size(); ++p) {
      const Part& part = ref_.parts()[p];
      const std::string who = "layer " + std::to_string(part.layer) + ": ";
      Dev& dev = c.dev(part.layer);
      if (const auto* shared = std::get_if<memra::SharedKvSpec>(&part.spec)) {
        const auto kv = *c.kv(part.layer, part.nth);
        const auto donor = *c.kv(shared->donor, shared->nth);
        expect(kv.k.data == donor.k.data && kv.len == donor.len && kv.first == donor.first, who + "not its donor's");
      } else if (const auto* a = std::get_if<memra::AttentionSpec>(&part.spec)) {
        const auto kv = c.kv(part.layer, part.nth);
        expect(kv->len == tokens.size(), who + "another len");
        // While the cache is whole, a ring holds the window of the next position and all rows from there on.
        const std::size_t first = memra_test::stand_in::first_row(*a, pos);
        expect(c.tainted() || kv->first <= first, who + "a ring lost rows of its window");
        if (a->ring_slack != 0 && &c == &*cache_ && !tainted_) {
          const std::size_t brought = memra_test::stand_in::first_row(*a, restored_);
          const Ring ring{a->window, (a->window + a->ring_slack + 63) / 64 * 64};
          expect(kv->first == std::max(oldest(ring), brought), who + "the ring says it holds other rows");
        }
        // Named: nvcc 13 translates a range of braces in a template wrongly.
        const std::array<std::pair<memra::ConstPlaneView, bool>, 2> planes{{{kv->k, false}, {kv->v, true}}};
        for (const auto& [plane, v] : planes) {
          if (v && a->v_in_k) continue;
          const Bytes all = get(dev, plane.data, memra::sub_planes(plane.shape).bytes);
          for (std::size_t r = std::max(first, kv->first); r < tokens.size(); ++r) {
            const auto& want = ref_.row(p, r);
            expect(Reference::run_bytes(all.data(), plane.shape, plane.phys(r)) == (v ? want.second : want.first),
                   who + (v ? "V" : "K") + " row " + std::to_string(r) + " holds other bytes");
          }
        }
      } else if (const auto* g = std::get_if<memra::GroupedRowsSpec>(&part.spec)) {
        const auto rows = *c.grouped(part.layer, part.nth);
        expect(rows.len == tokens.size() / g->stride, who + "another len of grouped rows");
        const Bytes all = get(dev, rows.rows.data, memra::sub_planes(rows.rows.shape).bytes);
        for (std::size_t i = 0; i < rows.len; ++i) {
          expect(Reference::run_bytes(all.data(), rows.rows.shape, i) == ref_.group(p, i),
                 who + "grouped row " + std::to_string(i) + " holds other bytes");
        }
      } else if (settled) {
        const auto r = *c.recur(part.layer, part.nth);
        const auto& [conv, ssm] = ref_.state(p, pos);
        expect(r.conv_bytes() == conv.size() && r.ssm_bytes() == ssm.size(), who + "another size");
        expect(get(dev, r.conv_data, conv.size()) == conv, who + "another conv");
        expect(get(dev, r.ssm_data, ssm.size()) == ssm, who + "another ssm");
      }
    }
    for (std::size_t s = 0; s < c.n_stages() && !c.tainted(); ++s) {
      std::int32_t mirror = -1;
      std::memcpy(&mirror, get(c.stage_dev(s), c.pos_d(s), sizeof mirror).data(), sizeof mirror);
      expect(mirror == static_cast<std::int32_t>(pos), "stage " + std::to_string(s) + ": pos_d is not pos");
    }
    const auto logits = c.last_logits_dev();
    expect(logits.has_value() == parked, "logits where none are, or none");
    if (logits) {
      const Bytes got = get(c.stage_dev(c.n_stages() - 1), logits->data, logits->n * sizeof(float));
      expect(logits->pos == pos && std::memcmp(got.data(), parked_row_.data(), got.size()) == 0, "other logits");
    }
  }

  /// @param close  compare the bytes too, which makes a late device run its queue
  void compare(bool close) {
    expect(cache_->pos() == pos_, "pos is " + std::to_string(cache_->pos()) + ", not " + std::to_string(pos_));
    expect(cache_->len() == rows_.size(), "len is " + std::to_string(cache_->len()));
    expect(cache_->tainted() == tainted_, tainted_ ? "not tainted" : "tainted");
    expect(cache_->scan_class() == class_of(scan_), "the state is said to be of another class");
    for (const Held& h : held_) {
      if (!h.snap || h.foreign) continue;
      expect(h.snap->valid() == h.valid(), "a snapshot says it is valid and is not, or the reverse");
      if (!h.valid()) continue;
      expect(h.snap->pos() == h.tokens.size(), "a snapshot names another position");
      expect(h.snap->scan_class() == class_of(any(h.chunked)), "a snapshot names another class");
      expect(h.snap->bytes() == cache_->plan().totals.snapshot_bytes, "a snapshot holds another number of bytes");
    }
    const auto* sink = cache_->dflash_taps();
    expect((sink != nullptr) == taps_, "a tap sink where none is, or none");
    if (sink != nullptr && !tainted_) expect(sink->rows() == tap_rows_, "another number of tap rows");
    if (!close) return;
    expect_holds(*cache_, rows_, pos_, parked_ && !tainted_ && parked_at_ == memra_test::part(rows_, 0, pos_));
    const auto before = addresses_;
    remember_addresses();
    expect(before == addresses_, "an address changed");
  }

  CachePlant plant_;
  memra::ModelConfig cfg_;
  Devices<Dev> d_;
  Reference ref_;
  std::vector<memra_test::PlacedOn> placements_;
  memra_test::PlacedOn where_;
  std::vector<typename Dev::Buffer> kept_;
  std::optional<EngineMemory<Dev>> memory_;  ///< what of the cache's memory is the engine's
  std::optional<Cache> cache_;
  std::optional<memra::Step<Dev>> step_;
  std::optional<memra::Step<Dev>> old_step_;
  std::optional<Graph> graph_;
  std::array<Held, 4> held_;
  std::vector<const void*> addresses_;
  bool hybrid_ = false;
  bool has_chunks_ = false;
  bool short_calls_ = false;
  std::vector<Ring> rings_;
  std::size_t max_ctx_ = short_ctx;

  // What the rules say.
  Tokens rows_;  ///< what attention holds; [0, pos_) is fed for good
  std::size_t pos_ = 0;
  std::size_t high_ = 0;       ///< rows at or beyond were never written
  std::size_t longest_ = 0;    ///< most rows of a step on the device
  std::size_t restored_ = 0;   ///< a prefix brought the rows up to here
  std::vector<bool> chunked_;  ///< [pos_] which tokens a chunked step fed
  bool scan_ = false;          ///< one is behind the state
  bool tainted_ = false;
  bool open_ = false;
  bool open_chunked_ = false;
  bool spoiled_ = false;  ///< a kernel of the open step failed
  Tokens open_tokens_;
  std::vector<bool> written_;
  bool parked_ = false;
  Tokens parked_at_;
  std::vector<float> parked_row_;
  bool taps_ = false;
  std::size_t tap_origin_ = 0;
  std::size_t tap_rows_ = 0;
  std::size_t tap_cap_ = 0;

  // Of the operation in hand.
  unsigned fault_ = 0;
  bool ahead_ = false;  ///< the host does not know where the device is: a refusal may ask that
  bool failed_ = false;
  std::size_t may_keep_ = 0;
};

}  // namespace property
