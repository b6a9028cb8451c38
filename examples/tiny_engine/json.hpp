// JSON from outside: a bounded parse that refuses duplicate keys, and field access that names the field it refuses.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiny {

using Json = nlohmann::json;

/// What a file may hold before it is called junk: far above any real header or config.
struct JsonLimits {
  std::size_t depth = 64;
  std::size_t values = std::size_t{1} << 22;
};

inline memra::Status refuse(const char* what, const std::string& sentence) {
  return memra::Status::failure(memra::ErrorKind::corrupt, what, 0, 0, "%s", sentence.c_str());
}

/// Text from outside, made fit for one line of an error message.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return out + (text.size() > longest ? "...'" : "'");
}

namespace internal {

/// Builds the document value by value, so that depth, size and duplicate keys are seen before they cost anything.
class JsonBuilder {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  explicit JsonBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return add(Json(nullptr)) != nullptr; }
  bool boolean(bool v) { return add(Json(v)) != nullptr; }
  bool number_integer(number_integer_t v) { return add(Json(v)) != nullptr; }
  bool number_unsigned(number_unsigned_t v) { return add(Json(v)) != nullptr; }
  bool number_float(number_float_t v, const string_t&) { return add(Json(v)) != nullptr; }
  bool string(string_t& v) { return add(Json(std::move(v))) != nullptr; }
  bool binary(binary_t&) { return fail("it holds a binary value"); }
  bool start_object(std::size_t) { return open(Json(Json::value_t::object)); }
  bool start_array(std::size_t) { return open(Json(Json::value_t::array)); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(string_t& v) {
    if (open_.back()->contains(v)) return fail("the key " + in_quotes(v) + " appears twice");
    key_ = std::move(v);
    return true;
  }
  bool parse_error(std::size_t at, const std::string&, const Json::exception&) {
    return fail("it is not JSON at byte " + std::to_string(at));
  }

  Json take() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool fail(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }
  Json* add(Json&& v) {
    if (++values_ > limits_.values) {
      fail("it holds more than " + std::to_string(limits_.values) + " values");
      return nullptr;
    }
    if (open_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    Json& slot = parent[key_];
    slot = std::move(v);
    return &slot;
  }
  // The pointer stays valid while the container is open: a parent grows only after its child is closed.
  bool open(Json&& container) {
    if (open_.size() >= limits_.depth) {
      return fail("it is nested deeper than " + std::to_string(limits_.depth) + " levels");
    }
    Json* made = add(std::move(container));
    if (made == nullptr) return false;
    open_.push_back(made);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;
  std::string key_;
  std::string error_;
  std::size_t values_ = 0;
};

/// Python writes Infinity and NaN bare; they become null, so that a config is refused for what matters.
inline std::string without_bare_literals(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside) {
      const std::string_view rest = text.substr(i);
      std::size_t skip = 0;
      for (const std::string_view word :
           {std::string_view("-Infinity"), std::string_view("Infinity"), std::string_view("NaN")}) {
        if (rest.substr(0, word.size()) == word) {
          skip = word.size();
          break;
        }
      }
      if (skip != 0) {
        out += "null";
        i += skip - 1;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

}  // namespace internal

/// @param what  names the file in the sentence
/// @return corrupt: not JSON, a duplicate key, too deep, too large, or not an object at the top
inline memra::Result<Json> parse_json(std::string_view text, const char* what, const JsonLimits& limits = {}) {
  internal::JsonBuilder builder(limits);
  const bool ok = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!ok) return refuse(what, builder.error().empty() ? std::string("it is not JSON") : builder.error());
  Json root = builder.take();
  if (!root.is_object()) return refuse(what, "it is JSON, but not an object");
  return root;
}

/// Reads typed fields of one object and keeps the first refusal: ask for everything, then look at status() once.
class Fields {
 public:
  Fields(const Json& object, const char* what) : object_(&object), what_(what) {}

  const memra::Status& status() const { return status_; }
  bool has(const char* name) const {
    const auto it = object_->find(name);
    return it != object_->end() && !it->is_null();
  }
  const Json& at(const char* name) const { return *object_->find(name); }
  void fail(const std::string& sentence) {
    if (status_.ok()) status_ = refuse(what_, sentence);
  }

  /// A whole number in [lo, hi]; `fallback` where the field is absent, which is refused if there is none.
  std::size_t size(const char* name, std::size_t lo, std::size_t hi, std::optional<std::size_t> fallback = {}) {
    if (!has(name)) {
      if (!fallback) fail(std::string("field ") + name + " is missing; expected a whole number");
      return fallback.value_or(lo);
    }
    const std::optional<std::uint64_t> v = whole(at(name));
    if (!v || *v < lo || *v > hi) {
      fail(std::string("field ") + name + " is " + shown(at(name)) + "; expected a whole number from " +
           std::to_string(lo) + " to " + std::to_string(hi));
      return lo;
    }
    return static_cast<std::size_t>(*v);
  }
  /// A finite number in [lo, hi].
  double number(const char* name, double lo, double hi, std::optional<double> fallback = {}) {
    if (!has(name)) {
      if (!fallback) fail(std::string("field ") + name + " is missing; expected a number");
      return fallback.value_or(lo);
    }
    const Json& v = at(name);
    const double d = v.is_number() ? v.get<double>() : std::numeric_limits<double>::quiet_NaN();
    if (!(d >= lo && d <= hi)) {
      char range[64];
      std::snprintf(range, sizeof range, "%g to %g", lo, hi);
      fail(std::string("field ") + name + " is " + shown(v) + "; expected a number from " + range);
      return lo;
    }
    return d;
  }
  bool boolean(const char* name, bool fallback) {
    if (!has(name)) return fallback;
    if (!at(name).is_boolean()) {
      fail(std::string("field ") + name + " is " + shown(at(name)) + "; expected true or false");
      return fallback;
    }
    return at(name).get<bool>();
  }
  std::string text(const char* name, const char* fallback) {
    if (!has(name)) {
      if (fallback == nullptr) fail(std::string("field ") + name + " is missing; expected a string");
      return fallback == nullptr ? "" : fallback;
    }
    if (!at(name).is_string()) {
      fail(std::string("field ") + name + " is " + shown(at(name)) + "; expected a string");
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
  memra::Status status_;
};

}  // namespace tiny
