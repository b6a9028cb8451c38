// Rings, shared K and V, latent rows and 16-bit states under random histories, beside a model that shares no code with
// them: arrays of what was written where, attention in float64, states summed by hand.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <optional>
#include <string>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <support/tape.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace kinds_walk_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using memra::Strategy;
using Cache = memra::Cache<HostDev>;

/// A token is known by a number that no other one has; a replay feeds the same number again.
using Id = std::uint32_t;

/// Multiples of 1/8 up to 1, from a hash: exact in 16 bits.
float grid(std::uint64_t kind, std::size_t e, Id id) {
  std::uint64_t x = kind * 0x9E3779B97F4A7C15U + e * 0xD6E8FEB86659FD93U + id * 0xC2B2AE3D27D4EB4FU + 1;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9U;
  return static_cast<float>((x >> 40) % 17) / 8.0F - 1.0F;
}

/// One attention state: who owns it, how wide it is, and which token's row each physical row holds.
struct Owned {
  std::size_t layer, nth;
  memra::AttentionSpec spec;
  struct Place {
    std::size_t row = static_cast<std::size_t>(-1);
    Id id = 0;
  };
  std::vector<Place> at;  // [rows of the ring]

  std::vector<float> row(std::uint64_t kind, Id id, std::size_t width, Format f) const {
    std::vector<float> x(width);
    for (std::size_t e = 0; e < width; ++e) x[e] = grid(kind + 10 * layer + nth, e, id);
    std::vector<std::byte> bytes(memra::row_bytes(f, width));
    memra::encode(f, x.data(), bytes.data(), width);
    memra::decode(f, bytes.data(), x.data(), width);
    return x;
  }
  std::size_t k_width() const { return spec.n_kv_heads * spec.head_dim_k; }
  std::vector<float> k(Id id) const { return row(100, id, k_width(), spec.k_format); }
  std::vector<float> v(Id id) const {
    if (!spec.v_in_k) return row(200, id, spec.n_kv_heads * spec.head_dim_v, spec.v_format);
    std::vector<float> all = k(id), v;
    for (std::size_t h = 0; h < spec.n_kv_heads; ++h) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(h * spec.head_dim_k);
      v.insert(v.end(), from, from + static_cast<std::ptrdiff_t>(spec.head_dim_v));
    }
    return v;
  }
};

struct Shape {
  std::size_t w1, s1, w2, s2, w3, s3, max_ctx;
  bool recurrent;
};

memra::ModelConfig model(const Shape& s) {
  memra::AttentionSpec a;
  a.n_kv_heads = 1;
  a.n_heads = 2;
  a.head_dim_k = 3;
  a.head_dim_v = 5;
  a.k_format = a.v_format = Format::f32;
  memra::AttentionSpec b = a;
  b.n_kv_heads = 2;
  b.head_dim_k = b.head_dim_v = 32;
  b.k_format = Format::q8_0;
  b.v_format = Format::q5_1;
  b.k_layout = b.v_layout = memra::Layout::split;
  memra::AttentionSpec latent = memra::latent_rows(2, 40, 24, Format::q4_0);  // V ends inside a block of K
  memra::ModelConfig cfg;
  const auto bf16 = memra::stored_as(memra::lightning(1, 2, 3), Format::f32, Format::bf16);
  const auto conv = memra::stored_as(memra::short_conv(3, 4), Format::f16, Format::f32);
  const auto half = memra::stored_as(memra::mamba2(2, 3, 1, 2, 1), Format::bf16, Format::f16);
  cfg.layers = {{{memra::windowed(a, s.w1, s.s1)}},
                {{memra::windowed(latent, s.w2, s.s2), memra::windowed(b, s.w3, s.s3)}},
                {{memra::SharedKvSpec{1, 1, 4}, memra::SharedKvSpec{0, 0, 0}}},
                memra::no_state(),
                {{memra::SharedKvSpec{1, 0, 1}}}};
  if (s.recurrent) {
    cfg.layers[0].states.insert(cfg.layers[0].states.begin(), bf16);
    cfg.layers[2].states.insert(cfg.layers[2].states.begin() + 1, half);
    cfg.layers.push_back({{conv, bf16}});
  }
  cfg.n_vocab = 4;
  cfg.n_mtp = s.recurrent ? 1 : 0;
  return cfg;
}

/// To nearest even, by hand. x is far from the ends of the range.
float to_bf16(float x) {
  if (x == 0.0F) return x;
  const float unit = std::ldexp(1.0F, std::ilogb(x) - 7);
  return std::nearbyint(x / unit) * unit;
}
float to_f16(float x) {
  if (x == 0.0F) return x;
  const float unit = std::ldexp(1.0F, std::max(std::ilogb(x), -14) - 10);
  return std::nearbyint(x / unit) * unit;
}

class Walk {
 public:
  Walk(const Shape& s, std::uint64_t seed) : rng_(seed), shape_(s) { renew(model(s), s.max_ctx); }

  std::size_t refused = 0, went_back = 0, exported = 0, rounds = 0, handed = 0, device = 0;

  void run(std::size_t ops) {
    for (std::size_t i = 0; i < ops; ++i) {
      switch (rng_.next() % 16) {
        case 0:
        case 1:
          take_snapshot();
          break;
        case 2:
        case 3:
          roll_back();
          break;
        case 4:
          publish(false);
          break;
        case 5:
          publish(true);
          break;
        case 6:
        case 7:
          round(false);
          break;
        case 8:
          round(true);
          break;
        case 9:
          device_step();
          break;
        case 10:
          if (rng_.next() % 8 == 0) {
            memra::check(cache_->reset());
            ids_.clear();
            pos_ = 0;
            start_again();
            drop(0);
          }
          break;
        default:
          step();
      }
      look();
    }
  }

 private:
  void renew(const memra::ModelConfig& cfg, std::size_t max_ctx) {
    cfg_ = cfg;
    max_ctx_ = max_ctx;
    cache_.emplace(memra::check(make(cfg, max_ctx)));
    own(cfg, max_ctx);
  }
  memra::CacheOptions paid(const memra::ModelConfig& cfg, std::size_t max_ctx) {
    memra::CacheOptions o;
    o.rounds.rows = std::min<std::size_t>(9, memra::check(memra::plan(cfg, max_ctx)).max_rows);
    o.rounds.replay = o.rounds.planes = o.rounds.stash = true;
    return o;
  }
  memra::Result<Cache> make(const memra::ModelConfig& cfg, std::size_t max_ctx) {
    if (rng_.next() % 2 == 0) return Cache::create(dev_, cfg, max_ctx, paid(cfg, max_ctx));
    return Cache::create_pp2(dev_, dev_, rng_.next() % (cfg.layers.size() + 1), cfg, max_ctx, paid(cfg, max_ctx));
  }
  void own(const memra::ModelConfig& cfg, std::size_t max_ctx) {
    owned_.clear();
    most_ = max_ctx;
    for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
      std::size_t nth = 0;
      for (const auto& s : cfg.layers[il].states) {
        if (const auto* a = std::get_if<memra::AttentionSpec>(&s)) {
          const std::size_t tiles = (a->window + a->ring_slack + 63) / 64 * 64;
          const std::size_t rows = a->ring_slack == 0 ? max_ctx : std::min(tiles, max_ctx);
          if (rows < max_ctx) most_ = std::min(most_, rows - (a->window - 1));
          owned_.push_back({il, nth, *a, std::vector<Owned::Place>(rows)});
        }
        if (!std::holds_alternative<memra::RecurrentSpec>(s)) ++nth;
      }
    }
    REQUIRE(cache_->plan().max_rows == most_);
    conservative_ = false;
  }
  void start_again() {
    for (Owned& o : owned_) std::fill(o.at.begin(), o.at.end(), Owned::Place{});
    conservative_ = false;
  }

  Owned& donor(std::size_t layer, std::size_t nth) {
    return *std::find_if(owned_.begin(), owned_.end(),
                         [&](const Owned& o) { return o.layer == layer && o.nth == nth; });
  }

  /// Rows that a query at `at` needs, and those up to `end`, are where the arrays say.
  bool held(std::size_t at, std::size_t end) const {
    for (const Owned& o : owned_) {
      for (std::size_t r = at - std::min(at, o.spec.window - 1); r < end; ++r) {
        const Owned::Place& p = o.at[r % o.at.size()];
        if (p.row != r || p.id != ids_[r]) return false;
      }
    }
    return true;
  }

  /// Tokens to feed at pos_: what is owed, then new ones.
  std::vector<Id> next(std::size_t rows) {
    std::vector<Id> t;
    for (std::size_t i = 0; i < rows; ++i) t.push_back(pos_ + i < ids_.size() ? ids_[pos_ + i] : ++last_id_);
    return t;
  }

  void forward(memra::Step<HostDev>& s, const std::vector<Id>& t) {
    const memra::ops_for<HostDev> ops(dev_);
    std::vector<Id> line(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(pos_));
    line.insert(line.end(), t.begin(), t.end());
    for (std::size_t il = 0; il < cfg_.layers.size(); ++il) {
      std::size_t attention = 0, recurrent = 0;
      for (const auto& state : cfg_.layers[il].states) {
        if (const auto* a = std::get_if<memra::AttentionSpec>(&state)) {
          Owned& o = donor(il, attention);
          std::vector<float> k, v;
          for (std::size_t i = 0; i < t.size(); ++i) {
            for (const float x : o.k(t[i])) k.push_back(x);
            for (const float x : o.v(t[i])) v.push_back(x);
            o.at[(pos_ + i) % o.at.size()] = {pos_ + i, t[i]};
          }
          memra::check(ops.append(memra::check(s.kv_write(il, attention)), k.data(), a->v_in_k ? nullptr : v.data()));
          attend(s, il, attention++, o, std::max(a->n_heads, a->n_kv_heads), line, t);
        } else if (const auto* shared = std::get_if<memra::SharedKvSpec>(&state)) {
          Owned& o = donor(shared->donor, shared->nth);
          const std::size_t heads =
              shared->n_heads != 0 ? shared->n_heads : std::max(o.spec.n_heads, o.spec.n_kv_heads);
          attend(s, il, attention++, o, heads, line, t);
        } else {
          recur(memra::check(s.recur(il, recurrent++)), t);
        }
      }
    }
  }

  void attend(memra::Step<HostDev>& s, std::size_t il, std::size_t nth, const Owned& o, std::size_t heads,
              const std::vector<Id>& line, const std::vector<Id>& t) {
    const auto& a = o.spec;
    std::vector<float> q(t.size() * heads * a.head_dim_k), out(t.size() * heads * a.head_dim_v, std::nanf(""));
    for (std::size_t i = 0; i < q.size(); ++i)
      q[i] = grid(300 + il, i % (heads * a.head_dim_k), t[i / (heads * a.head_dim_k)]);
    memra_test::Scratch scratch(cache_->plan().workspace_bytes(t.size()));
    memra::check(memra::ops_for<HostDev>(dev_).attend(memra::check(s.kv_read(il, nth)),
                                                      {q.data(), out.data(), heads, 0.25F}, scratch.view()));
    for (std::size_t i = 0; i<t.size(); i += t.size()> 4 ? t.size() - 1 : 1) {  // of long calls the ends
      const std::size_t p = pos_ + i;
      const std::size_t lo = p + 1 - std::min(p + 1, a.window);
      for (std::size_t h = 0; h < heads; ++h) {
        const std::size_t kvh = h / (heads / a.n_kv_heads);
        std::vector<double> sum(a.head_dim_v, 0.0);
        double norm = 0;
        for (std::size_t r = lo; r <= p; ++r) {
          const auto k = o.k(line[r]);
          const auto v = o.v(line[r]);
          double dot = 0;
          for (std::size_t d = 0; d < a.head_dim_k; ++d) {
            dot += static_cast<double>(q[(i * heads + h) * a.head_dim_k + d]) *
                   static_cast<double>(k[kvh * a.head_dim_k + d]);
          }
          const double w = std::exp(0.25 * dot);
          norm += w;
          for (std::size_t d = 0; d < a.head_dim_v; ++d) sum[d] += w * static_cast<double>(v[kvh * a.head_dim_v + d]);
        }
        for (std::size_t d = 0; d < a.head_dim_v; ++d) {
          const double got = static_cast<double>(out[(i * heads + h) * a.head_dim_v + d]);
          if (std::fabs(got - sum[d] / norm) > 1e-5) {
            FAIL("layer " << il << "/" << nth << " row " << p << ": " << got << ", not " << sum[d] / norm);
          }
        }
      }
    }
  }

  void recur(const memra::RecurView& r, const std::vector<Id>& t) {
    const memra::ops_for<HostDev> ops(dev_);
    const std::size_t n = r.conv_dim();
    std::vector<float> x, y(t.size() * n), w(n * r.d_conv, 0.5F), out(t.size() * r.n_v_heads * r.d_v + 1);
    for (const Id id : t) {
      for (std::size_t e = 0; e < n; ++e) x.push_back(grid(400, e, id));
    }
    memra::check(ops.conv_update(r, {x.data(), w.data(), nullptr, y.data(), false}));
    if (r.rule == memra::ScanRule::none) return;
    // q, k and v straight from x; no decay, so that a state is a sum that can be made by hand.
    const std::vector<float> g(t.size() * r.n_v_heads, 0.0F), beta(t.size() * r.n_v_heads, 0.5F);
    memra::ScanArgs a;
    a.q = x.data();
    a.k = x.data() + r.n_k_heads * r.d_k;
    a.v = a.k + r.n_k_heads * r.d_k;
    a.g = g.data();
    a.beta = beta.data();
    a.out = out.data();
    a.q_stride = a.k_stride = a.v_stride = n;
    memra::check(ops.linear_scan(r, a));
  }

  void step() {
    const std::size_t room = max_ctx_ - pos_;
    if (room == 0) {
      (void)roll_back();
      return;
    }
    std::size_t rows = rng_.next() % 3 == 0 ? 1 + rng_.next() % std::min(room, most_) : 1 + rng_.next() % 9;
    if (rng_.next() % 6 == 0) rows = most_;
    if (rows > most_ || rows > room) {
      const auto s = cache_->begin_step(rows);
      REQUIRE(s.status().kind() == ErrorKind::bad_argument);
      return;
    }
    const auto t = next(rows);
    auto s = memra::check(cache_->begin_step(rows));
    forward(s, t);
    if (rng_.next() % 10 == 0) {  // dies half way
      dirty_ = true;
      if (shape_.recurrent) {
        const bool back = roll_back();
        if (!back) {
          memra::check(cache_->reset());
          ids_.clear();
          pos_ = 0;
          start_again();
          drop(0);
        }
      }
      return;
    }
    memra::check(cache_->advance());
    commit(t, rows);
  }
  void commit(const std::vector<Id>& t, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (pos_ + i >= ids_.size()) ids_.push_back(t[i]);
    }
    pos_ += n;
  }

  void device_step() {
    const std::size_t rows = 1 + rng_.next() % std::min<std::size_t>(9, most_);
    if (rows > max_ctx_ - pos_) return;
    auto s = cache_->begin_device_step(rows);
    if (!s) {
      REQUIRE(s.status().kind() == ErrorKind::bad_state);  // a plane is elsewhere
      return;
    }
    const auto t = next(rows);
    forward(*s, t);
    memra::check(cache_->advance_d());
    commit(t, rows);
    conservative_ = true;
    ++device;
    if (rng_.next() % 2 == 0) memra::check(cache_->catch_up());
  }

  void round(bool on_device) {
    const std::size_t most = cache_->plan().round.rows;
    const std::size_t rows = 1 + rng_.next() % most;
    if (rows > max_ctx_ - pos_ || pos_ != ids_.size()) return;
    const Strategy by =
        std::array{Strategy::planes, Strategy::stash, Strategy::replay}[rng_.next() % (on_device ? 2 : 3)];
    auto r = cache_->begin_round(rows, by);
    if (!r) {
      INFO(r.status().text());
      REQUIRE((!shape_.recurrent && dirty_ && r.status().kind() == ErrorKind::bad_state));  // a step is open
      return;
    }
    const auto t = next(rows);
    forward(r->step(), t);
    const std::size_t accept = rng_.next() % (rows + 1);
    ++rounds;
    if (rng_.next() % 6 == 0) {
      REQUIRE(r->abandon().ok());
      return;
    }
    if (on_device) {
      accepts_.push_back(std::make_unique<std::int32_t>(static_cast<std::int32_t>(accept)));
      const std::vector<const std::int32_t*> at(cache_->n_stages(), accepts_.back().get());
      memra::check(r->commit_d(at));
      commit(t, accept);
      conservative_ = true;
      if (rng_.next() % 2 == 0) memra::check(cache_->catch_up());
      return;
    }
    const auto left = memra::check(r->commit(accept));
    const std::size_t at = pos_;
    commit(t, accept);
    pos_ = left.pos;
    REQUIRE((left.pos + left.replay == at + accept && (left.replay == 0 || by == Strategy::replay)));
  }

  struct Snap {
    memra::CacheSnapshot<HostDev> s;
    std::vector<Id> ids;
  };
  void take_snapshot() {
    auto s = cache_->snapshot();
    if (!s) {
      REQUIRE(s.status().kind() == ErrorKind::bad_state);
      REQUIRE((pos_ != ids_.size() || dirty_));
      return;
    }
    REQUIRE(s->pos() == pos_);
    snaps_.push_back({*std::move(s), ids_});
    if (snaps_.size() > 6) snaps_.erase(snaps_.begin() + static_cast<std::ptrdiff_t>(rng_.next() % 6));
  }
  void drop(std::size_t end) {
    std::erase_if(snaps_, [&](const Snap& s) {
      const bool gone = s.ids.size() > end;
      REQUIRE(s.s.valid() == !gone);
      return gone;
    });
  }

  bool roll_back() {
    if (snaps_.empty()) return false;
    const Snap& s = snaps_[rng_.next() % snaps_.size()];
    const std::size_t at = s.ids.size();
    const std::size_t most = ids_.size() - at;
    const std::size_t accept = rng_.next() % 3 == 0 ? most : rng_.next() % (most + 1);
    const std::size_t to = shape_.recurrent ? at : at + accept;
    const bool there = held(to, at + accept);
    const auto back = cache_->rollback(s.s, accept);
    INFO("to " << to << " accept " << accept << " of " << ids_.size() << ": " << back.status().text());
    if (!back) {
      REQUIRE(back.status().kind() == ErrorKind::bad_state);
      REQUIRE((!there || conservative_));
      ++refused;
      return false;
    }
    REQUIRE(there);
    REQUIRE((back->pos == to && back->replay == at + accept - to));
    ids_.resize(at + accept);
    pos_ = to;
    dirty_ = false;
    if (ids_.empty()) start_again();
    drop(ids_.size());
    ++went_back;
    return true;
  }

  /// A prefix, or a hand-over of one, to a cache of other rings; the walk goes on there.
  void publish(bool over_a_link) {
    if (snaps_.empty()) return;
    const Snap& s = snaps_[rng_.next() % snaps_.size()];
    const std::size_t at = s.ids.size();
    auto prefix = cache_->export_prefix(s.s);
    INFO("prefix at " << at << " of " << ids_.size() << ": " << prefix.status().text());
    if (at == 0) {
      REQUIRE(prefix.status().kind() == ErrorKind::bad_argument);
      return;
    }
    const bool there = held(at, at);
    if (!prefix) {
      REQUIRE(prefix.status().kind() == ErrorKind::bad_state);
      REQUIRE((!there || conservative_));
      return;
    }
    REQUIRE(there);
    memra::ModelConfig cfg = cfg_;
    for (auto& layer : cfg.layers) {
      for (auto& state : layer.states) {
        if (auto* a = std::get_if<memra::AttentionSpec>(&state))
          a->ring_slack = std::array{1U, 7U, 64U, 65U, 130U}[rng_.next() % 5];
      }
    }
    const std::size_t ctx = std::max<std::size_t>(at, std::array{at, at + 1, at + 40, shape_.max_ctx}[rng_.next() % 4]);
    std::optional<Cache> made;
    if (over_a_link) {
      memra_test::TapeWriter w;
      memra::check(memra::send_state(w, *prefix, {}, nullptr, 4096));
      memra::HandoverTarget<HostDev> target;
      target.stages = {&dev_, &dev_};
      target.fence = {0, rng_.next() % (cfg.layers.size() + 1), cfg.layers.size()};
      target.config = cfg;
      target.max_ctx = ctx;
      target.options = paid(cfg, ctx);
      memra_test::TapeReader r(w.tape);
      made.emplace(std::move(memra::check(memra::receive_state(r, target)).cache));
      ++handed;
    } else {
      made.emplace(memra::check(Cache::from_prefix(dev_, cfg, ctx, *prefix, paid(cfg, ctx))));
    }
    ++exported;
    ids_ = s.ids;
    pos_ = at;
    dirty_ = false;
    snaps_.clear();
    cache_.emplace(*std::move(made));
    cfg_ = cfg;
    max_ctx_ = ctx;
    own(cfg, ctx);
    for (Owned& o : owned_) {
      for (std::size_t r = at - std::min(at, o.spec.window - 1); r < at; ++r) o.at[r % o.at.size()] = {r, ids_[r]};
    }
  }

  /// A row that is not what its token makes it, among all that are said to be there.
  std::string wrong_row() {
    const memra::ops_for<HostDev> ops(dev_);
    for (const Owned& o : owned_) {
      const auto kv = *cache_->kv(o.layer, o.nth);
      const std::size_t need = pos_ - std::min(pos_, o.spec.window - 1);
      if (need < pos_ && kv.first > need) return "the window is not whole";
      for (std::size_t r = kv.first; r < ids_.size(); ++r) {
        std::vector<float> k(o.k_width());
        memra::check(ops.read_rows(kv.k, r, 1, k.data()));
        if (k != o.k(ids_[r])) return "layer " + std::to_string(o.layer) + ": K row " + std::to_string(r);
      }
    }
    return "";
  }

  /// Rows and states are what the tokens make them.
  void look() {
    memra::check(cache_->catch_up());
    REQUIRE(cache_->pos() == pos_);
    REQUIRE(cache_->len() == ids_.size());
    REQUIRE(wrong_row() == "");
    const auto kv = *cache_->kv(owned_[0].layer, owned_[0].nth);
    if (kv.first < ids_.size()) {  // red arm: a bit of the newest row
      const std::size_t at = kv.k.phys(ids_.size() - 1) * kv.k_row_bytes();
      auto& byte = const_cast<std::byte&>(kv.k.data[at + 3]);
      byte ^= std::byte{64};
      REQUIRE(wrong_row() != "");
      byte ^= std::byte{64};
    }
    for (std::size_t il = 0; il < cfg_.layers.size(); ++il) {
      for (std::size_t nth = 0; const auto r = cache_->recur(il, nth); ++nth) check_state(*r);
    }
  }

  void check_state(const memra::RecurLayer& r) {
    if (dirty_) return;
    const std::size_t n = r.spec.conv_dim();
    if (r.conv_bytes() != 0) {
      std::vector<float> conv(r.conv_elems());
      memra::decode(r.spec.conv_format, r.conv_data, conv.data(), conv.size());
      const std::size_t taps = r.spec.d_conv - 1;
      for (std::size_t c = 0; c < n; ++c) {
        for (std::size_t i = 0; i < taps; ++i) {
          const float want = pos_ + i < taps ? 0.0F : grid(400, c, ids_[pos_ + i - taps]);
          REQUIRE(conv[c * taps + i] == want);
        }
      }
    }
    if (r.ssm_bytes() == 0) return;
    std::vector<float> ssm(r.ssm_elems(), 0.0F), got(r.ssm_elems());
    const auto& s = r.spec;
    for (std::size_t t = 0; t < pos_; ++t) {
      for (std::size_t i = 0; i < ssm.size(); ++i) {
        const std::size_t head = i / (s.d_v * s.d_k);
        const float k =
            grid(400, s.n_k_heads * s.d_k + (head / (s.n_v_heads / s.n_k_heads)) * s.d_k + i % s.d_k, ids_[t]);
        const float v = grid(400, 2 * s.n_k_heads * s.d_k + i / s.d_k, ids_[t]);
        ssm[i] = s.ssm_format == Format::bf16 ? to_bf16(ssm[i] + 0.5F * v * k) : to_f16(ssm[i] + 0.5F * v * k);
      }
    }
    if (s.ssm_format == Format::bf16) {
      memra::decode(Format::bf16, r.ssm_data, got.data(), got.size());
    } else {
      memra::decode(Format::f16, r.ssm_data, got.data(), got.size());
    }
    if (got != ssm) FAIL("a state of " << ssm.size() << " elements is another than its tokens make");
  }

  memra_test::Rng rng_;
  Shape shape_;
  HostDev dev_;
  memra::ModelConfig cfg_;
  std::size_t max_ctx_ = 0;
  std::size_t most_ = 0;
  std::vector<std::unique_ptr<std::int32_t>> accepts_;
  std::optional<Cache> cache_;
  std::vector<Owned> owned_;
  std::vector<Id> ids_;  // committed
  std::size_t pos_ = 0;
  Id last_id_ = 0;
  bool dirty_ = false;
  bool conservative_ = false;
  std::vector<Snap> snaps_;
};

TEST_CASE("C2 C6 C10 random histories over rings of every awkward size, beside plain arrays", "[kinds][ring][walk]") {
  std::size_t refused = 0, went_back = 0, exported = 0, rounds = 0, handed = 0, device = 0;
  const std::size_t sizes[][2] = {{1, 1},  {1, 63},  {1, 64},   {2, 62},  {63, 1},
                                  {64, 1}, {65, 63}, {100, 28}, {127, 1}, {5, 200}};
  std::uint64_t seed = 1;
  for (std::size_t i = 0; i < std::size(sizes); ++i) {
    const auto* a = sizes[i];
    const auto* b = sizes[(i + 3) % std::size(sizes)];
    const auto* c = sizes[(i + 7) % std::size(sizes)];
    const std::size_t ring = (a[0] + a[1] + 63) / 64 * 64;
    for (const std::size_t ctx : {ring - 1, ring, ring + 1, std::size_t{260}}) {
      for (const bool recurrent : {false, true}) {
        CAPTURE(a[0], a[1], b[0], b[1], c[0], c[1], ctx, recurrent);
        Walk w({a[0], a[1], b[0], b[1], c[0], c[1], ctx, recurrent}, seed++);
        w.run(60);
        refused += w.refused;
        went_back += w.went_back;
        exported += w.exported;
        rounds += w.rounds;
        handed += w.handed;
        device += w.device;
      }
    }
  }
  INFO(refused << " " << went_back << " " << exported << " " << rounds << " " << handed << " " << device);
  // The histories have been where it hurts.
  REQUIRE((refused > 5 && went_back > 100 && exported > 50 && rounds > 200 && handed > 20 && device > 50));
}

}  // namespace
}  // namespace kinds_walk_cpp
