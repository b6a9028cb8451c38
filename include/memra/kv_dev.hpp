// KvDev: what memra asks of a device. Small concepts, each with the sentence that explains a miss.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/error.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace memra {

/// Every plane starts on a multiple of this. 256 is what vendor allocators give and what the widest copy engines want.
inline constexpr std::size_t plane_alignment = 256;

/// Memory of a device.
///
/// 1. move-only; a moved-from one is empty;
/// 2. `data()` is a device address aligned to plane_alignment, `size()` its bytes; neither changes during its life;
/// 3. it shares ownership of the stream and pool it came from, so it may outlive the device object;
/// 4. destruction is stream-ordered: memory is not reused before work queued on it is done, and it never throws.
template <class B>
concept DevBuffer = std::movable<B> && !std::copyable<B> && std::is_nothrow_move_constructible_v<B> &&
                    std::is_nothrow_destructible_v<B> && requires(const B& b) {
  { b.data() }
  noexcept->std::same_as<std::byte*>;
  { b.size() }
  noexcept->std::same_as<std::size_t>;
};

/// `Buffer` names the device's memory handle.
template <class D>
concept DevHasBuffer = requires {
  typename D::Buffer;
}
&&DevBuffer<typename D::Buffer>;

/// `alloc(bytes)` leaves contents undefined.
template <class D>
concept DevAllocs = DevHasBuffer<D> && requires(D& d, std::size_t n) {
  { d.alloc(n) }
  noexcept->std::same_as<Result<typename D::Buffer>>;
};

/// `zeros(bytes)` is alloc, zeroed in stream order.
template <class D>
concept DevZeros = DevHasBuffer<D> && requires(D& d, std::size_t n) {
  { d.zeros(n) }
  noexcept->std::same_as<Result<typename D::Buffer>>;
};

/// `copy`: bytewise, ranges must not overlap (overlap is bad_argument in every build).
template <class D>
concept DevCopies = requires(D& d, std::byte* dst, const std::byte* src, std::size_t n) {
  { d.copy(dst, src, n) }
  noexcept->std::same_as<Status>;
};

/// `move`: bytewise, ranges may overlap.
template <class D>
concept DevMoves = requires(D& d, std::byte* dst, const std::byte* src, std::size_t n) {
  { d.move(dst, src, n) }
  noexcept->std::same_as<Status>;
};

/// `fill`: every byte becomes `value`.
template <class D>
concept DevFills = requires(D& d, std::byte* dst, std::byte value, std::size_t n) {
  { d.fill(dst, value, n) }
  noexcept->std::same_as<Status>;
};

/// `upload`: host to device; the source has been read when it returns.
template <class D>
concept DevUploads = requires(D& d, std::byte* dst, const std::byte* host, std::size_t n) {
  { d.upload(dst, host, n) }
  noexcept->std::same_as<Status>;
};

/// `download`: device to host; waits until the bytes are there.
template <class D>
concept DevDownloads = requires(D& d, std::byte* host, const std::byte* src, std::size_t n) {
  { d.download(host, src, n) }
  noexcept->std::same_as<Status>;
};

/// `store_i32`: overwrites `n` ints in place; the values have been read when it returns.
template <class D>
concept DevStores = requires(D& d, std::int32_t* dst, const std::int32_t* values, std::size_t n) {
  { d.store_i32(dst, values, n) }
  noexcept->std::same_as<Status>;
};

/// `synchronize`: waits until everything queued so far is done; reports what failed asynchronously.
template <class D>
concept DevSyncs = requires(D& d) {
  { d.synchronize() }
  noexcept->std::same_as<Status>;
};

/// `publish(event)` marks this point of the stream; `wait(event)` orders later work of this stream behind it.
template <class D>
concept DevOrders = requires {
  typename D::Event;
}
&&std::default_initializable<typename D::Event>&& requires(D& d, typename D::Event& e, const typename D::Event& ce) {
  { d.publish(e) }
  noexcept->std::same_as<Status>;
  { d.wait(ce) }
  noexcept->std::same_as<Status>;
};

/// A device that can hold a Cache: a stream-ordered source of memory and copies.
///
/// All operations run in call order on the object's one stream; only download and synchronize make the host wait for
/// it, but for an upload that finds no room in the device's staging memory.
/// Operations are noexcept and return Status; counts are bytes (std::size_t) unless the name says otherwise; a count of
/// zero enqueues nothing and is ok. A device object and what it made are used by one thread at a time; different
/// device objects are independent. Not promised: kernels (see LaunchDev and ops_for), peer copies, graph capture.
template <class D>
concept KvDev = DevAllocs<D> && DevZeros<D> && DevCopies<D> && DevMoves<D> && DevFills<D> && DevUploads<D> &&
    DevDownloads<D> && DevStores<D> && DevSyncs<D> && DevOrders<D>;

struct WorkLog;
/// The optional work_log(), see WorkLogDev.
template <class D>
concept DevLogs = requires(D& d) {
  { d.work_log() }
  noexcept->std::same_as<std::shared_ptr<const WorkLog>>;
};
/// True if D has a member of that name, right or wrong.
template <class D>
concept DevNamesLog = requires(D& d) {
  d.work_log();
};

/// Asserts each requirement of KvDev in turn, so that the first error line names the one that is missing.
template <class D>
consteval bool check_kv_dev() {
  static_assert(DevHasBuffer<D>,
                "memra: the device needs a member type `Buffer`: move-only, nothrow-movable, with "
                "`std::byte* data() const noexcept` and `std::size_t size() const noexcept`");
  static_assert(DevAllocs<D>,
                "memra: the device needs `Result<Buffer> alloc(std::size_t bytes) noexcept` (contents undefined)");
  static_assert(DevZeros<D>, "memra: the device needs `Result<Buffer> zeros(std::size_t bytes) noexcept` (zeroed)");
  static_assert(DevCopies<D>,
                "memra: the device needs `Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept` "
                "(overlap is refused)");
  static_assert(DevMoves<D>,
                "memra: the device needs `Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept` "
                "(overlap is allowed)");
  static_assert(DevFills<D>,
                "memra: the device needs `Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept`");
  static_assert(
      DevUploads<D>,
      "memra: the device needs `Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept`");
  static_assert(DevDownloads<D>,
                "memra: the device needs `Status download(std::byte* host, const std::byte* src, std::size_t n) "
                "noexcept`");
  static_assert(DevStores<D>,
                "memra: the device needs `Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t "
                "n) noexcept`");
  static_assert(DevSyncs<D>, "memra: the device needs `Status synchronize() noexcept`");
  static_assert(
      DevOrders<D>,
      "memra: the device needs a default-constructible member type `Event`, `Status publish(Event&) noexcept` "
      "and `Status wait(const Event&) noexcept`");
  // Optional, but one that is nearly right would be passed over, and what is lost believed.
  static_assert(DevLogs<D> || !DevNamesLog<D>,
                "memra: if the device has a `work_log`, it must be `std::shared_ptr<const memra::WorkLog> work_log() "
                "noexcept`");
  return KvDev<D>;
}

/// Optional: one call for many copies. `items` is an array of {dst, src, bytes} on the host, read before it returns.
/// They run in no order among themselves: no item may touch what another one writes.
struct CopyItem {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t bytes = 0;
};
template <class D>
concept BatchedCopyDev = KvDev<D> && requires(D& d, const CopyItem* items, std::size_t n) {
  { d.copy_batch(items, n) }
  noexcept->std::same_as<Status>;
};

/// Optional: direct copy from another device of type S, ordered on both streams.
template <class D, class S = D>
concept PeerCopyDev = KvDev<D> && KvDev<S> &&
    requires(D& d, S& s, std::byte* dst, const std::byte* src, std::size_t n) {
  { d.copy_peer(dst, s, src, n) }
  noexcept->std::same_as<Status>;
};

/// What became of a device's work, in batches: a batch is what is queued between two moments at which the device was
/// waited for.
struct WorkLog {
  std::uint64_t batch = 0;            ///< the one that what is queued now belongs to; the next one
                                      ///< - once a download or synchronize that waits for all of it went well
                                      ///< - once work has failed, or is said to have
  std::vector<std::uint64_t> failed;  ///< batches of which something failed, ascending
};

/// Optional: a device whose queued work may fail, after the call that queued it went well, without the device being
/// lost. `work_log()` answers the same log at every call, and may outlive the device. nullptr: nothing is known.
template <class D>
concept WorkLogDev = KvDev<D> && DevLogs<D>;

template <class D>
std::shared_ptr<const WorkLog> work_log_of(D& dev) noexcept {
  if constexpr (WorkLogDev<D>) {
    return dev.work_log();
  } else {
    return nullptr;
  }
}

/// Optional member `std::size_t plane_gap() const`: bytes the plan leaves between planes (guard bytes of a wrapper).
template <class D>
constexpr std::size_t plane_gap_of(const D& dev) noexcept {
  if constexpr (requires {
                  { dev.plane_gap() } -> std::convertible_to<std::size_t>;
                }) {
    return dev.plane_gap();
  } else {
    return 0;
  }
}

namespace detail {

/// True if the two ranges share a byte. Compares addresses as integers: the ranges may belong to different objects.
inline bool ranges_overlap(const std::byte* a, const std::byte* b, std::size_t n) noexcept {
  const auto ia = reinterpret_cast<std::uintptr_t>(a);
  const auto ib = reinterpret_cast<std::uintptr_t>(b);
  return ia < ib ? ib - ia < n : ia - ib < n;
}

}  // namespace detail
}  // namespace memra
