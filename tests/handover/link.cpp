// Two threads, one link between them: both sides end in the same way, and a peer that is gone or silent is an error.
#include <chrono>
#include <cstddef>
#include <handover/prefilled.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/fault_dev.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/memory_link.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <support/tape.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace link_cpp {
namespace {

using namespace memra_test;
using namespace std::chrono_literals;
using memra::ErrorKind;
using memra::HostDev;

memra::ModelConfig config() {
  return hybrid_model();
}

TEST_CASE("H7 both sides learn how it ended, and a refusal leaves the link in order", "[handover]") {
  auto [a, b] = memory_links(20s);
  const auto cfg = config();
  memra::Status first;
  memra::Status second;
  std::thread sender([&, link = &a] {
    HostDev dev;
    Prefilled<HostDev> p({&dev}, {0, cfg.layers.size()}, cfg);
    first = memra::send_state(*link, p.cache, tag_of(2), &*p.tail, 4096);
    second = memra::send_state(*link, p.cache, tag_of(), &*p.tail, 4096);
  });
  HostDev dev;
  const auto target = target_of<HostDev>({&dev}, {0, cfg.layers.size()}, cfg);
  const auto refused = memra::receive_state(b, target);
  auto taken = memra::receive_state(b, target);
  sender.join();
  REQUIRE(says(refused.status(), ErrorKind::bad_argument, "fingerprint"));
  REQUIRE(says(first, ErrorKind::bad_argument, "the receiver refused: the stream is of a model with another fingerp"));
  REQUIRE(second.ok());
  std::vector<float> logits(cfg.n_vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 0.25F * static_cast<float>(i) - 1;
  REQUIRE(wrong_with(*taken, cfg, stream(handed_rows + 6), logits, true) == "");
}

/// Writes another version into the prelude, its first message.
struct OtherVersion {
  MemoryLink* link;
  bool first = true;
  std::chrono::milliseconds limit() const noexcept { return link->limit(); }
  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    if (!std::exchange(first, false)) return link->send(data, n);
    Bytes prelude(data, data + n);
    prelude.at(8) = std::byte{2};
    return link->send(prelude.data(), n);
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept { return link->receive(data, n); }
  memra::Status flush() noexcept { return link->flush(); }
};

TEST_CASE("H7 another version is refused, and the next state goes over the same link", "[handover]") {
  // The second link holds less than a header: who does not take it off lets its sender stand still.
  const auto cfg = config();
  for (const std::size_t room : {std::size_t{64} << 10, std::size_t{64}}) {
    auto [a, b] = memory_links(20s, room);
    memra::Status first;
    memra::Status second;
    std::thread sender([&, link = &a] {
      HostDev dev;
      Prefilled<HostDev> p({&dev}, {0, cfg.layers.size()}, cfg);
      OtherVersion newer{link};
      first = memra::send_state(newer, p.cache, tag_of(), &*p.tail, 4096);
      second = memra::send_state(*link, p.cache, tag_of(), &*p.tail, 4096);
    });
    HostDev dev;
    const auto target = target_of<HostDev>({&dev}, {0, cfg.layers.size()}, cfg);
    const auto refused = memra::receive_state(b, target);
    const auto taken = memra::receive_state(b, target);
    sender.join();
    REQUIRE(says(refused.status(), ErrorKind::unsupported, "version 2; this build reads 1"));
    REQUIRE(says(first, ErrorKind::unsupported, "the receiver refused: the stream has version 2"));
    REQUIRE(second.ok());
    REQUIRE(taken.ok());
    REQUIRE(taken->cache.pos() == handed_rows);
  }
}

/// Passes on so many bytes, then ends the link, or falls silent.
struct Doomed {
  MemoryLink* link;
  std::size_t left;
  bool closes;
  std::chrono::milliseconds limit() const noexcept { return link->limit(); }
  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    if (n <= left) {
      left -= n;
      return link->send(data, n);
    }
    if (left != 0) static_cast<void>(link->send(data, left).ok());
    left = 0;
    if (closes) link->close();
    return memra::Status::failure(ErrorKind::link_failure, "send", 0, n, "this process has died");
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept { return link->receive(data, n); }
  memra::Status flush() noexcept { return {}; }
};

TEST_CASE("H7 a sender that dies or falls silent anywhere is an error within the limit, not a hang", "[handover]") {
  const auto cfg = config();
  HostDev there;
  Prefilled<HostDev> p({&there}, {0, cfg.layers.size()}, cfg);
  for (const bool closes : {true, false}) {
    for (std::size_t left = 0; left < 8000; left += closes ? 97 : 3001) {
      INFO("after " << left << " bytes");
      auto [a, b] = memory_links(closes ? std::chrono::milliseconds(20000) : std::chrono::milliseconds(150));
      memra::Status sent;
      std::thread sender([&, link = &a] {
        Doomed doomed{link, left, closes};
        sent = memra::send_state(doomed, p.cache, tag_of(), &*p.tail, 4096);
      });
      HostDev dev;
      const auto target = target_of<HostDev>({&dev}, {0, cfg.layers.size()}, cfg);
      const auto got = memra::receive_state(b, target);
      sender.join();
      REQUIRE(sent.kind() == ErrorKind::link_failure);
      REQUIRE(says(got.status(), ErrorKind::link_failure, closes ? "is closed" : "stands still"));
      REQUIRE(memra::receive_state(b, target).status().kind() == ErrorKind::link_failure);  // it is over
    }
  }
}

TEST_CASE("H7 a device that fails with pieces on their way: its side says so, the other learns it from silence",
          "[handover]") {
  using Failing = memra::FaultDev<HostDev>;
  const auto cfg = config();
  const std::vector<std::size_t> fence = {0, cfg.layers.size()};
  for (const int fails : {0, 1, 2}) {  // nobody, the sender, the receiver
    CAPTURE(fails);
    auto [a, b] = memory_links(fails == 0 ? 20s : 300ms);
    Failing there;
    Prefilled<Failing> p({&there}, fence, cfg);
    Failing here;
    memra::Fault f;
    f.op = fails == 1 ? memra::DevOp::download : memra::DevOp::upload;
    f.nth = fails == 1 ? 2 : 1;  // behind the download of the checksums
    if (fails != 0) (fails == 1 ? there : here).arm(f);
    memra::Status sent;
    std::thread sender([&, link = &a] { sent = memra::send_state(*link, p.cache, tag_of(), &*p.tail, 4096); });
    const auto got = memra::receive_state(b, target_of<Failing>({&here}, fence, cfg));
    sender.join();
    REQUIRE(sent.kind() == (fails == 0   ? ErrorKind::ok
                            : fails == 1 ? ErrorKind::device_failure
                                         : ErrorKind::link_failure));
    REQUIRE(got.status().kind() == (fails == 0   ? ErrorKind::ok
                                    : fails == 1 ? ErrorKind::link_failure
                                                 : ErrorKind::device_failure));
    REQUIRE_FALSE(p.cache.tainted());
  }
}

/// Says of a send or flush that it was earlier work that failed.
struct LateLink : TapeReader {
  using TapeReader::TapeReader;
  bool in_send = true;
  bool sent = false;
  memra::Status late() const noexcept {
    return memra::Status::failure(ErrorKind::device_failure, "send", 7, 0, "earlier work failed").as_asynchronous();
  }
  memra::Status send(const std::byte*, std::size_t n) noexcept {
    sent = true;
    if (in_send) return late();
    return memra::Status::failure(ErrorKind::link_failure, "send", 0, n, "nobody listens");
  }
  memra::Status flush() noexcept { return sent && !in_send ? late() : memra::Status(); }
};

TEST_CASE("S5 a refusal does not hide a late failure that its verdict met", "[handover]") {
  const auto cfg = config();
  HostDev dev;
  Prefilled<HostDev> p({&dev}, {0, cfg.layers.size()}, cfg);
  TapeWriter w;
  memra::check(memra::send_state(w, p.cache, tag_of(2), &*p.tail));
  const auto target = target_of<HostDev>({&dev}, {0, cfg.layers.size()}, cfg);
  TapeReader plain(w.tape);  // red arm
  REQUIRE(says(memra::receive_state(plain, target).status(), ErrorKind::bad_argument, "fingerprint"));
  for (const bool in_send : {true, false}) {
    LateLink link(w.tape);
    link.in_send = in_send;
    const memra::Status s = memra::receive_state(link, target).status();
    REQUIRE(says(s, ErrorKind::device_failure, "earlier work failed"));
    REQUIRE(s.asynchronous());
  }
}

TEST_CASE("H7 a receiver that dies is an error of the sender's", "[handover]") {
  const auto cfg = config();
  HostDev dev;
  Prefilled<HostDev> p({&dev}, {0, cfg.layers.size()}, cfg);
  {
    auto [a, b] = memory_links(20s);
    std::thread receiver([link = &b] {
      std::byte some[40];
      memra::check(link->receive(some, sizeof some));
      link->close();
    });
    const memra::Status s = memra::send_state(a, p.cache, tag_of(), &*p.tail);
    receiver.join();
    REQUIRE(says(s, ErrorKind::link_failure, "is closed"));
  }
  auto [a, b] = memory_links(100ms);
  REQUIRE(says(memra::send_state(a, p.cache, tag_of(), &*p.tail), ErrorKind::link_failure, "stands still"));
  static_cast<void>(b);
}

// The red arm of the race detector over a hand-over, hidden from everything else: both ends on one device.
TEST_CASE("a race between the two ends of a link", "[.][planted][race_of_ends]") {
  using Counted = memra::CountingDev<HostDev>;
  Counted both;
  const auto cfg = config();
  const std::vector<std::size_t> fence = {0, cfg.layers.size()};
  auto [a, b] = memory_links(20s);
  memra::Status sent;
  std::thread sender([&, link = &a] {
    Prefilled<Counted> p({&both}, fence, cfg);
    sent = memra::send_state(*link, p.cache, tag_of(), &*p.tail, 4096);
  });
  static_cast<void>(both.synchronize().ok());
  const auto taken = memra::receive_state(b, target_of<Counted>({&both}, fence, cfg));
  sender.join();
  REQUIRE(sent.ok() == taken.ok());
}

}  // namespace
}  // namespace link_cpp
