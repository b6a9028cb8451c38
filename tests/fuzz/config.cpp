// config.json and draft/config.json: what is accepted can be planned, or is refused by name.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fuzz/fuzz.hpp>
#include <limits>
#include <memra/dflash_cfg.hpp>
#include <memra/plan.hpp>
#include <string_view>
#include <tiny_engine/config.hpp>
#include <tiny_engine/draft_config.hpp>
#include <tiny_engine/model.hpp>

namespace {

void plan_of(const tiny::TrunkConfig& c) {
  fuzz::claim(c.n_heads % c.n_kv_heads == 0 && c.rot_dim >= 2 && c.rot_dim <= c.head_dim, "a config that was checked");
  const memra::ModelConfig state = tiny::state_config(c, memra::Format::f32, memra::Format::f16);
  const auto planned = memra::plan(state, c.max_positions, memra::Placement::single(state.layers.size()));
  if (!planned) return fuzz::claim_refusal(planned.status());
  const auto& t = planned->totals;
  fuzz::claim(t.k_bytes <= t.total_bytes && t.v_bytes <= t.total_bytes && t.ssm_bytes <= t.total_bytes,
              "a sum is at least its parts");
}

void plan_of(const tiny::DraftConfig& c) {
  memra::DflashCfg cfg;
  cfg.n_layer = c.n_layers;
  cfg.n_kv = c.n_kv_heads;
  cfg.head_dim = c.head_dim;
  cfg.block_size = c.block_size;
  cfg.sliding_window = c.window;
  const auto planned = memra::plan(cfg, 4096);
  if (!planned) return fuzz::claim_refusal(planned.status());
  fuzz::claim(planned->v_offset(cfg.n_layer - 1) + planned->plane_bytes <= planned->total_bytes, "planes fit");
}

}  // namespace

/// The text of a trunk's config, and behind a zero byte that of its drafter.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const std::size_t cut = text.find('\0');
  const auto trunk = tiny::parse_trunk_config(text.substr(0, cut));
  if (!trunk) {
    fuzz::claim_refusal(trunk.status());
    return 0;
  }
  plan_of(*trunk);
  if (cut == std::string_view::npos) return 0;
  const auto draft = tiny::parse_draft_config(text.substr(cut + 1), *trunk);
  if (!draft) {
    fuzz::claim_refusal(draft.status());
    return 0;
  }
  plan_of(*draft);
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
