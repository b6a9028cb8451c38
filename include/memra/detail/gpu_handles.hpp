// Buffer, Event and Graph of a GpuDev.
#pragma once

#include <cstddef>
#include <memory>
#include <memra/detail/gpu_state.hpp>
#include <utility>

namespace memra {
template <class Api>
class GpuDev;
}  // namespace memra

namespace memra::detail {

/// Memory of a GPU. Shares ownership of the stream and pool it came from; freed in stream order. See DevBuffer.
template <class Api>
class GpuBuffer {
 public:
  GpuBuffer() noexcept = default;
  GpuBuffer(GpuBuffer&& o) noexcept
      : state_(std::move(o.state_)), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  GpuBuffer& operator=(GpuBuffer&& o) noexcept {
    GpuBuffer taken(std::move(o));
    std::swap(state_, taken.state_);
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
  }
  ~GpuBuffer() {
    if (data_ != nullptr) state_->release(data_, size_);
  }

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

 private:
  friend class GpuDev<Api>;
  GpuBuffer(std::shared_ptr<GpuState<Api>> state, std::byte* data, std::size_t size) noexcept
      : state_(std::move(state)), data_(data), size_(size) {}

  std::shared_ptr<GpuState<Api>> state_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A point of a stream. Made by the first publish; may be waited for by device objects of any ordinal.
template <class Api>
class GpuEvent {
 public:
  GpuEvent() noexcept = default;
  GpuEvent(GpuEvent&& o) noexcept : event_(o.event_), ordinal_(o.ordinal_), made_(std::exchange(o.made_, false)) {}
  GpuEvent& operator=(GpuEvent&& o) noexcept {
    if (this != &o) {
      drop();
      event_ = o.event_;
      ordinal_ = o.ordinal_;
      made_ = std::exchange(o.made_, false);
    }
    return *this;
  }
  ~GpuEvent() { drop(); }

 private:
  friend class GpuDev<Api>;
  explicit operator bool() const noexcept { return made_; }
  typename Api::Event native() const noexcept { return event_; }

  /// @pre `ordinal` is current
  typename Api::Error record(int ordinal, typename Api::Stream stream) noexcept {
    if (made_ && ordinal_ != ordinal) drop();  // a stream records events of its own device only
    if (!made_) {
      if (const auto e = Api::create_event(&event_); e != Api::ok) return e;
      made_ = true;
      ordinal_ = ordinal;
    }
    return Api::record(event_, stream);
  }

  void drop() noexcept {
    if (!std::exchange(made_, false)) return;
    const GpuCurrent<Api> current(ordinal_);
    if (Api::destroy_event(event_) != Api::ok) (void)Api::take_last();
  }

  typename Api::Event event_{};
  int ordinal_ = 0;
  bool made_ = false;
};

/// Recorded work. See CaptureDev.
template <class Api>
class GpuGraph {
 public:
  GpuGraph() noexcept = default;
  GpuGraph(GpuGraph&& o) noexcept : state_(std::move(o.state_)), exec_(std::exchange(o.exec_, {})) {}
  GpuGraph& operator=(GpuGraph&& o) noexcept {
    GpuGraph taken(std::move(o));
    std::swap(state_, taken.state_);
    std::swap(exec_, taken.exec_);
    return *this;
  }
  ~GpuGraph() {
    if (!state_) return;
    const GpuCurrent<Api> current(state_->ordinal);
    if (Api::destroy_exec(exec_) != Api::ok) (void)Api::take_last();
  }

 private:
  friend class GpuDev<Api>;
  explicit operator bool() const noexcept { return state_ != nullptr; }
  typename Api::GraphExec native() const noexcept { return exec_; }

  /// Ends the capture of `state`'s stream and makes what was recorded runnable.
  typename Api::Error end(const std::shared_ptr<GpuState<Api>>& state) noexcept {
    typename Api::Graph graph{};
    if (const auto e = Api::end_capture(state->stream, &graph); e != Api::ok) return e;
    const auto e = Api::instantiate(&exec_, graph);
    (void)Api::destroy_graph(graph);
    if (e == Api::ok) state_ = state;
    return e;
  }

  std::shared_ptr<GpuState<Api>> state_;
  typename Api::GraphExec exec_{};
};

}  // namespace memra::detail
