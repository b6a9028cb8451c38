// CanaryDev: one byte outside a plane is one byte too many, whoever wrote it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/launch.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/plan.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/op_model.hpp>
#include <support/stand_in.hpp>
#include <variant>
#include <vector>

namespace wrappers_canary_cpp {
namespace {

using memra::ByteRange;
using memra::ErrorKind;
using Dev = memra::CanaryDev<memra::HostDev>;

struct Poke {
  std::byte* at;
  void operator()(const memra::Item&) const noexcept { *at = std::byte{0x42}; }
};

/// One launch that writes one byte.
memra::Status poke(Dev& dev, const std::byte* at) {
  return memra::launch(dev, "poke", memra::Grid{}, Poke{const_cast<std::byte*>(at)});
}

TEST_CASE("CanaryDev reports the first byte before and behind an allocation", "[wrappers]") {
  for (const std::ptrdiff_t at : {-1, -256, 1000, 1001, 1000 + 256}) {
    Dev dev;
    auto other = memra::check(dev.alloc(10));
    auto b = memra::check(dev.alloc(1000));
    REQUIRE(poke(dev, b.data()).ok());
    REQUIRE(poke(dev, b.data() + 999).ok());
    const memra::Status s = poke(dev, b.data() + at);
    REQUIRE(s.kind() == ErrorKind::device_failure);
    REQUIRE(std::string(s.operation()) == "poke");
    char words[80];
    std::snprintf(words, sizeof words, "offset %td of allocation 2 (1000 bytes) is 0x42, expected 0xc5", at);
    REQUIRE(std::string(s.text()).find(words) != std::string::npos);
    REQUIRE(dev.violations() == 1);
    REQUIRE(dev.first_violation()->allocation == 2);
    REQUIRE(dev.first_violation()->offset == at);
    REQUIRE(dev.first_violation()->found == std::byte{0x42});
    REQUIRE(dev.synchronize().ok());  // reported once
    REQUIRE(dev.violations() == 1);
  }
}

TEST_CASE("CanaryDev looks on free and every k-th time", "[wrappers]") {
  Dev dev;
  dev.check_every(0);
  {
    auto b = memra::check(dev.zeros(100));
    REQUIRE(poke(dev, b.data() + 100).ok());
    REQUIRE(dev.violations() == 0);
  }
  REQUIRE(dev.violations() == 1);
  REQUIRE(std::string(dev.first_violation()->after) == "free");
  dev.check_every(3);
  auto b = memra::check(dev.zeros(100));
  REQUIRE(poke(dev, b.data() + 100).ok());
  REQUIRE_FALSE(dev.synchronize().ok());
  REQUIRE(poke(dev, b.data() - 1).ok());
  REQUIRE_FALSE(dev.check_now().ok());
  REQUIRE(dev.check_now().ok());
}

TEST_CASE("CanaryDev guards what is not payload, and refuses ranges that make no sense", "[wrappers]") {
  Dev dev;
  auto b = memra::check(dev.alloc(1024));
  const std::array<ByteRange, 2> planes = {ByteRange{0, 100}, ByteRange{256, 300}};
  REQUIRE(dev.guard(b.data(), 1024, planes).ok());
  for (const std::size_t in : {0U, 99U, 256U, 555U}) REQUIRE(poke(dev, b.data() + in).ok());
  for (const std::size_t out : {100U, 255U, 556U, 1023U}) REQUIRE_FALSE(poke(dev, b.data() + out).ok());
  REQUIRE(dev.violations() == 4);

  // A bulk write that runs past a plane is a violation; one of the whole region lays the guards again.
  REQUIRE_FALSE(dev.fill(b.data(), std::byte{0}, 101).ok());
  REQUIRE(dev.fill(b.data(), std::byte{0}, 1024).ok());
  REQUIRE_FALSE(poke(dev, b.data() + 100).ok());

  const std::array<ByteRange, 2> backwards = {ByteRange{256, 300}, ByteRange{0, 100}};
  REQUIRE(dev.guard(b.data(), 1024, backwards).kind() == ErrorKind::bad_argument);
  const std::array<ByteRange, 1> too_long = {ByteRange{1000, 25}};
  REQUIRE(dev.guard(b.data(), 1024, too_long).kind() == ErrorKind::bad_argument);
  REQUIRE(dev.guard(b.data(), 1025, {}).kind() == ErrorKind::bad_argument);
  std::byte elsewhere{};
  REQUIRE(dev.guard(&elsewhere, 1, {}).kind() == ErrorKind::bad_argument);
}

/// Every byte of every slab, poked one at a time: payload and tail pad may be written, everything else is noticed.
/// @param split   layers [0, split) are on one device, the others on another
/// @param layers  of each a layer that has a convolution and a recurrent state first
void no_byte_is_unguarded(const memra::ModelConfig& cfg, std::size_t split, std::array<std::size_t, 2> layers,
                          memra::Strategy by) {
  Dev dev;
  Dev other;
  Dev* const devs[] = {&dev, &other};
  const std::size_t fence[] = {0, split, cfg.layers.size()};
  auto options = memra_test::all_rounds(2);
  options.rounds.stash = by == memra::Strategy::stash;
  auto cache = memra::check(memra::Cache<Dev>::create_ppn(devs, fence, cfg, 3, options));
  REQUIRE(memra::guard_planes(cache).ok());
  const auto& plan = cache.plan();
  auto round = memra::check(cache.begin_round(1, by));
  for (std::size_t d = 0; d < 2; ++d) {
    devs[d]->check_every(0);
    const std::size_t layer = layers[d];
    std::size_t n_recurrent = 0;
    for (std::size_t il = fence[d]; il < fence[d + 1]; ++il) {
      for (const auto& s : cfg.layers[il].states) n_recurrent += std::holds_alternative<memra::RecurrentSpec>(s);
    }
    // Where the slabs are, as the views say.
    const auto plane = [&](memra::PlaneKind kind) {
      return *std::find_if(plan.planes.begin(), plan.planes.end(),
                           [&](const auto& p) { return p.layer == layer && p.kind == kind; });
    };
    const auto view = memra::check(round.recur(layer));
    const std::byte* starts[] = {
        reinterpret_cast<const std::byte*>(cache.pos_d(d)) - plan.stages[d].pos_offset,
        cache.recur(layer)->conv_data - plane(memra::PlaneKind::conv).offset,
        reinterpret_cast<const std::byte*>(view.round.conv_rows) - plane(memra::PlaneKind::round_conv).offset};
    for (const auto slab : {memra::SlabKind::rows, memra::SlabKind::state, memra::SlabKind::extra}) {
      CAPTURE(d, static_cast<int>(slab));
      std::vector<bool> free(plan.devices[d].bytes(slab), false);
      const auto may = [&](std::size_t at, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) free[at + i] = true;
      };
      for (const auto& p : plan.planes) {
        if (p.device != d || p.slab != slab) continue;
        REQUIRE(p.pad >= 64);  // the gap that CanaryDev asks for
        may(p.offset, p.payload + p.tail_pad);
      }
      if (slab == memra::SlabKind::rows) may(plan.stages[d].pos_offset, 4);
      if (slab == memra::SlabKind::extra) {
        may(plan.stages[d].round_offset, sizeof(memra::RoundWords));
        may(plan.stages[d].round_offset + memra::plane_alignment, n_recurrent * sizeof(memra::RecurView));
        may(plan.devices[d].replay_offset, plan.devices[d].state_bytes);
      }
      std::size_t guarded = 0;
      for (std::size_t i = 0; i < free.size(); i += 1 + i % 5) {
        REQUIRE(poke(*devs[d], starts[static_cast<int>(slab)] + i).ok());
        REQUIRE(devs[d]->check_now().ok() == free[i]);
        guarded += free[i] ? 0 : 1;
      }
      REQUIRE(guarded > 100);
    }
  }
}

TEST_CASE("guard_planes leaves no byte between the planes of a cache unguarded", "[wrappers]") {
  no_byte_is_unguarded(memra_test::hybrid_model(), 3, {0, 5}, memra::Strategy::stash);
  no_byte_is_unguarded(memra_test::kinds_model(), 5, {0, 5},
                       memra::Strategy::planes);  // rings, latent and grouped rows, every rule
}

TEST_CASE("guard_planes of a draft cache, through another wrapper", "[wrappers]") {
  memra::OrderedDev<Dev> dev;
  memra::DflashCfg cfg;
  cfg.n_layer = 2;
  cfg.n_kv = 1;
  cfg.head_dim = 8;
  cfg.block_size = 4;
  cfg.sliding_window = 8;
  auto kv = memra::check(memra::DflashKv<memra::OrderedDev<Dev>>::create(dev, cfg, 16));
  REQUIRE(memra::guard_planes(kv).ok());
  const auto* v = reinterpret_cast<const std::byte*>(kv.v(1));
  REQUIRE(poke(dev.inner(), v + 20 * 32 - 1).ok());
  REQUIRE_FALSE(poke(dev.inner(), v + 20 * 32).ok());
  REQUIRE_FALSE(poke(dev.inner(), reinterpret_cast<const std::byte*>(kv.k(0)) - 1).ok());
}

TEST_CASE("a forward that writes one byte past a plane is caught by the next call", "[wrappers]") {
  Dev dev;
  const auto cfg = memra_test::attention_model();
  auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 4));
  REQUIRE(memra::guard_planes(cache).ok());
  REQUIRE(memra_test::feed_by(cache, memra_test::stream(3), 3).ok());
  const auto k = cache.kv(0)->k;
  const std::size_t end = memra::sub_planes(k.shape).bytes;
  REQUIRE(cache.begin_step(1).ok());
  const_cast<std::byte*>(k.data)[end + memra::kv_tail_pad - 1] = std::byte{1};  // the pad that kernels may touch
  REQUIRE(dev.synchronize().ok());
  const_cast<std::byte*>(k.data)[end + memra::kv_tail_pad] = std::byte{1};
  REQUIRE_FALSE(dev.synchronize().ok());
}

}  // namespace
}  // namespace wrappers_canary_cpp
