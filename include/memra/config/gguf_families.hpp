// The architectures of GGUF files that are understood, and what their layers are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace memra::config {

/// What the layers of an architecture without attention (head_count_kv 0) keep.
enum class GgufOther : std::uint8_t {
  nothing,  ///< no state
  delta,    ///< gated delta rule: layers of recurrent_layers, or all but every full_attention_interval-th
  kda,      ///< Kimi delta attention
  mamba1,
  mamba2,
  mamba2_or_mlp,  ///< Mamba-2 where there is no feed-forward part, else nothing
  mamba2_beside,  ///< Mamba-2 in every layer, beside its attention
  short_conv,
  compressed,  ///< DeepSeek V4: every layer has a window, and what compress_ratios says
};

struct GgufFamily {
  std::string_view architecture;
  GgufOther other = GgufOther::nothing;
  std::size_t window_period =
      0;                 ///< windows in all but every n-th layer; 0: no windows; 1: as a pattern in the file says
  bool latent = false;   ///< attention is latent
  bool indexed = false;  ///< layers keep an indexer's keys, too
};

/// Where llama.cpp and its files have the same name for several families they are one entry.
inline constexpr std::array<GgufFamily, 40> gguf_families = {{
    {"llama"},
    {"mistral3"},
    {"qwen2"},
    {"qwen2moe"},
    {"qwen3"},
    {"qwen3moe"},
    {"qwen3vl"},
    {"qwen3vlmoe"},
    {"granite", GgufOther::mamba2},  // Granite 4 without Mamba, written as its hybrids are
    {"granitemoe", GgufOther::mamba2},
    {"glm4"},
    {"glm4moe"},
    {"nemotron"},
    {"minimax-m2"},
    {"minimax-m3", GgufOther::nothing, 0, false, true},
    {"deci"},
    {"gemma2", GgufOther::nothing, 2},
    {"gemma3", GgufOther::nothing, 6},
    {"gemma3n", GgufOther::nothing, 5},
    {"gemma4", GgufOther::nothing, 1},
    {"gpt-oss", GgufOther::nothing, 2},
    {"llama4", GgufOther::nothing, 4},
    {"mimo2", GgufOther::nothing, 1},
    {"deepseek2", GgufOther::nothing, 0, true},
    {"deepseek4", GgufOther::compressed},
    {"mistral4", GgufOther::nothing, 0, true},
    {"deepseek32", GgufOther::nothing, 0, true, true},
    {"glm-dsa", GgufOther::nothing, 0, true, true},
    {"kimi-linear", GgufOther::kda, 0, true},
    {"kimi-k3", GgufOther::kda, 0, true},
    {"qwen3next", GgufOther::delta},
    {"qwen35", GgufOther::delta},
    {"qwen35moe", GgufOther::delta},
    {"jamba", GgufOther::mamba1},
    {"granitehybrid", GgufOther::mamba2},
    {"nemotron_h", GgufOther::mamba2_or_mlp},
    {"nemotron_h_moe", GgufOther::mamba2_or_mlp},
    {"falcon-h1", GgufOther::mamba2_beside},
    {"lfm2", GgufOther::short_conv},
    {"lfm2moe", GgufOther::short_conv},
}};

/// Keys that change what a model keeps: see hf_state_fields.
inline constexpr std::array<std::string_view, 12> gguf_state_keys = {
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.kv_lora_rank",
    "attention.indexer.key_length",
    "attention.shared_kv_layers",
    "attention.recurrent_layers",
    "attention.compress_ratios",
    "full_attention_interval",
    "ssm.state_size",
    "shortconv.l_cache",
    "kda.head_dim",
    "wkv.head_size",
};

}  // namespace memra::config
