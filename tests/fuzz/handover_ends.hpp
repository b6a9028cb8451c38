// The ends of the fuzzed hand-over: the models and receivers that its corpus is of, and a sender that is answered.
#pragma once

#include <cstddef>
#include <memra/cache.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/model_config.hpp>
#include <vector>

namespace fuzz {

/// What an input is, in the highest two bits of its first number.
enum class HandoverInput : unsigned char {
  to_small,  ///< a stream, to a receiver of small_model()
  to_kinds,  ///< a stream, to a receiver of kinds_model()
  verdicts,  ///< what a receiver says to a sender
};

/// One attention layer, one recurrent.
inline memra::ModelConfig small_model() {
  memra::AttentionSpec a;
  a.n_kv_heads = 1;
  a.head_dim_k = a.head_dim_v = 32;
  memra::ModelConfig m;
  m.layers = {memra::full_attention(a), memra::recurrent(memra::gated_delta(1, 1, 4, 2, 2))};
  m.n_vocab = 5;
  return m;
}

/// Rings in both layouts, latent rows in one, K and V of another layer, rows of several tokens, 16-bit states of two
/// rules, a layer that keeps nothing.
inline memra::ModelConfig kinds_model() {
  using memra::Format;
  memra::AttentionSpec split;
  split.n_kv_heads = 1;
  split.head_dim_k = split.head_dim_v = 32;
  split.k_format = Format::q5_1;
  split.v_format = Format::q4_0;
  split.k_layout = memra::Layout::split;
  memra::ModelConfig m;
  m.layers = {{{memra::windowed(split, 4, 9)}},
              {{memra::windowed(memra::latent_rows(1, 2, 1, Format::fp8_e4m3), 2, 9), memra::SharedKvSpec{0, 0, 0}}},
              {{memra::stored_as(memra::gated_delta(1, 2, 2, 2, 2), Format::f16, Format::f32),
                memra::grouped_rows(3, 4, Format::fp8_e4m3)}},
              memra::no_state(),
              memra::recurrent(memra::stored_as(memra::kda(1, 2, 2, 2), Format::bf16, Format::f16))};
  return m;
}

inline memra::DflashCfg small_drafter() {
  return {1, 1, 4, 2, 2, {}};
}

/// Takes streams of small_model() up to 8 tokens, with logits and a drafter's tail; single steps alone.
inline memra::HandoverTarget<memra::HostDev> small_target(memra::HostDev& dev) {
  memra::HandoverTarget<memra::HostDev> t;
  t.stages = {&dev};
  t.config = small_model();
  t.max_ctx = 8;
  t.draft = small_drafter();
  return t;
}

/// Takes streams of kinds_model() up to 70 tokens on two devices, those of the chunked scan, too.
inline memra::HandoverTarget<memra::HostDev> kinds_target(memra::HostDev& first, memra::HostDev& second) {
  memra::HandoverTarget<memra::HostDev> t;
  t.stages = {&first, &second};
  t.fence = {0, 2, 5};
  t.config = kinds_model();
  t.max_ctx = 70;
  t.scan = memra::ScanClass::chunked;
  return t;
}

}  // namespace fuzz
