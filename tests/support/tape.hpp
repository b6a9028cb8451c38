// A hand-over without a peer: what a sender says is recorded, changed at will, and played to a receiver.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memra/error.hpp>
#include <memra/transport.hpp>
#include <span>
#include <vector>

namespace memra_test {

using Bytes = std::vector<std::byte>;

/// Records what is sent; the answers that are waited for are all "go on".
struct TapeWriter {
  Bytes tape;
  std::vector<std::size_t> messages;  ///< bytes of each send
  std::chrono::milliseconds limit() const noexcept { return std::chrono::milliseconds(0); }

  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    tape.insert(tape.end(), data, data + n);
    messages.push_back(n);
    return {};
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept {
    std::memset(data, 0, n);
    return {};
  }
  memra::Status flush() noexcept { return {}; }
};
static_assert(memra::Transport<TapeWriter>);

/// As TapeWriter, but hears what a receiver said of the tape, and behind that nothing.
struct AnsweredWriter : TapeWriter {
  explicit AnsweredWriter(std::span<const std::byte> answers) : left(answers) {}
  std::span<const std::byte> left;

  memra::Status receive(std::byte* data, std::size_t n) noexcept {
    if (n > left.size()) {
      return memra::Status::failure(memra::ErrorKind::link_failure, "receive", 0, n, "the receiver says nothing");
    }
    std::memcpy(data, left.data(), n);
    left = left.subspan(n);
    return {};
  }
};
static_assert(memra::Transport<AnsweredWriter>);

/// Plays a tape; behind its end the peer is gone. Keeps what the receiver says.
struct TapeReader {
  explicit TapeReader(std::span<const std::byte> played) : tape(played) {}
  std::span<const std::byte> tape;
  std::size_t at = 0;
  Bytes said;
  std::chrono::milliseconds limit() const noexcept { return std::chrono::milliseconds(0); }

  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    said.insert(said.end(), data, data + n);
    return {};
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept {
    const std::size_t there = std::min(n, tape.size() - at);
    if (there != 0) std::memcpy(data, tape.data() + at, there);
    at += there;
    if (there == n) return {};
    return memra::Status::failure(memra::ErrorKind::link_failure, "receive", 0, n,
                                  "the peer is gone after %zu of %zu bytes", there, n);
  }
  memra::Status flush() noexcept { return {}; }
};
static_assert(memra::Transport<TapeReader>);

}  // namespace memra_test
