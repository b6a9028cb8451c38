// NcclTransport: hand-overs between two GPUs, device memory to device memory, in the order of a CudaDev's stream.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <memra/cuda/device.hpp>
#include <memra/error.hpp>
#include <memra/transport.hpp>
#include <thread>
#include <utility>

namespace memra {

/// A DeviceTransport to one other rank of a NCCL communicator.
///
/// What is sent or received until the next flush is one NCCL group: one kernel moves it all. NCCL shows no progress
/// within a group, so the limit is for all of a flush: give it the time that the largest state takes. When it has
/// passed, or NCCL reports an error, the communicator is aborted. The device object must outlive it. Move-only.
class NcclTransport {
 public:
  /// A communicator of two ranks, made here and owned. Both processes (or threads) call this at the same time.
  /// @param id     of ncclGetUniqueId, the same on both sides: rank 0 makes it, the engine's own means carry it
  /// @param rank   0 or 1
  static Result<NcclTransport> connect(CudaDev& dev, const ncclUniqueId& id, int rank,
                                       std::chrono::milliseconds limit) {
    NcclTransport t(dev, 1 - rank, limit);
    const detail::GpuCurrent<CudaApi> current(dev.ordinal());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // or a peer that never comes would hold us for ever
    t.own_ = true;
    const ncclResult_t e = ncclCommInitRankConfig(&t.comm_, 2, id, rank, &config);
    if (e != ncclSuccess && e != ncclInProgress) return t.broken("connect", 0, e);
    if (Status s = t.settled("connect", 0, Clock::now() + limit); !s) return s;
    return t;
  }

  /// Over the engine's communicator, which is not destroyed here, but aborted after a failure. A call can only keep its
  /// limit while NCCL connects the two ranks if the communicator is non-blocking.
  static NcclTransport adopt(CudaDev& dev, ncclComm_t comm, int peer, std::chrono::milliseconds limit) noexcept {
    NcclTransport t(dev, peer, limit);
    t.comm_ = comm;
    return t;
  }

  NcclTransport(NcclTransport&& o) noexcept
      : dev_(o.dev_),
        comm_(std::exchange(o.comm_, nullptr)),
        own_(o.own_),
        peer_(o.peer_),
        limit_(o.limit_),
        grouped_(std::exchange(o.grouped_, false)) {}
  NcclTransport& operator=(NcclTransport&&) = delete;
  ~NcclTransport() {
    static_cast<void>(flush().ok());
    if (comm_ == nullptr || !own_) return;
    // The peer's kernel may still be reading what is mapped here: both sides end together, or within the limit.
    const detail::GpuCurrent<CudaApi> current(dev_->ordinal());
    const ncclResult_t e = ncclCommFinalize(comm_);
    if ((e == ncclSuccess || e == ncclInProgress) && settled("close", 0, Clock::now() + limit_)) {
      (void)ncclCommDestroy(comm_);
    } else {
      abort();
    }
  }

  std::chrono::milliseconds limit() const noexcept { return limit_; }
  CudaDev& device() const noexcept { return *dev_; }

  Status send(const std::byte* data, std::size_t n) noexcept {
    return queue("send", n, [&] { return ncclSend(data, n, ncclUint8, peer_, comm_, dev_->stream()); });
  }
  Status receive(std::byte* data, std::size_t n) noexcept {
    return queue("receive", n, [&] { return ncclRecv(data, n, ncclUint8, peer_, comm_, dev_->stream()); });
  }

  /// Waits until the group has been through the stream.
  Status flush() noexcept {
    if (comm_ == nullptr) return ended("flush");
    if (!std::exchange(grouped_, false)) return {};
    const detail::GpuCurrent<CudaApi> current(dev_->ordinal());
    const auto until = Clock::now() + limit_;
    const ncclResult_t e = ncclGroupEnd();
    if (e != ncclSuccess && e != ncclInProgress) return broken("flush", 0, e);
    if (Status s = settled("flush", 0, until); !s) return s;
    for (;;) {
      const cudaError_t done = cudaStreamQuery(dev_->stream());
      if (done == cudaSuccess) return {};
      if (done != cudaErrorNotReady) {
        (void)cudaGetLastError();
        abort();
        return dev_->synchronize();  // says it in the device's words
      }
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t g = ncclCommGetAsyncError(comm_, &state); g != ncclSuccess) state = g;
      if (state != ncclSuccess && state != ncclInProgress) return broken("flush", 0, state);
      if (Clock::now() >= until) return silent("flush");
      std::this_thread::yield();
    }
  }

 private:
  using Clock = std::chrono::steady_clock;

  NcclTransport(CudaDev& dev, int peer, std::chrono::milliseconds limit) noexcept
      : dev_(&dev), peer_(peer), limit_(limit) {}

  template <class F>
  Status queue(const char* call, std::size_t n, const F& f) noexcept {
    if (comm_ == nullptr) return ended(call);
    const detail::GpuCurrent<CudaApi> current(dev_->ordinal());
    if (!grouped_) {
      if (const ncclResult_t e = ncclGroupStart(); e != ncclSuccess) return broken(call, n, e);
      grouped_ = true;
    }
    const ncclResult_t e = f();
    if (e == ncclSuccess || e == ncclInProgress) return {};
    (void)ncclGroupEnd();
    grouped_ = false;
    return broken(call, n, e);
  }

  /// Until the communicator is ready for the next call. @pre this device is current
  Status settled(const char* call, std::size_t n, Clock::time_point until) noexcept {
    for (;;) {
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t e = ncclCommGetAsyncError(comm_, &state); e != ncclSuccess) return broken(call, n, e);
      if (state == ncclSuccess) return {};
      if (state != ncclInProgress) return broken(call, n, state);
      if (Clock::now() >= until) return silent(call);
      std::this_thread::yield();
    }
  }

  Status broken(const char* call, std::size_t n, ncclResult_t e) noexcept {
    const Status s = Status::failure(ErrorKind::link_failure, call, e, n, "NCCL: %s", ncclGetErrorString(e));
    abort();
    return s;
  }
  Status silent(const char* call) noexcept {
    abort();
    return Status::failure(ErrorKind::link_failure, call, 0, 0,
                           "rank %d was not done after %lld ms: it is gone, or too slow for this limit", peer_,
                           static_cast<long long>(limit_.count()));
  }
  static Status ended(const char* call) noexcept {
    return Status::failure(ErrorKind::link_failure, call, 0, 0, "the link is over since an earlier failure");
  }

  void abort() noexcept {
    if (comm_ != nullptr) (void)ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  CudaDev* dev_;
  ncclComm_t comm_ = nullptr;
  bool own_ = false;
  int peer_;
  std::chrono::milliseconds limit_;
  bool grouped_ = false;
};

static_assert(DeviceTransport<NcclTransport, CudaDev>);

}  // namespace memra
