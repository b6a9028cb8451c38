// parse_gguf: the metadata of a GGUF file, read as a list of layers.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/config/gguf_compressed.hpp>
#include <memra/config/gguf_families.hpp>
#include <memra/config/gguf_fields.hpp>
#include <memra/config/gguf_reader.hpp>
#include <memra/config/model.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

namespace detail {

/// Reads the layers of one file.
class GgufLayers {
 public:
  GgufLayers(GgufFields& f, const GgufFamily& family, const Storage& s, ModelConfig& out)
      : f_(&f), family_(&family), s_(&s), out_(&out) {}

  void read() {
    know_other();
    n_all_ = f_->size("block_count", 1, most_layers);
    n_mtp_ = f_->size("nextn_predict_layers", 0, most_layers, 0);
    if (n_mtp_ >= n_all_) {
      f_->fail(f_->named("nextn_predict_layers") + " is " + std::to_string(n_mtp_) +
               "; expected fewer than block_count = " + std::to_string(n_all_));
    }
    if (!f_->status().ok()) return;
    n_trunk_ = n_all_ - n_mtp_;
    f_->set_layers(n_trunk_, n_mtp_);
    if (family_->other == GgufOther::compressed) return read_gguf_compressed(*f_, *s_, n_all_, n_mtp_, *out_);
    heads_ = f_->per_layer("attention.head_count", n_trunk_, n_mtp_, 0, most_heads);
    if (!f_->status().ok()) return;
    kv_ = kv_heads();
    const std::vector<bool> recurs = recurrent_layers();
    sliding_ = sliding_layers();
    const std::size_t shared = f_->size("attention.shared_kv_layers", 0, n_trunk_ - 1, silent_shared());
    if (!f_->status().ok()) return;
    out_->n_mtp = n_mtp_;
    for (std::size_t il = 0; il < n_all_ && f_->status().ok(); ++il) {
      const bool past = il >= n_trunk_;
      if (!past && il >= n_trunk_ - shared) {
        out_->layers.push_back(borrowed(il, n_trunk_ - shared));
      } else if (recurs[il]) {
        out_->layers.push_back(other(il));
      } else {
        LayerSpec l = attention_layer(il);
        if (!past && family_->other == GgufOther::mamba2_beside) l.states.emplace_back(mamba(true));
        out_->layers.push_back(std::move(l));
      }
    }
  }

 private:
  /// A model all of whose layers attend may still describe the state that its kin keep.
  void know_other() {
    switch (family_->other) {
      case GgufOther::nothing:
      case GgufOther::compressed:
        break;
      case GgufOther::kda:
        f_->has("kda.head_dim");
        break;
      case GgufOther::short_conv:
        f_->has("shortconv.l_cache");
        break;
      case GgufOther::delta:
      case GgufOther::mamba1:
      case GgufOther::mamba2:
      case GgufOther::mamba2_or_mlp:
      case GgufOther::mamba2_beside:
        f_->has("ssm.state_size");
        break;
    }
  }

  /// An array of the trunk alone says nothing about the layers past it: they are like those of it that attend.
  std::vector<std::size_t> kv_heads() {
    std::vector<std::size_t> kv;
    if (!f_->has("attention.head_count_kv")) {
      kv = heads_;
    } else {
      kv = f_->per_layer("attention.head_count_kv", n_trunk_, n_mtp_, 0, most_heads);
    }
    for (std::vector<std::size_t>* list : {&heads_, &kv}) {
      if (list->size() != n_trunk_ || n_mtp_ == 0) continue;
      const bool of_kv = list == &kv && f_->has("attention.head_count_kv");
      const std::size_t most = *std::max_element(list->begin(), list->end());
      for (const std::size_t n : *list) {
        if (n != 0 && n != most) {
          f_->fail(f_->named(of_kv ? "attention.head_count_kv" : "attention.head_count") +
                   " differs among layers and says nothing about the " + std::to_string(n_mtp_) +
                   " past the trunk; expected block_count values");
        }
      }
      list->resize(n_all_, most);
    }
    return kv;
  }

  std::vector<bool> recurrent_layers() {
    std::vector<bool> recurs(n_all_, false);
    if (!f_->status().ok()) return recurs;
    bool any_zero = false;
    for (std::size_t il = 0; il < n_trunk_; ++il) {
      recurs[il] = kv_[il] == 0;
      any_zero = any_zero || recurs[il];
    }
    // Blocks past the trunk attend, or are one's experts.
    for (std::size_t il = n_trunk_; il < n_all_ && family_->other == GgufOther::mamba2_or_mlp; ++il) {
      recurs[il] = kv_[il] == 0;
    }
    if (family_->other != GgufOther::delta) return recurs;
    if (f_->has("attention.recurrent_layers")) {  // a list wins over the interval
      f_->has("full_attention_interval");
      std::vector<bool> listed = f_->flags("attention.recurrent_layers", n_trunk_, n_mtp_);
      if (any_zero && listed != recurs && f_->status().ok()) {
        f_->fail(f_->named("attention.recurrent_layers") +
                 " and the zeros of attention.head_count_kv name different layers; expected them to agree");
      }
      return listed.empty() ? recurs : listed;
    }
    if (any_zero) return recurs;
    const std::size_t interval = f_->size("full_attention_interval", 1, most_layers, 4);
    for (std::size_t il = 0; il < n_trunk_; ++il) recurs[il] = (il + 1) % interval != 0;
    return recurs;
  }

  std::vector<bool> sliding_layers() {
    std::vector<bool> sliding(n_all_, false);
    if (family_->window_period == 0 || !f_->status().ok()) return sliding;
    if (family_->architecture == "llama4") {
      // Files say nothing of the chunk; 0 switches it off.
      window_ = f_->has("attention.sliding_window") && f_->size("attention.sliding_window", 0, most_positions) == 0
                    ? 0
                    : f_->size("attention.chunk_size", 1, most_positions, 8192);
    } else {
      window_ = f_->size("attention.sliding_window", 0, most_positions, silent_window());
    }
    if (window_ == 0) return sliding;
    const GgufValue* pattern = f_->find("attention.sliding_window_pattern");
    if (pattern != nullptr && (pattern->is_array || pattern->type == GgufType::boolean)) {
      std::vector<bool> listed = f_->flags("attention.sliding_window_pattern", n_trunk_, n_mtp_);
      return listed.empty() ? sliding : listed;
    }
    std::size_t period = family_->window_period;
    if (pattern != nullptr || period == 1) {
      period = f_->size("attention.sliding_window_pattern", 1, most_layers);
    }
    for (std::size_t il = 0; il < n_trunk_; ++il) sliding[il] = (il + 1) % period != 0;
    return sliding;
  }

  /// The window of a file that does not say: the first of Gemma 2 had no key for it, and a Gemma 3 without one has no
  /// windows.
  std::optional<std::size_t> silent_window() const {
    if (family_->architecture == "gemma2") return 4096;
    if (family_->architecture == "gemma3") return 0;
    return std::nullopt;
  }

  /// The last layers that borrow K and V, of a file that does not say: those of Gemma 3n behind its twentieth.
  std::size_t silent_shared() const {
    constexpr std::size_t own = 20;
    return family_->architecture == "gemma3n" && n_trunk_ > own ? n_trunk_ - own : 0;
  }

  /// Elements of a head: of the windowed layers where they have their own.
  std::size_t head_dim(const char* name, const char* name_swa, std::size_t il) {
    const bool own = sliding_[il] && f_->has(name_swa);
    if (own || f_->has(name)) return f_->size(own ? name_swa : name, 1, most_head_dim);
    const std::size_t width = f_->size("embedding_length", 1, most_dim);
    if (f_->status().ok() && (heads_[il] == 0 || width % heads_[il] != 0)) {
      f_->fail(f_->named("embedding_length") + " is " + std::to_string(width) + "; expected a multiple of the " +
               std::to_string(heads_[il]) + " heads, or a " + name);
      return 1;
    }
    return std::max<std::size_t>(width / std::max<std::size_t>(heads_[il], 1), 1);
  }

  LayerSpec attention_layer(std::size_t il) {
    const std::size_t n_heads = query_heads(il);
    if (family_->latent) {
      const std::size_t rank = f_->size("attention.kv_lora_rank", 1, most_dim);
      const std::size_t rope = f_->size("rope.dimension_count", 0, most_head_dim);
      LayerSpec l = full_attention(latent_rows(n_heads, rank, rope, s_->k));
      if (family_->indexed && has_index(il)) add_index(l);
      return l;
    }
    const std::size_t k = head_dim("attention.key_length", "attention.key_length_swa", il);
    const std::size_t v = head_dim("attention.value_length", "attention.value_length_swa", il);
    if (f_->status().ok() && (kv_[il] == 0 || n_heads % kv_[il] != 0)) {
      f_->fail(f_->named("attention.head_count") + " is " + std::to_string(n_heads) + " for layer " +
               std::to_string(il) + "; expected a multiple of head_count_kv = " + std::to_string(kv_[il]) +
               (kv_[il] == 0 ? ", at least 1 there" : ""));
    }
    LayerSpec l = full_attention(attention(*s_, n_heads, kv_[il], k, v, sliding_[il] ? window_ : 0));
    if (family_->indexed && has_index(il)) add_index(l);
    return l;
  }

  void add_index(LayerSpec& l) {
    l.states.emplace_back(index_rows(f_->size("attention.indexer.key_length", 1, most_head_dim), s_->k));
  }

  /// The layers that score keys of their own; the first models of the family all do.
  bool has_index(std::size_t il) {
    if (f_->has("attention.indexer.types")) {
      const std::vector<bool> own = f_->flags("attention.indexer.types", n_trunk_, n_mtp_);
      if (!own.empty() && !own.front()) {
        f_->fail(f_->named("attention.indexer.types") + " holds 0 for layer 0; expected 1: there is none before it");
      }
      return il >= n_trunk_ || (il < own.size() && own[il]);
    }
    // MiniMax M3's first layers, which have no experts, see every key; so does a file without the indexer's weights.
    if (family_->architecture == "minimax-m3") {
      return f_->has("attention.indexer.key_length") && il >= f_->size("leading_dense_block_count", 0, n_all_, 0);
    }
    // GLM-5.2's first files do not say which: two, then one in four. Models before it were not made for so many tokens.
    if (family_->architecture == "glm-dsa" && f_->size("context_length", 0, most_positions, 0) >= 1048576) {
      return il >= n_trunk_ || il < 2 || (il - 2) % 4 == 0;
    }
    return true;
  }

  LayerSpec borrowed(std::size_t il, std::size_t own) {
    std::size_t donor = own;
    while (donor != 0 && sliding_[donor - 1] != sliding_[il]) --donor;
    if (donor == 0) {
      f_->fail(f_->named("attention.shared_kv_layers") + ": layer " + std::to_string(il) +
               " borrows from the last layer of its kind before layer " + std::to_string(own) + ", and there is none");
      return {};
    }
    return shared_attention(donor - 1, query_heads(il));
  }

  /// Query heads of a layer that has a state made of heads; refused if there are none.
  std::size_t query_heads(std::size_t il) {
    if (heads_[il] != 0) return heads_[il];
    f_->fail(f_->named("attention.head_count") + " is 0 for layer " + std::to_string(il) +
             ", whose state has heads; expected at least 1");
    return 1;
  }

  /// Refuses a layer without heads of a family whose every layer attends.
  LayerSpec no_heads(std::size_t il) {
    f_->fail(f_->named(f_->has("attention.head_count_kv") ? "attention.head_count_kv" : "attention.head_count") +
             " is 0 for layer " + std::to_string(il) + "; expected attention in every layer");
    return {};
  }

  LayerSpec other(std::size_t il) {
    switch (family_->other) {
      case GgufOther::compressed:
        return no_state();
      case GgufOther::nothing:
        if (family_->architecture == "deci") return no_state();  // the one family with blocks that keep nothing
        return no_heads(il);
      case GgufOther::delta:
        return recurrent(delta());
      case GgufOther::kda: {
        const std::size_t dim = f_->size("kda.head_dim", 1, most_head_dim);
        const std::size_t taps = f_->size("ssm.conv_kernel", 1, most_taps);
        return recurrent(stored(*s_, kda(query_heads(il), dim, dim, taps)));
      }
      case GgufOther::mamba1:
        return recurrent(mamba(false));
      case GgufOther::mamba2:
        return recurrent(mamba(true));
      case GgufOther::mamba2_or_mlp:
        if (il >= n_trunk_) return no_state();
        if (feed_forward_.empty()) {
          feed_forward_ = f_->per_layer("feed_forward_length", n_trunk_, n_mtp_, 0, most_dim);
        }
        return il < feed_forward_.size() && feed_forward_[il] != 0 ? no_state() : recurrent(mamba(true));
      case GgufOther::mamba2_beside:
        return no_heads(il);
      case GgufOther::short_conv: {
        const std::size_t width = f_->size("embedding_length", 1, most_dim);
        return recurrent(stored(*s_, short_conv(width, f_->size("shortconv.l_cache", 1, most_taps))));
      }
    }
    return {};
  }

  /// `inner` elements in `parts`; refused unless they divide.
  std::size_t split(std::size_t inner, const char* parts_name, std::size_t parts) {
    if (f_->status().ok() && inner % parts != 0) {
      f_->fail(f_->named("ssm.inner_size") + " is " + std::to_string(inner) + "; expected a multiple of " + parts_name +
               " = " + std::to_string(parts));
    }
    return std::max<std::size_t>(inner / parts, 1);
  }

  RecurrentSpec delta() {
    const std::size_t inner = f_->size("ssm.inner_size", 1, most_dim);
    const std::size_t n_v = f_->size("ssm.time_step_rank", 1, most_heads);
    const std::size_t n_k = f_->size("ssm.group_count", 1, most_heads);
    if (f_->status().ok() && n_v % n_k != 0) {
      f_->fail(f_->named("ssm.time_step_rank") + " is " + std::to_string(n_v) +
               "; expected a multiple of group_count = " + std::to_string(n_k));
    }
    RecurrentSpec r = gated_delta(n_k, n_v, f_->size("ssm.state_size", 1, most_head_dim),
                                  split(inner, "time_step_rank", n_v), f_->size("ssm.conv_kernel", 1, most_taps));
    r.map.mode = KeyHeadMode::interleaved;
    return stored(*s_, r);
  }

  RecurrentSpec mamba(bool second) {
    const std::size_t inner = f_->size("ssm.inner_size", 1, most_dim);
    const std::size_t d_state = f_->size("ssm.state_size", 1, most_head_dim);
    const std::size_t taps = f_->size("ssm.conv_kernel", 1, most_taps);
    if (!second) return stored(*s_, mamba1(inner, d_state, taps));
    const std::size_t heads = f_->size("ssm.time_step_rank", 1, most_heads);
    const std::size_t groups = f_->size("ssm.group_count", 1, most_heads);
    if (f_->status().ok() && heads % groups != 0) {
      f_->fail(f_->named("ssm.time_step_rank") + " is " + std::to_string(heads) +
               "; expected a multiple of group_count = " + std::to_string(groups));
    }
    return stored(*s_, mamba2(heads, split(inner, "time_step_rank", heads), groups, d_state, taps));
  }

  GgufFields* f_;
  const GgufFamily* family_;
  const Storage* s_;
  ModelConfig* out_;
  std::size_t n_all_ = 0;
  std::size_t n_mtp_ = 0;
  std::size_t n_trunk_ = 0;
  std::size_t window_ = 0;
  std::vector<std::size_t> heads_;
  std::vector<std::size_t> kv_;
  std::vector<std::size_t> feed_forward_;
  std::vector<bool> sliding_;
};

/// What a key that no reader asked for would have meant; nothing if it is switched off.
inline bool gguf_says_something(const GgufValue& v) {
  return v.is_array ? v.count != 0 : v.numbers.empty() || v.numbers.front() != 0;
}

}  // namespace detail

/// Reads the metadata of a GGUF file (versions 2 and 3, little-endian); the tensors are not looked at.
///
/// @param bytes    the file, or as much of its front as holds the metadata
/// @param storage  formats and slack that the file does not say
/// @return corrupt, in one sentence that names the key, what it holds and what was expected
inline Result<Model> parse_gguf(std::span<const std::byte> bytes, const Storage& storage = {}) {
  Result<GgufHeader> header = read_gguf(bytes);
  if (!header) return header.status();
  const auto said = header->values.find("general.architecture");
  if (said == header->values.end() || said->second.is_array || said->second.type != GgufType::text) {
    return detail::gguf_refusal("key general.architecture is missing or no string; expected the name of a family");
  }
  Model m;
  m.family = said->second.text;
  const GgufFamily* family = nullptr;
  for (const GgufFamily& known : gguf_families) {
    if (known.architecture == m.family) family = &known;
  }
  if (family == nullptr) {
    return detail::gguf_refusal("key general.architecture is " + detail::gguf_quoted(m.family) +
                                "; expected one of the " + std::to_string(gguf_families.size()) +
                                " in gguf_families, from llama to lfm2moe");
  }
  GgufFields f(*header, m.family);
  detail::GgufLayers(f, *family, storage, m.state).read();
  const GgufValue* causal = f.peek("attention.causal");
  if (causal != nullptr && !causal->numbers.empty() && causal->numbers.front() == 0) {
    f.fail(f.named("attention.causal") + " is false; expected a causal model");
  }
  m.max_positions = f.size("context_length", 0, most_positions, 0);
  const auto tokens = header->values.find("tokenizer.ggml.tokens");
  const std::size_t n_tokens = tokens == header->values.end() || !tokens->second.is_array ? 0 : tokens->second.count;
  m.state.n_vocab = f.size("vocab_size", 0, most_dim, std::min(n_tokens, most_dim));
  for (const std::string_view key : gguf_state_keys) {
    const GgufValue* v = f.peek(key);
    if (v == nullptr || f.was_read(key) || !detail::gguf_says_something(*v)) continue;
    f.fail(f.named(key) + " is set, which files of " + detail::gguf_quoted(m.family) +
           " are not known to use; expected it to be absent");
  }
  if (!f.status().ok()) return f.status();
  return m;
}

}  // namespace memra::config
