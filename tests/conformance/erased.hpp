// The suites on many devices for the compile time of one: a door of one type, and behind it the device under test.
#pragma once

#include <conformance/report.hpp>
#include <cstddef>
#include <cstring>
#include <memory>
#include <memra/any_dev.hpp>
#include <memra/error.hpp>
#include <memra/host_ops.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <new>
#include <optional>
#include <type_traits>

namespace memra_conformance {

/// A kernel's body of any type, still trivially copyable.
class AnyBody {
 public:
  template <class Body>
  explicit AnyBody(const Body& body) noexcept
      : run_([](const std::byte* at, const memra::Item& item) noexcept {
          (*std::launder(reinterpret_cast<const Body*>(at)))(item);
        }) {
    static_assert(std::is_trivially_copyable_v<Body> && sizeof(Body) <= room && alignof(Body) <= alignment);
    std::memcpy(bytes_, &body, sizeof body);
  }
  void operator()(const memra::Item& item) const noexcept { run_(bytes_, item); }

 private:
  static constexpr std::size_t room = 1024, alignment = 16;
  void (*run_)(const std::byte*, const memra::Item&) noexcept;
  alignas(alignment) std::byte bytes_[room];
};

/// An AnyDev of a device that runs plain bodies, with what that has and AnyDev does not offer: launches and peer
/// copies.
class ErasedDev : public memra::BasicAnyDev<memra::AnyCaps{true, true}> {
  using Base = memra::BasicAnyDev<memra::AnyCaps{true, true}>;

 public:
  template <class D>
  requires(!std::is_base_of_v<ErasedDev, D>) explicit ErasedDev(D& dev) noexcept
      : Base(dev),
        launch_([](void* d, const char* name, memra::Grid grid, const AnyBody& body) noexcept {
          return memra::launch(*static_cast<D*>(d), name, grid, body);
        }),
        peer_([](void* d, std::byte* dst, void* from, const std::byte* src, std::size_t n) noexcept {
          return static_cast<D*>(d)->copy_peer(dst, *static_cast<D*>(from), src, n);
        }) {}

  template <class Body>
  memra::Status launch(const char* name, memra::Grid grid, const Body& body) noexcept {
    return launch_(target(), name, grid, AnyBody(body));
  }
  /// @pre both wrap a device of the same type
  memra::Status copy_peer(std::byte* dst, ErasedDev& from, const std::byte* src, std::size_t n) noexcept {
    return peer_(target(), dst, from.target(), src, n);
  }

 private:
  memra::Status (*launch_)(void*, const char*, memra::Grid, const AnyBody&) noexcept;
  memra::Status (*peer_)(void*, std::byte*, void*, const std::byte*, std::size_t) noexcept;
};
static_assert(memra::check_kv_dev<ErasedDev>() && memra::LaunchDev<ErasedDev> && memra::BatchedCopyDev<ErasedDev> &&
              memra::PeerCopyDev<ErasedDev>);

/// For Made: a Door (AnyDev or ErasedDev) over a fresh device of the type that was named last.
template <class Door>
class Behind {
  struct Held {
    virtual ~Held() = default;
    std::optional<Door> door;
  };
  template <class Make>
  struct HeldOf final : Held {
    HeldOf() { this->door.emplace(made.dev()); }
    Made<Make> made;
  };

 public:
  Behind() : held_(make_()) {}
  Door& dev() { return *held_->door; }

  template <class Make>
  static void use() {
    make_ = []() -> std::unique_ptr<Held> { return std::make_unique<HeldOf<Make>>(); };
  }

 private:
  std::unique_ptr<Held> held_;
  static inline std::unique_ptr<Held> (*make_)() = nullptr;
};

}  // namespace memra_conformance
