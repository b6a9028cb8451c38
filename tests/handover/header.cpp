// The header of a hand-over: its bytes are fixed, and whatever contradicts itself is refused by name.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/handover_header.hpp>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

namespace header_cpp {
namespace {

using memra::ErrorKind;
using memra::HandoverHeader;
using memra::HandoverPiece;
using Bytes = std::vector<std::byte>;

HandoverHeader sample() {
  HandoverHeader h;
  for (std::size_t i = 0; i < 32; ++i) h.tag.fingerprint[i] = static_cast<std::byte>(0xA0 + i);
  h.tag.numeric_class = 0x0102030405060708U;
  h.pos = 5;
  memra::AttentionSpec a;
  a.n_kv_heads = 1;
  a.head_dim_k = a.head_dim_v = 32;
  a.v_layout = memra::Layout::split;
  a.window = 3;
  memra::RecurrentSpec r;
  r.n_k_heads = r.n_v_heads = 1;
  r.d_k = 4;
  r.d_v = 2;
  r.d_conv = 2;
  r.map.mode = memra::KeyHeadMode::interleaved;
  h.config.layers = {memra::full_attention(a), memra::no_state(), memra::recurrent(r)};
  h.config.n_vocab = 7;
  h.has_logits = true;
  h.tail = memra::HandoverTail{2, 3, 2, 16, 1};
  std::uint64_t sum = 100;
  for (const std::size_t n : memra::check(memra::handover_sizes(h.config, h.pos, h.has_logits, h.tail))) {
    h.pieces.push_back({n, sum++});
  }
  return h;
}

/// Reads prelude and header as a receiver does.
memra::Result<HandoverHeader> read(const Bytes& bytes) {
  const std::span<const std::byte> all(bytes);
  const std::size_t first = std::min(all.size(), HandoverHeader::prelude_bytes);
  auto prelude = HandoverHeader::parse_prelude(all.first(first));
  if (!prelude) return prelude.status();
  return HandoverHeader::parse(*prelude, all.subspan(first));
}

/// With the lengths and sums of the prelude made to fit again.
Bytes sealed(Bytes bytes) {
  const std::span<const std::byte> header = std::span<const std::byte>(bytes).subspan(32);
  const std::uint64_t numbers[2] = {header.size(), memra::detail::checksum(header)};
  for (std::size_t n = 0; n < 2; ++n) {
    for (std::size_t i = 0; i < 8; ++i) bytes[16 + 8 * n + i] = static_cast<std::byte>(numbers[n] >> (8 * i) & 0xff);
  }
  return bytes;
}
void put(Bytes& bytes, std::size_t at, std::uint64_t v, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) bytes[at + i] = static_cast<std::byte>(v >> (8 * i) & 0xff);
}
std::uint64_t get(const Bytes& bytes, std::size_t at, std::size_t width) {
  std::uint64_t v = 0;
  for (std::size_t i = 0; i < width; ++i) v |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  return v;
}

TEST_CASE("the bytes of version 1 are these", "[handover]") {
  const HandoverHeader h = sample();
  const Bytes b = h.encode();
  REQUIRE(std::string(reinterpret_cast<const char*>(b.data()), 8) == "MEMRA-HO");
  REQUIRE(get(b, 8, 4) == 1);
  REQUIRE(get(b, 12, 4) == 0);
  REQUIRE(get(b, 16, 8) == b.size() - 32);
  REQUIRE(b[32] == std::byte{0xA0});
  REQUIRE(b[63] == std::byte{0xBF});
  REQUIRE(get(b, 64, 8) == 0x0102030405060708U);
  REQUIRE(b[64] == std::byte{8});  // little-endian
  REQUIRE(get(b, 72, 8) == 5);
  REQUIRE(get(b, 80, 8) == 7);
  REQUIRE(get(b, 88, 8) == std::size_t{64} << 20);
  REQUIRE(get(b, 96, 4) == 3);             // logits and a tail
  REQUIRE(get(b, 100, 4) == 3);            // layers
  REQUIRE(get(b, 104, 4) == 1);            // layer 0: one state
  REQUIRE(get(b, 108, 4) == 1);            // attention
  REQUIRE(get(b, 112, 4) == 0x01000403U);  // q8_0, q5_1, blocks, split
  REQUIRE(get(b, 116, 8) == 1);
  REQUIRE(get(b, 124, 8) == 32);
  REQUIRE(get(b, 132, 8) == 32);
  REQUIRE(get(b, 140, 8) == 3);
  REQUIRE(get(b, 148, 2) == 0);  // no ring, V of its own
  REQUIRE(get(b, 150, 4) == 0);  // layer 1: none
  REQUIRE(get(b, 154, 4) == 1);
  REQUIRE(get(b, 158, 4) == 2);  // recurrent
  REQUIRE(get(b, 162, 4) == 1);  // interleaved
  REQUIRE(get(b, 166, 3) == 0);  // gated delta rule, conv and ssm in f32
  const std::size_t spec[9] = {1, 1, 4, 2, 2, 0, 0, 0, 0};
  for (std::size_t i = 0; i < 9; ++i) REQUIRE(get(b, 169 + 8 * i, 8) == spec[i]);
  const std::size_t tail[5] = {2, 3, 2, 16, 1};
  for (std::size_t i = 0; i < 5; ++i) REQUIRE(get(b, 241 + 8 * i, 8) == tail[i]);
  // K; V's quants, fifth bits, scales; conv (10 channels); ssm; logits; two layers of draft K and V
  const std::size_t sizes[11] = {5 * 34, 5 * 16, 5 * 4, 5 * 4, 10 * 4, 2 * 4 * 4, 7 * 4, 32, 32, 32, 32};
  REQUIRE(get(b, 281, 8) == 11);
  for (std::size_t i = 0; i < 11; ++i) {
    REQUIRE(get(b, 289 + 16 * i, 8) == sizes[i]);
    REQUIRE(get(b, 297 + 16 * i, 8) == 100 + i);
  }
  REQUIRE(b.size() == 289 + 11 * 16);
  const HandoverHeader again = memra::check(read(b));
  REQUIRE((again.tag == h.tag && again.pos == h.pos && again.config == h.config && again.tail == h.tail));
  REQUIRE((again.has_logits && again.message_bytes == h.message_bytes && again.pieces == h.pieces));
}

TEST_CASE("the checksum is the one of the documentation, and no order of words is like another", "[handover]") {
  // By hand: two whole words and a short one.
  const auto mix = [](std::uint64_t word, std::uint64_t at) {
    std::uint64_t x = word + (at + 1) * 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
    return (x ^ (x >> 32)) * 0xD6E8FEB86659FD93U;
  };
  Bytes b(19);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::byte>(i * 31 + 5);
  const std::uint64_t want = mix(get(b, 0, 8), 0) + mix(get(b, 8, 8), 1) + mix(get(b, 16, 3), 2);
  REQUIRE(memra::detail::checksum(b) == want);
  REQUIRE(memra::detail::checksum({b.data(), 8}) + memra::detail::checksum({b.data() + 8, 11}, 1) == want);
  REQUIRE(memra::detail::checksum({}) == 0);
  Bytes swapped = b;
  std::swap_ranges(swapped.begin(), swapped.begin() + 8, swapped.begin() + 8);
  REQUIRE(memra::detail::checksum(swapped) != want);
  for (std::size_t bit = 0; bit < 8 * b.size(); ++bit) {
    b[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    REQUIRE(memra::detail::checksum(b) != want);
    b[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  // Zeroes count: bytes that are missing at the end show.
  REQUIRE(memra::detail::checksum(Bytes(16)) != memra::detail::checksum(Bytes(24)));
}

TEST_CASE("every length of the header is checked before it is used", "[handover]") {
  const Bytes whole = sample().encode();
  REQUIRE(read(whole).ok());
  for (std::size_t n = 32; n < whole.size(); ++n) {  // cut, with a prelude that agrees
    const auto r = read(sealed(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n))));
    INFO(n);
    REQUIRE(r.status().kind() == ErrorKind::corrupt);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  REQUIRE(std::string(read(sealed(longer)).status().text()).find("left behind") != std::string::npos);

  const auto refused = [&](std::size_t at, std::uint64_t v, std::size_t width, const char* words) {
    Bytes b = whole;
    put(b, at, v, width);
    const auto r = read(sealed(b));
    INFO(at << ": " << r.status().text());
    REQUIRE(r.status().kind() == ErrorKind::corrupt);
    REQUIRE(std::string(r.status().text()).find(words) != std::string::npos);
  };
  constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
  refused(72, 0, 8, "boundary");  // position
  refused(72, huge, 8, "boundary");
  refused(72, 6, 8, "boundary");  // the tail ends at 5
  refused(80, 0, 8, "vocabulary");
  refused(80, huge, 8, "no such state");
  refused(88, 0, 8, "messages of 0 bytes");
  refused(88, 4100, 8, "messages of 4100");
  refused(88, huge, 8, "messages of");
  refused(96, 11, 4, "flag");
  refused(96, 1, 4, "left behind");  // no tail: its numbers are read as pieces
  refused(96, 2, 4, "11 pieces; this state has 10");
  refused(100, 0xffffffff, 4, "cut off");
  refused(100, 2, 4, "");
  refused(104, 0xffffffff, 4, "cut off");
  refused(108, 4, 4, "state 0 of layer 0");
  refused(112, 7, 1, "state 0 of layer 0");
  refused(114, 2, 1, "state 0 of layer 0");
  refused(116, 0, 8, "no such state");
  refused(116, huge, 8, "no such state");
  refused(116, huge / 32, 8, "no such state");
  refused(124, 33, 8, "no such state");
  refused(148, 2, 1, "state 0 of layer 0");
  refused(149, 2, 1, "state 0 of layer 0");
  refused(162, 2, 4, "state 0 of layer 2");
  refused(166, 200, 1, "state 0 of layer 2");
  refused(167, 7, 1, "state 0 of layer 2");
  refused(169, huge, 8, "no such state");
  refused(241, huge, 8, "boundary");  // tail: layers
  refused(241, 3, 8, "11 pieces; this state has 13");
  refused(249, huge, 8, "boundary");       // base
  refused(257, huge, 8, "boundary");       // rows
  refused(265, huge, 8, "no such state");  // row bytes
  refused(265, 0, 8, "boundary");
  refused(273, 4, 8, "boundary");  // floor above base
  refused(281, 12, 8, "cut off");
  refused(281, huge, 8, "cut off");
  refused(281, 10, 8, "left behind");
  refused(289, 171, 8, "piece 0 has 171 bytes; in this state it has 170");
}

TEST_CASE("a prelude that is none", "[handover]") {
  Bytes b = sample().encode();
  b[0] = std::byte{'m'};
  REQUIRE(std::string(read(b).status().text()).find("magic") != std::string::npos);
  b = sample().encode();
  put(b, 8, 0, 4);
  REQUIRE(read(b).status().kind() == ErrorKind::unsupported);
  b = sample().encode();
  put(b, 12, 1, 4);
  REQUIRE(read(b).status().kind() == ErrorKind::corrupt);
  b = sample().encode();
  put(b, 16, HandoverHeader::most_bytes + 1, 8);
  REQUIRE(std::string(read(b).status().text()).find("expected at most") != std::string::npos);
  b = sample().encode();
  put(b, 24, 0, 8);
  REQUIRE(std::string(read(b).status().text()).find("checksum") != std::string::npos);
  for (std::size_t n = 0; n < 32; ++n)
    REQUIRE_FALSE(read(Bytes(b.begin(), b.begin() + static_cast<std::ptrdiff_t>(n))));
}

TEST_CASE("how long the header behind a prelude is, whatever its version", "[handover]") {
  const Bytes b = sample().encode();
  const auto behind = [](Bytes bytes, std::size_t at, std::uint64_t value, std::size_t n) {
    put(bytes, at, value, n);
    return HandoverHeader::header_behind(std::span(bytes).first(32));
  };
  const std::size_t n = b.size() - 32;
  REQUIRE(behind(b, 8, 1, 4) == n);
  REQUIRE(behind(b, 8, 0xffffffff, 4) == n);  // version
  REQUIRE(behind(b, 12, 7, 4) == n);          // reserved
  REQUIRE(behind(b, 24, 0, 8) == n);          // checksum
  REQUIRE(behind(b, 16, HandoverHeader::most_bytes, 8) == HandoverHeader::most_bytes);
  REQUIRE_FALSE(behind(b, 16, HandoverHeader::most_bytes + 1, 8).has_value());
  REQUIRE_FALSE(behind(b, 0, 'm', 1).has_value());
  REQUIRE_FALSE(HandoverHeader::header_behind(std::span(b).first(23)).has_value());
}

}  // namespace
}  // namespace header_cpp
