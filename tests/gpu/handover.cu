// A state that lives on a GPU over a recorded stream: to another device object and to the host, and back.
#include <array>
#include <chrono>
#include <cstdio>
#include <handover/prefilled.hpp>
#include <memra/handover.hpp>
#include <memra/host_ops.hpp>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <support/says.hpp>
#include <support/tape.hpp>
#include <vector>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace handover_on_gpu {

using namespace memra_test;
using memra::Format;
using memra::HostDev;
using memra::Layout;

template <class Dev>
Bytes taped(Prefilled<Dev>& sender, std::size_t message) {
  TapeWriter writer;
  memra::check(memra::send_state(writer, sender.cache, tag_of(), &*sender.tail, message));
  return writer.tape;
}

template <class Dev>
void taken(const Bytes& tape, const std::vector<Dev*>& devs, const std::vector<std::size_t>& fence,
           const Prefilled<HostDev>& want) {
  TapeReader reader(tape);
  auto got = memra::check(memra::receive_state(reader, target_of<Dev>(devs, fence, want.cfg)));
  REQUIRE(wrong_with(got, want.cfg, want.tokens, want.logits, true) == "");
}

TEST_CASE("H1 the stream of a GPU's state is the host's, byte for byte, and goes either way", "[handover][sanitize]") {
  Gpu a = make_gpu();
  Gpu b = make_gpu();
  HostDev host;
  for (const Layout layout : std::vector<Layout>{Layout::blocks, Layout::split}) {
    const auto cfg = hybrid_model(Format::q8_0, Format::q5_1, layout);
    const std::size_t n = cfg.layers.size();
    Prefilled<HostDev> on_host({&host}, {0, n}, cfg);
    Prefilled<Gpu> on_gpu({&a, &b}, {0, 3, n}, cfg);
    const Bytes tape = taped(on_host, 4096);
    REQUIRE((taped(on_gpu, 4096) == tape));
    taken<Gpu>(tape, {&b, &a}, {0, 2, n}, on_host);
    taken<HostDev>(tape, {&host}, {0, n}, on_host);
    Bytes harmed = tape;
    harmed[harmed.size() - 700] ^= std::byte{1};
    TapeReader reader(harmed);
    const auto got = memra::receive_state(reader, target_of<Gpu>({&a}, {0, n}, cfg));
    REQUIRE(says(got.status(), memra::ErrorKind::corrupt, "arrived with other bytes"));
  }
}

TEST_CASE("checksums on the GPU are the host's for every length and place", "[handover]") {
  Gpu dev = make_gpu();
  Rng rng(5);
  std::vector<std::byte> bytes((std::size_t{9} << 20) + 48);
  for (std::byte& x : bytes) x = static_cast<std::byte>(rng.next());
  auto there = memra::check(dev.alloc(bytes.size()));
  memra::check(dev.upload(there.data(), bytes.data(), bytes.size()));
  std::vector<memra::detail::PlacedPiece<Gpu>> pieces;
  std::vector<std::uint64_t> want;
  for (const std::size_t n : std::vector<std::size_t>{1, 7, 8, 9, 63, 4096, 16385, std::size_t{4} << 20,
                                                      (std::size_t{4} << 20) + 1, std::size_t{9} << 20}) {
    for (const std::size_t at : std::vector<std::size_t>{0, 16, 24, 34, 47}) {
      pieces.push_back({&dev, there.data() + at, n, 0, "x"});
      want.push_back(memra::detail::checksum({bytes.data() + at, n}));
    }
  }
  using Pieces = std::span<const memra::detail::PlacedPiece<Gpu>>;
  REQUIRE((memra::check(memra::detail::checksums<Gpu>(Pieces(pieces))) == want));
  bytes[100] ^= std::byte{4};
  memra::check(dev.upload(there.data(), bytes.data(), bytes.size()));
  REQUIRE_FALSE((memra::check(memra::detail::checksums<Gpu>(Pieces(pieces))) == want));
}

TEST_CASE("checksum, GB/s", "[.bench]") {
  Gpu dev = make_gpu();
  const std::size_t n = std::size_t{1} << 30;
  auto there = memra::check(dev.alloc(n));
  memra::check(dev.fill(there.data(), std::byte{0x5C}, n));
  const std::vector<memra::detail::PlacedPiece<Gpu>> pieces = {{&dev, there.data(), n, 0, "x"}};
  std::vector<std::byte> host(std::size_t{1} << 20, std::byte{0x5C});
  std::uint64_t want = 0;
  for (std::size_t at = 0; at < n; at += host.size()) want += memra::detail::checksum(host, at / 8);
  for (int i = 0; i < 6; ++i) {
    memra::check(dev.synchronize());
    const auto start = std::chrono::steady_clock::now();
    const auto sums = memra::check(memra::detail::checksums<Gpu>(std::span(pieces)));
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    REQUIRE(sums[0] == want);
    std::printf("checksum of 1 GiB: %.3f ms, %.1f GB/s\n", 1000 * s, static_cast<double>(n) / s / 1e9);
  }
}

}  // namespace handover_on_gpu
