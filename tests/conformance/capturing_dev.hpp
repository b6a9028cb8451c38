// A device on the host that captures: what it is asked to do inside a capture is kept as closures.
#pragma once

#include <concepts/minimal_dev.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memra/capture.hpp>
#include <memra/error.hpp>
#include <utility>
#include <vector>

namespace memra_test {

class CapturingDev : public MinimalDev {
  using Steps = std::vector<std::function<memra::Status()>>;

 public:
  class Graph {
    friend class CapturingDev;
    std::unique_ptr<Steps> steps_;
  };

  memra::Result<Buffer> alloc(std::size_t n) noexcept {
    return capturing() ? memra::Result<Buffer>(refused("alloc", n)) : MinimalDev::alloc(n);
  }
  memra::Result<Buffer> zeros(std::size_t n) noexcept {
    return capturing() ? memra::Result<Buffer>(refused("zeros", n)) : MinimalDev::zeros(n);
  }
  memra::Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return capturing() ? refused("upload", n) : MinimalDev::upload(dst, host, n);
  }
  memra::Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    return capturing() ? refused("download", n) : MinimalDev::download(host, src, n);
  }
  memra::Status synchronize() noexcept { return capturing() ? refused("synchronize", 0) : memra::Status(); }

  memra::Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return run([=, this] { return MinimalDev::copy(dst, src, n); });
  }
  memra::Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return run([=, this] { return MinimalDev::move(dst, src, n); });
  }
  memra::Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    return run([=, this] { return MinimalDev::fill(dst, value, n); });
  }
  memra::Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return run([=, this, kept = std::vector<std::int32_t>(values, values + n)] {
      return MinimalDev::store_i32(dst, kept.data(), n);
    });
  }

  memra::Status begin_capture() noexcept {
    if (capturing()) return refused("begin_capture", 0);
    steps_ = std::make_unique<Steps>();
    return {};
  }
  memra::Result<Graph> end_capture() noexcept {
    if (!capturing()) {
      return memra::Status::failure(memra::ErrorKind::bad_state, "end_capture", 0, 0, "no capture was begun");
    }
    Graph graph;
    graph.steps_ = std::move(steps_);
    return memra::Result<Graph>(std::move(graph));
  }
  memra::Status replay(const Graph& graph) noexcept {
    if (capturing()) return refused("replay", 0);
    if (!graph.steps_)
      return memra::Status::failure(memra::ErrorKind::bad_argument, "replay", 0, 0, "the graph is empty");
    for (const auto& step : *graph.steps_) {
      if (memra::Status s = step(); !s) return s;
    }
    return {};
  }

 protected:
  bool capturing() const noexcept { return steps_ != nullptr; }
  /// Does it, or keeps it for replays.
  template <class F>
  memra::Status run(F&& work) noexcept {
    if (!capturing()) return work();
    steps_->push_back(std::forward<F>(work));
    return {};
  }

 private:
  static memra::Status refused(const char* call, std::size_t n) noexcept {
    return memra::Status::failure(memra::ErrorKind::bad_state, call, 0, n, "a capture is open; end it first");
  }

  std::unique_ptr<Steps> steps_;  // of the capture that is open
};

static_assert(memra::check_kv_dev<CapturingDev>() && memra::CaptureDev<CapturingDev>);

}  // namespace memra_test
