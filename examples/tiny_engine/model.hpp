// A model folder with Hugging Face's file names: config.json, model.safetensors, and the drafter in draft/.
#pragma once

#include <sys/stat.h>
#include <cstddef>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <tiny_engine/config.hpp>
#include <tiny_engine/draft_config.hpp>
#include <tiny_engine/file.hpp>
#include <tiny_engine/safetensors.hpp>
#include <utility>

namespace tiny {

/// The drafter's files.
struct DraftFiles {
  DraftConfig config;
  SafeTensors weights;
};

/// Everything read from the folder; nothing is on a device yet.
struct ModelFiles {
  TrunkConfig config;
  SafeTensors weights;
  std::optional<DraftFiles> draft;  ///< absent if the folder has no draft/
};

namespace internal {

inline memra::Result<std::string> read_text(const std::string& path) {
  constexpr std::size_t longest = std::size_t{16} << 20;  // a config is a few KiB
  memra::Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.status();
  const auto bytes = file->bytes();
  if (bytes.size() > longest) {
    return memra::Status::failure(memra::ErrorKind::corrupt, "open", 0, bytes.size(), "%s is too long for a config",
                                  path.c_str());
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

inline bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace internal

/// @return the first thing that is wrong, as one sentence
inline memra::Result<ModelFiles> load_model(const std::string& dir) {
  memra::Result<std::string> text = internal::read_text(dir + "/config.json");
  if (!text) return text.status();
  memra::Result<TrunkConfig> config = parse_trunk_config(*text);
  if (!config) return config.status();
  if (!internal::exists(dir + "/model.safetensors") && internal::exists(dir + "/model.safetensors.index.json")) {
    return memra::Status::failure(memra::ErrorKind::unsupported, "open", 0, 0,
                                  "%s keeps its weights in shards; expected all of them in one model.safetensors",
                                  dir.c_str());
  }
  memra::Result<SafeTensors> weights = SafeTensors::open(dir + "/model.safetensors");
  if (!weights) return weights.status();
  ModelFiles files{*std::move(config), *std::move(weights), std::nullopt};
  if (!internal::exists(dir + "/draft")) return files;

  text = internal::read_text(dir + "/draft/config.json");
  if (!text) return text.status();
  memra::Result<DraftConfig> draft = parse_draft_config(*text, files.config);
  if (!draft) return draft.status();
  memra::Result<SafeTensors> draft_weights = SafeTensors::open(dir + "/draft/model.safetensors");
  if (!draft_weights) return draft_weights.status();
  files.draft.emplace(DraftFiles{*std::move(draft), *std::move(draft_weights)});
  return files;
}

/// The trunk's state, as memra wants it described.
inline memra::ModelConfig state_config(const TrunkConfig& c, memra::Format k, memra::Format v) {
  memra::ModelConfig m;
  m.n_vocab = c.n_vocab;
  for (const bool full : c.full_attention) {
    if (full) {
      memra::AttentionSpec a;
      a.n_heads = c.n_heads;
      a.n_kv_heads = c.n_kv_heads;
      a.head_dim_k = c.head_dim;
      a.head_dim_v = c.head_dim;
      a.k_format = k;
      a.v_format = v;
      m.layers.push_back(memra::full_attention(a));
    } else {
      memra::RecurrentSpec r;
      r.n_k_heads = c.n_k;
      r.n_v_heads = c.n_v;
      r.d_k = c.d_k;
      r.d_v = c.d_v;
      r.d_conv = c.d_conv;
      m.layers.push_back(memra::recurrent(r));
    }
  }
  return m;
}

}  // namespace tiny
