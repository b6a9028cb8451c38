// Transport: what a hand-over of state asks of the engine that moves the bytes.
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>

namespace memra {

/// A connection between two peers that moves bytes both ways, in order, or says that it could not.
///
/// 1. `send(data, n)` and the peer's `receive(data, n)` match in order and in size: what one sends in a call the other
///    receives in a call. n is at least 1;
/// 2. either may return before the bytes have moved; `flush()` returns when all of them have. The memory stays
///    untouched by the caller until then, and is untouched by the transport after flush has returned, ok or not;
/// 3. a call that moves nothing for `limit()` returns link_failure, as does one whose peer is known to be gone. After a
///    failure the connection is over: every later call fails at once;
/// 4. used by one thread at a time.
///
/// The memory is the host's, unless the transport says otherwise with `device()` (see DeviceTransport). Not promised:
/// that bytes arrive unharmed. A hand-over checks that itself.
template <class T>
concept Transport = requires(T& t, const T& ct, const std::byte* from, std::byte* to, std::size_t n) {
  { t.send(from, n) }
  noexcept->std::same_as<Status>;
  { t.receive(to, n) }
  noexcept->std::same_as<Status>;
  { t.flush() }
  noexcept->std::same_as<Status>;
  { ct.limit() }
  noexcept->std::convertible_to<std::chrono::milliseconds>;
};

/// A transport that moves memory of the device object `device()`, in the order of its stream.
template <class T, class Dev>
concept DeviceTransport = Transport<T> && KvDev<Dev> && requires(T& t) {
  { t.device() }
  noexcept->std::same_as<Dev&>;
};

}  // namespace memra
