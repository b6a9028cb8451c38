// What FaultDev, PoisonDev, CanaryDev and CountingDev share: a device that holds another one and lets a policy watch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/wrap_kernels.hpp>
#include <memra/dev_call.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <utility>

namespace memra::detail {

/// One live allocation of a wrapper: `data` is what the caller sees, `block` what the wrapped device gave.
struct WrapBlock {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::byte* block = nullptr;
  std::size_t block_size = 0;
  std::size_t id = 0;  ///< from 1 in the order of allocation
};

/// Keeps the first failure of several, asynchronous if one of them is: that work is in doubt is not forgotten over it.
/// (In place: a Status has its sentence in it, and wrappers see every call.)
inline void note(Status& found, const Status& s) noexcept {
  if (s.ok()) return;
  if (found.ok()) {
    found = s;
  } else if (s.asynchronous()) {
    found = found.as_asynchronous();
  }
}

/// A policy that watches nothing; the others derive from it and say what they want to know.
struct WrapPolicy {
  std::size_t front() const noexcept { return 0; }  ///< bytes before data; plane_alignment multiple
  std::size_t whole(std::size_t bytes) const noexcept { return bytes; }  ///< bytes to ask for, front included
  std::size_t gap() const noexcept { return 0; }                         ///< bytes the plan leaves between planes
  /// Before a call is passed on; a failure keeps it from the wrapped device.
  Status before(const DevCall&) noexcept { return {}; }
  /// Whether a call that `before` kept back is carried out half, as hardware may that fails in the middle.
  bool torn() const noexcept { return false; }
  /// A bulk call is about to be passed on that overwrites [dst, dst + bytes): the last chance to look at what is there.
  /// It is passed on whatever this says.
  template <class Dev>
  Status writes(Dev&, const DevCall&, const std::byte*, std::size_t) noexcept {
    return {};
  }
  /// A bulk call that was passed on has overwritten [dst, dst + bytes), or has failed and may have overwritten some.
  template <class Dev>
  Status wrote(Dev&, const std::byte*, std::size_t) noexcept {
    return {};
  }
  /// After a call went well.
  template <class Dev>
  Status after(Dev&, const DevCall&) noexcept {
    return {};
  }
  /// After a call that was passed on failed with a Status, which stays the call's. What failed half way has run, too.
  template <class Dev>
  Status failed(Dev&, const DevCall&, const Status&) noexcept {
    return {};
  }
  template <class Dev>
  Status born(Dev&, const WrapBlock&, bool /*zeroed*/) noexcept {
    return {};
  }
  /// The buffer is about to go; `dev` is nullptr if the wrapper is gone already.
  template <class Dev>
  void dying(Dev*, const WrapBlock&) noexcept {}
};

/// Models KvDev over `Dev`, which it owns, and each optional capability exactly when `Dev` does.
template <class Dev, class Policy>
class WrapDev : public ForwardKernels<Dev> {
  static_assert(check_kv_dev<Dev>());

  // Shared with every buffer, so that a buffer may outlive the wrapper.
  struct Shared {
    Dev* dev = nullptr;
    Policy policy;
    std::size_t born = 0;
  };

 public:
  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(Buffer&& o) noexcept
        : shared_(std::move(o.shared_)), inner_(std::move(o.inner_)), at_(std::exchange(o.at_, {})) {}
    Buffer& operator=(Buffer&& o) noexcept {
      Buffer taken(std::move(o));
      std::swap(shared_, taken.shared_);
      std::swap(inner_, taken.inner_);
      std::swap(at_, taken.at_);
      return *this;
    }
    ~Buffer() {
      if (shared_) shared_->policy.dying(shared_->dev, at_);
    }
    std::byte* data() const noexcept { return at_.data; }
    std::size_t size() const noexcept { return at_.size; }

   private:
    friend class WrapDev;
    Buffer(std::shared_ptr<Shared> shared, typename Dev::Buffer inner, const WrapBlock& at) noexcept
        : shared_(std::move(shared)), inner_(std::move(inner)), at_(at) {}

    std::shared_ptr<Shared> shared_;
    typename Dev::Buffer inner_;
    WrapBlock at_;
  };
  using Event = typename Dev::Event;

  WrapDev() requires std::default_initializable<Dev> { shared_->dev = &dev_; }
  /// @param args  what the wrapped device is made from: its constructor's arguments, or a device to move from
  template <class First, class... More>
  requires std::constructible_from<Dev, First, More...>
  explicit WrapDev(First&& first, More&&... more) : dev_(std::forward<First>(first), std::forward<More>(more)...) {
    shared_->dev = &dev_;
  }
  WrapDev(const WrapDev&) = delete;
  WrapDev& operator=(const WrapDev&) = delete;
  ~WrapDev() { shared_->dev = nullptr; }

  /// The wrapped device. What is called on it directly is not seen by this wrapper.
  Dev& inner() noexcept { return dev_; }
  const Dev& inner() const noexcept { return dev_; }

  Result<Buffer> alloc(std::size_t n) noexcept { return make(DevOp::alloc, n); }
  Result<Buffer> zeros(std::size_t n) noexcept { return make(DevOp::zeros, n); }
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return bulk(DevOp::copy, dst, n, [&](std::size_t m) { return dev_.copy(dst, src, m); });
  }
  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return bulk(DevOp::move, dst, n, [&](std::size_t m) { return dev_.move(dst, src, m); });
  }
  Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    return bulk(DevOp::fill, dst, n, [&](std::size_t m) { return dev_.fill(dst, value, m); });
  }
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return bulk(DevOp::upload, dst, n, [&](std::size_t m) { return dev_.upload(dst, host, m); });
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    return bulk<false>(DevOp::download, nullptr, n, [&](std::size_t m) { return dev_.download(host, src, m); });
  }
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return bulk(DevOp::store_i32, reinterpret_cast<std::byte*>(dst), n * sizeof(std::int32_t),
                [&](std::size_t m) { return dev_.store_i32(dst, values, m / sizeof(std::int32_t)); });
  }
  Status synchronize() noexcept {
    return call(plain(DevOp::synchronize), [&] { return dev_.synchronize(); });
  }
  Status publish(Event& e) noexcept {
    return call(plain(DevOp::publish), [&] { return dev_.publish(e); });
  }
  Status wait(const Event& e) noexcept {
    return call(plain(DevOp::wait), [&] { return dev_.wait(e); });
  }

  Status copy_batch(const CopyItem* items, std::size_t n) noexcept requires BatchedCopyDev<Dev> {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < n; ++i) bytes += items[i].bytes;
    if (bytes == 0) return dev_.copy_batch(items, n);
    const DevCall c{DevOp::copy_batch, to_string(DevOp::copy_batch), bytes, nullptr};
    if (Status s = policy().before(c); !s) {
      if (policy().torn()) static_cast<void>(dev_.copy_batch(items, n / 2).ok());
      return s;
    }
    Status seen;
    for (std::size_t i = 0; i < n; ++i) note(seen, policy().writes(dev_, c, items[i].dst, items[i].bytes));
    Status own = dev_.copy_batch(items, n);
    for (std::size_t i = 0; i < n; ++i) note(own, policy().wrote(dev_, items[i].dst, items[i].bytes));
    return ended(c, own, seen);
  }
  Status copy_peer(std::byte* dst, WrapDev& from, const std::byte* src,
                   std::size_t n) noexcept requires PeerCopyDev<Dev> {
    return bulk(DevOp::copy_peer, dst, n, [&](std::size_t m) { return dev_.copy_peer(dst, from.dev_, src, m); });
  }
  template <class Body>
  Status launch(const char* name, Grid grid, const Body& body) noexcept requires LaunchDev<Dev> {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return dev_.launch(name, grid, body);
    return call({DevOp::launch, name, 0, nullptr}, [&] { return dev_.launch(name, grid, body); });
  }
  /// One launch of `name` that is `run(inner)`: how the kernels of ops_for come through a wrapper.
  template <class F>
  Status through(const char* name, const F& run) noexcept {
    return call({DevOp::launch, name, 0, nullptr}, [&] { return run(dev_); });
  }
  std::shared_ptr<const WorkLog> work_log() noexcept requires WorkLogDev<Dev> { return dev_.work_log(); }
  std::size_t plane_gap() const noexcept {
    const std::size_t inner = plane_gap_of(dev_);
    const std::size_t own = shared_->policy.gap();
    return inner > own ? inner : own;
  }

 protected:
  Policy& policy() noexcept { return shared_->policy; }
  const Policy& policy() const noexcept { return shared_->policy; }
  /// The policy as something that may outlive the wrapper.
  std::shared_ptr<const Policy> shared_policy() const noexcept { return {shared_, &shared_->policy}; }

 private:
  static DevCall plain(DevOp op) noexcept { return {op, to_string(op), 0, nullptr}; }

  template <class F>
  Status call(const DevCall& c, F&& pass_on) noexcept {
    if (Status s = policy().before(c); !s) return s;
    return ended(c, pass_on());
  }

  /// @tparam Writes  device memory, at dst
  template <bool Writes = true, class F>
  Status bulk(DevOp op, const std::byte* dst, std::size_t bytes, F&& pass_on) noexcept {
    if (bytes == 0) return pass_on(bytes);
    const DevCall c{op, to_string(op), bytes, dst};
    if (Status s = policy().before(c); !s) {
      if (policy().torn()) static_cast<void>(pass_on(bytes / 2).ok());
      return s;
    }
    if constexpr (Writes) {
      const Status seen = policy().writes(dev_, c, dst, bytes);
      Status own = pass_on(bytes);
      note(own, policy().wrote(dev_, dst, bytes));
      return ended(c, own, seen);
    } else {
      return ended(c, pass_on(bytes));
    }
  }

  /// What a call that was passed on says in the end.
  /// @param own   what the wrapped device said
  /// @param seen  what the policy saw before
  Status ended(const DevCall& c, const Status& own, const Status& seen = {}) noexcept {
    if (own.ok() && seen.ok()) return policy().after(dev_, c);
    Status all = own;
    note(all, seen);
    note(all, own.ok() ? policy().after(dev_, c) : policy().failed(dev_, c, own));
    return all;
  }

  Result<Buffer> make(DevOp op, std::size_t n) noexcept {
    const bool zeroed = op == DevOp::zeros;
    if (n == 0) {
      auto none = zeroed ? dev_.zeros(0) : dev_.alloc(0);
      if (!none) return none.status();
      return Buffer{};
    }
    const DevCall c{op, to_string(op), n, nullptr};
    if (Status s = policy().before(c); !s) return s;
    const std::size_t whole = policy().whole(n);
    if (whole < n) return Status::failure(ErrorKind::out_of_memory, c.name, 0, n, "%zu bytes and guards do not fit", n);
    auto made = zeroed ? dev_.zeros(whole) : dev_.alloc(whole);
    if (!made) {
      const Status& s = made.status();  // of the size that the caller asked for
      const Status ours = Status::failure(s.kind(), s.operation(), s.native(), n, "%s", s.text());
      return ended(c, s.asynchronous() ? ours.as_asynchronous() : ours);
    }
    const WrapBlock at{made->data() + policy().front(), n, made->data(), whole, shared_->born + 1};
    if (Status s = policy().born(dev_, at, zeroed); !s) return ended(c, s);
    ++shared_->born;
    Buffer buffer(shared_, *std::move(made), at);  // from here on its destructor tells the policy
    if (Status s = policy().after(dev_, c); !s) return s;
    return buffer;
  }

  Dev dev_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

}  // namespace memra::detail
