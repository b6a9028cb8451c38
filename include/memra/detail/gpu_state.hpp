// What a GPU device object and everything it made share: stream, pool, staging memory, and how errors are told apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <new>

namespace memra::detail {

/// Makes `ordinal` the current device and puts the caller's back.
template <class Api>
class GpuCurrent {
 public:
  explicit GpuCurrent(int ordinal) noexcept {
    error_ = Api::get_device(&before_);
    if (error_ != Api::ok || before_ == ordinal) return;
    error_ = Api::set_device(ordinal);
    changed_ = error_ == Api::ok;
  }
  GpuCurrent(const GpuCurrent&) = delete;
  GpuCurrent& operator=(const GpuCurrent&) = delete;
  ~GpuCurrent() {
    if (changed_) (void)Api::set_device(before_);
  }
  typename Api::Error error() const noexcept { return error_; }

 private:
  typename Api::Error error_ = Api::ok;
  int before_ = 0;
  bool changed_ = false;
};

/// Where a GPU device object's memory comes from when it is not its own pool.
template <class Api>
struct GpuAllocator {
  virtual ~GpuAllocator() = default;
  virtual void* allocate(typename Api::Stream, std::size_t bytes) noexcept = 0;
  virtual void deallocate(typename Api::Stream, void* p, std::size_t bytes) noexcept = 0;
};
template <class Api, class A>
struct GpuAdoptedAllocator final : GpuAllocator<Api> {
  explicit GpuAdoptedAllocator(A& a) noexcept : target(&a) {}
  void* allocate(typename Api::Stream s, std::size_t n) noexcept override {
    return target->allocate(s, n, plane_alignment);
  }
  void deallocate(typename Api::Stream s, void* p, std::size_t n) noexcept override {
    target->deallocate(s, p, n, plane_alignment);
  }
  A* target;
};

/// Owned jointly by the device object, its buffers and its graphs; the last of them ends it.
template <class Api>
class GpuState {
  using Error = typename Api::Error;
  using Stream = typename Api::Stream;

 public:
  GpuState() noexcept = default;
  GpuState(const GpuState&) = delete;
  GpuState& operator=(const GpuState&) = delete;
  ~GpuState() {
    const GpuCurrent<Api> current(ordinal);
    drain();
    for (Slot& slot : slots_) {
      if (!slot.made) continue;
      (void)Api::synchronize_event(slot.read);
      (void)Api::destroy_event(slot.read);
    }
    if (staging_ != nullptr) (void)Api::deallocate_pinned(staging_);
    if (has_meeting_) (void)Api::destroy_event(meeting_);
    if (owns_pool) (void)Api::destroy_pool(pool);
    if (owns_stream) (void)Api::destroy_stream(stream);
    delete allocator;
    (void)Api::take_last();
  }

  int ordinal = 0;
  Stream stream{};
  bool owns_stream = false;
  typename Api::Pool pool{};
  bool owns_pool = false;
  GpuAllocator<Api>* allocator = nullptr;  ///< owned; nullptr: the pool
  typename Api::Driver driver{};
  bool direct_peers = true;

  /// Whether device `other` may reach this object's memory; opens the own pool to it the first time. Memory of an
  /// adopted allocator is the engine's to open.
  bool open_to(int other) noexcept {
    if (!direct_peers || other < 0 || other >= 64) return false;
    const std::uint64_t bit = std::uint64_t{1} << other;
    if ((asked_ & bit) == 0) {
      asked_ |= bit;
      bool can = false;
      Error e = Api::can_reach(&can, other, ordinal);
      if (e == Api::ok && can && owns_pool) e = Api::open_pool(pool, other);
      if (e != Api::ok) (void)Api::take_last();
      if (e == Api::ok && can) open_ |= bit;
    }
    return (open_ & bit) != 0;
  }

  /// Runs `f`, which returns the vendor's code, on this object's device.
  template <class F>
  Status run(const char* op, std::size_t bytes, const F& f) noexcept {
    if (lost_ != Api::ok) return lost(op, bytes);
    const GpuCurrent<Api> current(ordinal);
    if (current.error() != Api::ok) return report(op, bytes, current.error());
    return report(op, bytes, f());
  }

  /// As run, refused while the stream is being captured: what `f` does cannot be recorded.
  template <class F>
  Status run_now(const char* op, std::size_t bytes, const F& f) noexcept {
    bool capturing = false;
    if (Status s = run(op, bytes, [&] { return Api::is_capturing(stream, &capturing); }); !s) return s;
    if (capturing) {
      return Status::failure(ErrorKind::bad_state, op, 0, bytes, "the stream is being captured; end the capture first");
    }
    return run(op, bytes, f);
  }

  Status report(const char* op, std::size_t bytes, Error e) noexcept {
    if (e == Api::ok) return {};
    (void)Api::take_last();
    if (Api::is_absent(e)) {
      return Status::failure(ErrorKind::unsupported, op, code(e), bytes, "no usable device: %s", Api::text(e));
    }
    // What is still pending after it was taken cannot be cleared: the context is gone.
    if (Api::kills_context(e) || Api::peek_last() != Api::ok) {
      lost_ = e;
      return Status::failure(ErrorKind::device_lost, op, code(e), bytes,
                             "earlier work on device %d failed (reported by this call) and took the context with it: "
                             "%s",
                             ordinal, Api::text(e))
          .as_asynchronous();
    }
    if (Api::is_out_of_memory(e)) {
      return Status::failure(ErrorKind::out_of_memory, op, code(e), bytes, "device %d has no %zu bytes to give: %s",
                             ordinal, bytes, Api::text(e));
    }
    return Status::failure(ErrorKind::device_failure, op, code(e), bytes, "device %d: %s", ordinal, Api::text(e));
  }

  bool is_lost() const noexcept { return lost_ != Api::ok; }

  /// Gives memory back in stream order. While the stream is being captured it is kept until a later allocation: a
  /// recorded free would free it again at every replay.
  void release(void* p, std::size_t n) noexcept {
    const GpuCurrent<Api> current(ordinal);
    bool capturing = false;
    (void)Api::is_capturing(stream, &capturing);
    if (!capturing) return free_now(p, n);
    // Without host memory for the note the block is leaked: the one thing that is always safe here.
    if (auto* late = new (std::nothrow) Late{p, n, late_}) late_ = late;
  }

  /// Frees what was given up during a capture. @pre on this device, not capturing
  void drain() noexcept {
    while (late_ != nullptr) {
      Late* const first = late_;
      late_ = first->next;
      free_now(first->p, first->n);
      delete first;
    }
  }

  /// Copies from the host in pieces through pinned memory of our own: only what has left the caller's memory is sure to
  /// have been read when the call returns.
  Error stage(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return in_pieces(n, [&](std::byte* at, std::size_t done, std::size_t now) {
      std::memcpy(at, host + done, now);
      return Api::copy_in(dst + done, at, now, stream);
    });
  }

  /// Copies from memory of another device, which this one cannot reach, through pinned memory of our own. Reading is
  /// in the order of `from`'s stream, writing in the order of this one.
  Error stage_from(GpuState& from, std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return in_pieces(n, [&](std::byte* at, std::size_t done, std::size_t now) {
      {
        const GpuCurrent<Api> there(from.ordinal);
        if (there.error() != Api::ok) return there.error();
        if (const Error e = Api::copy_out(at, src + done, now, from.stream); e != Api::ok) return e;
        if (const Error e = from.lead(stream); e != Api::ok) return e;
      }
      return Api::copy_in(dst + done, at, now, stream);
    });
  }

  /// Orders later work of `other` behind what this stream has now. @pre on this device
  Error lead(Stream other) noexcept {
    if (!has_meeting_) {
      if (const Error e = Api::create_event(&meeting_); e != Api::ok) return e;
      has_meeting_ = true;
    }
    if (const Error e = Api::record(meeting_, stream); e != Api::ok) return e;
    return Api::wait_event(other, meeting_);
  }

 private:
  struct Late {
    void* p;
    std::size_t n;
    Late* next;
  };
  struct Slot {
    typename Api::Event read{};
    bool made = false;
  };
  static constexpr std::size_t slot_bytes = std::size_t{128} << 10;

  /// Calls `f(pinned memory, bytes done, bytes now)` for pieces of `n` bytes. Waits for this stream only when all of
  /// the pinned memory is on its way.
  template <class F>
  Error in_pieces(std::size_t n, const F& f) noexcept {
    if (staging_ == nullptr) {
      void* p = nullptr;
      if (const Error e = Api::allocate_pinned(&p, slots_.size() * slot_bytes); e != Api::ok) return e;
      staging_ = static_cast<std::byte*>(p);
    }
    for (std::size_t done = 0; done < n;) {
      const std::size_t now = n - done < slot_bytes ? n - done : slot_bytes;
      Slot& slot = slots_[next_];
      std::byte* const at = staging_ + next_ * slot_bytes;
      next_ = (next_ + 1) % slots_.size();
      if (!slot.made) {
        if (const Error e = Api::create_event(&slot.read); e != Api::ok) return e;
        slot.made = true;
      } else if (const Error e = Api::synchronize_event(slot.read); e != Api::ok) {
        return e;
      }
      if (const Error e = f(at, done, now); e != Api::ok) return e;
      if (const Error e = Api::record(slot.read, stream); e != Api::ok) return e;
      done += now;
    }
    return Api::ok;
  }

  static std::int64_t code(Error e) noexcept { return static_cast<std::int64_t>(e); }

  Status lost(const char* op, std::size_t bytes) const noexcept {
    return Status::failure(ErrorKind::device_lost, op, code(lost_), bytes,
                           "device %d was lost by an earlier failure: %s", ordinal, Api::text(lost_));
  }

  void free_now(void* p, std::size_t n) noexcept {
    if (allocator != nullptr) {
      allocator->deallocate(stream, p, n);
    } else if (Api::deallocate(p, stream) != Api::ok) {
      (void)Api::take_last();
    }
  }

  Error lost_ = Api::ok;
  std::uint64_t asked_ = 0;  ///< bit per ordinal: open_to has an answer
  std::uint64_t open_ = 0;   ///< bit per ordinal: and it is yes
  Late* late_ = nullptr;
  std::byte* staging_ = nullptr;
  std::array<Slot, 32> slots_{};
  std::size_t next_ = 0;
  typename Api::Event meeting_{};
  bool has_meeting_ = false;
};

}  // namespace memra::detail
