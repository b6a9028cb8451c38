// The weights file: whatever it says, every tensor lies in it, has the bytes its shape needs, and none share one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fuzz/fuzz.hpp>
#include <tiny_engine/safetensors.hpp>
#include <utility>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  const auto file = tiny::SafeTensors::parse(bytes);
  if (!file) {
    fuzz::claim_refusal(file.status());
    return 0;
  }
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  unsigned sum = 0;
  for (const auto& [name, tensor] : file->tensors()) {
    if (tensor.data.empty()) continue;
    const auto first = static_cast<std::size_t>(tensor.data.data() - bytes.data());
    fuzz::claim(first >= 8 && first + tensor.data.size() <= size, "a tensor lies in the file");
    fuzz::claim(tensor.elems() != 0 && tensor.data.size() % tensor.elems() == 0, "a tensor has whole elements");
    ranges.emplace_back(first, first + tensor.data.size());
    sum += fuzz::touch(tensor.data);
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) fuzz::claim(ranges[i - 1].second <= ranges[i].first, "no overlap");
  return sum == 0x7fffffffU ? 1 : 0;
}
