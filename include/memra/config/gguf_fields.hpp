// Typed values of one architecture in a GGUF file: scalars, and numbers or flags per layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/config/gguf_reader.hpp>
#include <memra/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

/// Values under "<architecture>."; keeps the first refusal, as Fields does for JSON.
class GgufFields {
 public:
  GgufFields(const GgufHeader& header, std::string architecture)
      : header_(&header), prefix_(std::move(architecture) + ".") {}

  const Status& status() const { return status_; }
  void fail(const std::string& sentence) {
    if (status_.ok()) status_ = detail::gguf_refusal(sentence);
  }
  std::string named(std::string_view name) const { return "key " + prefix_ + std::string(name); }

  /// From here on a number may also be an array of `n` or `n + n_mtp` equal ones: one for every layer.
  void set_layers(std::size_t n, std::size_t n_mtp) {
    n_layers_ = n;
    n_all_ = n + n_mtp;
  }

  /// Asking counts as reading, see was_read.
  const GgufValue* find(std::string_view name) {
    if (!was_read(name)) read_.emplace_back(name);
    return peek(name);
  }
  const GgufValue* peek(std::string_view name) const {
    const auto it = header_->values.find(prefix_ + std::string(name));
    return it == header_->values.end() ? nullptr : &it->second;
  }
  bool has(std::string_view name) { return find(name) != nullptr; }
  bool was_read(std::string_view name) const { return std::find(read_.begin(), read_.end(), name) != read_.end(); }

  /// A whole number in [lo, hi]: a scalar, or the same for every layer, see set_layers. `fallback` as Fields::size has
  /// it.
  std::size_t size(std::string_view name, std::size_t lo, std::size_t hi, std::optional<std::size_t> fallback = {}) {
    const GgufValue* v = find(name);
    if (v == nullptr) {
      if (!fallback) fail(named(name) + " is missing; expected a whole number");
      if (fallback.value_or(lo) <= hi) return fallback.value_or(lo);
      fail(named(name) + " is missing, which means " + std::to_string(*fallback) + "; expected a whole number from " +
           std::to_string(lo) + " to " + std::to_string(hi));
      return lo;
    }
    const auto one = v->numbers.empty() ? v->numbers.end() : v->numbers.begin();
    const bool same = !v->numbers.empty() && (!v->is_array || v->count == n_layers_ || v->count == n_all_) &&
                      std::all_of(one, v->numbers.end(), [&](std::int64_t n) { return n == *one; });
    if (!same || v->type == GgufType::boolean || !in_range(*one, lo, hi)) {
      fail(named(name) + " is " + shown(*v) + "; expected a whole number from " + std::to_string(lo) + " to " +
           std::to_string(hi));
      return lo;
    }
    return static_cast<std::size_t>(*one);
  }

  /// Numbers in [lo, hi] for the `n` layers of the trunk and `n_mtp` past it: one for all, or an array. An array of the
  /// trunk alone gives those past it nothing (absent_past). Empty after a refusal.
  std::vector<std::size_t> per_layer(std::string_view name, std::size_t n, std::size_t n_mtp, std::size_t lo,
                                     std::size_t hi, std::optional<std::size_t> fallback = {}) {
    const GgufValue* v = find(name);
    if (v == nullptr || !v->is_array) return std::vector<std::size_t>(n + n_mtp, size(name, lo, hi, fallback));
    if (!check_length(name, *v, n, n_mtp)) return {};
    std::vector<std::size_t> all;
    for (const std::int64_t number : v->numbers) {
      if (v->type == GgufType::boolean || !in_range(number, lo, hi)) {
        fail(named(name) + " holds " + std::to_string(number) + " for layer " + std::to_string(all.size()) +
             "; expected a whole number from " + std::to_string(lo) + " to " + std::to_string(hi));
        return {};
      }
      all.push_back(static_cast<std::size_t>(number));
    }
    return all;
  }

  /// Flags for the `n` layers of the trunk and `n_mtp` past it, false for those past an array of the trunk alone. An
  /// array of booleans or of 0 and 1. Empty after a refusal.
  std::vector<bool> flags(std::string_view name, std::size_t n, std::size_t n_mtp) {
    const GgufValue& v = *find(name);
    if (!v.is_array && v.type == GgufType::boolean) return std::vector<bool>(n + n_mtp, v.numbers.front() != 0);
    if (!v.is_array) {
      fail(named(name) + " is " + shown(v) + "; expected an array of booleans, one per layer");
      return {};
    }
    if (!check_length(name, v, n, n_mtp)) return {};
    std::vector<bool> all;
    for (const std::int64_t number : v.numbers) {
      if (number != 0 && number != 1) {
        fail(named(name) + " holds " + std::to_string(number) + " for layer " + std::to_string(all.size()) +
             "; expected 0 or 1");
        return {};
      }
      all.push_back(number != 0);
    }
    all.resize(n + n_mtp, false);
    return all;
  }

 private:
  static bool in_range(std::int64_t v, std::size_t lo, std::size_t hi) {
    return v >= 0 && static_cast<std::uint64_t>(v) >= lo && static_cast<std::uint64_t>(v) <= hi;
  }
  static std::string shown(const GgufValue& v) {
    if (v.is_array) return "an array of " + std::to_string(v.count) + " " + std::string(to_string(v.type));
    if (v.type == GgufType::text) return detail::gguf_quoted(v.text);
    if (v.type == GgufType::boolean) return v.numbers.front() != 0 ? "true" : "false";
    return v.numbers.empty() ? "a " + std::string(to_string(v.type)) : std::to_string(v.numbers.front());
  }
  bool check_length(std::string_view name, const GgufValue& v, std::size_t n, std::size_t n_mtp) {
    const bool whole = v.numbers.size() == v.count;
    if (whole && (v.count == n || v.count == n + n_mtp)) return true;
    fail(named(name) + " is " + shown(v) + "; expected whole numbers for " + std::to_string(n) +
         (n_mtp == 0 ? "" : " or " + std::to_string(n + n_mtp)) + " layers");
    return false;
  }

  const GgufHeader* header_;
  std::string prefix_;
  std::vector<std::string> read_;
  std::size_t n_layers_ = 0;  ///< 0: not known yet, and no array is a number
  std::size_t n_all_ = 0;
  Status status_;
};

}  // namespace memra::config
