// The header of a GGUF file, versions 2 and 3: its metadata as values, every length checked before it is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memra/error.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memra::config {

/// Value types, with the numbers of the file format.
enum class GgufType : std::uint8_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

constexpr std::string_view to_string(GgufType t) noexcept {
  constexpr std::string_view names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
  return names[static_cast<std::size_t>(t)];
}

/// One value, or an array of values of one type.
struct GgufValue {
  GgufType type = GgufType::u8;  ///< of the value, or of every element
  bool is_array = false;
  std::size_t count = 1;              ///< elements
  std::vector<std::int64_t> numbers;  ///< whole numbers and booleans; empty for an array longer than most_kept
  double real = 0;                    ///< a float that is no array
  std::string text;                   ///< a string that is no array

  static constexpr std::size_t most_kept = 65536;
};

/// The metadata of a file.
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint64_t n_tensors = 0;
  std::map<std::string, GgufValue, std::less<>> values;
};

namespace detail {

inline Status gguf_refusal(const std::string& sentence) {
  return Status::failure(ErrorKind::corrupt, "gguf", 0, 0, "%s", sentence.c_str());
}

/// Text from a file, made fit for one line.
inline std::string gguf_quoted(std::string_view text) {
  constexpr std::size_t longest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, longest)) out += (c >= 0x20 && c < 0x7f) ? c : '?';
  return out + (text.size() > longest ? "...'" : "'");
}

/// Takes little-endian numbers from the front of some bytes, and never more than are there.
class GgufBytes {
 public:
  explicit GgufBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::size_t left() const noexcept { return bytes_.size() - at_; }
  std::size_t at() const noexcept { return at_; }

  /// The next `n` bytes as an unsigned number; 0 and failed() if they are not there. n <= 8.
  std::uint64_t number(std::size_t n) noexcept {
    std::uint64_t v = 0;
    if (n > left()) {
      failed_ = true;
      return 0;
    }
    for (std::size_t i = 0; i < n; ++i) v |= std::to_integer<std::uint64_t>(bytes_[at_ + i]) << (8 * i);
    at_ += n;
    return v;
  }
  /// A string: its length in 8 bytes, then its bytes.
  std::string_view text() noexcept {
    const std::uint64_t n = number(8);
    if (failed_ || n > left()) {
      failed_ = true;
      return {};
    }
    const std::string_view v(reinterpret_cast<const char*>(bytes_.data()) + at_, static_cast<std::size_t>(n));
    at_ += v.size();
    return v;
  }
  void skip(std::size_t n) noexcept {
    if (n > left()) {
      failed_ = true;
    } else {
      at_ += n;
    }
  }
  bool failed() const noexcept { return failed_; }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

constexpr std::size_t gguf_bytes(GgufType t) noexcept {
  constexpr std::size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<std::size_t>(t)];
}
constexpr bool gguf_is_whole(GgufType t) noexcept {
  return t != GgufType::f32 && t != GgufType::f64 && t != GgufType::text && t != GgufType::array;
}

/// Bits of a whole number as a value; unsigned 64-bit numbers beyond the range of signed ones become its largest.
inline std::int64_t gguf_whole(GgufType t, std::uint64_t bits) noexcept {
  switch (t) {
    case GgufType::i8:
      return static_cast<std::int8_t>(bits);
    case GgufType::i16:
      return static_cast<std::int16_t>(bits);
    case GgufType::i32:
      return static_cast<std::int32_t>(bits);
    case GgufType::i64:
      return static_cast<std::int64_t>(bits);
    default:
      return static_cast<std::int64_t>(
          std::min<std::uint64_t>(bits, static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())));
  }
}

inline double gguf_real(GgufType t, std::uint64_t bits) noexcept {
  if (t == GgufType::f64) {
    double d = 0;
    std::memcpy(&d, &bits, sizeof d);
    return d;
  }
  const auto low = static_cast<std::uint32_t>(bits);
  float f = 0;
  std::memcpy(&f, &low, sizeof f);
  return static_cast<double>(f);
}

/// The elements of one array, of which only whole numbers are kept.
inline Status read_gguf_array(GgufBytes& in, const std::string& key, GgufValue& v) {
  const std::uint64_t type = in.number(4);
  const std::uint64_t count = in.number(8);
  if (in.failed()) return gguf_refusal("the file ends inside the array " + gguf_quoted(key));
  if (type > 12 || type == static_cast<std::uint64_t>(GgufType::array)) {
    return gguf_refusal("the array " + gguf_quoted(key) + " has elements of type " + std::to_string(type) +
                        "; expected 0 to 12 and no arrays in arrays");
  }
  v.type = static_cast<GgufType>(type);
  // A string takes at least its length.
  const std::size_t least = v.type == GgufType::text ? 8 : gguf_bytes(v.type);
  if (count > in.left() / least) {
    return gguf_refusal("the array " + gguf_quoted(key) + " says it has " + std::to_string(count) +
                        " elements; the file ends before");
  }
  v.count = static_cast<std::size_t>(count);
  if (v.type == GgufType::text) {
    for (std::size_t i = 0; i < v.count && !in.failed(); ++i) in.text();
    return in.failed() ? gguf_refusal("the file ends inside the array " + gguf_quoted(key)) : Status();
  }
  if (!gguf_is_whole(v.type) || v.count > GgufValue::most_kept) {
    in.skip(v.count * least);
    return {};
  }
  v.numbers.reserve(v.count);
  for (std::size_t i = 0; i < v.count; ++i) v.numbers.push_back(gguf_whole(v.type, in.number(least)));
  return {};
}

inline Status read_gguf_value(GgufBytes& in, const std::string& key, GgufValue& v) {
  const std::uint64_t type = in.number(4);
  if (in.failed()) return gguf_refusal("the file ends behind the key " + gguf_quoted(key));
  if (type > 12) {
    return gguf_refusal("the key " + gguf_quoted(key) + " has a value of type " + std::to_string(type) +
                        "; expected 0 to 12");
  }
  v.type = static_cast<GgufType>(type);
  if (v.type == GgufType::array) {
    v.is_array = true;
    if (Status s = read_gguf_array(in, key, v); !s) return s;
  } else if (v.type == GgufType::text) {
    v.text = in.text();
  } else if (gguf_is_whole(v.type)) {
    v.numbers.push_back(gguf_whole(v.type, in.number(gguf_bytes(v.type))));
  } else {
    v.real = gguf_real(v.type, in.number(gguf_bytes(v.type)));
  }
  if (in.failed()) return gguf_refusal("the file ends inside the value of " + gguf_quoted(key));
  if (v.type == GgufType::boolean) {
    for (const std::int64_t b : v.numbers) {
      if (b > 1)
        return gguf_refusal("the key " + gguf_quoted(key) + " holds the byte " + std::to_string(b) +
                            " as a boolean; expected 0 or 1");
    }
  }
  return {};
}

}  // namespace detail

/// Reads the metadata at the front of a file; the tensors behind it are not looked at.
///
/// @param bytes  the file, or as much of its front as holds the metadata
/// @return corrupt in one sentence: not a GGUF file, another version, a length beyond the end, a type that is not one,
///         a key twice
inline Result<GgufHeader> read_gguf(std::span<const std::byte> bytes) {
  detail::GgufBytes in(bytes);
  constexpr std::uint64_t magic = 0x46554747;  // "GGUF"
  if (in.number(4) != magic || in.failed()) return detail::gguf_refusal("the file does not begin with GGUF");
  GgufHeader h;
  h.version = static_cast<std::uint32_t>(in.number(4));
  if (in.failed()) return detail::gguf_refusal("the file ends behind its first word");
  if (h.version != 2 && h.version != 3) {
    const bool swapped = h.version == 0x02000000 || h.version == 0x03000000;
    return detail::gguf_refusal(swapped ? std::string("the file is big-endian; expected little-endian")
                                        : "the file has version " + std::to_string(h.version) + "; expected 2 or 3");
  }
  h.n_tensors = in.number(8);
  const std::uint64_t n_values = in.number(8);
  // The smallest entry: a length, an empty key, a type and one byte.
  if (in.failed() || n_values > in.left() / 13) {
    return detail::gguf_refusal("the file says it has " + std::to_string(n_values) +
                                " keys; it ends before that many could be there");
  }
  for (std::uint64_t i = 0; i < n_values; ++i) {
    const std::string key(in.text());
    if (in.failed()) {
      return detail::gguf_refusal("the file ends inside key " + std::to_string(i) + " of " + std::to_string(n_values));
    }
    GgufValue v;
    if (Status s = detail::read_gguf_value(in, key, v); !s) return s;
    if (!h.values.emplace(key, std::move(v)).second) {
      return detail::gguf_refusal("the key " + detail::gguf_quoted(key) + " appears twice");
    }
  }
  return h;
}

}  // namespace memra::config
