// What must agree before a state of elsewhere is taken, and a sentence for what does not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/views.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace memra::detail {

/// What stored rows and states mean: a specification without what only sizes scratch and rings, without fields that
/// mean nothing beside the others, and with what 0 stands for written out. Two of one meaning take each other's state.
inline AttentionSpec meaning(AttentionSpec a) {
  a.n_heads = 0;
  a.ring_slack = a.ring_slack == 0 ? 0 : 1;
  if (a.v_in_k) {
    a.v_format = a.k_format;
    a.v_layout = a.k_layout;
  }
  return a;
}
inline SharedKvSpec meaning(SharedKvSpec s) {
  s.n_heads = 0;
  return s;
}
inline GroupedRowsSpec meaning(GroupedRowsSpec g) {
  return g;
}
inline RecurrentSpec meaning(RecurrentSpec r) {
  r.second_buffer = false;
  r.conv_channels = r.conv_dim();
  if (r.d_conv <= 1) r.conv_format = Format::f32;
  if (r.rule == ScanRule::none) {
    r.ssm_format = Format::f32;
    r.map = {};
    return r;
  }
  if (r.map.total_v == 0) r.map.total_v = r.n_v_heads;
  if (r.map.total_k == 0) r.map.total_k = r.n_k_heads;
  return r;
}
inline std::vector<LayerSpec> meaning(std::vector<LayerSpec> layers) {
  for (LayerSpec& layer : layers) {
    for (StateSpec& state : layer.states) std::visit([](auto& s) { s = meaning(s); }, state);
  }
  return layers;
}

/// The first field that was found to differ, and both values as words.
class Difference {
 public:
  void look(const char* field, std::size_t theirs, std::size_t ours) {
    if (theirs != ours) note(field, std::to_string(theirs), std::to_string(ours));
  }
  void look(const char* field, std::string_view theirs, std::string_view ours) {
    if (theirs != ours) note(field, std::string(theirs), std::string(ours));
  }
  explicit operator bool() const noexcept { return !field_.empty(); }

  /// @param where  the layer and state
  Status refusal(const char* call, const char* what, const std::string& where) const {
    if (field_.empty()) {
      return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%s%s is of another specification than this model",
                             where.c_str(), what);
    }
    return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%s%s has %s %s, this model %s", where.c_str(), what,
                           field_.c_str(), theirs_.c_str(), ours_.c_str());
  }

 private:
  void note(const char* field, std::string theirs, std::string ours) {
    if (!field_.empty()) return;
    field_ = field;
    theirs_ = std::move(theirs);
    ours_ = std::move(ours);
  }
  std::string field_, theirs_, ours_;
};

// Compare meanings. What comes first is named first: what makes the others differ, too.
inline void compare(Difference& d, const AttentionSpec& theirs, const AttentionSpec& ours) {
  const auto planes = [](const AttentionSpec& a) { return a.ring_slack == 0 ? "of every row" : "in rings"; };
  const auto values = [](const AttentionSpec& a) { return a.v_in_k ? "inside K" : "in V planes"; };
  d.look("values", values(theirs), values(ours));
  d.look("n_kv_heads", theirs.n_kv_heads, ours.n_kv_heads);
  d.look("head_dim_k", theirs.head_dim_k, ours.head_dim_k);
  d.look("head_dim_v", theirs.head_dim_v, ours.head_dim_v);
  d.look("k_format", to_string(theirs.k_format), to_string(ours.k_format));
  d.look("v_format", to_string(theirs.v_format), to_string(ours.v_format));
  d.look("k_layout", to_string(theirs.k_layout), to_string(ours.k_layout));
  d.look("v_layout", to_string(theirs.v_layout), to_string(ours.v_layout));
  d.look("window", theirs.window, ours.window);
  d.look("planes", planes(theirs), planes(ours));
}
inline void compare(Difference& d, const SharedKvSpec& theirs, const SharedKvSpec& ours) {
  d.look("donor", theirs.donor, ours.donor);
  d.look("nth", theirs.nth, ours.nth);
}
inline void compare(Difference& d, const GroupedRowsSpec& theirs, const GroupedRowsSpec& ours) {
  d.look("dim", theirs.dim, ours.dim);
  d.look("stride", theirs.stride, ours.stride);
  d.look("format", to_string(theirs.format), to_string(ours.format));
  d.look("layout", to_string(theirs.layout), to_string(ours.layout));
}
inline void compare(Difference& d, const RecurrentSpec& theirs, const RecurrentSpec& ours) {
  const auto mode = [](const RecurrentSpec& r) {
    return r.map.mode == KeyHeadMode::grouped ? "grouped" : "interleaved";
  };
  d.look("rule", to_string(theirs.rule), to_string(ours.rule));
  d.look("n_k_heads", theirs.n_k_heads, ours.n_k_heads);
  d.look("n_v_heads", theirs.n_v_heads, ours.n_v_heads);
  d.look("d_k", theirs.d_k, ours.d_k);
  d.look("d_v", theirs.d_v, ours.d_v);
  d.look("d_conv", theirs.d_conv, ours.d_conv);
  d.look("conv_channels", theirs.conv_channels, ours.conv_channels);
  d.look("conv_format", to_string(theirs.conv_format), to_string(ours.conv_format));
  d.look("ssm_format", to_string(theirs.ssm_format), to_string(ours.ssm_format));
  d.look("map.mode", mode(theirs), mode(ours));
  d.look("map.first_v", theirs.map.first_v, ours.map.first_v);
  d.look("map.total_v", theirs.map.total_v, ours.map.total_v);
  d.look("map.total_k", theirs.map.total_k, ours.map.total_k);
}

inline const char* kind_of(const StateSpec& state) {
  return std::visit(
      Overloaded{[](const AttentionSpec&) { return "attention"; }, [](const SharedKvSpec&) { return "shared K and V"; },
                 [](const RecurrentSpec&) { return "recurrent"; },
                 [](const GroupedRowsSpec&) { return "grouped rows"; }},
      state);
}

/// Refuses a state at `pos` of the model `theirs` that a cache of `cfg` and this size cannot take.
/// @param what  how to call what came from elsewhere, in a sentence
inline Status takes_state(const char* call, const char* what, const ModelConfig& cfg, std::size_t max_ctx,
                          const ModelConfig& theirs, std::size_t pos) {
  if (pos > max_ctx) {
    return Status::failure(ErrorKind::bad_argument, call, 0, 0, "%s has %zu rows, max_ctx is %zu", what, pos, max_ctx);
  }
  Difference d;
  d.look("n_vocab", theirs.n_vocab, cfg.n_vocab);
  d.look("a layer count of", theirs.layers.size(), cfg.layers.size());
  if (d) return d.refusal(call, what, "");
  const std::vector<LayerSpec> a = meaning(theirs.layers);
  const std::vector<LayerSpec> b = meaning(cfg.layers);
  for (std::size_t il = 0; il < a.size(); ++il) {
    if (a[il] == b[il]) continue;
    const std::string layer = "layer " + std::to_string(il);
    const std::size_t n = std::min(a[il].states.size(), b[il].states.size());
    for (std::size_t i = 0; i < n; ++i) {
      const StateSpec& x = a[il].states[i];
      const StateSpec& y = b[il].states[i];
      d.look("a state of kind", kind_of(x), kind_of(y));
      if (!d) {
        std::visit([&](const auto& s) { compare(d, s, std::get<std::remove_cvref_t<decltype(s)>>(y)); }, x);
      }
      if (d) return d.refusal(call, what, layer + ", state " + std::to_string(i) + ": ");
    }
    d.look("a state count of", a[il].states.size(), b[il].states.size());
    return d.refusal(call, what, layer + ": ");
  }
  return {};
}

}  // namespace memra::detail
