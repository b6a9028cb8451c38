// What every fuzz target shares: a claim that stops the run, and the fault of the red arm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memra/error.hpp>
#include <span>
#include <string_view>

namespace fuzz {

inline void claim(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "claim broken: %s\n", what);
  std::abort();
}

/// A refusal is one printable sentence of a kind that blames the bytes.
inline void claim_refusal(const memra::Status& s) {
  claim(s.kind() == memra::ErrorKind::corrupt || s.kind() == memra::ErrorKind::unsupported ||
            s.kind() == memra::ErrorKind::bad_argument,
        "the kind of a refusal");
  claim(s.text()[0] != '\0', "a refusal has a sentence");
  for (const char* c = s.text(); *c != '\0'; ++c) claim(*c >= 0x20 && *c < 0x7f, "the sentence is printable");
}

/// Reads every byte; with MEMRA_FUZZ_PLANT one byte too many, which the sanitizer must see.
inline unsigned touch(std::span<const std::byte> bytes) {
  unsigned sum = 0;
#ifdef MEMRA_FUZZ_PLANT
  const std::size_t n = bytes.size() + 1;
#else
  const std::size_t n = bytes.size();
#endif
  for (std::size_t i = 0; i < n; ++i) sum += std::to_integer<unsigned>(bytes.data()[i]);
  return sum;
}

inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}
inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fuzz
