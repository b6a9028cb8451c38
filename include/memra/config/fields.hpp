// Typed fields of one JSON object: every refusal names the field, what it holds and what was expected.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <memra/config/json.hpp>
#include <memra/error.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

/// Reads typed fields of one object and keeps the first refusal: ask for everything, then look at status() once.
class Fields {
 public:
  /// @param what    names the file in the sentences
  /// @param prefix  goes before the names of fields: "linear_attn_config." for an object inside the file
  Fields(const Json& object, const char* what, std::string prefix = "")
      : object_(&object), what_(what), prefix_(std::move(prefix)) {}

  const Status& status() const { return status_; }
  /// Whether the field is there and not null; asking counts as reading it, see was_read.
  bool has(const char* name) {
    if (!was_read(name)) read_.emplace_back(name);
    return present(name);
  }
  bool present(const char* name) const {
    const auto it = object_->find(name);
    return it != object_->end() && !it->is_null();
  }
  /// Fields that the reader understands, though it may not need them.
  void knows(std::initializer_list<const char*> names) {
    for (const char* name : names) has(name);
  }
  /// There, and null: not the same as absent where a family has a default.
  bool is_null(const char* name) const {
    const auto it = object_->find(name);
    return it != object_->end() && it->is_null();
  }
  /// There, and neither null nor switched off (false, 0).
  bool says_something(const char* name) const { return present(name) && at(name) != false && at(name) != 0; }
  /// Whether anything asked for the field: one that matters and that nobody asked for was not understood.
  bool was_read(std::string_view name) const { return std::find(read_.begin(), read_.end(), name) != read_.end(); }
  /// @pre present(name)
  const Json& at(const char* name) const { return *object_->find(name); }
  const char* what() const { return what_; }
  std::string named(const char* name) const { return "field " + prefix_ + name; }
  void fail(const std::string& sentence) {
    if (status_.ok()) status_ = refuse(what_, sentence);
  }

  /// A whole number in [lo, hi]; `fallback` where the field is absent, which is refused if there is none, or if it is
  /// above `hi`: what a family does where its files are silent need not fit this one. Below `lo` it may say "absent".
  std::size_t size(const char* name, std::size_t lo, std::size_t hi, std::optional<std::size_t> fallback = {}) {
    if (!has(name)) {
      if (!fallback) fail(named(name) + " is missing; expected a whole number");
      if (fallback.value_or(lo) <= hi) return fallback.value_or(lo);
      fail(named(name) + " is missing, which means " + std::to_string(*fallback) + "; expected a whole number from " +
           std::to_string(lo) + " to " + std::to_string(hi));
      return lo;
    }
    const std::optional<std::uint64_t> v = whole(at(name));
    if (!v || *v < lo || *v > hi) {
      fail(named(name) + " is " + shown(at(name)) + "; expected a whole number from " + std::to_string(lo) + " to " +
           std::to_string(hi));
      return lo;
    }
    return static_cast<std::size_t>(*v);
  }
  /// The same under any of several spellings; those that are there must agree.
  std::size_t size(std::initializer_list<const char*> names, std::size_t lo, std::size_t hi,
                   std::optional<std::size_t> fallback = {}) {
    const char* found = nullptr;
    std::size_t value = 0;
    for (const char* name : names) {
      if (!has(name)) continue;
      const std::size_t one = size(name, lo, hi);
      if (found != nullptr && one != value) {
        fail(named(name) + " is " + std::to_string(one) + " and " + found + " is " + std::to_string(value) +
             "; expected one value");
      }
      found = name;
      value = one;
    }
    return found != nullptr ? value : size(*names.begin(), lo, hi, fallback);
  }
  /// A finite number in [lo, hi].
  double number(const char* name, double lo, double hi, std::optional<double> fallback = {}) {
    if (!has(name)) {
      if (!fallback) fail(named(name) + " is missing; expected a number");
      return fallback.value_or(lo);
    }
    const Json& v = at(name);
    const double d = v.is_number() ? v.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(d >= lo && d <= hi)) {
      char range[64];
      std::snprintf(range, sizeof range, "%g to %g", lo, hi);
      fail(named(name) + " is " + shown(v) + "; expected a number from " + range);
      return lo;
    }
    return d;
  }
  bool boolean(const char* name, bool fallback) {
    if (!has(name)) return fallback;
    if (!at(name).is_boolean()) {
      fail(named(name) + " is " + shown(at(name)) + "; expected true or false");
      return fallback;
    }
    return at(name).get<bool>();
  }
  std::string text(const char* name, const char* fallback) {
    if (!has(name)) {
      if (fallback == nullptr) fail(named(name) + " is missing; expected a string");
      return fallback == nullptr ? "" : fallback;
    }
    if (!at(name).is_string()) {
      fail(named(name) + " is " + shown(at(name)) + "; expected a string");
      return "";
    }
    return at(name).get<std::string>();
  }

  static std::optional<std::uint64_t> whole(const Json& v) {
    if (v.is_number_unsigned()) return v.get<std::uint64_t>();
    if (v.is_number_integer() && v.get<std::int64_t>() >= 0) return static_cast<std::uint64_t>(v.get<std::int64_t>());
    return std::nullopt;
  }
  /// A value as it may appear in a sentence.
  static std::string shown(const Json& v) {
    if (v.is_string()) return in_quotes(v.get_ref<const std::string&>());
    if (v.is_structured()) return v.is_array() ? "a list" : "an object";
    return v.dump();
  }

 private:
  const Json* object_;
  const char* what_;
  std::string prefix_;
  std::vector<std::string> read_;
  Status status_;
};

}  // namespace memra::config
