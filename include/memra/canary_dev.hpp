// CanaryDev: a device with guard bytes around every allocation and every plane.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/wrap_dev.hpp>
#include <memra/dev_call.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace memra {

/// Bytes [offset, offset + bytes) of something.
struct ByteRange {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// A guard byte that somebody overwrote.
struct CanaryViolation {
  std::size_t allocation = 0;  ///< number of the allocation, from 1 in order of alloc and zeros
  std::size_t size = 0;        ///< its bytes
  std::ptrdiff_t offset = 0;   ///< of the byte from the allocation's data(); negative before it
  std::byte expected{};
  std::byte found{};
  const char* after = "";  ///< the call after which it was seen: an operation, a kernel, "free" or "check_now"
};

namespace detail {

struct CanaryPolicy : WrapPolicy {
  static constexpr std::byte mark{0xc5};
  static constexpr std::size_t plane_guard = 64;  // at least; the plan rounds up to plane_alignment

  struct Region {
    std::size_t offset;  // from data
    std::size_t size;
    std::vector<ByteRange> guards;  // from data
  };
  struct Block {
    WrapBlock at;
    std::vector<Region> regions;
    std::unique_ptr<Block> next;
  };

  std::unique_ptr<Block> blocks;
  std::size_t every = 1;
  std::size_t seen = 0;
  std::size_t violations = 0;
  std::optional<CanaryViolation> first;

  std::size_t front() const noexcept { return plane_alignment; }
  std::size_t whole(std::size_t n) const noexcept {
    return n > SIZE_MAX - 3 * plane_alignment ? 0 : (n / plane_alignment + 3) * plane_alignment;
  }
  std::size_t gap() const noexcept { return plane_guard; }

  template <class Dev>
  Status born(Dev& dev, const WrapBlock& at, bool) noexcept {
    const std::size_t back = front() + at.size;
    if (Status s = dev.fill(at.block, mark, front()); !s) return s;
    if (Status s = dev.fill(at.block + back, mark, at.block_size - back); !s) return s;
    std::unique_ptr<Block> block(new (std::nothrow) Block{at, {}, nullptr});
    if (!block) return Status::failure(ErrorKind::out_of_memory, "alloc", 0, at.size, "no host memory for guards");
    block->next = std::move(blocks);
    blocks = std::move(block);
    return {};
  }

  template <class Dev>
  void dying(Dev* dev, const WrapBlock& at) noexcept {
    for (std::unique_ptr<Block>* b = &blocks; *b; b = &(*b)->next) {
      if ((*b)->at.id != at.id) continue;
      if (dev != nullptr) static_cast<void>(check_block(*dev, **b, "free").ok());  // counted; a free cannot report
      *b = std::move((*b)->next);
      return;
    }
  }

  /// Whole allocations and whole regions are written gaps and all (a cache restores its state slab by one copy).
  template <class Dev>
  Status wrote(Dev& dev, const std::byte* dst, std::size_t n) noexcept {
    for (const Block* b = blocks.get(); b != nullptr; b = b->next.get()) {
      const bool all = dst == b->at.data && n == b->at.size;
      for (const Region& r : b->regions) {
        if (!all && !(dst == b->at.data + r.offset && n == r.size)) continue;
        if (Status s = lay(dev, *b, r); !s) return s;
      }
    }
    return {};
  }

  template <class Dev>
  Status after(Dev& dev, const DevCall& c) noexcept {
    if (every == 0 || ++seen % every != 0) return {};
    return check_all(dev, c.name);
  }

  template <class Dev>
  Status check_all(Dev& dev, const char* what) noexcept {
    Status found;
    for (const Block* b = blocks.get(); b != nullptr; b = b->next.get()) {
      Status s = check_block(dev, *b, what);
      if (!s && found.ok()) found = s;
    }
    return found;
  }

  template <class Dev>
  static Status lay(Dev& dev, const Block& b, const Region& r) noexcept {
    for (const ByteRange& g : r.guards) {
      if (Status s = dev.fill(b.at.data + g.offset, mark, g.bytes); !s) return s;
    }
    return {};
  }

  template <class Dev>
  Status check_block(Dev& dev, const Block& b, const char* what) noexcept {
    const std::size_t back = front() + b.at.size;
    Status found = check_range(dev, b, 0, front(), what);
    const auto look = [&](std::size_t offset, std::size_t n) {
      Status s = check_range(dev, b, offset, n, what);
      if (!s && found.ok()) found = s;
    };
    for (const Region& r : b.regions) {
      for (const ByteRange& g : r.guards) look(front() + g.offset, g.bytes);
    }
    look(back, b.at.block_size - back);
    return found;
  }

  /// @param offset  from the block's first byte
  template <class Dev>
  Status check_range(Dev& dev, const Block& b, std::size_t offset, std::size_t n, const char* what) noexcept {
    std::array<std::byte, 512> piece;
    for (std::size_t done = 0; done < n; done += piece.size()) {
      const std::size_t now = std::min(piece.size(), n - done);
      if (Status s = dev.download(piece.data(), b.at.block + offset + done, now); !s) return s;
      const auto* const end = piece.data() + now;
      const auto* const bad =
          std::find_if(static_cast<const std::byte*>(piece.data()), end, [](std::byte x) { return x != mark; });
      if (bad == end) continue;
      const auto at =
          static_cast<std::ptrdiff_t>(offset + done) + (bad - piece.data()) - static_cast<std::ptrdiff_t>(front());
      const CanaryViolation v{b.at.id, b.at.size, at, mark, *bad, what};
      ++violations;
      if (!first) first = v;
      // Laid again, so that one stray write is reported once.
      if (Status s = dev.fill(b.at.block + offset, mark, n); !s) return s;
      return Status::failure(ErrorKind::device_failure, what, 0, b.at.size,
                             "a guard byte at offset %td of allocation %zu (%zu bytes) is 0x%02x, expected 0x%02x: "
                             "something wrote outside its plane before or during this call",
                             v.offset, v.allocation, v.size, std::to_integer<unsigned>(v.found),
                             std::to_integer<unsigned>(v.expected));
    }
    return {};
  }
};

}  // namespace detail

/// A KvDev over `Dev` that guards the 256 bytes before every allocation, at least as many behind it, and, once told
/// where the planes are (guard, guard_planes), everything between planes: plane_gap() makes plans leave 64 bytes or
/// more.
///
/// Guards are looked at after every call that went well (or every k-th: check_every) and on free. A violation is the
/// Status of the call after which it was seen, device_failure with the allocation, the offset, what was expected and
/// found; the call itself has been carried out. On free it can only be counted: look at violations(). The guard is then
/// laid again, so one stray write is reported once. Bulk writes of exactly a whole allocation or a whole guarded region
/// are taken for what they are, and its guards are laid again.
///
/// Looking means downloading: on a device with a queue every call then waits. Put an OrderedDev around this one, not
/// inside. Host memory for the list of allocations is taken as needed.
template <class Dev>
class CanaryDev : public detail::WrapDev<Dev, detail::CanaryPolicy> {
  using Base = detail::WrapDev<Dev, detail::CanaryPolicy>;

 public:
  using Base::Base;

  /// Guards the bytes of [start, start + bytes) that are not payload, from now on until the allocation is freed.
  /// Overwrites them, so nothing of the caller's may be there. Asked again with the same start it replaces the region.
  ///
  /// @param start    inside a live allocation of this device, as is start + bytes
  /// @param payload  ranges from `start`, ascending, not overlapping, inside `bytes`; pads that kernels may touch
  /// included
  /// @return bad_argument (nothing guarded), or what the wrapped device says
  Status guard(const std::byte* start, std::size_t bytes, std::span<const ByteRange> payload) {
    const auto bad = [&](const char* s) {
      return Status::failure(ErrorKind::bad_argument, "guard", 0, bytes, "%s", s);
    };
    for (detail::CanaryPolicy::Block* b = this->policy().blocks.get(); b != nullptr; b = b->next.get()) {
      const auto from = reinterpret_cast<std::uintptr_t>(start);
      const auto data = reinterpret_cast<std::uintptr_t>(b->at.data);
      if (from < data || from - data > b->at.size || bytes > b->at.size - (from - data)) continue;
      detail::CanaryPolicy::Region region{from - data, bytes, {}};
      std::size_t end = 0;
      for (const ByteRange& p : payload) {
        if (p.offset < end || p.offset > bytes || p.bytes > bytes - p.offset) {
          return bad("a payload range is out of order or outside; expected ascending ranges inside the region");
        }
        if (p.offset > end) region.guards.push_back({region.offset + end, p.offset - end});
        end = p.offset + p.bytes;
      }
      if (end < bytes) region.guards.push_back({region.offset + end, bytes - end});
      std::erase_if(b->regions, [&](const auto& r) { return r.offset == region.offset; });
      b->regions.push_back(std::move(region));
      return this->policy().lay(this->inner(), *b, b->regions.back());
    }
    return bad("the region lies in no live allocation of this device");
  }

  /// Looks at every guard after every k-th call; 0: only on free and by check_now. 1 at first.
  void check_every(std::size_t k) noexcept { this->policy().every = k; }
  /// Looks at every guard of every live allocation.
  Status check_now() noexcept { return this->policy().check_all(this->inner(), "check_now"); }

  /// Violations seen since the device was made: what a test looks at in the end.
  std::size_t violations() const noexcept { return this->policy().violations; }
  const std::optional<CanaryViolation>& first_violation() const noexcept { return this->policy().first; }
};

static_assert(check_kv_dev<CanaryDev<HostDev>>());

}  // namespace memra
