// GGUF metadata: any bytes are read within their end; what is accepted can be planned, or is refused by name.
#include <cstddef>
#include <cstdint>
#include <fuzz/fuzz.hpp>
#include <fuzz/planned.hpp>
#include <memra/config/gguf.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto model = memra::config::parse_gguf(fuzz::bytes_of(data, size));
  if (!model) {
    fuzz::claim_refusal(model.status());
    return 0;
  }
  fuzz::claim_planned(*model);
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
