// PyTorch's lists of what speculative decoding of the tiny model gives, and how a run is compared with them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <engine/rig.hpp>
#include <fstream>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace spec {

struct Reference {
  std::string prompt;
  std::vector<std::int32_t> tokens;  // the first 160
  std::vector<std::size_t> rounds;
  std::size_t total() const { return std::accumulate(rounds.begin(), rounds.end(), std::size_t{0}); }
};

inline std::vector<Reference> references() {
  std::ifstream in(rig::fixture("tiny/spec_reference.json"));
  const auto json = nlohmann::json::parse(in);
  std::vector<Reference> all;
  for (const auto& [prompt, r] : json.items()) {
    all.push_back({prompt, r["tokens"].get<std::vector<std::int32_t>>(), r["rounds"].get<std::vector<std::size_t>>()});
  }
  return all;
}

template <class Dev>
tiny::Generated run(rig::RigOn<Dev>& r, const Reference& ref, std::size_t tokens) {
  auto d = r.decoder();
  d.prime(rig::bytes_of(ref.prompt));
  tiny::GenerateOptions o;
  o.max_tokens = tokens;
  o.ignore_eos = true;
  return d.speculative(o);
}

/// Distance between the two largest logits after prompt + tokens[0, n), in plain decoding.
inline float top_two_distance(const tiny::ModelFiles& files, const Reference& ref, std::span<const std::int32_t> tokens,
                              std::size_t n, const rig::Options& o) {
  rig::Rig r(files, o);
  std::vector<std::int32_t> ids = rig::bytes_of(ref.prompt);
  ids.insert(ids.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
  std::vector<float> last;
  r.decoder(false).prime(ids, 1, [&](std::span<const float> rows) { last.assign(rows.begin(), rows.end()); });
  std::sort(last.begin(), last.end(), [](float a, float b) { return a > b; });
  return last[0] - last[1];
}

/// Equal, or different for the first time where the model itself, with K and V as in `o`, cannot tell two tokens apart.
inline bool tokens_agree(const tiny::ModelFiles& files, const Reference& ref, const std::vector<std::int32_t>& got,
                         bool& tie, const rig::Options& o = {}) {
  tie = false;
  for (std::size_t i = 0; i < ref.tokens.size(); ++i) {
    if (i < got.size() && got[i] == ref.tokens[i]) continue;
    tie = i < got.size() && top_two_distance(files, ref, ref.tokens, i, o) <= 1e-4F;
    return tie;
  }
  return true;
}

}  // namespace spec
