// A file of token ids: decimal numbers between white space.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memra/error.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <tiny_engine/json.hpp>
#include <vector>

namespace tiny {

/// @return corrupt, naming the first word that is no token id below n_vocab
inline memra::Result<std::vector<std::int32_t>> parse_ids(std::string_view text, std::size_t n_vocab) {
  constexpr std::string_view space = " \t\n\v\f\r";
  std::vector<std::int32_t> ids;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
    if (text.empty()) return ids;
    const std::string_view word = text.substr(0, text.find_first_of(space));
    std::size_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id >= n_vocab) {
      return refuse("ids", "a token of --ids is " + in_quotes(word) + "; expected a whole number from 0 to " +
                               std::to_string(n_vocab - 1));
    }
    ids.push_back(static_cast<std::int32_t>(id));
    text.remove_prefix(word.size());
  }
}

}  // namespace tiny
