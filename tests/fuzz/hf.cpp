// config.json of any family: what is accepted can be planned, or is refused by name.
#include <cstddef>
#include <cstdint>
#include <fuzz/fuzz.hpp>
#include <fuzz/planned.hpp>
#include <memra/config/draft.hpp>
#include <memra/config/hf.hpp>
#include <memra/dflash_cfg.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (const auto draft = memra::config::parse_draft_config(fuzz::text_of(data, size))) {
    const auto planned = memra::plan(*draft, 4096);
    if (!planned) fuzz::claim_refusal(planned.status());
  } else {
    fuzz::claim_refusal(draft.status());
  }
  const auto model = memra::config::parse_hf_config(fuzz::text_of(data, size));
  if (!model) {
    fuzz::claim_refusal(model.status());
    return 0;
  }
  fuzz::claim_planned(*model);
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
