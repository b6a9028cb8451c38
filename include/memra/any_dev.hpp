// AnyDev: a device chosen at run time, itself a KvDev, so that one cache can span devices of different kinds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/any_ops.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <new>
#include <type_traits>
#include <utility>

namespace memra {

namespace detail {
struct WithAnyKernels {
  using kernels = AnyKernels;
};
struct WithoutKernels {};
}  // namespace detail

/// What an AnyDev offers beyond KvDev. Wrapping a device that lacks one does not compile.
struct AnyCaps {
  bool ops = true;            ///< the kernels of the wrapped device, through ops_for
  bool batched_copy = false;  ///< BatchedCopyDev
};

/// A reference to a device of any type. Cheap to make; the device must outlive it, its buffers and its events.
///
/// A cache over several AnyDev objects treats each as a device of its own. An event published by one may be waited for
/// by another: in stream order if both wrap the same type, else by letting the host wait for the publisher.
template <AnyCaps Caps = AnyCaps{}>
class BasicAnyDev : public std::conditional_t<Caps.ops, detail::WithAnyKernels, detail::WithoutKernels> {
  struct BufferBox {
    virtual ~BufferBox() = default;
  };
  template <class B>
  struct BufferBoxOf final : BufferBox {
    explicit BufferBoxOf(B b) noexcept : buffer(std::move(b)) {}
    B buffer;
  };
  struct EventBox {
    virtual ~EventBox() = default;
    virtual Status host_wait() noexcept = 0;
    const void* type = nullptr;  // address of the publisher's table: one per wrapped type
  };
  template <class D>
  struct EventBoxOf final : EventBox {
    Status host_wait() noexcept override { return dev->synchronize(); }
    typename D::Event event;
    D* dev = nullptr;
  };

 public:
  /// Memory of the wrapped device.
  class Buffer {
   public:
    Buffer() noexcept = default;
    Buffer(Buffer&& o) noexcept
        : box_(std::move(o.box_)), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept {
      box_ = std::move(o.box_);
      data_ = std::exchange(o.data_, nullptr);
      size_ = std::exchange(o.size_, 0);
      return *this;
    }
    ~Buffer() = default;
    std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

   private:
    friend class BasicAnyDev;
    std::unique_ptr<BufferBox> box_;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
  };

  class Event {
    friend class BasicAnyDev;
    std::unique_ptr<EventBox> box_;
  };

  template <class D>
  requires(!std::is_same_v<D, BasicAnyDev>) explicit BasicAnyDev(D& dev) noexcept
      : target_(&dev), table_(&table_of<D>) {
    static_assert(check_kv_dev<D>());
    if constexpr (Caps.ops) {
      static_assert(
          requires { typename D::kernels; },
          "memra: AnyDev with ops wraps a device that has no kernels; use BasicAnyDev with caps whose ops is false");
      ops_ = &detail::any_ops<D>;
    }
    if constexpr (Caps.batched_copy) {
      static_assert(BatchedCopyDev<D>, "memra: AnyDev with batched_copy wraps a device without copy_batch");
    }
  }

  Result<Buffer> alloc(std::size_t n) noexcept { return table_->alloc(target_, n); }
  Result<Buffer> zeros(std::size_t n) noexcept { return table_->zeros(target_, n); }
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return table_->copy(target_, dst, src, n);
  }
  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    return table_->move(target_, dst, src, n);
  }
  Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept { return table_->fill(target_, dst, value, n); }
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    return table_->upload(target_, dst, host, n);
  }
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    return table_->download(target_, host, src, n);
  }
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    return table_->store_i32(target_, dst, values, n);
  }
  Status synchronize() noexcept { return table_->synchronize(target_); }
  Status publish(Event& e) noexcept { return table_->publish(target_, e); }
  Status wait(const Event& e) noexcept {
    if (!e.box_) return {};  // never published: nothing to wait for
    return e.box_->type == table_ ? table_->wait(target_, e) : e.box_->host_wait();
  }
  Status copy_batch(const CopyItem* items, std::size_t n) noexcept requires(Caps.batched_copy) {
    return table_->copy_batch(target_, items, n);
  }
  std::size_t plane_gap() const noexcept { return table_->plane_gap(target_); }
  /// nullptr if the wrapped device does not say.
  std::shared_ptr<const WorkLog> work_log() noexcept { return table_->work_log(target_); }

  /// The wrapped device and its ops, for AnyKernels.
  void* target() const noexcept { return target_; }
  const detail::AnyOps& ops() const noexcept requires(Caps.ops) { return *ops_; }

 private:
  struct Table {
    Result<Buffer> (*alloc)(void*, std::size_t) noexcept;
    Result<Buffer> (*zeros)(void*, std::size_t) noexcept;
    Status (*copy)(void*, std::byte*, const std::byte*, std::size_t) noexcept;
    Status (*move)(void*, std::byte*, const std::byte*, std::size_t) noexcept;
    Status (*fill)(void*, std::byte*, std::byte, std::size_t) noexcept;
    Status (*upload)(void*, std::byte*, const std::byte*, std::size_t) noexcept;
    Status (*download)(void*, std::byte*, const std::byte*, std::size_t) noexcept;
    Status (*store_i32)(void*, std::int32_t*, const std::int32_t*, std::size_t) noexcept;
    Status (*synchronize)(void*) noexcept;
    Status (*publish)(void*, Event&) noexcept;
    Status (*wait)(void*, const Event&) noexcept;
    Status (*copy_batch)(void*, const CopyItem*, std::size_t) noexcept;
    std::size_t (*plane_gap)(const void*) noexcept;
    std::shared_ptr<const WorkLog> (*work_log)(void*) noexcept;
  };

  template <class B>
  static Result<Buffer> box(Result<B> made, std::size_t n) noexcept {
    if (!made) return made.status();
    Buffer b;
    b.data_ = made->data();
    b.size_ = made->size();
    b.box_.reset(new (std::nothrow) BufferBoxOf<B>(*std::move(made)));
    if (!b.box_)
      return Status::failure(ErrorKind::out_of_memory, "alloc", 0, n, "no host memory for a buffer's handle");
    return b;
  }

  template <class D>
  static Status publish_on(void* target, Event& e) noexcept;

  template <class D>
  static constexpr Table table_of = {
      [](void* d, std::size_t n) noexcept { return box(static_cast<D*>(d)->alloc(n), n); },
      [](void* d, std::size_t n) noexcept { return box(static_cast<D*>(d)->zeros(n), n); },
      [](void* d, std::byte* dst, const std::byte* src, std::size_t n) noexcept {
        return static_cast<D*>(d)->copy(dst, src, n);
      },
      [](void* d, std::byte* dst, const std::byte* src, std::size_t n) noexcept {
        return static_cast<D*>(d)->move(dst, src, n);
      },
      [](void* d, std::byte* dst, std::byte v, std::size_t n) noexcept { return static_cast<D*>(d)->fill(dst, v, n); },
      [](void* d, std::byte* dst, const std::byte* host, std::size_t n) noexcept {
        return static_cast<D*>(d)->upload(dst, host, n);
      },
      [](void* d, std::byte* host, const std::byte* src, std::size_t n) noexcept {
        return static_cast<D*>(d)->download(host, src, n);
      },
      [](void* d, std::int32_t* dst, const std::int32_t* v, std::size_t n) noexcept {
        return static_cast<D*>(d)->store_i32(dst, v, n);
      },
      [](void* d) noexcept { return static_cast<D*>(d)->synchronize(); },
      [](void* d, Event& e) noexcept { return publish_on<D>(d, e); },
      [](void* d, const Event& e) noexcept {
        return static_cast<D*>(d)->wait(static_cast<const EventBoxOf<D>&>(*e.box_).event);
      },
      [](void* d, const CopyItem* items, std::size_t n) noexcept -> Status {
        if constexpr (Caps.batched_copy) {
          return static_cast<D*>(d)->copy_batch(items, n);
        } else {
          static_cast<void>(d), static_cast<void>(items), static_cast<void>(n);
          return {};  // unreachable: copy_batch exists only with the capability
        }
      },
      [](const void* d) noexcept { return plane_gap_of(*static_cast<const D*>(d)); },
      [](void* d) noexcept { return work_log_of(*static_cast<D*>(d)); },
  };

  void* target_;
  const Table* table_;
  const detail::AnyOps* ops_ = nullptr;
};

template <AnyCaps Caps>
template <class D>
Status BasicAnyDev<Caps>::publish_on(void* target, Event& e) noexcept {
  if (!e.box_ || e.box_->type != &table_of<D>) {
    auto* fresh = new (std::nothrow) EventBoxOf<D>();
    if (fresh == nullptr) {
      return Status::failure(ErrorKind::out_of_memory, "publish", 0, sizeof(*fresh), "no host memory for an event");
    }
    fresh->type = &table_of<D>;
    e.box_.reset(fresh);
  }
  auto& box = static_cast<EventBoxOf<D>&>(*e.box_);
  box.dev = static_cast<D*>(target);
  return box.dev->publish(box.event);
}

/// The device type for run-time choice: every required operation and the ops of what it wraps.
using AnyDev = BasicAnyDev<>;

static_assert(check_kv_dev<AnyDev>());

}  // namespace memra
