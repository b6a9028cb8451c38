// Which kind each layer has: lists of names, of numbers, of indices and pattern strings, in one shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memra/config/fields.hpp>
#include <memra/config/model.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

enum class LayerKind : std::uint8_t {
  full,     ///< attention over everything
  sliding,  ///< attention over a window, or over a chunk of so many tokens
  linear,   ///< a recurrent state: delta rule, Mamba, lightning
  conv,     ///< a short convolution alone
  both,     ///< attention beside a recurrent state
  sparse,   ///< attention beside the keys of an indexer of its own
  none,     ///< an MLP or experts: no state
};

/// A name as files spell it, and what it means.
struct KindName {
  std::string_view name;
  LayerKind kind;
};

/// The names of layer_types and layers_block_type.
inline constexpr std::array<KindName, 19> kind_names = {{
    {"full_attention", LayerKind::full},
    {"attention", LayerKind::full},
    {"indexed_attention", LayerKind::full},
    {"deepseek_sparse_attention", LayerKind::full},
    {"sliding_attention", LayerKind::sliding},
    {"sliding_window_attention", LayerKind::sliding},
    {"chunked_attention", LayerKind::sliding},
    {"linear_attention", LayerKind::linear},
    {"lightning_attention", LayerKind::linear},
    {"kda", LayerKind::linear},
    {"mamba", LayerKind::linear},
    {"mamba2", LayerKind::linear},
    {"conv", LayerKind::conv},
    {"short_conv", LayerKind::conv},
    {"hybrid", LayerKind::both},
    {"minimax_m3_sparse", LayerKind::sparse},
    {"mlp", LayerKind::none},
    {"moe", LayerKind::none},
    {"none", LayerKind::none},
}};

/// The letters of hybrid_override_pattern.
inline constexpr std::array<KindName, 4> pattern_letters = {{
    {"M", LayerKind::linear},
    {"*", LayerKind::full},
    {"-", LayerKind::none},
    {"E", LayerKind::none},
}};

namespace detail {

template <std::size_t N>
std::optional<LayerKind> kind_of(const std::array<KindName, N>& names, std::string_view name,
                                 std::initializer_list<LayerKind> allowed) {
  for (const KindName& known : names) {
    if (known.name != name) continue;
    for (const LayerKind kind : allowed) {
      if (kind == known.kind) return kind;
    }
  }
  return std::nullopt;
}

template <std::size_t N>
std::string spelled(const std::array<KindName, N>& names, std::initializer_list<LayerKind> allowed) {
  std::string all;
  for (const KindName& known : names) {
    if (kind_of(names, known.name, allowed)) all += (all.empty() ? "" : ", ") + std::string(known.name);
  }
  return all;
}

}  // namespace detail

/// True if field `name` is a list of `n` values; else refused.
inline bool is_list_of(Fields& f, const char* name, std::size_t n, const char* n_name = "num_hidden_layers") {
  const Json& list = f.at(name);
  if (list.is_array() && list.size() == n) return true;
  f.fail(f.named(name) + " is " + (list.is_array() ? "a list of " + std::to_string(list.size()) : Fields::shown(list)) +
         "; expected a list of " + n_name + " = " + std::to_string(n) + " values");
  return false;
}

/// A list of names, one per layer. Empty after a refusal.
inline std::vector<LayerKind> named_kinds(Fields& f, const char* name, std::size_t n,
                                          std::initializer_list<LayerKind> allowed) {
  std::vector<LayerKind> kinds;
  if (!is_list_of(f, name, n)) return kinds;
  for (const Json& one : f.at(name)) {
    const auto kind = one.is_string() ? detail::kind_of(kind_names, one.get_ref<const std::string&>(), allowed)
                                      : std::optional<LayerKind>();
    if (!kind) {
      f.fail(f.named(name) + " holds " + Fields::shown(one) + "; expected one of " +
             detail::spelled(kind_names, allowed));
      return {};
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

/// The same where the list itself says how many layers there are: 1 to most_layers.
inline std::vector<LayerKind> counted_kinds(Fields& f, const char* name, std::initializer_list<LayerKind> allowed) {
  const Json& list = f.at(name);
  if (list.is_array() && !list.empty() && list.size() <= most_layers) {
    return named_kinds(f, name, list.size(), allowed);
  }
  f.fail(f.named(name) + " is " + (list.is_array() ? "a list of " + std::to_string(list.size()) : Fields::shown(list)) +
         "; expected a list of 1 to " + std::to_string(most_layers) + " layers");
  return {};
}

/// A string with one letter per layer. `n` 0: as many layers as it has letters. Empty after a refusal.
inline std::vector<LayerKind> pattern_kinds(Fields& f, const char* name, std::size_t n,
                                            std::initializer_list<LayerKind> allowed) {
  std::vector<LayerKind> kinds;
  const std::string pattern = f.text(name, nullptr);
  if (pattern.empty() || pattern.size() > most_layers || (n != 0 && pattern.size() != n)) {
    f.fail(f.named(name) + " has " + std::to_string(pattern.size()) + " letters; expected " +
           (n != 0 ? "num_hidden_layers = " + std::to_string(n) : "1 to " + std::to_string(most_layers)));
    return kinds;
  }
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string_view letter = std::string_view(pattern).substr(i, 1);
    const auto kind = detail::kind_of(pattern_letters, letter, allowed);
    if (!kind) {
      f.fail(f.named(name) + " holds " + in_quotes(letter) + " at layer " + std::to_string(i) + "; expected one of " +
             detail::spelled(pattern_letters, allowed));
      return {};
    }
    kinds.push_back(*kind);
  }
  return kinds;
}

/// A list of 0 and 1, one per layer. Empty after a refusal.
inline std::vector<LayerKind> numbered_kinds(Fields& f, const char* name, std::size_t n, LayerKind zero,
                                             LayerKind one) {
  std::vector<LayerKind> kinds;
  if (!is_list_of(f, name, n)) return kinds;
  for (const Json& v : f.at(name)) {
    const auto number = Fields::whole(v);
    if (!number || *number > 1) {
      f.fail(f.named(name) + " holds " + Fields::shown(v) + "; expected 0 or 1 for every layer");
      return {};
    }
    kinds.push_back(*number == 0 ? zero : one);
  }
  return kinds;
}

/// A list of layers counted from `base` (0 or 1), marked in a vector of `n`. Empty after a refusal.
inline std::vector<bool> listed_layers(Fields& f, const char* name, std::size_t n, std::size_t base) {
  std::vector<bool> marked(n);
  const Json& list = f.at(name);
  if (!list.is_array()) {
    f.fail(f.named(name) + " is " + Fields::shown(list) + "; expected a list of layers");
    return {};
  }
  for (const Json& v : list) {
    const auto layer = Fields::whole(v);
    if (!layer || *layer < base || *layer - base >= n) {
      f.fail(f.named(name) + " holds " + Fields::shown(v) + "; expected layers from " + std::to_string(base) + " to " +
             std::to_string(base + n - 1));
      return {};
    }
    const auto il = static_cast<std::size_t>(*layer) - base;
    if (marked[il]) {
      f.fail(f.named(name) + " names layer " + Fields::shown(v) + " twice");
      return {};
    }
    marked[il] = true;
  }
  return marked;
}

/// Two descriptions of the layers in one file say the same; else refused.
inline void must_agree(Fields& f, const char* name, const std::vector<LayerKind>& kinds, const char* other_name,
                       const std::vector<LayerKind>& other) {
  if (f.status().ok() && kinds != other) {
    f.fail(f.named(name) + " and " + other_name + " name different layers; expected them to agree");
  }
}

/// Lists of names under any of several fields; those that are there must agree. `n` 0: the list itself says how many
/// layers there are. Empty if there is none, and after a refusal.
inline std::vector<LayerKind> named_kinds(Fields& f, std::initializer_list<const char*> names, std::size_t n,
                                          std::initializer_list<LayerKind> allowed) {
  std::vector<LayerKind> kinds;
  const char* found = nullptr;
  for (const char* name : names) {
    if (!f.has(name)) continue;
    const std::vector<LayerKind> listed = n != 0 ? named_kinds(f, name, n, allowed) : counted_kinds(f, name, allowed);
    if (found != nullptr) must_agree(f, name, listed, found, kinds);
    found = name;
    kinds = listed;
  }
  return kinds;
}

/// Layers counted from `base` are `listed`, the others `others`; see listed_layers.
inline std::vector<LayerKind> listed_kinds(Fields& f, const char* name, std::size_t n, std::size_t base,
                                           LayerKind listed, LayerKind others) {
  std::vector<LayerKind> kinds;
  for (const bool in_list : listed_layers(f, name, n, base)) kinds.push_back(in_list ? listed : others);
  return kinds;
}

/// Every `interval`-th layer is `last`, those before it are `others`.
inline std::vector<LayerKind> every_nth(std::size_t n, std::size_t interval, LayerKind others, LayerKind last) {
  std::vector<LayerKind> kinds(n, others);
  for (std::size_t il = interval - 1; il < n; il += interval) kinds[il] = last;
  return kinds;
}

}  // namespace memra::config
