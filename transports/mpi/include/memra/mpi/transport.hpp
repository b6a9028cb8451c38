// MpiTransport: hand-overs between two ranks of an MPI program, host memory to host memory.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memra/error.hpp>
#include <memra/transport.hpp>
#include <thread>
#include <utility>

namespace memra {

/// A Transport to one other rank of a communicator, in messages of one tag.
///
/// Everything goes through memory of its own: MPI cannot be made to let go of a caller's memory when a peer dies or
/// falls silent. When that happens this memory, a few MiB, is left to MPI for ever. MPI must be initialised, with
/// MPI_THREAD_SERIALIZED or more if other threads call it, and not finalised while this lives. Move-only.
///
/// A peer's death is noticed by silence: within limit(). mpirun ends a job of which a process died, unless it is told
/// not to (--enable-recovery in Open MPI); MPI_Finalize may wait for the dead, so a survivor leaves by MPI_Abort.
class MpiTransport {
 public:
  static constexpr std::size_t chunk_bytes = std::size_t{1} << 20;

  /// @param comm   both ranks are in it; duplicated here (a collective call of both), so that nothing else's messages
  ///               are mistaken for ours and errors are returned instead of ending the program
  /// @param peer   the other's rank in comm
  /// @param limit  longest time a call waits for the peer
  static Result<MpiTransport> create(MPI_Comm comm, int peer, std::chrono::milliseconds limit) {
    MpiTransport t(peer, limit);
    if (const int e = MPI_Comm_dup(comm, &t.comm_); e != MPI_SUCCESS) return failure("create", 0, e);
    if (const int e = MPI_Comm_set_errhandler(t.comm_, MPI_ERRORS_RETURN); e != MPI_SUCCESS) {
      return failure("create", 0, e);
    }
    return t;
  }

  MpiTransport(MpiTransport&& o) noexcept
      : comm_(std::exchange(o.comm_, MPI_COMM_NULL)),
        peer_(o.peer_),
        limit_(o.limit_),
        slots_(std::move(o.slots_)),
        next_(o.next_),
        over_(std::exchange(o.over_, true)) {}
  MpiTransport& operator=(MpiTransport&&) = delete;
  ~MpiTransport() {
    if (!over_ && comm_ != MPI_COMM_NULL) {
      static_cast<void>(flush().ok());
      if (!over_) MPI_Comm_free(&comm_);
    }
    if (over_) static_cast<void>(slots_.release());  // MPI may still write there
  }

  std::chrono::milliseconds limit() const noexcept { return limit_; }

  Status send(const std::byte* data, std::size_t n) noexcept {
    if (over_) return ended("send");
    for (std::size_t done = 0; done < n;) {
      const std::size_t now = std::min(n - done, chunk_bytes);
      Slot& slot = next();
      if (Status s = wait("send", slot, n); !s) return s;
      std::memcpy(slot.bytes.data(), data + done, now);
      slot.wanted = 0;
      const int e = MPI_Isend(slot.bytes.data(), static_cast<int>(now), MPI_BYTE, peer_, tag, comm_, &slot.request);
      if (e != MPI_SUCCESS) return broken(failure("send", n, e));
      slot.busy = true;
      done += now;
    }
    return {};
  }

  Status receive(std::byte* data, std::size_t n) noexcept {
    if (Status s = flush(); !s) return s;
    std::size_t asked = 0;
    std::size_t first = next_;  // slots are taken and given back in turn
    for (std::size_t done = 0; done < n;) {
      while (asked < n && !slots_->at(next_).busy) {
        Slot& slot = next();
        slot.wanted = std::min(n - asked, chunk_bytes);
        const int e =
            MPI_Irecv(slot.bytes.data(), static_cast<int>(slot.wanted), MPI_BYTE, peer_, tag, comm_, &slot.request);
        if (e != MPI_SUCCESS) return broken(failure("receive", n, e));
        slot.busy = true;
        asked += slot.wanted;
      }
      Slot& slot = slots_->at(first);
      first = (first + 1) % slots_->size();
      if (Status s = wait("receive", slot, n); !s) return s;
      if (slot.got != slot.wanted) {
        return broken(Status::failure(ErrorKind::link_failure, "receive", 0, n,
                                      "the peer sent %zu bytes where %zu were expected", slot.got, slot.wanted));
      }
      std::memcpy(data + done, slot.bytes.data(), slot.wanted);
      done += slot.wanted;
    }
    return {};
  }

  Status flush() noexcept {
    if (over_) return ended("flush");
    for (Slot& slot : *slots_) {
      if (Status s = wait("flush", slot, 0); !s) return s;
    }
    return {};
  }

 private:
  static constexpr int tag = 7;
  using Clock = std::chrono::steady_clock;
  struct Slot {
    std::array<std::byte, chunk_bytes> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    bool busy = false;
    std::size_t wanted = 0;
    std::size_t got = 0;
  };
  using Slots = std::array<Slot, 4>;  // one is filled while others travel

  MpiTransport(int peer, std::chrono::milliseconds limit)
      : peer_(peer), limit_(limit), slots_(std::make_unique<Slots>()) {}

  Slot& next() noexcept {
    Slot& slot = slots_->at(next_);
    next_ = (next_ + 1) % slots_->size();
    return slot;
  }

  /// Until the slot's request is done, or the peer has done nothing for the limit.
  Status wait(const char* call, Slot& slot, std::size_t n) noexcept {
    const auto until = Clock::now() + limit_;
    for (unsigned tries = 0; slot.busy; ++tries) {
      int done = 0;
      MPI_Status status;
      if (const int e = MPI_Test(&slot.request, &done, &status); e != MPI_SUCCESS) return broken(failure(call, n, e));
      if (done != 0) {
        int got = 0;
        if (slot.wanted != 0) MPI_Get_count(&status, MPI_BYTE, &got);
        slot.got = static_cast<std::size_t>(got);
        slot.busy = false;
        break;
      }
      if (Clock::now() >= until) {
        return broken(Status::failure(ErrorKind::link_failure, call, 0, n,
                                      "rank %d did nothing for %lld ms: it is gone, or too slow for this limit", peer_,
                                      static_cast<long long>(limit_.count())));
      }
      // Soon after a message comes the next; after a while there is time.
      if (tries > 4000) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return {};
  }

  static Status failure(const char* call, std::size_t n, int code) noexcept {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    return Status::failure(ErrorKind::link_failure, call, code, n, "MPI: %s", text);
  }
  static Status ended(const char* call) noexcept {
    return Status::failure(ErrorKind::link_failure, call, 0, 0, "the link is over since an earlier failure");
  }
  Status broken(const Status& why) noexcept {
    over_ = true;
    return why;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int peer_;
  std::chrono::milliseconds limit_;
  std::unique_ptr<Slots> slots_;
  std::size_t next_ = 0;
  bool over_ = false;
};

static_assert(Transport<MpiTransport>);

}  // namespace memra
