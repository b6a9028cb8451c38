// Status, Result and Error: how every call of memra reports failure. check() is the only place that throws.
#pragma once

#include <concepts>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace memra {

enum class ErrorKind : std::uint8_t {
  ok,
  out_of_memory,   ///< an allocation failed; smaller sizes may pass
  bad_argument,    ///< the call is wrong whatever the state; nothing was changed
  bad_state,       ///< the call is legal at another time; nothing was changed
  device_failure,  ///< the device refused or failed an operation
  device_lost,     ///< the device context is dead: every later call says so too
  unsupported,     ///< this device or build cannot do it
  corrupt,         ///< bytes from outside contradict themselves; nothing was changed
  link_failure,    ///< the peer of a transport is gone, or did not answer within the stated time
};

constexpr const char* to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::ok:
      return "ok";
    case ErrorKind::out_of_memory:
      return "out_of_memory";
    case ErrorKind::bad_argument:
      return "bad_argument";
    case ErrorKind::bad_state:
      return "bad_state";
    case ErrorKind::device_failure:
      return "device_failure";
    case ErrorKind::device_lost:
      return "device_lost";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::link_failure:
      return "link_failure";
  }
  return "unknown";
}

/// Outcome of one operation. Holds its sentence inline: reporting a failure never allocates.
class [[nodiscard]] Status {
 public:
  /// Longest sentence kept, terminator included; a longer one is cut.
  static constexpr std::size_t text_capacity = 232;

  Status() noexcept { text_[0] = '\0'; }

  /// @param operation  static string: the call that failed ("copy", "begin_step")
  /// @param native     the vendor's error code; 0 where there is none
  /// @param bytes      byte count of the failed call; 0 where it has none
  /// @param text       printf format of one sentence: what was wrong, what was expected
#if defined(__GNUC__)
  __attribute__((format(printf, 5, 6)))
#endif
  static Status
  failure(ErrorKind kind, const char* operation, std::int64_t native, std::size_t bytes, const char* text,
          ...) noexcept {
    Status s;
    s.kind_ = kind;
    s.operation_ = operation;
    s.native_ = native;
    s.bytes_ = bytes;
    std::va_list args;
    va_start(args, text);
    std::vsnprintf(s.text_, text_capacity, text, args);
    va_end(args);
    return s;
  }

  bool ok() const noexcept {
    return kind_ == ErrorKind::ok;
  }
  explicit operator bool() const noexcept {
    return ok();
  }
  ErrorKind kind() const noexcept {
    return kind_;
  }
  const char* operation() const noexcept {
    return operation_;
  }
  std::int64_t native() const noexcept {
    return native_;
  }
  std::size_t bytes() const noexcept {
    return bytes_;
  }
  const char* text() const noexcept {
    return text_;
  }
  /// It was work of an earlier call that failed, after that call had returned; this one only reports it (rule S5).
  bool asynchronous() const noexcept {
    return asynchronous_;
  }
  /// The same failure, as one of an earlier call's work.
  Status as_asynchronous() const noexcept {
    Status s = *this;
    s.asynchronous_ = !ok();
    return s;
  }

  /// "memra: copy: device_failure: <sentence> (native code 700, 4096 bytes)"
  std::string message() const {
    if (ok()) return "ok";
    std::string m = std::string("memra: ") + operation_ + ": " + to_string(kind_) + ": " + text_;
    if (native_ != 0 || bytes_ != 0) {
      m += " (native code " + std::to_string(native_) + ", " + std::to_string(bytes_) + " bytes)";
    }
    return m;
  }

 private:
  ErrorKind kind_ = ErrorKind::ok;
  bool asynchronous_ = false;
  const char* operation_ = "";
  std::int64_t native_ = 0;
  std::size_t bytes_ = 0;
  char text_[text_capacity];  // set to "" or a sentence; not cleared, so that success stays cheap
};

/// What check() throws.
class Error : public std::runtime_error {
 public:
  explicit Error(const Status& status) : std::runtime_error(status.message()), status_(status) {}
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
};

#if !defined(__cpp_exceptions)
/// Without exceptions check() calls this; define it in one of your sources. It must not return.
[[noreturn]] void unhandled(const Status& status) noexcept;
#endif

/// Returns if `status` is ok, throws Error otherwise (calls memra::unhandled where exceptions are off).
inline void check(const Status& status) {
  if (status.ok()) return;
#if defined(__cpp_exceptions)
  throw Error(status);
#else
  unhandled(status);
#endif
}

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  // By reference: device compilers move a returned local into `T&&`, but not into a `T` that they would copy.
  Result(T&& value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(const T& value) requires std::copy_constructible<T> : value_(value) {}  // NOLINT(google-explicit-constructor)
  Result(const Status& failure) : status_(failure) {                             // NOLINT(google-explicit-constructor)
    if (failure.ok()) {
      status_ = Status::failure(ErrorKind::bad_state, "Result", 0, 0, "made from an ok status without a value");
    }
  }

  explicit operator bool() const noexcept { return value_.has_value(); }
  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return *std::move(value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Takes the value out, or throws as check(status) does.
template <class T>
T check(Result<T>&& result) {
  check(result.status());
  return *std::move(result);
}

}  // namespace memra
