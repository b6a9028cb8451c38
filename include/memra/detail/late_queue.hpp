// LateQueue: the work of an OrderedDev that has not been done yet.
#pragma once

#include <cstddef>
#include <memory>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <new>
#include <type_traits>
#include <utility>

namespace memra::detail {

/// A queue of operations on one `Dev`, shared by the device, its buffers and its events.
template <class Dev>
struct LateQueue {
  struct Work {
    virtual ~Work() = default;
    virtual Status run(Dev& dev) noexcept = 0;
    const char* name = "";
    std::size_t bytes = 0;
    std::unique_ptr<Work> next;
  };
  template <class F>
  struct WorkOf final : Work {
    explicit WorkOf(F&& f) : f_(std::move(f)) {}
    explicit WorkOf(const F& f) : f_(f) {}
    Status run(Dev& dev) noexcept override { return f_(dev); }
    F f_;
  };

  Dev* dev = nullptr;  // nullptr once the OrderedDev is gone; the queue is empty then
  std::unique_ptr<Work> head;
  Work* tail = nullptr;
  std::size_t queued = 0;  // ever
  std::size_t done = 0;    // ever
  Status late;             // first failure of queued work that no call has reported yet
  std::shared_ptr<WorkLog> log = std::make_shared<WorkLog>();

  /// @return nullptr if the host has no memory
  template <class F>
  static std::unique_ptr<Work> make(const char* name, std::size_t bytes, F&& f) noexcept {
    std::unique_ptr<Work> work(new (std::nothrow) WorkOf<std::remove_cvref_t<F>>(std::forward<F>(f)));
    if (work) {
      work->name = name;
      work->bytes = bytes;
    }
    return work;
  }

  void push(std::unique_ptr<Work> work) noexcept {
    Work* const last = work.get();
    (tail == nullptr ? head : tail->next) = std::move(work);
    tail = last;
    ++queued;
  }

  /// Runs the queue up to its `upto`-th operation. Work may run another queue, and that one this one again: only what
  /// comes before the work in hand, which is done.
  void run_until(std::size_t upto) noexcept {
    while (done < upto && head) {
      const std::unique_ptr<Work> work = std::move(head);
      head = std::move(work->next);
      if (!head) tail = nullptr;
      if (late.kind() != ErrorKind::device_lost) {
        Status s = work->run(*dev);
        if (!s && late.ok()) {  // what fails behind it was queued with it, or ends with the batch that is told of it
          end_batch(true);
          late = Status::failure(s.kind(), work->name, s.native(), s.bytes() != 0 ? s.bytes() : work->bytes, "%s",
                                 s.text());
        }
      }
      ++done;
    }
  }

  /// What is queued from here on is another batch. On a device that is lost there is one last, for ever.
  void end_batch(bool failed) noexcept {
    if (failed && (log->failed.empty() || log->failed.back() != log->batch)) log->failed.push_back(log->batch);
    if (late.kind() != ErrorKind::device_lost) ++log->batch;
  }

  /// Hands out a failure of queued work as that of the call in hand. A lost device stays lost.
  Status report(const char* call, std::size_t bytes) noexcept {
    if (late.ok()) return {};
    end_batch(true);  // begun after the failure, by those who had not heard of it
    const Status s = Status::failure(late.kind(), call, late.native(), late.bytes() != 0 ? late.bytes() : bytes,
                                     "asynchronous error of an earlier %s: %s", late.operation(), late.text())
                         .as_asynchronous();
    if (late.kind() != ErrorKind::device_lost) late = Status{};
    return s;
  }
};

}  // namespace memra::detail
