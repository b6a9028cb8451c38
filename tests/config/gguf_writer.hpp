// Writes GGUF metadata byte by byte: the format by hand, so that the reader is not checked against itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gguf {

/// Type numbers of the file format.
enum : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  text = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};

class Writer {
 public:
  explicit Writer(std::uint32_t version = 3) : version_(version) {}

  /// A scalar of `bytes` bytes, little-endian.
  Writer& number(std::string_view key, std::uint32_t type, std::uint64_t value, std::size_t bytes) {
    begin(key, type);
    little(value, bytes);
    return *this;
  }
  Writer& u(std::string_view key, std::uint32_t value) { return number(key, u32, value, 4); }
  Writer& string(std::string_view key, std::string_view value) {
    begin(key, text);
    put(value);
    return *this;
  }
  Writer& list(std::string_view key, std::uint32_t type, std::size_t bytes, const std::vector<std::int64_t>& values) {
    begin(key, array);
    little(type, 4);
    little(values.size(), 8);
    for (const std::int64_t v : values) little(static_cast<std::uint64_t>(v), bytes);
    return *this;
  }
  Writer& strings(std::string_view key, std::size_t n) {
    begin(key, array);
    little(text, 4);
    little(n, 8);
    for (std::size_t i = 0; i < n; ++i) put("token");
    return *this;
  }
  /// Bytes as they are, counted as one key.
  Writer& raw(std::initializer_list<int> bytes) {
    ++keys_;
    for (const int b : bytes) body_ += static_cast<char>(b);
    return *this;
  }

  /// The file, with another number of keys if the test says so.
  std::string file(std::int64_t keys = -1) const {
    std::string head = "GGUF";
    const auto add = [&](std::uint64_t v, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) head += static_cast<char>(v >> (8 * i) & 0xff);
    };
    add(version_, 4);
    add(0, 8);
    add(keys < 0 ? keys_ : static_cast<std::uint64_t>(keys), 8);
    return head + body_;
  }

 private:
  void begin(std::string_view key, std::uint32_t type) {
    ++keys_;
    put(key);
    little(type, 4);
  }
  void put(std::string_view s) {
    little(s.size(), 8);
    body_ += s;
  }
  void little(std::uint64_t v, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) body_ += static_cast<char>(v >> (8 * i) & 0xff);
  }

  std::uint32_t version_;
  std::uint64_t keys_ = 0;
  std::string body_;
};

inline std::span<const std::byte> bytes_of(const std::string& file) {
  return {reinterpret_cast<const std::byte*>(file.data()), file.size()};
}

}  // namespace gguf
