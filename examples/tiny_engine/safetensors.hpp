// safetensors: u64 header length, a JSON header, then the bytes of the tensors without holes. Every number in the
// header is hostile until checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memra/error.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tiny_engine/file.hpp>
#include <tiny_engine/json.hpp>
#include <utility>
#include <vector>

namespace tiny {

/// Element types the format defines and this loader can measure. The engine reads f32, f16, bf16 and i32 only.
enum class DType : std::uint8_t { f64, f32, f16, bf16, f8, i64, i32, i16, i8 };

struct DTypeFacts {
  DType type;
  std::size_t bytes;
};

/// "BF16" -> {bf16, 2}; nullopt for a name the format does not know.
inline std::optional<DTypeFacts> parse_dtype(std::string_view name) {
  struct Row {
    std::string_view name;
    DTypeFacts facts;
  };
  static constexpr Row rows[] = {
      {"F64", {DType::f64, 8}}, {"F32", {DType::f32, 4}},    {"F16", {DType::f16, 2}},    {"BF16", {DType::bf16, 2}},
      {"I64", {DType::i64, 8}}, {"U64", {DType::i64, 8}},    {"I32", {DType::i32, 4}},    {"U32", {DType::i32, 4}},
      {"I16", {DType::i16, 2}}, {"U16", {DType::i16, 2}},    {"I8", {DType::i8, 1}},      {"U8", {DType::i8, 1}},
      {"BOOL", {DType::i8, 1}}, {"F8_E4M3", {DType::f8, 1}}, {"F8_E5M2", {DType::f8, 1}},
  };
  for (const Row& r : rows) {
    if (r.name == name) return r.facts;
  }
  return std::nullopt;
}

/// One tensor: a window into the file's bytes. Not aligned: read it with memcpy or copy it as bytes.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::size_t> shape;
  std::span<const std::byte> data;

  std::size_t elems() const noexcept {
    std::size_t n = 1;
    for (const std::size_t d : shape) n *= d;  // checked when the header was read
    return n;
  }
};

/// The tensors of one file, by name.
class SafeTensors {
 public:
  /// Longest header accepted: the limit of the format's own readers.
  static constexpr std::size_t max_header_bytes = 100'000'000;
  static constexpr std::size_t max_dims = 8;

  /// Memory-maps `path`. The tensors point into the mapping and live as long as this object.
  static memra::Result<SafeTensors> open(const std::string& path) {
    memra::Result<MappedFile> file = MappedFile::open(path);
    if (!file) return file.status();
    memra::Result<SafeTensors> made = parse(file->bytes());
    if (!made) {
      return memra::Status::failure(made.status().kind(), "safetensors", 0, 0, "%s: %s", path.c_str(),
                                    made.status().text());
    }
    made->file_.emplace(*std::move(file));
    return made;
  }

  /// @param bytes  the whole file; must outlive the result
  /// @return corrupt, with the first thing that is wrong
  static memra::Result<SafeTensors> parse(std::span<const std::byte> bytes) {
    if (bytes.size() < 8) return bad("the file has " + std::to_string(bytes.size()) + " bytes; expected at least 8");
    std::uint64_t header = 0;
    for (std::size_t i = 0; i < 8; ++i) header |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
    if (header > bytes.size() - 8 || header > max_header_bytes) {
      return bad("the header claims " + std::to_string(header) + " bytes of a file of " + std::to_string(bytes.size()));
    }
    const auto header_bytes = static_cast<std::size_t>(header);
    const char* text = reinterpret_cast<const char*>(bytes.data() + 8);
    memra::Result<Json> parsed = parse_json({text, header_bytes}, "safetensors");
    if (!parsed) return bad(std::string("the header cannot be used: ") + parsed.status().text());

    SafeTensors out;
    const std::span<const std::byte> body = bytes.subspan(8 + header_bytes);
    std::vector<std::pair<std::size_t, std::size_t>> ranges;
    for (const auto& [name, entry] : parsed->items()) {
      if (name == "__metadata__") continue;
      Tensor t;
      if (memra::Status s = read_entry(name, entry, body, t, ranges); !s) return s;
      out.tensors_.emplace(name, std::move(t));
    }
    std::sort(ranges.begin(), ranges.end());
    std::size_t end = 0;
    for (const auto& [first, last] : ranges) {
      if (first < end) return bad("two tensors overlap at byte " + std::to_string(first) + " of the data");
      if (first > end)
        return bad("bytes " + std::to_string(end) + " to " + std::to_string(first) +
                   " of the data belong to no tensor");
      end = last;
    }
    if (end != body.size()) {
      return bad("the tensors end at byte " + std::to_string(end) + " of " + std::to_string(body.size()) +
                 " bytes of data; expected no rest");
    }
    return out;
  }

  const Tensor* find(const std::string& name) const {
    const auto it = tensors_.find(name);
    return it == tensors_.end() ? nullptr : &it->second;
  }
  const std::map<std::string, Tensor>& tensors() const noexcept { return tensors_; }

 private:
  static memra::Status bad(const std::string& sentence) { return refuse("safetensors", sentence); }

  static memra::Status read_entry(const std::string& name, const Json& entry, std::span<const std::byte> body,
                                  Tensor& t, std::vector<std::pair<std::size_t, std::size_t>>& ranges) {
    const std::string who = "tensor " + in_quotes(name);
    if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
      return bad(who + " needs dtype, shape and data_offsets");
    }
    const Json& dtype = entry["dtype"];
    if (!dtype.is_string()) return bad(who + ": dtype is not a string");
    const std::optional<DTypeFacts> facts = parse_dtype(dtype.get_ref<const std::string&>());
    if (!facts) return bad(who + ": dtype " + Fields::shown(dtype) + " is not one this loader knows");
    t.dtype = facts->type;

    const Json& shape = entry["shape"];
    if (!shape.is_array() || shape.size() > max_dims) {
      return bad(who + ": shape is not a list of at most " + std::to_string(max_dims) + " sizes");
    }
    std::size_t bytes = facts->bytes;
    for (const Json& d : shape) {
      const std::optional<std::uint64_t> n = Fields::whole(d);
      if (!n) return bad(who + ": shape holds " + Fields::shown(d) + "; expected whole numbers");
      if (*n != 0 && bytes > SIZE_MAX / *n) return bad(who + ": the product of its shape does not fit");
      bytes *= static_cast<std::size_t>(*n);
      t.shape.push_back(static_cast<std::size_t>(*n));
    }

    const Json& offsets = entry["data_offsets"];
    if (!offsets.is_array() || offsets.size() != 2) return bad(who + ": data_offsets is not a pair");
    const std::optional<std::uint64_t> first = Fields::whole(offsets[0]);
    const std::optional<std::uint64_t> last = Fields::whole(offsets[1]);
    if (!first || !last) return bad(who + ": data_offsets are not whole numbers");
    if (*first > *last || *last > body.size()) {
      return bad(who + ": data_offsets [" + std::to_string(*first) + ", " + std::to_string(*last) + ") do not lie in " +
                 std::to_string(body.size()) + " bytes of data");
    }
    const auto begin = static_cast<std::size_t>(*first);
    const auto end = static_cast<std::size_t>(*last);
    if (end - begin != bytes) {
      return bad(who + " has " + std::to_string(end - begin) + " bytes; its shape and dtype need " +
                 std::to_string(bytes));
    }
    t.data = body.subspan(begin, bytes);
    if (bytes != 0) ranges.emplace_back(begin, end);
    return {};
  }

  std::optional<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tiny
