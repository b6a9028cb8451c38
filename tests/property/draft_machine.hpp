// A DflashKv and what the rules say of it, side by side.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/dflash_kv.hpp>
#include <memra/launch.hpp>
#include <optional>
#include <property/reference.hpp>
#include <property/script.hpp>
#include <property/stacks.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace property {

enum class DraftPlant {
  none,
  truncate_keeps_one,    ///< one row more than asked for stays
  tail_rows_not_zeroed,  ///< rows below a restored tail are not zero
  block_is_committed,    ///< commit counts the rows of a block
  move_spoils_a_row,     ///< the oldest row that a ring moves arrives with another byte
  pinned_row_is_late,    ///< a tail that a move took has a byte of later
  question_is_answered,  ///< may_truncate is asked about all rows, not the ones it is about
};

/// One float of a draft row; `token` below 0 stands for a row of zeros.
inline float draft_value(std::size_t layer, std::size_t plane, std::size_t e, int token, std::size_t row) {
  if (token < 0) return 0.0F;
  return memra_test::stand_in::value(10 + plane, layer, 0, e, static_cast<std::uint64_t>(token), row);
}

struct DraftBody {
  memra::DraftView w;
  std::size_t layer;
  int token;  ///< of the first row; the next rows count on

  void operator()(const memra::Item& item) const noexcept {
    const std::size_t row = static_cast<std::size_t>(*w.len_d) + item.x;
    const std::size_t at = row - static_cast<std::size_t>(w.first_row());
    if (at >= w.phys_rows) return;
    const std::size_t width = w.n_kv * w.head_dim;
    for (std::size_t e = 0; e < width; ++e) {
      w.k[at * width + e] = draft_value(layer, 0, e, token + static_cast<int>(item.x), row);
      w.v[at * width + e] = draft_value(layer, 1, e, token + static_cast<int>(item.x), row);
    }
  }
};

/// Fills `n` rows of a view with a kernel, or by copies where plain bodies do not run.
template <class Dev>
memra::Status write_draft(Dev& dev, const memra::DraftView& w, std::size_t n, std::size_t layer, int token) {
  if constexpr (runs_plain_bodies<Dev>) {
    return memra::launch(dev, "draft", {n}, DraftBody{w, layer, token});
  } else {
    std::int32_t ints[2] = {-1, 0};  // len_d and, in a ring, base_d
    if (auto s = dev.download(reinterpret_cast<std::byte*>(ints), reinterpret_cast<const std::byte*>(w.len_d),
                              (w.base_d == nullptr ? 1 : 2) * sizeof ints[0]);
        !s) {
      return s;
    }
    const auto first = static_cast<std::size_t>(ints[0]);
    const std::size_t at_row = first - static_cast<std::size_t>(ints[1]);
    const std::size_t width = w.n_kv * w.head_dim;
    std::vector<float> rows(std::min(n, w.phys_rows - at_row) * width);
    for (std::size_t plane = 0; plane < 2; ++plane) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t r = i / width;
        rows[i] = draft_value(layer, plane, i % width, token + static_cast<int>(r), first + r);
      }
      float* const at = (plane == 0 ? w.k : w.v) + at_row * width;
      if (auto s = dev.upload(reinterpret_cast<std::byte*>(at), reinterpret_cast<const std::byte*>(rows.data()),
                              rows.size() * sizeof(float));
          !s) {
        return s;
      }
    }
    return {};
  }
}

/// setup: which layers have a window and whether that is a ring, cap.
template <class Dev>
class DraftMachine {
  using Kv = memra::DflashKv<Dev>;
  using Tail = memra::DflashKvTail<Dev>;

 public:
  DraftMachine(const std::vector<unsigned>& setup, DraftPlant plant) : plant_(plant) {
    cfg_.n_layer = 2;
    cfg_.n_kv = 2;
    cfg_.head_dim = 3;
    cfg_.block_size = 4;
    const unsigned windows = setup.empty() ? 0 : setup[0] % 6;
    cfg_.ring = windows >= 4;
    cfg_.sliding_window = windows == 3 ? 0 : 5;
    if (windows == 1) cfg_.layer_sliding = {true, false};
    if (windows == 2) cfg_.layer_sliding = {false, false};
    cap_ = 12 + (setup.size() > 1 ? setup[1] % 20 : 0) + longer();
    kv_.emplace(memra::check(Kv::create(d_.dev[0], cfg_, cap_)));
    guard<Dev>(*kv_);
  }

  void apply(const Op& op) {
    std::size_t live = d_.live();
    fault_ = op.fault;
    failed_ = false;
    for (std::size_t i = 0; i < d_.n; ++i) {
      if (&d_.dev[i] == &kv_->device()) used_ = {i};
    }
    switch (op.code) {
      case 'b':
        begin_rows(op.a % (cfg_.ring ? 11 : 9), op.b, op.c);
        break;
      case 'c':
        commit();
        break;
      case 'k':
        begin_block(op.a % 7, op.b);
        break;
      case 't':
        truncate(somewhere(op, 12));
        break;
      case 'm':
        may_truncate(somewhere(op, 20), op.b);
        break;
      case 'e':
        export_tail(tails_[op.b % 2], pin_ && op.c % 4 == 0 ? pin_->upto : somewhere(op, 16));
        break;
      case 'p':
        pin(somewhere(op, 8));
        break;
      case 'u':
        kv_->unpin();
        pin_.reset();
        break;
      case 'i':
        from_tail(tails_[op.a % 2], op.b, op.c);
        break;
      case 'g':
        lie(tails_[op.a % 2], op.b);
        break;
      case 'n':
        cold(op.a);
        break;
      case 'v':
        move();
        break;
      default:
        break;
    }
    if (took_) live += 2 * cfg_.n_layer;
    took_ = false;
    if (failed_) expect(d_.live() <= live, "a failed call kept memory");
    compare(op.code == 'l' || failed_ || !guarded<Dev>);
  }

  void finish() {
    fault_ = 0;
    if (tainted_) truncate(len());
    compare(true);
    d_.expect_guards_whole();
    for (auto& t : tails_) t = {};
    kv_.reset();
    d_.expect_guards_whole();
    expect(d_.live() == 0, "memory was left when everything was gone");
  }

  std::size_t refusals = 0;
  std::size_t taints = 0;
  std::size_t published = 0;
  std::size_t faults = 0;
  std::size_t moves = 0;
  std::size_t kept = 0;   ///< tails that moves took and exports gave out
  std::size_t asked = 0;  ///< times it was asked what truncate would say

 private:
  struct Held {
    std::optional<Tail> tail;
    std::vector<int> rows;  ///< [tail.len] tokens, those below base unknown to the tail
    std::size_t floor = 0;
  };

  struct Pin {
    std::size_t upto = 0;
    std::size_t base = 0;
    bool taken = false;
  };

  std::size_t len() const { return rows_.size(); }
  /// A length: now and then one that is not reached. In a ring, where most are gone, mostly one of the last `near`.
  std::size_t somewhere(const Op& op, unsigned near) const {
    if (op.c % 8 == 7) return len() + 1 + op.a;
    if (cfg_.ring && op.c % 8 != 6) return len() - std::min<std::size_t>(op.a % near, len());
    return op.a % (len() + 1);
  }
  std::size_t longer() const { return cfg_.ring ? 400 : 0; }
  std::size_t window_rows() const { return cfg_.sliding_window + cfg_.block_size; }
  /// Rows that there are.
  std::size_t phys() const {
    const std::size_t flat = cap_ + cfg_.block_size;
    return cfg_.ring ? std::min(2 * window_rows() + cfg_.block_size, flat) : flat;
  }
  std::size_t max_rows() const { return phys() == cap_ + cfg_.block_size ? cap_ : window_rows(); }

  /// @return whether the call went well; checks it against the model's verdict
  /// @param excuses  a failure on its way may be one that it lives with
  template <class F>
  bool call(bool allowed, const char* name, const F& f, bool excuses = false) {
    const std::size_t calls = calls_();
    d_.arm(fault_, used_);
    const bool ok = f();
    const bool fired = d_.disarm();
    expect(allowed || calls_() == calls, std::string(name) + ": a refusal asked something of a device");
    fired_ = fired;
    expect(ok == (allowed && !fired) || (ok && excuses),
           std::string(name) + (ok ? ": went well and should not have" : ": failed"));
    refusals += allowed ? 0 : 1;
    faults += fired ? 1 : 0;
    failed_ = failed_ || !ok;
    return ok;
  }
  std::size_t calls_() const { return d_.calls(); }

  /// Fills the rows of a view; false if a launch failed.
  bool write(const typename Kv::Rows& rows, int token) {
    expect(rows.first() == len(), "rows start elsewhere");
    d_.arm(fault_, used_);
    bool ok = true;
    for (std::size_t l = 0; l < cfg_.n_layer; ++l) {
      ok = ok && write_draft(kv_->device(), rows.view(l), rows.rows(), l, token).ok();
    }
    const bool fired = d_.disarm();
    expect(ok == !fired, "a launch failed without a fault");
    last_.emplace(rows);
    return ok;
  }
  void last_is_over() {
    if (last_) expect(last_->view(0).k == nullptr && last_->view(0).len_d == nullptr, "rows that are over give a view");
    last_.reset();
  }

  /// A begin of `n` rows, with the move that it may need; false if there are none.
  template <class F>
  bool begin(bool allowed, std::size_t n, const char* name, const F& f) {
    const bool moving = allowed && len() - base_ + n > phys();
    const std::size_t first = len() - std::min(len() - base_, window_rows());
    const bool takes = moving && pin_ && !pin_->taken && pin_->base < first;
    const bool ok = call(allowed, name, f, takes);
    if (!allowed) return false;
    last_is_over();
    open_ = 0;
    if (!moving) return ok;
    if (takes) {
      // Without a failure it is there. With one it is there, or it is lost.
      expect(kv_->pinned() == pin_->upto || (fired_ && kv_->pinned() == 0), "a pinned tail was not taken");
      pin_->taken = took_ = true;
      if (kv_->pinned() == 0) pin_.reset();
      took_ = pin_.has_value();
    }
    resident_ = target_ = first;
    if (!ok) {
      taint();
      return false;
    }
    base_ = first;
    ++moves;
    if (plant_ == DraftPlant::move_spoils_a_row) memra_test::spoil(kv_->device(), kv_->v(1));
    return true;
  }

  void begin_rows(std::size_t n, unsigned branch, unsigned part) {
    const bool allowed = !tainted_ && n != 0 && n <= std::min(cap_ - len(), max_rows());
    std::optional<typename Kv::Rows> rows;
    const bool ok = begin(allowed, n, "begin_rows", [&] {
      auto r = kv_->begin_rows(n);
      if (r) rows.emplace(*r);
      return r.ok();
    });
    if (!ok) return;
    open_ = n;
    token_ = static_cast<int>(branch % 50);
    const unsigned fault = std::exchange(fault_, part % 8 < 4 ? fault_ : 0);  // meets a kernel, or commit
    open_whole_ = write(*rows, token_);
    fault_ = part % 8 < 4 ? 0 : fault;
    if (part % 4 != 0 && open_whole_) commit();
  }

  void commit() {
    if (open_ != 0 && !open_whole_) return;  // an engine whose kernel failed does not commit
    const bool allowed = !tainted_ && open_ != 0;
    const std::size_t more = open_;
    const bool ok = call(allowed, "commit", [&] {
      if (plant_ == DraftPlant::block_is_committed && !allowed && !tainted_ && last_) {
        auto rows = kv_->begin_rows(1);
        return rows.ok() && kv_->commit().ok();
      }
      return kv_->commit().ok();
    });
    if (!allowed) return;
    last_is_over();
    if (!ok) return taint();
    for (std::size_t i = 0; i < more; ++i) rows_.push_back(token_ + static_cast<int>(i));
    open_ = 0;
  }

  void begin_block(std::size_t n, unsigned branch) {
    const bool allowed = !tainted_ && n != 0 && n <= cfg_.block_size;
    std::optional<typename Kv::Rows> rows;
    const bool ok = begin(allowed, n, "begin_block", [&] {
      auto r = kv_->begin_block(n);
      if (r) rows.emplace(*r);
      return r.ok();
    });
    if (!ok) return;
    write(*rows, 100 + static_cast<int>(branch % 50));
  }

  /// Whether the query at `n` may see a row that is not there.
  bool looks_at_nothing(std::size_t n) const {
    for (std::size_t l = 0; l < cfg_.n_layer; ++l) {
      for (std::size_t key = floor_; key < n && key < resident_; ++key) {
        if (cfg_.window(l) == 0 || key + cfg_.window(l) > n) return true;
      }
    }
    return false;
  }

  bool reaches(std::size_t n) const { return n <= len() && n >= floor_ && !looks_at_nothing(n); }

  /// The question alone changes nothing, and asks nothing of the device. Then, half of the time, it is done.
  void may_truncate(std::size_t n, unsigned then) {
    ++asked;
    const bool moved = plant_ == DraftPlant::question_is_answered && n < len();
    const std::size_t calls = calls_();
    const bool may = kv_->may_truncate(moved ? len() : n).ok();
    expect(may == reaches(n) && calls_() == calls, "may_truncate: another answer, or it asked the device");
    compare(false);
    if (then % 2 == 0) truncate(n);
  }
  void truncate(std::size_t n) {
    const bool allowed = reaches(n);
    expect(kv_->may_truncate(n).ok() == allowed, "may_truncate says something else than truncate is to do");
    const std::size_t off = plant_ == DraftPlant::truncate_keeps_one && n < len() ? 1 : 0;
    const bool ok = call(allowed, "truncate", [&] { return kv_->truncate(allowed ? n + off : n).ok(); });
    if (!allowed) return;
    last_is_over();
    open_ = 0;
    if (!ok) return taint();
    tainted_ = false;
    rows_.resize(n);
    resident_ = std::min(resident_, n);
    base_ = target_ = std::min(target_, n);
    if (pin_ && pin_->upto > n) pin_.reset();
  }

  void pin(std::size_t upto) {
    const std::size_t floor = std::min(floor_, upto);
    const std::size_t rows = std::min(window_rows(), upto - floor);
    const bool there = upto != 0 && upto <= len() && rows != 0 && upto - rows >= resident_;
    const bool allowed = !tainted_ && (pin_ ? upto == pin_->upto : there);
    call(allowed, "pin", [&] { return kv_->pin(upto).ok(); });
    if (allowed && !pin_) pin_ = Pin{upto, upto - rows, false};
  }

  void export_tail(Held& h, std::size_t upto) {
    const std::size_t floor = std::min(floor_, upto);
    const std::size_t rows = std::min(cfg_.sliding_window + cfg_.block_size, upto - floor);
    const bool pinned = pin_ && pin_->upto == upto;
    const bool there = upto != 0 && upto <= len() && rows != 0 && upto - rows >= resident_;
    const bool allowed = !tainted_ && (there || (pinned && pin_->taken));
    h = {};
    const bool ok = call(allowed, "export_tail", [&] {
      h.tail = kv_->export_tail(upto);
      return h.tail.has_value();
    });
    if (!ok) return;
    ++published;
    if (pinned) {
      if (pin_->taken && plant_ == DraftPlant::pinned_row_is_late) {
        memra_test::spoil(kv_->device(), h.tail->layers[1].k.data());
      }
      kept += pin_->taken ? 1 : 0;
      pin_.reset();
    }
    expect(h.tail->len == upto && h.tail->rows == rows && h.tail->base == upto - rows && h.tail->floor == floor,
           "export_tail: other bounds");
    h.rows.assign(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(upto));
    h.floor = floor;
  }

  void from_tail(Held& h, unsigned where, unsigned how) {
    if (!h.tail) return;
    const std::size_t cap =
        how % 8 == 7 ? h.tail->len - 1 : std::max<std::size_t>(h.tail->len, 12) + how % 5 + longer();
    std::optional<Kv> made;
    memra::Status why;
    Dev& dev = d_.dev[where % 3];
    if (where % 2 == 0) used_ = {where % 3};
    const bool ok = call(cap >= h.tail->len, "from_tail", [&] {
      made = Kv::from_tail(dev, cfg_, cap, *h.tail, &why);
      expect(made.has_value() == why.ok(), "from_tail: the reason does not fit the result");
      return made.has_value();
    });
    if (!ok) return;
    guard<Dev>(*made);
    std::vector<int> rows = h.rows;
    for (std::size_t r = 0; r < h.tail->base; ++r) rows[r] = -1;
    if (plant_ == DraftPlant::tail_rows_not_zeroed && h.tail->base != 0 && !cfg_.ring) {
      auto* row = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(made->v(1)));
      memra::check(dev.fill(row, std::byte{0x11}, 4));
    }
    bool windowed = true;
    for (std::size_t l = 0; l < cfg_.n_layer; ++l) windowed = windowed && cfg_.window(l) != 0;
    const std::size_t floor = windowed ? h.floor : std::max(h.floor, h.tail->base);
    expect_holds(*made, rows);
    expect(made->floor() == floor && made->resident() == h.tail->base, "from_tail: another floor or first row");
    if (how % 3 != 0) return;
    kv_ = std::move(made);
    last_.reset();
    rows_ = rows;
    cap_ = cap;
    floor_ = floor;
    resident_ = h.tail->base;
    base_ = target_ = cfg_.ring ? h.tail->base : 0;
    pin_.reset();
    open_ = 0;
    tainted_ = false;
  }

  /// A tail that contradicts itself or the drafter is refused whatever it says.
  void lie(Held& h, unsigned about) {
    if (!h.tail) return;
    Tail& t = *h.tail;
    memra::DflashCfg cfg = cfg_;
    const auto [base, rows, end, row_bytes, floor] = std::tuple(t.base, t.rows, t.len, t.row_bytes, t.floor);
    std::size_t cap = std::max<std::size_t>(40, t.len);
    const auto huge = static_cast<std::size_t>(-1);
    switch (about % 9) {
      case 0:
        t.base += 1;
        break;
      case 1:
        t.rows = huge;
        break;
      case 2:
        t.len += 1;
        break;
      case 3:
        t.row_bytes += 4;
        break;
      case 4:
        t.floor = t.base + 1;
        break;
      case 5:
        cfg.n_layer = 1, cfg.layer_sliding.clear();
        break;
      case 6:
        cfg.head_dim = 4;
        break;
      case 7:
        cap = t.len - 1;
        break;
      default:
        cfg.sliding_window += t.rows, t.floor = 0;
        break;
    }
    const bool fits = about % 9 == 8 && t.base == 0;  // a short tail that begins at row 0 covers any window
    if (!fits) {
      call(false, "from_tail of a lie", [&] { return Kv::from_tail(d_.dev[0], cfg, cap, t).has_value(); });
    }
    t.base = base, t.rows = rows, t.len = end, t.row_bytes = row_bytes, t.floor = floor;
  }

  void cold(unsigned a) {
    const std::size_t pos = a % (cap_ + 2);
    std::optional<Kv> made;
    used_ = {a % 3};
    const bool ok = call(pos <= cap_, "create_cold_at", [&] {
      auto r = Kv::create_cold_at(d_.dev[a % 3], cfg_, cap_, pos);
      if (r) made.emplace(*std::move(r));
      return r.ok();
    });
    if (!ok) return;
    guard<Dev>(*made);
    kv_ = std::move(made);
    last_.reset();
    rows_.assign(pos, -1);
    floor_ = resident_ = pos;
    base_ = target_ = cfg_.ring ? pos : 0;
    pin_.reset();
    open_ = 0;
    tainted_ = false;
  }

  void move() {
    Kv other(std::move(*kv_));
    expect(kv_->len() == 0 && kv_->n_layer() == 0 && !kv_->begin_rows(1).ok() && !kv_->commit().ok() &&
               !kv_->truncate(0).ok() && !kv_->may_truncate(0).ok() && !kv_->export_tail(1).has_value(),
           "a moved-from draft cache did something");
    expect(kv_->base() == 0 && kv_->pinned() == 0 && !kv_->pin(1).ok(), "a moved-from draft cache has a base or a pin");
    kv_->unpin();
    *kv_ = std::move(other);
  }

  void taint() {
    tainted_ = true;
    ++taints;
  }

  void expect_holds(const Kv& kv, const std::vector<int>& rows) {
    const std::size_t width = cfg_.n_kv * cfg_.head_dim;
    for (std::size_t l = 0; l < cfg_.n_layer; ++l) {
      for (std::size_t plane = 0; plane < 2; ++plane) {
        const float* at = plane == 0 ? kv.k(l) : kv.v(l);
        std::vector<float> got((rows.size() - kv.base()) * width);
        memra::check(kv.device().download(reinterpret_cast<std::byte*>(got.data()),
                                          reinterpret_cast<const std::byte*>(at), got.size() * sizeof(float)));
        for (std::size_t i = 0; i < got.size(); ++i) {
          const std::size_t row = kv.base() + i / width;
          const float want = draft_value(l, plane, i % width, rows[row], row);
          expect(std::memcmp(&want, &got[i], sizeof want) == 0, "layer " + std::to_string(l) +
                                                                    (plane == 0 ? " K" : " V") + " row " +
                                                                    std::to_string(row) + " holds other bytes");
        }
      }
    }
  }

  void compare(bool close) {
    expect(kv_->len() == len(), "len is " + std::to_string(kv_->len()) + ", not " + std::to_string(len()));
    expect(kv_->cap() == cap_ && kv_->floor() == floor_ && kv_->resident() == resident_, "cap, floor or resident");
    expect(kv_->tainted() == tainted_, tainted_ ? "not tainted" : "tainted");
    expect(kv_->base() == base_ && kv_->plan().phys_rows == phys(), "base or physical rows");
    expect(kv_->pinned() == (pin_ ? pin_->upto : 0), "another pin");
    expect(kv_->open_rows() == open_ && kv_->max_rows() == max_rows(), "other open rows, or most rows of a call");
    expect(kv_->n_layer() == cfg_.n_layer && kv_->cfg_window_rows() == window_rows() &&
               kv_->row_bytes() == cfg_.n_kv * cfg_.head_dim * sizeof(float),
           "another shape");
    if (!close || base_ != target_) return;  // half moved, it holds what it can be moved to the end from
    expect_holds(*kv_, rows_);
    if (tainted_) return;
    const auto* len_d = reinterpret_cast<const std::byte*>(kv_->k(0)) - kv_->plan().k_offset(0);
    std::int32_t mirror = -1;
    memra::check(kv_->device().download(reinterpret_cast<std::byte*>(&mirror), len_d, sizeof mirror));
    expect(mirror == static_cast<std::int32_t>(len()), "len_d is not len");
    if (!cfg_.ring) return;
    memra::check(kv_->device().download(reinterpret_cast<std::byte*>(&mirror), len_d + sizeof mirror, sizeof mirror));
    expect(mirror == static_cast<std::int32_t>(base_), "base_d is not base");
  }

  DraftPlant plant_;
  memra::DflashCfg cfg_;
  Devices<Dev> d_;
  std::array<Held, 2> tails_;
  std::optional<Kv> kv_;
  std::optional<typename Kv::Rows> last_;

  // What the rules say. A row is its token; -1 is a row of zeros.
  std::vector<int> rows_;
  std::size_t cap_ = 0;
  std::size_t floor_ = 0;
  std::size_t resident_ = 0;
  std::size_t base_ = 0;
  std::size_t target_ = 0;  ///< base_, unless a move was left half done
  std::optional<Pin> pin_;
  std::size_t open_ = 0;
  bool open_whole_ = false;
  int token_ = 0;
  bool tainted_ = false;

  unsigned fault_ = 0;
  std::vector<std::size_t> used_ = {0};  ///< the device of the operation in hand
  bool failed_ = false;
  bool fired_ = false;  ///< in the last call
  bool took_ = false;   ///< the operation in hand took a pinned tail
};

}  // namespace property
