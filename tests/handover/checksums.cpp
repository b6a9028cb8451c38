// Checksums of pieces on devices that run kernels.
#include <cstddef>
#include <cstdint>
#include <memra/counting_dev.hpp>
#include <memra/detail/checksum.hpp>
#include <memra/detail/handover_pieces.hpp>
#include <memra/host_dev.hpp>
#include <span>
#include <support/catch.hpp>
#include <vector>

namespace checksums_cpp {
namespace {

using Dev = memra::CountingDev<memra::HostDev>;
using Piece = memra::detail::PlacedPiece<Dev>;

TEST_CASE("checksums by kernels are the host's, and of many short pieces need less memory than those", "[handover]") {
  Dev dev;
  std::vector<std::byte> bytes((std::size_t{4} << 20) + (std::size_t{5} << 10));
  std::uint32_t x = 1;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525U + 1013904223U) >> 24);
  auto there = memra::check(dev.alloc(bytes.size()));
  memra::check(dev.upload(there.data(), bytes.data(), bytes.size()));
  std::vector<Piece> pieces;
  std::vector<std::uint64_t> want;
  std::size_t all = 0;
  const auto add = [&](std::size_t at, std::size_t n) {
    pieces.push_back({&dev, there.data() + at, n, 0, "x"});
    want.push_back(memra::detail::checksum({bytes.data() + at, n}));
    all += n;
  };
  // Rows of a ring, 1 KiB a tile and column, beside a long plane and lengths around where spans are cut.
  for (std::size_t i = 0; i < 4000; ++i) add(i * 1031 % 4000000, 1024);
  for (const std::size_t n : std::vector<std::size_t>{0, 1, 15, 65535, 65536, 65537, std::size_t{4} << 20,
                                                      (std::size_t{4} << 20) + 9, bytes.size()}) {
    add(bytes.size() - n, n);
  }
  const std::size_t before = dev.counters().live_bytes;
  dev.reset();
  REQUIRE((memra::check(memra::detail::checksums<Dev>(std::span<const Piece>(pieces))) == want));
  REQUIRE(dev.counters().peak_bytes - before < all / 8);
  // Red arm: a byte of the last short piece.
  auto spoilt = bytes;
  spoilt[3999 * 1031 % 4000000 + 1023] ^= std::byte{1};
  memra::check(dev.upload(there.data(), spoilt.data(), spoilt.size()));
  REQUIRE_FALSE((memra::check(memra::detail::checksums<Dev>(std::span<const Piece>(pieces))) == want));
}

}  // namespace
}  // namespace checksums_cpp
