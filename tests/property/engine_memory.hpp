// Memory that an engine has of its own and hands over for a cache, with margins that nobody may touch.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <property/reference.hpp>
#include <property/script.hpp>
#include <span>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace property {

/// An arena per device object of a cache: margin, rows, margin, state, margin, extra, margin.
template <class Dev>
class EngineMemory {
  static constexpr std::size_t margin = memra::plane_alignment;
  static constexpr std::byte mark{0xa7};

 public:
  /// @param kinds  which of {rows, state, extra} are handed over, as bits; the cache allocates the others. 0: nothing
  EngineMemory(const std::vector<Dev*>& stages, const std::vector<std::size_t>& fence, const memra::ModelConfig& cfg,
               std::size_t max_ctx, unsigned kinds) {
    if (kinds == 0) return;
    memra::Placement at;
    at.fence = fence;
    std::vector<Dev*> devs;
    for (Dev* dev : stages) {
      const auto known = std::find(devs.begin(), devs.end(), dev);
      at.device_of.push_back(static_cast<std::size_t>(known - devs.begin()));
      if (known != devs.end()) continue;
      devs.push_back(dev);
      at.plane_gap.push_back(memra::plane_gap_of(*dev));
    }
    const memra::Plan plan = memra::check(memra::plan(cfg, max_ctx, at));
    for (std::size_t d = 0; d < devs.size(); ++d) {
      const std::array<std::size_t, 3> bytes = {plan.devices[d].rows_bytes, plan.devices[d].state_bytes,
                                                plan.devices[d].extra_bytes};
      auto arena = memra::check(devs[d]->alloc(bytes[0] + bytes[1] + bytes[2] + 4 * margin));
      memra::check(devs[d]->fill(arena.data(), mark, arena.size()));
      std::size_t end = 0;
      for (std::size_t k = 0; k < bytes.size(); ++k) {
        margins_.push_back({devs[d], arena.data() + end});
        end += margin;
        const bool given = (kinds >> k) % 2 == 1;
        blocks_.push_back(given ? memra::AdoptedBlock{arena.data() + end, bytes[k]} : memra::AdoptedBlock{});
        end += bytes[k];
      }
      margins_.push_back({devs[d], arena.data() + end});
      arenas_.push_back(std::move(arena));
    }
  }

  std::span<const memra::AdoptedBlock> blocks() const noexcept { return blocks_; }
  /// Buffers that it holds.
  std::size_t buffers() const noexcept { return arenas_.size(); }

  /// The same blocks with something wrong about one of them; empty if there is none to be wrong about.
  std::vector<memra::AdoptedBlock> wrong(unsigned how) const {
    std::vector<memra::AdoptedBlock> b = blocks_;
    const auto used = [](const memra::AdoptedBlock& x) { return x.data != nullptr && x.bytes != 0; };
    const auto one = std::find_if(b.begin(), b.end(), used);
    if (one == b.end()) return {};
    const auto end = b.begin() + (one - b.begin()) / 3 * 3 + 3;  // of this device's
    const auto two = std::find_if(one + 1, end, used);
    if (how % 4 == 0 && two != end) {
      two->data = one->data;
    } else if (how % 4 == 1) {
      one->data += memra::plane_alignment / 2;
    } else if (how % 4 == 2) {
      b.pop_back();
    } else {
      one->bytes -= 1;
    }
    return b;
  }

  /// For a red arm. @pre buffers() != 0
  void spoil_margin() { memra_test::spoil(*margins_.back().first, margins_.back().second); }
  void expect_margins_whole() const {
    for (const auto& [dev, at] : margins_) {
      Bytes got(margin);
      memra::check(dev->download(got.data(), at, margin));
      expect(std::all_of(got.begin(), got.end(), [](std::byte b) { return b == mark; }),
             "a byte beside memory that was handed over was overwritten");
    }
  }

 private:
  std::vector<typename Dev::Buffer> arenas_;
  std::vector<memra::AdoptedBlock> blocks_;
  std::vector<std::pair<Dev*, const std::byte*>> margins_;
};

}  // namespace property
