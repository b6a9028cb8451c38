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
  const char* after = "";  ///< the call that it was seen with: an operation, a kernel, "guard", "free" or "check_now"
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
  /// What allocations of one size are guarded with from their birth.
  struct Layout {
    Region region;  // all of it
    std::unique_ptr<Layout> next;
  };
  struct Block {
    WrapBlock at;
    const Region* planned;  // a Layout's, or nullptr
    std::vector<Region> regions;
    std::unique_ptr<Block> next;

    template <class F>
    void each_region(const F& f) const noexcept {
      if (planned != nullptr) f(*planned);
      for (const Region& r : regions) f(r);
    }
  };

  std::unique_ptr<Layout> layouts;  // for good: blocks point at them
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
    const Region* const planned = planned_for(at.size);
    std::unique_ptr<Block> block(new (std::nothrow) Block{at, planned, {}, nullptr});
    if (!block) return Status::failure(ErrorKind::out_of_memory, "alloc", 0, at.size, "no host memory for guards");
    if (planned != nullptr) {
      if (Status s = lay(dev, *block, *planned); !s) return s;
    }
    block->next = std::move(blocks);
    blocks = std::move(block);
    return {};
  }

  const Region* planned_for(std::size_t size) const noexcept {
    for (const Layout* l = layouts.get(); l != nullptr; l = l->next.get()) {
      if (l->region.size == size) return &l->region;
    }
    return nullptr;
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

  /// Whole allocations and whole regions are written gaps and all (a cache restores its state slab by one copy): that
  /// is no stray write, but one before it would go with the guards, unseen.
  template <class Dev>
  Status writes(Dev& dev, const DevCall& c, const std::byte* dst, std::size_t n) noexcept {
    Status found;
    each_overwritten(dst, n, [&](const Block& b, const Region& r) { note(found, check_region(dev, b, r, c.name)); });
    return found;
  }
  /// Also of a call that failed: it may have overwritten half of the guards, and they were looked at before.
  template <class Dev>
  Status wrote(Dev& dev, const std::byte* dst, std::size_t n) noexcept {
    Status found;
    each_overwritten(dst, n, [&](const Block& b, const Region& r) { note(found, lay(dev, b, r)); });
    return found;
  }
  /// The regions whose guards a bulk write of [dst, dst + n) overwrites by right.
  template <class F>
  void each_overwritten(const std::byte* dst, std::size_t n, const F& f) const noexcept {
    for (const Block* b = blocks.get(); b != nullptr; b = b->next.get()) {
      const bool all = dst == b->at.data && n == b->at.size;
      b->each_region([&](const Region& r) {
        if (all || (dst == b->at.data + r.offset && n == r.size)) f(*b, r);
      });
    }
  }

  template <class Dev>
  Status after(Dev& dev, const DevCall& c) noexcept {
    if (every == 0 || ++seen % every != 0) return {};
    return check_all(dev, c.name);
  }
  /// A lost device lets nobody look.
  template <class Dev>
  Status failed(Dev& dev, const DevCall& c, const Status& s) noexcept {
    return s.kind() == ErrorKind::device_lost ? Status{} : after(dev, c);
  }

  template <class Dev>
  Status check_all(Dev& dev, const char* what) noexcept {
    Status found;
    for (const Block* b = blocks.get(); b != nullptr; b = b->next.get()) {
      note(found, check_block(dev, *b, what));
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
    b.each_region([&](const Region& r) { note(found, check_region(dev, b, r, what)); });
    note(found, check_range(dev, b, back, b.at.block_size - back, what));
    return found;
  }

  template <class Dev>
  Status check_region(Dev& dev, const Block& b, const Region& r, const char* what) noexcept {
    Status found;
    for (const ByteRange& g : r.guards) {
      note(found, check_range(dev, b, front() + g.offset, g.bytes, what));
    }
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
/// where the planes are (guard, guard_sized, guard_planes), everything between planes: plane_gap() makes plans leave 64
/// bytes or more.
///
/// Guards are looked at
/// - after every call (or every k-th: check_every), whether it went well or failed: a kernel may overrun and fail;
/// - before they are laid again: bulk writes of exactly a whole allocation or a whole guarded region are taken for what
///   they are, and the guards in it are looked at before and laid again after, even if the write failed;
/// - on free, while the device is there, and by check_now.
/// They are not after a call that says device_lost, and not before or after one that never came here: what a FaultDev
/// around this one refuses. The next look finds what was written then.
///
/// A violation is the Status of the call that it was seen with, device_failure with the allocation, the offset, what
/// was expected and found; the call itself has been carried out. Of a call that failed it can only be counted, as on
/// free: the Status says how the call failed. Look at violations() in the end. The guard is then laid again, so one
/// stray write is reported once.
///
/// Looking means downloading: on a device with a queue every call then waits. Put an OrderedDev around this one, not
/// inside. Host memory for the list of allocations is taken as needed.
template <class Dev>
class CanaryDev : public detail::WrapDev<Dev, detail::CanaryPolicy> {
  using Base = detail::WrapDev<Dev, detail::CanaryPolicy>;
  using Policy = detail::CanaryPolicy;

 public:
  using Base::Base;

  /// Guards the bytes of [start, start + bytes) that are not payload, from now on until the allocation is freed.
  /// Overwrites them, so nothing of the caller's may be there. Asked again with the same start it replaces the region,
  /// after a last look at it.
  ///
  /// @param start    inside a live allocation of this device, as is start + bytes
  /// @param payload  ranges from `start`, ascending, not overlapping, inside `bytes`; pads that kernels may touch
  /// included
  /// @return bad_argument (nothing guarded), a violation of the region replaced, or what the wrapped device says
  Status guard(const std::byte* start, std::size_t bytes, std::span<const ByteRange> payload) {
    for (Policy::Block* b = this->policy().blocks.get(); b != nullptr; b = b->next.get()) {
      const auto from = reinterpret_cast<std::uintptr_t>(start);
      const auto data = reinterpret_cast<std::uintptr_t>(b->at.data);
      if (from < data || from - data > b->at.size || bytes > b->at.size - (from - data)) continue;
      Policy::Region region{from - data, bytes, {}};
      if (Status s = leave_gaps(region, payload); !s) return s;
      Status found;
      b->each_region([&](const auto& r) {
        if (r.offset != region.offset) return;
        detail::note(found, this->policy().check_region(this->inner(), *b, r, "guard"));
      });
      if (region.offset == 0) b->planned = nullptr;
      std::erase_if(b->regions, [&](const auto& r) { return r.offset == region.offset; });
      b->regions.push_back(std::move(region));
      detail::note(found, this->policy().lay(this->inner(), *b, b->regions.back()));
      return found;
    }
    return bad_guard(bytes, "the region lies in no live allocation of this device");
  }

  /// Guards what is not payload in every allocation of exactly `bytes` bytes that is made from now on, from its birth
  /// to its end: for what is filled before anybody can ask where it is. Give it sizes that nothing else has.
  ///
  /// @param payload  as of guard
  /// @return bad_argument (nothing changed): of the ranges, or that size is guarded in another way
  Status guard_sized(std::size_t bytes, std::span<const ByteRange> payload) {
    Policy::Region region{0, bytes, {}};
    if (Status s = leave_gaps(region, payload); !s) return s;
    if (const Policy::Region* known = this->policy().planned_for(bytes)) {
      const bool same =
          std::equal(known->guards.begin(), known->guards.end(), region.guards.begin(), region.guards.end(),
                     [](const ByteRange& a, const ByteRange& b) { return a.offset == b.offset && a.bytes == b.bytes; });
      return same ? Status{} : bad_guard(bytes, "allocations of this size are guarded in another way");
    }
    auto& layouts = this->policy().layouts;
    layouts.reset(new Policy::Layout{std::move(region), std::move(layouts)});
    return {};
  }

  /// Looks at every guard after every k-th call, failed ones included; 0: only before guards are laid again, on free
  /// and by check_now. 1 at first.
  void check_every(std::size_t k) noexcept { this->policy().every = k; }
  /// Looks at every guard of every live allocation.
  Status check_now() noexcept { return this->policy().check_all(this->inner(), "check_now"); }

  /// Violations seen since the device was made: what a test looks at in the end.
  std::size_t violations() const noexcept { return this->policy().violations; }
  const std::optional<CanaryViolation>& first_violation() const noexcept { return this->policy().first; }

 private:
  static Status bad_guard(std::size_t bytes, const char* why) noexcept {
    return Status::failure(ErrorKind::bad_argument, "guard", 0, bytes, "%s", why);
  }

  /// Guards of a region: what `payload` leaves of it.
  static Status leave_gaps(Policy::Region& region, std::span<const ByteRange> payload) {
    std::size_t end = 0;
    for (const ByteRange& p : payload) {
      if (p.offset < end || p.offset > region.size || p.bytes > region.size - p.offset) {
        return bad_guard(region.size,
                         "a payload range is out of order or outside; expected ascending ranges inside the region");
      }
      if (p.offset > end) region.guards.push_back({region.offset + end, p.offset - end});
      end = p.offset + p.bytes;
    }
    if (end < region.size) region.guards.push_back({region.offset + end, region.size - end});
    return {};
  }
};

static_assert(check_kv_dev<CanaryDev<HostDev>>());

}  // namespace memra
