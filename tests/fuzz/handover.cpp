// A hand-over's stream: whatever it says, a receiver takes it whole or refuses it in a sentence, and a header that is
// taken says what it was made from. And what a receiver says: a sender knows how it ended.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fuzz/fuzz.hpp>
#include <fuzz/handover_ends.hpp>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <span>
#include <support/tape.hpp>
#include <vector>

namespace {

using memra::HandoverHeader;

void look(const HandoverHeader& h, std::span<const std::byte> bytes) {
  memra_test::Bytes again = h.encode();
  fuzz::claim(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()), "a header is what it was read from");
  std::size_t sum = 0;
  for (const memra::HandoverPiece& p : h.pieces) {
    fuzz::claim(p.bytes != 0, "no piece is empty");
    sum += p.bytes;
    fuzz::claim(sum >= p.bytes, "the pieces' sum does not wrap");
  }
}

/// What a receiver says is taken as it is meant: go on, or its reason, fit for one line.
void answered(std::span<const std::byte> says) {
  memra::HostDev dev;
  auto cache = memra::check(memra::Cache<memra::HostDev>::create(dev, fuzz::small_model(), 1));
  {
    auto step = memra::check(cache.begin_step(1));
    memra::check(step.kv_write(0).status());
    memra::check(step.recur(1).status());
  }
  memra::check(cache.advance());
  memra_test::TapeReader link(says);
  const memra::Status s = memra::send_state(link, cache, {});
  fuzz::claim(cache.pos() == 1 && !link.said.empty(), "a sender that stays as it was");
  for (const char* c = s.text(); *c != '\0'; ++c) fuzz::claim(*c >= 0x20 && *c < 0x7f, "the sentence is printable");
  fuzz::claim(s.ok() == (says.size() >= 512 && says[0] == std::byte{0} && says[256] == std::byte{0}),
              "what was taken is what the receiver took");
}

}  // namespace

/// Behind a number of two bytes, whose highest two bits say what it is (fuzz::HandoverInput), a stream or what is said
/// to one. If the rest of the number is not 0 it is made the header's length in the prelude, and the checksum is made
/// to fit, which no fuzzer would find, so that the header behind it is read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto bytes = fuzz::bytes_of(data + 2, size - 2);
  const auto input = static_cast<fuzz::HandoverInput>(data[1] >> 6);
  if (input == fuzz::HandoverInput::verdicts) {
    answered(bytes);
    return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
  }
  memra_test::Bytes stream(bytes.begin(), bytes.end());
  const std::size_t prelude_bytes = HandoverHeader::prelude_bytes;
  const std::size_t sealed = data[0] + std::size_t{256} * (data[1] & 0x3fU);
  if (sealed != 0 && stream.size() >= prelude_bytes) {
    const std::size_t header_bytes = std::min(sealed, stream.size() - prelude_bytes);
    const std::span<const std::byte> header(stream.data() + prelude_bytes, header_bytes);
    const std::uint64_t numbers[2] = {header_bytes, memra::detail::checksum(header)};
    std::memcpy(stream.data() + 16, numbers, sizeof numbers);
  }
  const std::span<const std::byte> all(stream);
  const auto prelude = HandoverHeader::parse_prelude(all.first(std::min(all.size(), prelude_bytes)));
  if (!prelude) {
    fuzz::claim_refusal(prelude.status());
  } else if (prelude->header_bytes <= all.size() - prelude_bytes) {
    const auto header = HandoverHeader::parse(*prelude, all.subspan(prelude_bytes, prelude->header_bytes));
    if (header) {
      look(*header, all.first(prelude_bytes + prelude->header_bytes));
    } else {
      fuzz::claim_refusal(header.status());
    }
  }
  memra::HostDev dev, second;
  memra_test::TapeReader reader(stream);
  const bool kinds = input == fuzz::HandoverInput::to_kinds;
  const auto target = kinds ? fuzz::kinds_target(dev, second) : fuzz::small_target(dev);
  const auto got = memra::receive_state(reader, target);
  if (got) {
    fuzz::claim(got->cache.pos() != 0 && got->cache.pos() <= target.max_ctx, "a position of this receiver's");
    fuzz::claim(!got->tail || got->tail->len == got->cache.pos(), "a tail that ends there");
  } else if (got.status().kind() != memra::ErrorKind::link_failure) {
    fuzz::claim_refusal(got.status());
  }
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
