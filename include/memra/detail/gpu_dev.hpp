// GpuDev: a KvDev over a vendor's runtime, which it sees through an Api struct of neutral names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/capture.hpp>
#include <memra/detail/copy_runs.hpp>
#include <memra/detail/gpu_handles.hpp>
#include <memra/detail/gpu_state.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

namespace memra {

namespace detail {
/// Runs bodies on the device. Defined in detail/gpu_launch.hpp, which only a device compiler reads.
template <class Api, class Body>
struct GpuLaunch;
}  // namespace detail

/// How a GpuDev is made.
template <class Api>
struct GpuOptions {
  int ordinal = -1;                            ///< -1: the adopted stream's device, else the current one
  std::optional<typename Api::Stream> stream;  ///< adopted: it must outlive the device and everything made by it
  bool direct_peers = true;  ///< copy_peer between GPUs goes directly where they can; false: always through the host
};

/// A device object on a GPU: one in-order stream and memory to go with it.
///
/// Operations return before the work is done, except download and synchronize (and an upload with more than 4 MiB of
/// uploads still queued). Every call makes its own device current and puts the caller's back. A failed call clears the
/// runtime's pending error; one that killed the context is device_lost, and every later call says so without reaching
/// the runtime. An asynchronous failure is reported by the next call. Move-only; a moved-from one answers bad_state.
template <class Api>
class GpuDev {
  using State = detail::GpuState<Api>;

 public:
  using kernels = typename Api::kernels;
  using Stream = typename Api::Stream;
  using Options = GpuOptions<Api>;
  using Buffer = detail::GpuBuffer<Api>;
  using Event = detail::GpuEvent<Api>;
  using Graph = detail::GpuGraph<Api>;

  /// Memory from a stream-ordered pool of its own, which keeps what was freed for later allocations.
  static Result<GpuDev> create(const Options& options = {}) noexcept { return make(options, nullptr); }

  /// Memory from the engine's allocator.
  ///
  /// @param allocator  `void* allocate(Stream, std::size_t bytes, std::size_t align) noexcept` (nullptr when out of
  ///                   memory) and `void deallocate(Stream, void*, std::size_t bytes, std::size_t align) noexcept`,
  ///                   both in the order of that stream; must outlive the device and every buffer made by it
  template <class A>
  static Result<GpuDev> adopt(A& allocator, const Options& options = {}) noexcept {
    auto* adopted = new (std::nothrow) detail::GpuAdoptedAllocator<Api, A>(allocator);
    if (adopted == nullptr) return no_host_memory();
    return make(options, adopted);
  }

  GpuDev(GpuDev&&) noexcept = default;
  GpuDev& operator=(GpuDev&&) noexcept = default;

  /// @pre not moved-from
  Stream stream() const noexcept { return state_->stream; }
  int ordinal() const noexcept { return state_->ordinal; }
  /// What kernels ask of the vendor's driver. @pre not moved-from
  const typename Api::Driver& driver() const noexcept { return state_->driver; }

  /// @return out_of_memory; bad_state while capturing. Contents undefined
  Result<Buffer> alloc(std::size_t n) noexcept {
    if (!state_) return moved_from("alloc", n);
    if (n == 0) return Buffer{};
    void* p = nullptr;
    Status s = state_->run_now("alloc", n, [&] {
      state_->drain();
      if (state_->allocator == nullptr) return Api::allocate(&p, n, state_->pool, state_->stream);
      p = state_->allocator->allocate(state_->stream, n);
      return Api::ok;
    });
    if (!s) return s;
    if (p == nullptr) {
      return Status::failure(ErrorKind::out_of_memory, "alloc", 0, n, "the allocator has no %zu bytes to give", n);
    }
    Buffer made(state_, static_cast<std::byte*>(p), n);
    if (reinterpret_cast<std::uintptr_t>(p) % plane_alignment != 0) {
      return Status::failure(ErrorKind::device_failure, "alloc", 0, n,
                             "the allocator answered %p; expected a multiple of %zu", p, plane_alignment);
    }
    return Result<Buffer>(std::move(made));
  }

  Result<Buffer> zeros(std::size_t n) noexcept {
    Result<Buffer> made = alloc(n);
    if (!made || n == 0) return made;
    if (Status s = fill(made->data(), std::byte{0}, n); !s) return s;
    return made;
  }

  /// @return bad_argument if the ranges overlap; nothing was enqueued then
  Status copy(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    if (detail::ranges_overlap(dst, src, n)) return overlap("copy", n);
    return run("copy", n, [&] { return Api::copy(dst, src, n, state_->stream); });
  }

  /// Overlap is allowed: it is taken apart into pieces that do not overlap, or goes through memory of its own (not
  /// possible while capturing).
  Status move(std::byte* dst, const std::byte* src, std::size_t n) noexcept {
    if (n == 0 || dst == src) return {};
    const bool up = dst > src;
    const auto apart = static_cast<std::size_t>(up ? dst - src : src - dst);
    if (apart >= n) return copy(dst, src, n);
    // Pieces as long as the distance are copied in the order that reads each byte before it is overwritten.
    if (n / apart < most_pieces) return pieces("move", dst, src, n, apart, nullptr, up);
    const std::size_t piece = std::min(n, bounce_bytes);
    auto bounce = alloc(piece);
    if (!bounce) return bounce.status();
    return pieces("move", dst, src, n, piece, bounce->data(), up);
  }

  Status fill(std::byte* dst, std::byte value, std::size_t n) noexcept {
    if (n == 0) return {};
    return run("fill", n, [&] { return Api::set_bytes(dst, std::to_integer<int>(value), n, state_->stream); });
  }

  /// The source has been read when it returns. Refused while capturing.
  Status upload(std::byte* dst, const std::byte* host, std::size_t n) noexcept {
    if (n == 0) return {};
    return run_now("upload", n, [&] { return state_->stage(dst, host, n); });
  }

  /// Waits until the bytes are there. Refused while capturing.
  Status download(std::byte* host, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    return run_now("download", n, [&] {
      const auto e = Api::copy_out(host, src, n, state_->stream);
      return e == Api::ok ? Api::synchronize(state_->stream) : e;
    });
  }

  /// Up to 64 values travel with the calls and may be captured; more are uploaded.
  Status store_i32(std::int32_t* dst, const std::int32_t* values, std::size_t n) noexcept {
    if (n == 0) return {};
    if (n > most_words) {
      return upload(reinterpret_cast<std::byte*>(dst), reinterpret_cast<const std::byte*>(values), n * sizeof(*dst));
    }
    return run("store_i32", n * sizeof(*dst), [&] {
      for (std::size_t i = 0; i < n;) {
        std::size_t same = 1;
        while (i + same < n && values[i + same] == values[i]) ++same;
        const auto e =
            Api::set_words(state_->driver, dst + i, static_cast<std::uint32_t>(values[i]), same, state_->stream);
        if (e != Api::ok) return e;
        i += same;
      }
      return Api::ok;
    });
  }

  /// Waits until everything queued so far is done and reports what failed asynchronously. Refused while capturing.
  Status synchronize() noexcept {
    return run_now("synchronize", 0, [&] { return Api::synchronize(state_->stream); });
  }

  Status publish(Event& e) noexcept {
    if (!state_) return moved_from("publish", 0);
    return run("publish", 0, [&] { return e.record(state_->ordinal, state_->stream); });
  }
  /// An event that was never published orders nothing.
  Status wait(const Event& e) noexcept {
    if (!e) return state_ ? Status{} : moved_from("wait", 0);
    return run("wait", 0, [&] { return Api::wait_event(state_->stream, e.native()); });
  }

  /// BatchedCopyDev. All items are checked before the first is enqueued. Pieces at equal distances go in one call where
  /// the runtime has strided copies; it refuses those that leave an allocation, and pieces of several allocations may
  /// be at equal distances by chance, so pieces of a call that was refused go one by one.
  Status copy_batch(const CopyItem* items, std::size_t n) noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      if (items[i].bytes != 0 && detail::ranges_overlap(items[i].dst, items[i].src, items[i].bytes)) {
        return overlap("copy_batch", items[i].bytes);
      }
    }
    return run("copy_batch", 0, [&] {
      for (std::size_t i = 0; i < n;) {
        const detail::CopyBlock block = copy_block(items + i, n - i);
        const std::size_t end = i + block.period * block.height;
        for (std::size_t j = i; j < i + block.period; ++j) {
          if (items[j].bytes == 0) continue;
          if (block.height != 1) {
            if (copy_strided(items[j], items[j + block.period], block.height) == Api::ok) continue;
            (void)Api::take_last();  // what is wrong in earnest is wrong with a single piece, too
          }
          for (std::size_t k = j; k < end; k += block.period) {
            const auto e = Api::copy(items[k].dst, items[k].src, items[k].bytes, state_->stream);
            if (e != Api::ok) return e;
          }
        }
        i = end;
      }
      return Api::ok;
    });
  }

  /// PeerCopyDev: enqueued on this stream, behind what `from` has now; later work of `from` waits for it. Between two
  /// GPUs that can reach each other directly, else through pinned host memory (refused while capturing then). Memory of
  /// an adopted allocator is for the engine to open to the other device.
  Status copy_peer(std::byte* dst, GpuDev& from, const std::byte* src, std::size_t n) noexcept {
    if (n == 0) return {};
    if (!from.state_) return moved_from("copy_peer", n);
    if (!state_ || state_->stream == from.state_->stream) return copy(dst, src, n);
    const bool local = state_->ordinal == from.state_->ordinal;
    if (local && detail::ranges_overlap(dst, src, n)) return overlap("copy_peer", n);
    if (!local && !(from.state_->open_to(state_->ordinal) && state_->open_to(from.state_->ordinal))) {
      if (Status s = from.run_now("copy_peer", n, [] { return Api::ok; }); !s) return s;
      return run_now("copy_peer", n, [&] { return state_->stage_from(*from.state_, dst, src, n); });
    }
    if (Status s = from.run("copy_peer", n, [&] { return from.state_->lead(state_->stream); }); !s) return s;
    return run("copy_peer", n, [&] {
      auto e = local ? Api::copy(dst, src, n, state_->stream)
                     : Api::copy_peer(dst, state_->ordinal, src, from.state_->ordinal, n, state_->stream);
      if (e == Api::ok) e = state_->lead(from.state_->stream);
      return e;
    });
  }

  /// LaunchDev. One thread per item, 64-bit counts. A body with block_threads is a kernel of whole blocks instead: see
  /// detail/gpu_launch.hpp.
  template <class Body>
  Status launch(const char* name, Grid grid, const Body& body) noexcept {
    static_assert(std::is_trivially_copyable_v<Body>, "memra: a kernel body is copied to the device as bytes");
    static_assert(
        requires { sizeof(detail::GpuLaunch<Api, Body>); },
        "memra: launching needs the backend's ops header in a file that its device compiler reads; a plain C++ file "
        "can hold caches and copy, not launch");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};
    if (!detail::GpuLaunch<Api, Body>::fits(grid)) {
      return Status::failure(ErrorKind::bad_argument, name, 0, 0, "a grid of %zu x %zu x %zu items is too large",
                             grid.x, grid.y, grid.z);
    }
    return run(name, 0, [&] { return detail::GpuLaunch<Api, Body>::run(state_->stream, state_->driver, grid, body); });
  }

  /// CaptureDev.
  Status begin_capture() noexcept {
    return run_now("begin_capture", 0, [&] { return Api::begin_capture(state_->stream); });
  }
  Result<Graph> end_capture() noexcept {
    Graph graph;
    Status s = run("end_capture", 0, [&] { return graph.end(state_); });
    if (!s) return s;
    return Result<Graph>(std::move(graph));
  }
  Status replay(const Graph& graph) noexcept {
    if (!graph) return Status::failure(ErrorKind::bad_argument, "replay", 0, 0, "the graph is empty");
    return run("replay", 0, [&] { return Api::launch_graph(graph.native(), state_->stream); });
  }

  /// Gives unused memory of the own pool back to the system, keeping `keep` bytes.
  Status trim(std::size_t keep = 0) noexcept {
    return run("trim", keep, [&] { return state_->owns_pool ? Api::trim_pool(state_->pool, keep) : Api::ok; });
  }

 private:
  static constexpr std::size_t most_pieces = 256;                     // of a move: more copies cost more than a bounce
  static constexpr std::size_t bounce_bytes = std::size_t{64} << 20;  // well past where a copy reaches full speed
  static constexpr std::size_t most_words = 64;

  explicit GpuDev(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  static Status no_host_memory() noexcept {
    return Status::failure(ErrorKind::out_of_memory, "create", 0, 0, "no host memory for a device object");
  }
  static Status moved_from(const char* op, std::size_t n) noexcept {
    return Status::failure(ErrorKind::bad_state, op, 0, n, "the device is empty (moved-from)");
  }
  static Status overlap(const char* op, std::size_t n) noexcept {
    return Status::failure(ErrorKind::bad_argument, op, 0, n, "source and destination overlap; move allows that");
  }

  static Result<GpuDev> make(const Options& options, detail::GpuAllocator<Api>* allocator) noexcept {
    std::shared_ptr<State> state(new (std::nothrow) State);
    if (!state) {
      delete allocator;
      return no_host_memory();
    }
    state->allocator = allocator;
    state->direct_peers = options.direct_peers;
    state->ordinal = options.ordinal;
    if (options.ordinal < 0) {
      const auto e =
          options.stream ? Api::stream_device(*options.stream, &state->ordinal) : Api::get_device(&state->ordinal);
      if (e != Api::ok) {
        state->ordinal = 0;
        return state->report("create", 0, e);
      }
    }
    Status s = state->run("create", 0, [&] {
      auto e = Api::load(&state->driver);
      if (e == Api::ok && options.stream) state->stream = *options.stream;
      if (e == Api::ok && !options.stream) {
        e = Api::create_stream(&state->stream);
        state->owns_stream = e == Api::ok;
      }
      if (e == Api::ok && allocator == nullptr) {
        e = Api::create_pool(&state->pool, state->ordinal);
        state->owns_pool = e == Api::ok;
      }
      return e;
    });
    if (!s) return s;
    return GpuDev(std::move(state));
  }

  template <class F>
  Status run(const char* op, std::size_t n, const F& f) noexcept {
    return state_ ? state_->run(op, n, f) : moved_from(op, n);
  }
  template <class F>
  Status run_now(const char* op, std::size_t n, const F& f) noexcept {
    return state_ ? state_->run_now(op, n, f) : moved_from(op, n);
  }

  static constexpr bool has_strided = requires { Api::longest_pitch; };
  static detail::CopyBlock copy_block(const CopyItem* items, std::size_t n) noexcept {
    if constexpr (has_strided) return detail::copy_block(items, n, Api::longest_pitch);
    return {};
  }
  /// `height` pieces of which `first` and `second` are the first two.
  typename Api::Error copy_strided(const CopyItem& first, const CopyItem& second, std::size_t height) noexcept {
    if constexpr (has_strided) {
      return Api::copy_strided(first.dst, detail::pitch_between(first.dst, second.dst), first.src,
                               detail::pitch_between(first.src, second.src), first.bytes, height, state_->stream);
    } else {
      return Api::ok;
    }
  }

  /// Copies pieces, last first if `up`, each through `bounce` if there is one.
  Status pieces(const char* op, std::byte* dst, const std::byte* src, std::size_t n, std::size_t piece,
                std::byte* bounce, bool up) noexcept {
    return run(op, n, [&] {
      for (std::size_t done = 0; done < n;) {
        const std::size_t now = std::min(piece, n - done);
        const std::size_t at = up ? n - done - now : done;
        const std::byte* from = src + at;
        if (bounce != nullptr) {
          if (const auto e = Api::copy(bounce, from, now, state_->stream); e != Api::ok) return e;
          from = bounce;
        }
        if (const auto e = Api::copy(dst + at, from, now, state_->stream); e != Api::ok) return e;
        done += now;
      }
      return Api::ok;
    });
  }

  std::shared_ptr<State> state_;
};

}  // namespace memra
