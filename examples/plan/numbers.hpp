// Numbers as people write and read them: sizes with units, thousands, and flags that are refused in one sentence.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace planner {

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw std::invalid_argument(sentence);
}

/// Text from outside, made fit for one line.
inline std::string in_quotes(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 60)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return out + (text.size() > 60 ? "...'" : "'");
}

inline std::size_t whole_number(const char* flag, const std::string& text, std::size_t lo, std::size_t hi) {
  std::size_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < lo || n > hi) {
    refuse(std::string(flag) + " is " + in_quotes(text) + "; expected a whole number from " + std::to_string(lo) +
           " to " + std::to_string(hi));
  }
  return n;
}

/// Units of memory: those of 1024 as they are written, GB and its kin in thousands.
struct Unit {
  std::string_view name;
  double bytes;
};
inline constexpr std::array<Unit, 9> units = {{{"TiB", 1099511627776.0},
                                               {"GiB", 1073741824.0},
                                               {"MiB", 1048576.0},
                                               {"KiB", 1024.0},
                                               {"TB", 1e12},
                                               {"GB", 1e9},
                                               {"MB", 1e6},
                                               {"kB", 1e3},
                                               {"B", 1.0}}};

/// "24GiB", "1.5 TiB", "80000000000" -> bytes, rounded down. Without a unit it is a whole number of them, exactly.
inline std::size_t memory_size(const char* flag, const std::string& text) {
  constexpr std::size_t most = 9'000'000'000'000'000'000;
  const char* const first = text.data();
  const char* const last = first + text.size();
  double n = 0;
  const auto [end, error] = std::from_chars(first, last, n, std::chars_format::fixed);
  std::string_view rest(end, static_cast<std::size_t>(last - end));
  while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  double scale = rest.empty() ? 1.0 : 0.0;
  for (const Unit& u : units) {
    if (rest == u.name) scale = u.bytes;
  }
  const double bytes = n * scale;
  std::size_t exact = 0;
  const bool whole = std::from_chars(first, last, exact).ptr == end;
  if (error != std::errc() || !(bytes >= 1.0) || !(bytes < static_cast<double>(most)) || (scale == 1.0 && !whole)) {
    refuse(std::string(flag) + " is " + in_quotes(text) + "; expected a size such as 24GiB, 1.5TiB or 80GB");
  }
  return scale == 1.0 ? exact : static_cast<std::size_t>(bytes);
}

/// 1234567 -> "1,234,567".
inline std::string thousands(std::size_t n) {
  const std::string digits = std::to_string(n);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i != 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

/// The number with a fitting unit of 1024: "1.37 GiB"; nothing for numbers of three digits.
inline std::string in_units(std::size_t bytes) {
  for (const Unit& u : {units[0], units[1], units[2], units[3]}) {
    if (static_cast<double>(bytes) < u.bytes) continue;
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.2f %s", static_cast<double>(bytes) / u.bytes, u.name.data());
    return text.data();
  }
  return std::to_string(bytes) + " B";
}

}  // namespace planner
