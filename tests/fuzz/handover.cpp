// A hand-over's stream: whatever it says, a receiver takes it whole or refuses it in a sentence, and a header that is
// taken says what it was made from.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fuzz/fuzz.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <span>
#include <support/tape.hpp>
#include <vector>

namespace {

using memra::HandoverHeader;

/// The model of the corpus: one attention layer, one recurrent.
memra::HandoverTarget<memra::HostDev> target(memra::HostDev& dev) {
  memra::AttentionSpec a;
  a.n_kv_heads = 1;
  a.head_dim_k = a.head_dim_v = 32;
  memra::RecurrentSpec r;
  r.n_k_heads = r.n_v_heads = 1;
  r.d_k = 4;
  r.d_v = 2;
  r.d_conv = 2;
  memra::HandoverTarget<memra::HostDev> t;
  t.stages = {&dev};
  t.config.layers = {memra::full_attention(a), memra::recurrent(r)};
  t.config.n_vocab = 5;
  t.max_ctx = 8;
  t.draft = memra::DflashCfg{1, 1, 4, 2, 2, {}};
  return t;
}

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

}  // namespace

/// A stream behind a number of two bytes: if that is not 0, it is made the header's length in the prelude, and the
/// checksum is made to fit, which no fuzzer would find, so that the header behind it is read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto bytes = fuzz::bytes_of(data + 2, size - 2);
  memra_test::Bytes stream(bytes.begin(), bytes.end());
  const std::size_t prelude_bytes = HandoverHeader::prelude_bytes;
  const std::size_t sealed = data[0] + std::size_t{256} * data[1];
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
  memra::HostDev dev;
  memra_test::TapeReader reader(stream);
  const auto got = memra::receive_state(reader, target(dev));
  if (got) {
    fuzz::claim(got->cache.pos() != 0 && got->cache.pos() <= 8, "a position of this receiver's");
    fuzz::claim(!got->tail || got->tail->len == got->cache.pos(), "a tail that ends there");
  } else if (got.status().kind() != memra::ErrorKind::link_failure) {
    fuzz::claim_refusal(got.status());
  }
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
