// OrderedDev: a device that does everything as late as the contract allows.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/detail/late_queue.hpp>
#include <memra/detail/wrap_kernels.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <new>
#include <type_traits>
#include <utility>

namespace memra {

/// A KvDev over `Dev` that queues its work and runs it only when somebody may look: in download, in synchronize, when
/// another OrderedDev that waits for an event of this one runs that wait (then only up to the event), when memory runs
/// out, and in its destructor. Freeing a buffer is queued like everything else. So code that reads device memory
/// without a download, keeps no order between two devices, or counts on a call being done when it returned shows it on
/// a CPU.
///
/// upload and store_i32 take a copy of their source, launches one of their body, and kernels of their arguments; what
/// those point to must live until the work has run, as on any device. alloc allocates at once; zeros queues its zeroes.
///
/// Errors of queued work are asynchronous: the next call on this device fails with the kind, code and sentence of the
/// work that failed, named as asynchronous, and does nothing itself. Later work still runs, except after device_lost,
/// which drops the rest and fails every call. Events are waited for on the thread of the waiter: keep devices that
/// share events on one thread. Owns the wrapped device; neither copied nor moved. Optional capabilities are those of
/// `Dev`.
template <class Dev>
class OrderedDev : public detail::ForwardKernels<Dev> {
  static_assert(check_kv_dev<Dev>());
  using Queue = detail::LateQueue<Dev>;

 public:
  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(Buffer&& o) noexcept
        : queue_(std::move(o.queue_)),
          free_(std::move(o.free_)),
          data_(std::exchange(o.data_, nullptr)),
          size_(std::exchange(o.size_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
      Buffer taken(std::move(o));
      std::swap(queue_, taken.queue_);
      std::swap(free_, taken.free_);
      std::swap(data_, taken.data_);
      std::swap(size_, taken.size_);
      return *this;
    }
    ~Buffer() {
      // Where there is a free there is a queue; g++ 12 warns of a null one at -O3 unless it is asked.
      if (queue_ && free_ && queue_->dev != nullptr) queue_->push(std::move(free_));
    }
    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

   private:
    friend class OrderedDev;
    std::shared_ptr<Queue> queue_;
    std::unique_ptr<typename Queue::Work> free_;  // holds the wrapped buffer; made early, so that freeing cannot fail
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
  };

  class Event {
    friend class OrderedDev;
    std::shared_ptr<Queue> queue_;  // empty: never published
    std::size_t upto_ = 0;
    std::shared_ptr<typename Dev::Event> inner_;
  };

  OrderedDev() requires std::default_initializable<Dev> { queue_->dev = &dev_; }
  /// @param args  what the wrapped device is made from: its constructor's arguments, or a device to move from
  template <class First, class... More>
  requires std::constructible_from<Dev, First, More...>
  explicit OrderedDev(First&& first, More&&... more) : dev_(std::forward<First>(first), std::forward<More>(more)...) {
    queue_->dev = &dev_;
  }
  OrderedDev(const OrderedDev&) = delete;
  OrderedDev& operator=(const OrderedDev&) = delete;
  ~OrderedDev() {
    queue_->run_until(queue_->queued);
    queue_->dev = nullptr;
  }

  /// The wrapped device. What is called on it directly overtakes the queue.
  Dev& inner() noexcept { return dev_; }
  const Dev& inner() const noexcept { return dev_; }
  /// Operations and frees that have not run.
  std::size_t pending() const noexcept { return queue_->queued - queue_->done; }

  Result<Buffer> alloc(std::size_t n) noexcept {
    if (n == 0) return Buffer{};
    if (Status s = queue_->report("alloc", n); !s) return s;
    auto made = dev_.alloc(n);
    if (!made && made.status().kind() == ErrorKind::out_of_memory) {
      queue_->run_until(queue_->queued);  // frees are waiting there
      made = dev_.alloc(n);
    }
    if (!made) return waited(made.status());
    Buffer b;
    b.queue_ = queue_;
    b.data_ = made->data();
    b.size_ = made->size();
    b.free_ = Queue::make("free", n, [held = *std::move(made)](Dev&) noexcept { return Status{}; });
    if (!b.free_) return no_memory("alloc", n);
    return b;
  }
  Result<Buffer> zeros(std::size_t n) noexcept {
    Result<Buffer> made = alloc(n);
    if (!made || n == 0) return made;
    if (Status s = fill(made->data(), std::byte{0}, n); !s) return s;
    return made;
  }

  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    if (detail::ranges_overlap(dst, src, n)) {
      return Status::failure(ErrorKind::bad_argument, "copy", 0, n,
                             "source and destination overlap; expected separate ranges (use move)");
    }
    return later("copy", n, [=](Dev& d) noexcept { return d.copy(dst, src, n); });
  }
  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    return later("move", n, [=](Dev& d) noexcept { return d.move(dst, src, n); });
  }
  Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    if (n == 0) return {};
    return later("fill", n, [=](Dev& d) noexcept { return d.fill(dst, value, n); });
  }
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    if (n == 0) return {};
    std::unique_ptr<std::byte[]> kept(new (std::nothrow) std::byte[n]);
    if (!kept) return no_memory("upload", n);
    std::memcpy(kept.get(), host, n);
    return later("upload", n,
                 [dst, n, kept = std::move(kept)](Dev& d) noexcept { return d.upload(dst, kept.get(), n); });
  }
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    if (n == 0) return {};
    std::unique_ptr<std::int32_t[]> kept(new (std::nothrow) std::int32_t[n]);
    if (!kept) return no_memory("store_i32", n * sizeof(std::int32_t));
    std::memcpy(kept.get(), values, n * sizeof(std::int32_t));
    return later("store_i32", n * sizeof(std::int32_t),
                 [dst, n, kept = std::move(kept)](Dev& d) noexcept { return d.store_i32(dst, kept.get(), n); });
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    if (Status s = finish("download", n); !s) return s;
    return waited(dev_.download(host, src, n));
  }
  Status synchronize() noexcept {
    if (Status s = finish("synchronize", 0); !s) return s;
    return waited(dev_.synchronize());
  }

  Status publish(Event& e) noexcept {
    auto inner = std::make_shared<typename Dev::Event>();
    if (Status s = later("publish", 0, [inner](Dev& d) noexcept { return d.publish(*inner); }); !s) return s;
    e.queue_ = queue_;
    e.upto_ = queue_->queued;
    e.inner_ = std::move(inner);
    return {};
  }
  /// An event that was never published is no event to wait for.
  Status wait(const Event& e) noexcept {
    if (!e.queue_ || e.queue_ == queue_) return queue_->report("wait", 0);
    return later("wait", 0, [from = e.queue_, upto = e.upto_, inner = e.inner_](Dev& d) noexcept {
      from->run_until(upto);
      return d.wait(*inner);
    });
  }

  Status copy_batch(const CopyItem* items, std::size_t n) noexcept requires BatchedCopyDev<Dev> {
    std::unique_ptr<CopyItem[]> kept(new (std::nothrow) CopyItem[n]);
    if (!kept) return no_memory("copy_batch", n * sizeof(CopyItem));
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < n; ++i) {
      kept[i] = items[i];
      bytes += items[i].bytes;
      if (items[i].bytes != 0 && detail::ranges_overlap(items[i].dst, items[i].src, items[i].bytes)) {
        return Status::failure(ErrorKind::bad_argument, "copy_batch", 0, items[i].bytes,
                               "item %zu: source and destination overlap; expected separate ranges", i);
      }
    }
    if (bytes == 0) return {};
    return later("copy_batch", bytes,
                 [n, kept = std::move(kept)](Dev& d) noexcept { return d.copy_batch(kept.get(), n); });
  }
  /// Ordered on both devices: after what `from` has queued by now, before what it queues later.
  Status copy_peer(std::byte* dst, OrderedDev& from, const std::byte* src,
                   std::size_t n) noexcept requires PeerCopyDev<Dev> {
    if (n == 0) return {};
    if (Status s = from.queue_->report("copy_peer", n); !s) return s;
    const auto source = from.queue_;
    Status queued = later("copy_peer", n, [=, upto = source->queued](Dev& d) noexcept -> Status {
      source->run_until(upto);
      return d.copy_peer(dst, *source->dev, src, n);
    });
    if (!queued || source == queue_) return queued;
    return from.later("wait", 0, [mine = queue_, upto = queue_->queued](Dev&) noexcept {
      mine->run_until(upto);
      return Status{};
    });
  }
  template <class Body>
  Status launch(const char* name, Grid grid, const Body& body) noexcept requires LaunchDev<Dev> {
    static_assert(std::is_trivially_copyable_v<Body>,
                  "memra: a launch body must be trivially copyable: values and pointers into device memory");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
    return later(name, 0, [=](Dev& d) noexcept { return d.launch(name, grid, body); });
  }
  /// One launch of `name` that is `run(inner)`: how the kernels of ops_for come through a wrapper.
  template <class F>
  Status through(const char* name, const F& run) noexcept {
    return later(name, 0, run);
  }
  std::size_t plane_gap() const noexcept { return plane_gap_of(dev_); }
  /// See WorkLogDev.
  std::shared_ptr<const WorkLog> work_log() noexcept { return queue_->log; }

 private:
  static Status no_memory(const char* call, std::size_t n) noexcept {
    return Status::failure(ErrorKind::out_of_memory, call, 0, n, "no host memory to queue %s", call);
  }

  template <class F>
  Status later(const char* name, std::size_t bytes, F&& run) noexcept {
    if (Status s = queue_->report(name, bytes); !s) return s;
    auto work = Queue::make(name, bytes, std::forward<F>(run));
    if (!work) return no_memory(name, bytes);
    queue_->push(std::move(work));
    return {};
  }
  Status finish(const char* call, std::size_t bytes) noexcept {
    if (Status s = queue_->report(call, bytes); !s) return s;
    queue_->run_until(queue_->queued);
    return queue_->report(call, bytes);
  }
  /// What the wrapped device said when it was waited for: it may have a queue itself.
  Status waited(const Status& s) noexcept {
    if (s.ok() || s.asynchronous()) queue_->end_batch(!s.ok());
    return s;
  }

  Dev dev_;
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

static_assert(check_kv_dev<OrderedDev<HostDev>>());

}  // namespace memra
