// The class of a state's scans travels: in the header's flags, to the received cache, and only to who takes it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <span>
#include <support/catch.hpp>
#include <support/says.hpp>
#include <support/tape.hpp>

namespace scan_class_cpp {
namespace {

using memra::ErrorKind;
using memra::HandoverHeader;
using memra::HostDev;
using memra::ScanClass;
using memra_test::Bytes;
using memra_test::says;
using memra_test::TapeReader;
using memra_test::TapeWriter;
using Cache = memra::Cache<HostDev>;

constexpr std::size_t flags_at = HandoverHeader::prelude_bytes + 64;

memra::ModelConfig model(memra::RecurrentSpec spec) {
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(spec)};
  return cfg;
}
memra::ModelConfig model() {
  return model(memra::gated_delta(1, 2, 8, 4, 1));
}

Cache prefilled(HostDev& dev, ScanClass scan, const memra::ModelConfig& cfg = model()) {
  auto c = memra::check(Cache::create(dev, cfg, 200));
  memra::check(memra::check(c.begin_step(70, scan)).recur(0));
  memra::check(c.advance());
  return c;
}

memra::HandoverTarget<HostDev> target(HostDev& dev, ScanClass scan) {
  memra::HandoverTarget<HostDev> t;
  t.stages = {&dev};
  t.config = model();
  t.max_ctx = 200;
  t.scan = scan;
  return t;
}

Bytes sent(Cache& c) {
  TapeWriter w;
  memra::check(memra::send_state(w, c, {}));
  return w.tape;
}

Bytes with_flags(Bytes tape, std::uint32_t flags) {
  std::memcpy(tape.data() + flags_at, &flags, sizeof flags);
  std::uint64_t size = 0;
  std::memcpy(&size, tape.data() + 16, sizeof size);
  const std::uint64_t sum = memra::detail::checksum(std::span<const std::byte>(tape).subspan(32, size));
  std::memcpy(tape.data() + 24, &sum, sizeof sum);
  return tape;
}

memra::Result<memra::HandedOver<HostDev>> received(const Bytes& tape, const memra::HandoverTarget<HostDev>& t) {
  TapeReader r(tape);
  return memra::receive_state(r, t);
}

TEST_CASE("H5 a state of the chunked scan says so, and goes to who takes it", "[handover][scan]") {
  HostDev dev;
  auto chunked = prefilled(dev, ScanClass::chunked);
  auto plain = prefilled(dev, ScanClass::sequential);
  const Bytes tape = sent(chunked);
  REQUIRE(std::to_integer<int>(tape[flags_at]) == 4);
  REQUIRE(std::to_integer<int>(sent(plain)[flags_at]) == 0);  // the stream of builds before there was the class

  REQUIRE(says(received(tape, target(dev, ScanClass::sequential)).status(), ErrorKind::bad_argument,
               "the stream's state came from a chunked scan"));
  auto got = memra::check(received(tape, target(dev, ScanClass::chunked)));
  REQUIRE(got.cache.scan_class() == ScanClass::chunked);
  REQUIRE(sent(got.cache) == tape);  // and on to the next
  for (const ScanClass takes : {ScanClass::sequential, ScanClass::chunked}) {
    REQUIRE(memra::check(received(sent(plain), target(dev, takes))).cache.scan_class() == ScanClass::sequential);
  }

  const auto prefix = memra::check(chunked.export_prefix(memra::check(chunked.snapshot())));
  memra::check(chunked.reset());
  TapeWriter w;
  memra::check(memra::send_state(w, prefix, {}));
  REQUIRE(w.tape == tape);

  // Red arms: the flag alone makes the difference, and one that cannot be is refused.
  REQUIRE(memra::check(received(with_flags(tape, 0), target(dev, ScanClass::sequential))).cache.scan_class() ==
          ScanClass::sequential);
  REQUIRE(received(with_flags(tape, 8), target(dev, ScanClass::chunked)).status().kind() == ErrorKind::corrupt);
  auto kda = prefilled(dev, ScanClass::sequential, model(memra::kda(2, 8, 4, 1)));
  REQUIRE(says(received(with_flags(sent(kda), 4), target(dev, ScanClass::chunked)).status(), ErrorKind::corrupt,
               "no layer that has one"));
}

}  // namespace
}  // namespace scan_class_cpp
