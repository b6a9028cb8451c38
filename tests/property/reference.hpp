// The stand-in model as kernels (so that a late device runs them late), and what it leaves behind: the oracle.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/launch.hpp>
#include <memra/layout.hpp>
#include <memra/model_config.hpp>
#include <memra/round_types.hpp>
#include <memra/taps.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <variant>
#include <vector>

namespace property {

using memra_test::Token;
using memra_test::Tokens;
using Bytes = std::vector<std::byte>;

inline constexpr std::size_t short_ctx = 40;
inline constexpr std::size_t long_ctx = 150;  // of models with rings: 64 rows of them, so that they wrap
inline constexpr std::size_t max_step = 12;   // rows of one step
inline constexpr std::size_t most_rows = 72;  // of one chunked step: more than a chunk
inline constexpr std::size_t tap_hidden = 4;

struct StepTokens {
  std::array<Token, most_rows> token{};
  std::size_t n = 0;

  explicit StepTokens(const Tokens& t) : n(t.size()) {
    for (std::size_t i = 0; i < n; ++i) token[i] = t[i];
  }
};

/// Writes the rows of a step where the device's position says.
struct AppendBody {
  memra::KvWriteView w;
  std::size_t layer;
  std::size_t nth;
  StepTokens t;

  void operator()(const memra::Item& item) const noexcept {
    const std::size_t pos = static_cast<std::size_t>(*w.at.pos_d) + item.x;
    if (pos >= w.at.capacity) return;
    for (const auto& [kind, plane] :
         {std::pair{memra_test::stand_in::kind_k, &w.k}, std::pair{memra_test::stand_in::kind_v, &w.v}}) {
      if (plane->data == nullptr) continue;  // V is a part of K
      const auto x = memra_test::stand_in::row(kind, layer, nth, plane->shape.width, t.token[item.x], pos);
      memra::encode_row(*plane, plane->phys(pos), x.data());
    }
  }
};

/// Writes the row of every group that ends in the step.
struct GroupBody {
  memra::GroupedView w;
  std::size_t layer;
  std::size_t nth;
  StepTokens t;

  void operator()(const memra::Item& item) const noexcept {
    if (!w.ends(*w.at.pos_d, item.x)) return;
    const std::size_t row = w.seen(*w.at.pos_d, item.x) - 1;
    const auto x = memra_test::stand_in::row(memra_test::stand_in::kind_group, layer, nth, w.rows.shape.width,
                                             t.token[item.x], row);
    memra::encode_row(w.rows, row, x.data());
  }
};

/// Moves conv and ssm on in place, by the class that the view says.
struct RecurBody {
  memra::RecurView w;
  memra::RecurrentSpec spec;
  std::size_t layer;
  std::size_t nth;
  StepTokens t;

  void operator()(const memra::Item&) const noexcept {
    for (std::size_t i = 0; i < t.n; ++i) {
      memra_test::stand_in::move_on(spec, layer, nth, t.token[i], w.conv_state(), w.plane_state(0), w.scan);
    }
  }
};

struct TapBody {
  memra::TapView w;
  std::size_t layer;
  std::size_t pos;
  StepTokens t;

  void operator()(const memra::Item& item) const noexcept {
    const auto x =
        memra_test::stand_in::row(memra_test::stand_in::kind_tap, layer, 0, w.hidden, t.token[item.x], pos + item.x);
    std::memcpy(w.data + item.x * w.row_stride, x.data(), x.size() * sizeof(float));
  }
};

/// One state of one layer.
struct Part {
  std::size_t layer = 0;
  std::size_t nth = 0;  ///< among the layer's states of its kind; shared K and V count as attention
  memra::StateSpec spec;
};
inline std::vector<Part> parts_of(const memra::ModelConfig& cfg) {
  std::vector<Part> parts;
  for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
    std::size_t seen[3] = {0, 0, 0};
    for (const memra::StateSpec& s : cfg.layers[il].states) {
      const bool grouped = std::holds_alternative<memra::GroupedRowsSpec>(s);
      parts.push_back({il, seen[grouped ? 2 : std::holds_alternative<memra::RecurrentSpec>(s) ? 1 : 0]++, s});
    }
  }
  return parts;
}

/// Mamba-1 has a decay per element: too much to stash.
inline bool may_stash(const memra::ModelConfig& cfg) {
  const auto parts = parts_of(cfg);
  return std::none_of(parts.begin(), parts.end(), [](const Part& p) {
    const auto* r = std::get_if<memra::RecurrentSpec>(&p.spec);
    return r != nullptr && r->rule == memra::ScanRule::mamba1;
  });
}

/// Every strategy in turn, planes where a stash cannot be.
inline memra::Strategy strategy_of(unsigned b, bool stash) {
  return b % 3 == 0 ? memra::Strategy::replay : b % 3 == 1 || !stash ? memra::Strategy::planes : memra::Strategy::stash;
}

inline bool any(const std::vector<bool>& v) {
  return std::find(v.begin(), v.end(), true) != v.end();
}
inline memra::ScanClass class_of(bool chunked) {
  return chunked ? memra::ScanClass::chunked : memra::ScanClass::sequential;
}

/// What a cache must hold after a list of tokens, computed without a cache.
class Reference {
 public:
  explicit Reference(const memra::ModelConfig& cfg) : parts_(parts_of(cfg)) { states_.push_back(fresh()); }

  const std::vector<Part>& parts() const { return parts_; }
  const Tokens& tokens() const { return tokens_; }

  /// From now on the stream is `t`; what it shares with the former one is not computed again.
  /// @param chunked  which of the first tokens went through a chunked step: layers that have that class go by it
  void become(const Tokens& t, const std::vector<bool>& chunked = {}) {
    const auto in_chunk = [&](std::size_t i) { return i < chunked.size() && chunked[i]; };
    std::size_t same = 0;
    while (same < t.size() && same < tokens_.size() && t[same] == tokens_[same] && in_chunk(same) == chunked_[same]) {
      ++same;
    }
    tokens_.resize(same);
    chunked_.resize(same);
    states_.resize(same + 1);
    for (std::size_t i = same; i < t.size(); ++i) {
      auto next = states_.back();
      for (std::size_t p = 0; p < parts_.size(); ++p) {
        if (const auto* r = std::get_if<memra::RecurrentSpec>(&parts_[p].spec)) {
          const bool by_chunk =
              in_chunk(i) && r->rule == memra::ScanRule::gated_delta && r->ssm_format == memra::Format::f32;
          memra_test::stand_in::move_on(*r, parts_[p].layer, parts_[p].nth, t[i],
                                        memra_test::stand_in::elems(r->conv_format, next[p].first.data()),
                                        memra_test::stand_in::elems(r->ssm_format, next[p].second.data()),
                                        by_chunk ? memra::ScanClass::chunked : memra::ScanClass::sequential);
        }
      }
      states_.push_back(std::move(next));
      tokens_.push_back(t[i]);
      chunked_.push_back(in_chunk(i));
    }
  }

  /// The K and V bytes of row `r` of part `p`, runs one after the other.
  const std::pair<Bytes, Bytes>& row(std::size_t p, std::size_t r) {
    const auto key = std::pair{p * long_ctx + r, tokens_[r]};
    const auto hit = rows_.find(key);
    if (hit != rows_.end()) return hit->second;
    const auto& a = std::get<memra::AttentionSpec>(parts_[p].spec);
    const auto encode = [&](auto kind, memra::PlaneShape shape) {
      shape.rows = 1;
      const Token t = tokens_[r];
      const Bytes all = memra_test::stand_in::encode_rows(kind, parts_[p].layer, parts_[p].nth, shape, {&t, 1}, r);
      return run_bytes(all.data(), shape, 0);
    };
    return rows_
        .emplace(
            key,
            std::pair{encode(memra_test::stand_in::kind_k, {a.k_format, a.k_layout, 0, a.n_kv_heads * a.head_dim_k}),
                      encode(memra_test::stand_in::kind_v, {a.v_format, a.v_layout, 0, a.n_kv_heads * a.head_dim_v})})
        .first->second;
  }

  /// The bytes of grouped row `g` of part `p`: its group's last token is its own.
  Bytes group(std::size_t p, std::size_t g) const {
    const auto& spec = std::get<memra::GroupedRowsSpec>(parts_[p].spec);
    const memra::PlaneShape shape{spec.format, spec.layout, 1, spec.dim};
    const Token t = tokens_[(g + 1) * spec.stride - 1];
    const Bytes all = memra_test::stand_in::encode_rows(memra_test::stand_in::kind_group, parts_[p].layer,
                                                        parts_[p].nth, shape, {&t, 1}, g);
    return run_bytes(all.data(), shape, 0);
  }

  /// conv and ssm of part `p` after `pos` tokens, in the formats they are kept in.
  const std::pair<Bytes, Bytes>& state(std::size_t p, std::size_t pos) const { return states_[pos][p]; }

  /// Row `r` of a plane in host memory.
  static Bytes run_bytes(const std::byte* plane, const memra::PlaneShape& shape, std::size_t r) {
    const memra::Segments runs = memra::segments(shape, r, 1);
    Bytes out;
    for (std::size_t i = 0; i < runs.count; ++i) {
      out.insert(out.end(), plane + runs[i].offset, plane + runs[i].offset + runs[i].bytes);
    }
    return out;
  }

 private:
  using State = std::vector<std::pair<Bytes, Bytes>>;

  State fresh() const {
    State s(parts_.size());
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (const auto* r = std::get_if<memra::RecurrentSpec>(&parts_[p].spec)) {
        s[p].first.resize(memra_test::stand_in::conv_bytes(*r));
        s[p].second.resize(memra_test::stand_in::ssm_bytes(*r));
      }
    }
    return s;
  }

  std::vector<Part> parts_;
  Tokens tokens_;
  std::vector<bool> chunked_;  // [tokens]
  std::vector<State> states_;  // [tokens + 1]
  std::map<std::pair<std::size_t, Token>, std::pair<Bytes, Bytes>> rows_;
};

/// Whether bodies of plain C++ run on a device, so that writes can be kernels; else they go through copies.
template <class Dev>
constexpr bool runs_plain_bodies = true;

/// Where a step begins, as the device says: beyond every row in a stream that ran out of rows.
template <class Dev>
memra::Status read_pos(Dev& dev, const memra::StepPos& at, std::size_t& first) {
  std::int32_t pos = -1;
  auto s = dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(at.pos_d), sizeof pos);
  first = static_cast<std::size_t>(pos);
  return s;
}

/// As the kernels below, by copies of what the host computed from the device's position.
template <class Dev>
memra::Status write_by_copies(Dev& dev, const memra::KvWriteView& w, const Part& part, const Tokens& tokens) {
  std::size_t first = 0;
  if (auto s = read_pos(dev, w.at, first); !s || first >= w.at.capacity) return s;
  const Tokens fit = memra_test::part(tokens, 0, std::min(tokens.size(), w.at.capacity - first));
  // Named: nvcc 13 translates a range of braces in a template wrongly.
  const std::array<std::pair<memra_test::stand_in::Kind, const memra::PlaneView*>, 2> both{
      {{memra_test::stand_in::kind_k, &w.k}, {memra_test::stand_in::kind_v, &w.v}}};
  for (const auto& [kind, plane] : both) {
    if (plane->data == nullptr) continue;  // V is a part of K
    const auto rows = memra_test::stand_in::encode_rows(kind, part.layer, part.nth, plane->shape, fit, first);
    if (auto s = memra_test::stand_in::write_rows(dev, *plane, first, rows, fit.size()); !s) return s;
  }
  return {};
}
template <class Dev>
memra::Status write_by_copies(Dev& dev, const memra::GroupedView& w, const Part& part, const Tokens& tokens) {
  std::size_t first = 0;
  if (auto s = read_pos(dev, w.at, first); !s || first >= w.at.capacity) return s;
  const Tokens fit = memra_test::part(tokens, 0, std::min(tokens.size(), w.at.capacity - first));
  const Tokens ends = memra_test::stand_in::group_ends(fit, first, w.stride);
  const auto rows = memra_test::stand_in::encode_rows(memra_test::stand_in::kind_group, part.layer, part.nth,
                                                      w.rows.shape, ends, first / w.stride);
  return memra_test::stand_in::write_rows(dev, w.rows, first / w.stride, rows, ends.size());
}
template <class Dev>
memra::Status write_by_copies(Dev& dev, const memra::RecurView& w, const memra::RecurrentSpec& spec, const Part& part,
                              const Tokens& tokens) {
  Bytes conv(memra_test::stand_in::conv_bytes(spec));
  Bytes ssm(memra_test::stand_in::ssm_bytes(spec));
  const std::array<std::pair<Bytes*, std::byte*>, 2> both{
      {{&conv, w.conv_state().data()}, {&ssm, w.plane_state(0).data()}}};
  for (const auto& [host, at] : both) {
    if (auto s = dev.download(host->data(), at, host->size()); !s) return s;
  }
  for (const Token t : tokens) {
    memra_test::stand_in::move_on(spec, part.layer, part.nth, t,
                                  memra_test::stand_in::elems(spec.conv_format, conv.data()),
                                  memra_test::stand_in::elems(spec.ssm_format, ssm.data()), w.scan);
  }
  for (const auto& [host, at] : both) {
    if (auto s = dev.upload(at, host->data(), host->size()); !s) return s;
  }
  return {};
}
template <class Dev>
memra::Status write_by_copies(Dev& dev, const memra::TapView& w, std::size_t layer, std::size_t pos,
                              const Tokens& tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto x = memra_test::stand_in::row(memra_test::stand_in::kind_tap, layer, 0, w.hidden, tokens[i], pos + i);
    if (auto s = dev.upload(reinterpret_cast<std::byte*>(w.data + i * w.row_stride),
                            reinterpret_cast<const std::byte*>(x.data()), x.size() * sizeof(float));
        !s) {
      return s;
    }
  }
  return {};
}

/// What a kernel that writes a part is given; monostate where the layer shares its donor's rows.
using PartView = std::variant<std::monostate, memra::RecurView, memra::GroupedView, memra::KvWriteView>;

/// The view of one part of an open step.
template <class Dev>
memra::Result<PartView> view_part(memra::Step<Dev>& step, const Part& part) {
  const auto any = [](const auto& w) { return w ? memra::Result<PartView>(PartView(*w)) : w.status(); };
  if (std::holds_alternative<memra::RecurrentSpec>(part.spec)) return any(step.recur(part.layer, part.nth));
  if (std::holds_alternative<memra::GroupedRowsSpec>(part.spec)) return any(step.grouped(part.layer, part.nth));
  if (std::holds_alternative<memra::AttentionSpec>(part.spec)) return any(step.kv_write(part.layer, part.nth));
  return PartView();
}

/// Queues what writes `tokens` through a view, where the device's position is then.
template <class Dev>
memra::Status fill_part(Dev& dev, const PartView& view, const Part& part, const Tokens& tokens) {
  const StepTokens t(tokens);
  if (const auto* r = std::get_if<memra::RecurView>(&view)) {
    const auto& spec = std::get<memra::RecurrentSpec>(part.spec);
    if constexpr (runs_plain_bodies<Dev>) {
      return memra::launch(dev, "recur", {}, RecurBody{*r, spec, part.layer, part.nth, t});
    } else {
      return write_by_copies(dev, *r, spec, part, tokens);
    }
  }
  if (const auto* g = std::get_if<memra::GroupedView>(&view)) {
    if constexpr (runs_plain_bodies<Dev>) {
      return memra::launch(dev, "group", {t.n}, GroupBody{*g, part.layer, part.nth, t});
    } else {
      return write_by_copies(dev, *g, part, tokens);
    }
  }
  if (const auto* kv = std::get_if<memra::KvWriteView>(&view)) {
    if constexpr (runs_plain_bodies<Dev>) {
      return memra::launch(dev, "append", {t.n}, AppendBody{*kv, part.layer, part.nth, t});
    } else {
      return write_by_copies(dev, *kv, part, tokens);
    }
  }
  return {};
}

/// Writes one part of an open step. `tap`: also where the step's tap of that layer is.
template <class Dev>
memra::Status write_part(memra::Cache<Dev>& cache, memra::Step<Dev>& step, const Part& part, const Tokens& tokens,
                         bool tap) {
  const auto w = view_part(step, part);
  if (!w) return w.status();
  if (auto s = fill_part(cache.dev(part.layer), *w, part, tokens); !s) return s;
  if (!tap) return {};
  const auto view = step.tap(part.layer);
  if (!view) return {};
  Dev& sink = cache.dflash_taps()->device();
  if constexpr (runs_plain_bodies<Dev>) {
    const StepTokens t(tokens);
    return memra::launch(sink, "tap", {t.n}, TapBody{*view, part.layer, step.pos(), t});
  } else {
    return write_by_copies(sink, *view, part.layer, step.pos(), tokens);
  }
}

/// What ends a recorded step: the position moves on by `rows`, or is marked where the stream ends. Written here, so
/// that the library's own kernel is not its own witness.
struct MoveBody {
  std::int32_t* pos;
  std::int32_t rows;
  std::int32_t capacity;

  MEMRA_HD void operator()(const memra::Item&) const {
    if (*pos >= 0) *pos = *pos + rows > capacity ? -1 - *pos : *pos + rows;
  }
};
template <class Dev>
memra::Status move_pos(Dev& dev, const MoveBody& move) {
  if constexpr (runs_plain_bodies<Dev>) {
    return memra::launch(dev, "move", {}, move);
  } else {
    std::int32_t pos = 0;
    auto* at = reinterpret_cast<std::byte*>(move.pos);
    if (auto s = dev.download(reinterpret_cast<std::byte*>(&pos), at, sizeof pos); !s) return s;
    MoveBody{&pos, move.rows, move.capacity}({});
    return dev.upload(at, reinterpret_cast<const std::byte*>(&pos), sizeof pos);
  }
}

}  // namespace property
