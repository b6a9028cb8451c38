// config.json of DeepSeek V4: a window in every layer, and in most of them rows that stand for several tokens.
#pragma once

#include <array>
#include <cstddef>
#include <memra/config/compressed.hpp>
#include <memra/config/fields.hpp>
#include <memra/config/hf_attention.hpp>
#include <memra/config/layer_list.hpp>
#include <memra/config/model.hpp>
#include <memra/model_config.hpp>
#include <string>
#include <vector>

namespace memra::config {

namespace detail {

/// Tokens per row of the two kinds of compression: compress_rates, or the two fields before it.
inline std::array<std::size_t, 2> v4_rates(Fields& f) {
  std::array<std::size_t, 2> rates = {f.size("compress_rate_csa", 1, most_taps / 2, 4),
                                      f.size("compress_rate_hca", 1, most_taps, 128)};
  if (!f.has("compress_rates")) return rates;
  if (!f.at("compress_rates").is_object()) {
    f.fail("field compress_rates is " + Fields::shown(f.at("compress_rates")) + "; expected an object");
    return rates;
  }
  Fields a(f.at("compress_rates"), f.what(), "compress_rates.");
  const auto rate = [&](const char* inside, const char* beside, std::size_t most, std::size_t flat) {
    const std::size_t n = a.size(inside, 1, most, flat);
    if (f.has(beside) && n != flat && a.status().ok()) {
      a.fail(a.named(inside) + " is " + std::to_string(n) + " and " + beside + " is " + std::to_string(flat) +
             "; expected one value");
    }
    return n;
  };
  rates = {rate("compressed_sparse_attention", "compress_rate_csa", most_taps / 2, rates[0]),
           rate("heavily_compressed_attention", "compress_rate_hca", most_taps, rates[1])};
  if (!a.status().ok()) f.fail(a.status().text());
  return rates;
}

/// compress_ratios: a number per layer, and behind the trunk's as many as there may be.
inline std::vector<Compression> v4_ratios(Fields& f, std::size_t n_layers, const std::array<std::size_t, 2>& rates) {
  std::vector<Compression> all;
  const Json& list = f.at("compress_ratios");
  if (!list.is_array() || list.size() < n_layers) {
    f.fail("field compress_ratios is " +
           (list.is_array() ? "a list of " + std::to_string(list.size()) : Fields::shown(list)) +
           "; expected a list of at least num_hidden_layers = " + std::to_string(n_layers) + " values");
    return all;
  }
  for (const Json& one : list) {
    const auto ratio = Fields::whole(one);
    if (!ratio || (*ratio != 0 && *ratio != 4 && *ratio != 128)) {
      f.fail("field compress_ratios holds " + Fields::shown(one) + "; expected 0, 4 or 128 for every layer");
      return {};
    }
    all.push_back({*ratio == 0 ? 0 : rates[*ratio == 4 ? 0 : 1], *ratio == 4});
  }
  return all;
}

/// layer_types, in the names of this family alone.
inline std::vector<Compression> v4_types(Fields& f, std::size_t n_layers, const std::array<std::size_t, 2>& rates) {
  std::vector<Compression> all;
  if (!is_list_of(f, "layer_types", n_layers)) return all;
  for (const Json& one : f.at("layer_types")) {
    const std::string name = one.is_string() ? one.get<std::string>() : "";
    if (name == "sliding_attention") {
      all.push_back({});
    } else if (name == "compressed_sparse_attention") {
      all.push_back({rates[0], true});
    } else if (name == "heavily_compressed_attention") {
      all.push_back({rates[1], false});
    } else {
      f.fail("field layer_types holds " + Fields::shown(one) +
             "; expected sliding_attention, compressed_sparse_attention or heavily_compressed_attention");
      return {};
    }
  }
  return all;
}

}  // namespace detail

/// DeepSeek V4: K and V are one row of all heads. Blocks past the trunk have a window alone where no list says more.
inline void read_deepseek_v4(Fields& f, const Storage& s, ModelConfig& out) {
  const std::size_t n_layers = hf_layers(f);
  CompressedHeads h;
  h.n_heads = f.size("num_attention_heads", 1, most_heads);
  f.size("num_key_value_heads", 1, 1, 1);
  h.head_dim = f.size("head_dim", 1, most_head_dim, 512);
  h.window = f.size("sliding_window", 1, most_positions, 128);
  h.index_dim = f.size("index_head_dim", 1, most_head_dim, 128);
  const std::size_t n_mtp = hf_nextn(f);
  std::vector<Compression> all;
  const std::array<std::size_t, 2> rates = detail::v4_rates(f);
  const bool has_ratios = f.has("compress_ratios");
  if (f.has("layer_types")) all = detail::v4_types(f, n_layers, rates);
  if (has_ratios && f.status().ok()) {
    const std::vector<Compression> ratios = detail::v4_ratios(f, n_layers, rates);
    for (std::size_t il = 0; il < all.size() && il < ratios.size(); ++il) {
      if (all[il].stride == ratios[il].stride && all[il].overlapping == ratios[il].overlapping) continue;
      f.fail("field compress_ratios and layer_types name different layers; expected them to agree");
    }
    all = ratios;
  } else if (all.empty()) {
    f.fail("field compress_ratios is missing; expected 0, 4 or 128 for every layer, or layer_types");
  }
  if (!f.status().ok()) return;
  all.resize(n_layers + n_mtp);
  for (const Compression& c : all) out.layers.push_back(compressed_layer(s, h, c));
  out.n_mtp = n_mtp;
}

}  // namespace memra::config
