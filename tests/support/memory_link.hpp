// Two ends of a connection between threads: a Transport through memory, that can be closed or fall silent.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <memra/error.hpp>
#include <memra/transport.hpp>
#include <mutex>
#include <utility>

namespace memra_test {

/// Bytes on their way in one direction; at most `room` of them, like a pipe.
struct Pipe {
  std::mutex mutex;
  std::condition_variable moved;
  std::deque<std::byte> bytes;
  std::size_t room = std::size_t{64} << 10;
  bool closed = false;

  void close() {
    const std::lock_guard lock(mutex);
    closed = true;
    moved.notify_all();
  }
};

class MemoryLink {
 public:
  MemoryLink(std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in, std::chrono::milliseconds limit)
      : out_(std::move(out)), in_(std::move(in)), limit_(limit) {}

  std::chrono::milliseconds limit() const noexcept { return limit_; }

  memra::Status send(const std::byte* data, std::size_t n) noexcept {
    return move(*out_, n, "send", [&](Pipe& p, std::size_t done) {
      const std::size_t now = std::min(n - done, p.room - p.bytes.size());
      p.bytes.insert(p.bytes.end(), data + done, data + done + now);
      return now;
    });
  }
  memra::Status receive(std::byte* data, std::size_t n) noexcept {
    return move(*in_, n, "receive", [&](Pipe& p, std::size_t done) {
      const std::size_t now = std::min(n - done, p.bytes.size());
      const auto end = p.bytes.begin() + static_cast<std::ptrdiff_t>(now);
      std::copy(p.bytes.begin(), end, data + done);
      p.bytes.erase(p.bytes.begin(), end);
      return now;
    });
  }
  memra::Status flush() noexcept { return {}; }

  /// As if the process had died.
  void close() {
    out_->close();
    in_->close();
  }

 private:
  template <class F>
  memra::Status move(Pipe& pipe, std::size_t n, const char* call, const F& some) noexcept {
    if (broken_) return gone(call, 0, n, "failed before");
    auto until = std::chrono::steady_clock::now() + limit_;
    std::unique_lock lock(pipe.mutex);
    for (std::size_t done = 0; done < n;) {
      const std::size_t now = some(pipe, done);
      done += now;
      if (now != 0) {
        pipe.moved.notify_all();
        until = std::chrono::steady_clock::now() + limit_;
        continue;
      }
      if (pipe.closed) return gone(call, done, n, "is closed");
      if (pipe.moved.wait_until(lock, until) == std::cv_status::timeout) return gone(call, done, n, "stands still");
    }
    return {};
  }
  memra::Status gone(const char* call, std::size_t done, std::size_t n, const char* how) noexcept {
    broken_ = true;
    return memra::Status::failure(memra::ErrorKind::link_failure, call, 0, n, "the link %s after %zu of %zu bytes", how,
                                  done, n);
  }

  std::shared_ptr<Pipe> out_;
  std::shared_ptr<Pipe> in_;
  std::chrono::milliseconds limit_;
  bool broken_ = false;
};
static_assert(memra::Transport<MemoryLink>);

/// Both ends. At most `room` bytes are on their way in either direction.
inline std::pair<MemoryLink, MemoryLink> memory_links(std::chrono::milliseconds limit,
                                                      std::size_t room = std::size_t{64} << 10) {
  auto there = std::make_shared<Pipe>();
  auto back = std::make_shared<Pipe>();
  there->room = back->room = room;
  return {MemoryLink(there, back, limit), MemoryLink(back, there, limit)};
}

}  // namespace memra_test
