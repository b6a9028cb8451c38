// A transport that moves memory of a device: what lies apart is gathered there, without a copy for each piece.
#include <cstddef>
#include <cstdint>
#include <handover/prefilled.hpp>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/transport.hpp>
#include <support/catch.hpp>
#include <support/require_eq.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <vector>

namespace device_link_cpp {
namespace {

using namespace memra_test;
using memra::DevOp;
using memra::Format;
using Dev = memra::CountingDev<memra::HostDev>;

/// A tape for memory of `dev`.
template <class Tape, class D = Dev>
struct OnDevice : Tape {
  template <class... Args>
  explicit OnDevice(D& d, const Args&... args) : Tape(args...), dev(&d) {}
  D& device() const noexcept { return *dev; }
  D* dev;
};
static_assert(memra::DeviceTransport<OnDevice<TapeWriter>, Dev>);

TEST_CASE("H3 columns on the transport's device are gathered by one call a message", "[handover]") {
  memra::AttentionSpec wide = attention_spec(Format::q8_0, Format::q5_1, memra::Layout::split);
  wide.head_dim_k = wide.head_dim_v = 256;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(wide), memra::full_attention(memra::windowed(wide, 40, 24)),
                memra::recurrent(recurrent_spec())};
  cfg.n_vocab = 16;
  Dev dev;
  Dev other;
  Prefilled<Dev> sender({&dev}, {0, 3}, cfg, 200, 256);
  TapeWriter want;  // through the host
  memra::check(memra::send_state(want, sender.cache, tag_of(), nullptr));

  OnDevice<TapeWriter> near(dev);
  dev.reset();
  memra::check(memra::send_state(near, sender.cache, tag_of(), nullptr));
  REQUIRE((near.tape == want.tape));
  // Of either layer K's scales, V's fifth bits and scales, which have more than one column each; conv and ssm.
  constexpr std::size_t gathered = 7;
  REQUIRE(dev.counters().calls(DevOp::copy_batch) == gathered);
  REQUIRE(dev.counters().copies() == gathered);
  OnDevice<TapeWriter> far(other);  // red arm: a device that the transport does not reach
  dev.reset();
  memra::check(memra::send_state(far, sender.cache, tag_of(), nullptr));
  REQUIRE((far.tape == want.tape));
  REQUIRE(other.counters().copies() > 20);

  Dev there;
  auto target = target_of<Dev>({&there}, {0, 3}, cfg);
  target.max_ctx = 512;
  for (Dev* by : {&there, &other}) {
    OnDevice<TapeReader> reader(*by, want.tape);
    there.reset();
    const auto got = memra::check(memra::receive_state(reader, target));
    REQUIRE((there.counters().calls(DevOp::copy_batch) == (by == &there ? gathered : 0)));
    require_eq(image(got.cache), image(sender.cache));
  }
}

TEST_CASE("H7 who has no memory to gather columns says so before a message of the state goes", "[handover]") {
  using Short = memra::FaultDev<memra::HostDev>;
  memra::AttentionSpec wide = attention_spec(Format::q8_0, Format::q8_0, memra::Layout::split);
  wide.head_dim_k = wide.head_dim_v = 256;
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(wide), memra::no_state()};
  cfg.n_vocab = 16;
  Short dev;
  Prefilled<Short> sender({&dev}, {0, 2}, cfg, 200, 256);
  TapeWriter whole;
  memra::check(memra::send_state(whole, sender.cache, tag_of(), nullptr));
  // Prelude, header, and what is gathered: the third allocation of the transport's device.
  for (const std::size_t nth : std::vector<std::size_t>{4, 3}) {  // red arm: there is no fourth
    Short by;
    memra::Fault f;
    f.nth = nth;
    f.op = memra::DevOp::alloc;
    by.arm(f);
    OnDevice<TapeReader, Short> reader(by, whole.tape);
    auto target = target_of<Short>({&dev}, {0, 2}, cfg);
    target.max_ctx = 256;
    const auto got = memra::receive_state(reader, target);
    REQUIRE(got.ok() == (nth == 4));
    REQUIRE(reader.said.size() == (nth == 4 ? 512 : 256));
    REQUIRE((reader.said[0] == std::byte{0}) == (nth == 4));
  }
  Short by;
  memra::Fault f;
  f.op = memra::DevOp::alloc;
  by.arm(f);
  OnDevice<TapeWriter, Short> writer(by);
  REQUIRE_FALSE(memra::send_state(writer, sender.cache, tag_of(), nullptr).ok());
  REQUIRE(writer.tape.empty());
}

}  // namespace
}  // namespace device_link_cpp
