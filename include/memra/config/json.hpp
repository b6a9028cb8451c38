// JSON from outside: a bounded parse that refuses duplicate keys. Optional: needs nlohmann-json, memra.hpp does not
// include it.
#pragma once

#include <array>
#include <cstddef>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

using Json = nlohmann::json;

/// What a file may hold before it is called junk: far above any real header or config.
struct JsonLimits {
  std::size_t depth = 64;
  std::size_t values = std::size_t{1} << 22;
};

inline Status refuse(const char* what, const std::string& sentence) {
  return Status::failure(ErrorKind::corrupt, what, 0, 0, "%s", sentence.c_str());
}

/// Text from outside, made fit for one line of an error message.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return out + (text.size() > longest ? "...'" : "'");
}

namespace detail {

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

/// Python writes Infinity and NaN bare. They become strings: a field that matters is refused by name, others do not.
inline std::string with_quoted_literals(std::string_view text) {
  constexpr std::array<std::string_view, 3> literals = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  out.reserve(text.size());
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (inside && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    } else if (text[i] == '"') {
      inside = !inside;
    } else if (!inside) {
      std::string_view literal;
      for (const std::string_view word : literals) {
        if (literal.empty() && text.substr(i, word.size()) == word) literal = word;
      }
      if (!literal.empty()) {
        out += '"';
        out += literal;
        out += '"';
        i += literal.size() - 1;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

}  // namespace detail

/// A JSON object; the bare literals Infinity, -Infinity and NaN count as strings.
///
/// @param what  names the file in the sentence
/// @return corrupt: not JSON, a duplicate key, too deep, too large, or not an object at the top
inline Result<Json> parse_json(std::string_view text, const char* what, const JsonLimits& limits = {}) {
  // The parser takes a zero byte for the end; what stands behind it would go unread.
  const std::size_t zero = text.find('\0');
  if (zero != std::string_view::npos) return refuse(what, "it is not JSON at byte " + std::to_string(zero + 1));
  detail::JsonBuilder builder(limits);
  const std::string strict = detail::with_quoted_literals(text);
  const bool ok = Json::sax_parse(strict.begin(), strict.end(), &builder);
  if (!ok) return refuse(what, builder.error().empty() ? std::string("it is not JSON") : builder.error());
  Json root = builder.take();
  if (!root.is_object()) return refuse(what, "it is JSON, but not an object");
  return root;
}

}  // namespace memra::config
