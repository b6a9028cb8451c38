// The fields of a config.json that must be understood: those that change what a model keeps.
#pragma once

#include <array>
#include <memra/config/fields.hpp>
#include <string>

namespace memra::config {

/// Fields that change what a model keeps. One that is set and that its family's reader did not ask for was not
/// understood.
inline constexpr std::array<const char*, 41> hf_state_fields = {
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "attn_type_list",
    "attn_window_size",
    "num_key_value_heads_per_layer",
    "sparse_attention_config",
    "full_attn_idxs",
    "full_attention_idxs",
    "attn_layer_indices",
    "linear_attn_config",
    "block_configs",
    "per_layer_config",
    "full_attention_interval",
    "attn_layer_period",
    "sliding_window",
    "sliding_window_pattern",
    "attention_chunk_size",
    "num_kv_shared_layers",
    "kv_source_layers",
    "cla_share_factor",
    "kv_lora_rank",
    "index_head_dim",
    "compress_ratios",
    "compress_rates",
    "global_head_dim",
    "v_head_dim",
    "swa_head_dim",
    "linear_num_value_heads",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_state_size",
    "conv_L_cache",
    "cross_attention_layers",
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "num_mtp_modules",
    "mtp_num_hidden_layers",
    "mtp_hybrid_override_pattern",
    "is_encoder_decoder",
};

/// Refuses a field that matters, says something and was not read. `who` uses it not: "'llama' models".
inline void refuse_unread(Fields& f, const std::string& who) {
  for (const char* name : hf_state_fields) {
    if (f.was_read(name) || !f.says_something(name)) continue;
    f.fail(f.named(name) + " is " + Fields::shown(f.at(name)) + ", which " + who +
           " are not known to use; expected it to be absent");
  }
}

}  // namespace memra::config
