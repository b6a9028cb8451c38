// Bytes over a transport: directly where it reaches the memory, through memory it reaches where it does not.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memra/detail/copy_between.hpp>
#include <memra/detail/copy_runs.hpp>
#include <memra/detail/handover_pieces.hpp>
#include <memra/detail/wire.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <memra/transport.hpp>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace memra::detail {

/// What the receiver answers: a kind and a sentence, of fixed size.
inline constexpr std::size_t verdict_bytes = 256;

/// Memory that a transport reaches.
template <class T>
struct StageMemory {
  using Type = std::unique_ptr<std::byte[]>;
};
template <class T>
requires requires(T& t) {
  t.device();
}
struct StageMemory<T> {
  using Type = std::optional<typename std::remove_cvref_t<decltype(std::declval<T&>().device())>::Buffer>;
};

/// One side of a hand-over. After a failure nothing of the caller's is in the transport's hands any more.
template <class T>
class HandoverLink {
  static_assert(Transport<T>,
                "memra: a hand-over needs a Transport: noexcept `Status send(const std::byte*, std::size_t)`, `Status "
                "receive(std::byte*, std::size_t)`, `Status flush()` and `limit()` in milliseconds");
  static constexpr bool on_device = requires(T & t) { t.device(); };

 public:
  /// @param message  most bytes of one send of a piece; a multiple of 8
  explicit HandoverLink(T& transport, std::size_t message = 0) noexcept : link_(&transport), message_(message) {}
  void set_message(std::size_t bytes) noexcept { message_ = bytes; }

  Status send_host(std::span<const std::byte> bytes) noexcept {
    if (bytes.empty()) return {};
    if constexpr (on_device) {
      if (Status s = need(bytes.size()); !s) return s;
      if (Status s = link_->device().upload(staged(), bytes.data(), bytes.size()); !s) return s;
      return settle(link_->send(staged(), bytes.size()));
    } else {
      return settle(link_->send(bytes.data(), bytes.size()));
    }
  }

  Status receive_host(std::span<std::byte> bytes) noexcept {
    if (bytes.empty()) return {};
    if constexpr (on_device) {
      if (Status s = need(bytes.size()); !s) return s;
      if (Status s = settle(link_->receive(staged(), bytes.size())); !s) return s;
      return link_->device().download(bytes.data(), staged(), bytes.size());
    } else {
      return settle(link_->receive(bytes.data(), bytes.size()));
    }
  }

  /// Has the staging memory that these pieces will need: where there is none, that is known before a message goes.
  template <class Dev>
  Status prepare(std::span<const PlacedPiece<Dev>> pieces) {
    std::size_t most = 0;
    const auto look = [&](std::span<const Run<Dev>> runs, std::size_t n) -> Status {
      if (!direct(runs)) most = std::max(most, n);
      return {};
    };
    if (Status s = each_message(pieces, look); !s) return s;
    return need(most);
  }

  template <class Dev>
  Status send(std::span<const PlacedPiece<Dev>> pieces) {
    return each_message(pieces, [&](std::span<const Run<Dev>> runs, std::size_t n) -> Status {
      if (direct(runs)) return link_->send(runs[0].at, n);
      if (Status s = need(n); !s) return s;
      if (Status s = stage<true>(runs); !s) return s;
      if (Status s = link_->send(staged(), n); !s) return s;
      return link_->flush();
    });
  }

  template <class Dev>
  Status receive(std::span<const PlacedPiece<Dev>> pieces) {
    return each_message(pieces, [&](std::span<const Run<Dev>> runs, std::size_t n) -> Status {
      if (direct(runs)) return link_->receive(runs[0].at, n);
      if (Status s = need(n); !s) return s;
      if (Status s = link_->receive(staged(), n); !s) return s;
      if (Status s = link_->flush(); !s) return s;
      return stage<false>(runs);
    });
  }

  /// Tells the sender; ok means go on, or taken.
  Status send_verdict(const Status& verdict) noexcept {
    std::array<std::byte, verdict_bytes> bytes{};
    bytes[0] = static_cast<std::byte>(verdict.kind());
    static_assert(Status::text_capacity + 8 <= verdict_bytes);
    std::memcpy(bytes.data() + 8, verdict.text(), std::strlen(verdict.text()));
    return send_host(bytes);
  }

  /// @return what the receiver said, under the name of `call`; link_failure if it said nothing
  Status receive_verdict(const char* call) noexcept {
    std::array<std::byte, verdict_bytes> bytes{};
    if (Status s = receive_host(bytes); !s) return s;
    const auto kind = std::to_integer<std::uint8_t>(bytes[0]);
    if (kind == 0) return {};
    std::array<char, verdict_bytes - 8> text{};
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      const auto c = std::to_integer<char>(bytes[i + 8]);
      if (c == '\0') break;
      text[i] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    const bool known = kind <= static_cast<std::uint8_t>(ErrorKind::link_failure);
    return Status::failure(known ? static_cast<ErrorKind>(kind) : ErrorKind::corrupt, call, 0, 0,
                           "the receiver refused: %s", text.data());
  }

 private:
  template <class Dev>
  bool reaches(Dev& dev) const noexcept {
    if constexpr (DeviceTransport<T, Dev>) {
      return &link_->device() == &dev;
    } else {
      static_cast<void>(dev);
      return !on_device && std::is_same_v<Dev, HostDev>;
    }
  }

  /// Contiguous bytes of one device.
  template <class Dev>
  struct Run {
    Dev* dev;
    std::byte* at;
    std::size_t bytes;
  };

  /// Whether a message goes from or to where it is.
  template <class Dev>
  bool direct(std::span<const Run<Dev>> runs) const noexcept {
    return runs.size() == 1 && reaches(*runs[0].dev);
  }

  /// A message's runs go to staging memory, or come from there; what is on the transport's own device in one call:
  /// columns of a plane lie at equal distances.
  template <bool Out, class Dev>
  Status stage(std::span<const Run<Dev>> runs) {
    std::byte* at = staged();
    std::vector<CopyItem> here;
    for (const Run<Dev>& r : runs) {
      Status s;
      if constexpr (!on_device) {
        s = Out ? r.dev->download(at, r.at, r.bytes) : r.dev->upload(r.at, at, r.bytes);
      } else if (reaches(*r.dev)) {
        here.push_back(Out ? CopyItem{at, r.at, r.bytes} : CopyItem{r.at, at, r.bytes});
      } else {
        s = Out ? copy_between(link_->device(), at, *r.dev, r.at, r.bytes)
                : copy_between(*r.dev, r.at, link_->device(), at, r.bytes);
      }
      if (!s) return s;
      at += r.bytes;
    }
    if constexpr (on_device) {
      if (!here.empty()) return copy_all(link_->device(), here.data(), here.size());
    }
    return {};
  }

  /// Calls f(where, bytes) for every message. Both sides cut in the same places, which depend on nothing but the
  /// pieces: a run of pieces that join ends a message, and so does message_ bytes. Where the bytes of a message lie
  /// together they are one run.
  template <class Dev, class F>
  Status each_message(std::span<const PlacedPiece<Dev>> pieces, const F& f) {
    std::vector<Run<Dev>> runs;
    std::size_t held = 0;
    const auto emit = [&]() -> Status {
      if (held == 0) return {};
      Status s = f(std::span<const Run<Dev>>(runs), held);
      runs.clear();
      held = 0;
      return s;
    };
    for (const PlacedPiece<Dev>& p : pieces) {
      if (!p.joins) {
        if (Status s = emit(); !s) return settle(s);
      }
      for (std::size_t done = 0; done < p.bytes;) {
        const std::size_t now = std::min(message_ - held, p.bytes - done);
        std::byte* at = p.at + done;
        if (!runs.empty() && runs.back().dev == p.dev && runs.back().at + runs.back().bytes == at) {
          runs.back().bytes += now;
        } else {
          runs.push_back({p.dev, at, now});
        }
        held += now;
        done += now;
        if (held < message_) continue;
        if (Status s = emit(); !s) return settle(s);
      }
    }
    return settle(emit());
  }

  /// Waits for what was handed to the transport, whatever came of the last call. That earlier work failed is not said
  /// again: it goes before what failed last.
  Status settle(const Status& last) noexcept {
    Status flushed = link_->flush();
    return last || flushed.asynchronous() ? flushed : last;
  }

  std::byte* staged() const noexcept {
    if constexpr (on_device) {
      return stage_->data();
    } else {
      return stage_.get();
    }
  }

  /// Staging memory of at least n bytes.
  Status need(std::size_t n) noexcept {
    if (n <= staged_bytes_) return {};
    staged_bytes_ = 0;
    if constexpr (on_device) {
      auto made = link_->device().alloc(n);
      if (!made) return made.status();
      stage_.emplace(*std::move(made));
    } else {
      stage_.reset(new (std::nothrow) std::byte[n]);
      if (!stage_) {
        return Status::failure(ErrorKind::out_of_memory, "handover", 0, n, "no host memory to stage a message");
      }
    }
    staged_bytes_ = n;
    return {};
  }

  T* link_;
  std::size_t message_;
  typename StageMemory<T>::Type stage_;
  std::size_t staged_bytes_ = 0;
};

}  // namespace memra::detail
