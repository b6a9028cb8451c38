// The file of token ids: what is accepted is a list of ids below the vocabulary, and writing it out reads the same.
#include <cstddef>
#include <cstdint>
#include <fuzz/fuzz.hpp>
#include <string>
#include <tiny_engine/ids.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t n_vocab = 1000;
  const auto ids = tiny::parse_ids(fuzz::text_of(data, size), n_vocab);
  if (!ids) {
    fuzz::claim_refusal(ids.status());
    return 0;
  }
  std::string again;
  for (const std::int32_t id : *ids) {
    fuzz::claim(id >= 0 && static_cast<std::size_t>(id) < n_vocab, "an id is below the vocabulary");
    again += std::to_string(id) + "\n";
  }
  const auto same = tiny::parse_ids(again, n_vocab);
  fuzz::claim(same.ok() && *same == *ids, "ids written out are read again");
  return fuzz::touch(fuzz::bytes_of(data, size)) == 0x7fffffffU ? 1 : 0;
}
