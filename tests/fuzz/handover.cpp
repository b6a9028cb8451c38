// The header ahead of handed-over state: what is taken has a plan, its pieces are the plan's, and it is written again
// as it was read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fuzz/fuzz.hpp>
#include <memra/detail/checksum.hpp>
#include <memra/handover_header.hpp>
#include <span>

/// A header without its prelude, whose checksum no fuzzer would find; the first bytes are tried as a prelude, too.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using memra::HandoverHeader;
  const std::span<const std::byte> bytes = fuzz::bytes_of(data, size);
  const auto prelude = HandoverHeader::parse_prelude(bytes.first(std::min(size, HandoverHeader::prelude_bytes)));
  if (!prelude) fuzz::claim_refusal(prelude.status());

  const auto header = HandoverHeader::parse({size, memra::detail::checksum(bytes)}, bytes);
  if (!header) {
    fuzz::claim_refusal(header.status());
    return 0;
  }
  const auto sizes = memra::handover_sizes(header->config, header->pos, header->has_logits, header->tail);
  fuzz::claim(sizes.ok() && sizes->size() == header->pieces.size(), "a header that was taken has a plan");
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    fuzz::claim((*sizes)[i] == header->pieces[i].bytes, "a piece has the bytes of its plane");
  }
  const auto again = header->encode();
  fuzz::claim(again.size() == HandoverHeader::prelude_bytes + size &&
                  std::equal(bytes.begin(), bytes.end(), again.begin() + HandoverHeader::prelude_bytes),
              "a header is written as it was read");
  const auto first = std::span(again).first(HandoverHeader::prelude_bytes);
  fuzz::claim(HandoverHeader::parse_prelude(first).ok(), "and so is its prelude");
  return fuzz::touch(bytes) == 0x7fffffffU ? 1 : 0;
}
