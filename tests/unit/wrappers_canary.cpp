// CanaryDev: one byte outside a plane is one byte too many, whoever wrote it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memra/cache.hpp>
#include <memra/canary_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/fault_dev.hpp>
#include <memra/guard_planes.hpp>
#include <memra/host_dev.hpp>
#include <memra/launch.hpp>
#include <memra/ordered_dev.hpp>
#include <memra/placement.hpp>
#include <memra/plan.hpp>
#include <memra/poison_dev.hpp>
#include <memra/round_views.hpp>
#include <memra/views.hpp>
#include <span>
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

/// One launch that writes one byte and fails.
template <class D>
memra::Status poke_and_fail(D& dev, const std::byte* at) {
  return dev.through("broken", [at](auto&) {
    *const_cast<std::byte*>(at) = std::byte{0x42};
    return memra::Status::failure(ErrorKind::device_failure, "broken", 7, 0, "the kernel faulted");
  });
}

TEST_CASE("a kernel that overruns and fails is seen before a rollback or a reset lays the guards again", "[wrappers]") {
  for (const std::size_t every : {0U, 1U}) {
    for (const bool rollback : {false, true}) {
      CAPTURE(every, rollback);
      Dev dev;
      const auto cfg = memra_test::hybrid_model();
      auto cache = memra::check(memra::Cache<Dev>::create(dev, cfg, 8));
      memra::check(memra::guard_planes(cache));
      memra::check(memra_test::feed(cache, memra_test::stream(2)));
      const auto snap = memra::check(cache.snapshot());
      dev.check_every(every);
      const auto conv = *cache.recur(0);
      const memra::Status s =
          poke_and_fail(dev, reinterpret_cast<const std::byte*>(conv.conv + conv.conv_elems()) + memra::kv_tail_pad);
      REQUIRE((s.native() == 7 && std::string(s.operation()) == "broken"));  // how it failed, not what it overran
      REQUIRE(dev.violations() == every);
      const memra::Status repair = rollback ? cache.rollback(snap, 0).status() : cache.reset();
      REQUIRE(repair.ok() == (every == 1));
      REQUIRE(dev.violations() == 1);
      REQUIRE(std::string(dev.first_violation()->after) == (every == 1 ? "broken" : rollback ? "copy" : "fill"));
      // Reported once; and what the call did was done.
      REQUIRE(dev.check_now().ok());
      memra::check(rollback ? cache.rollback(snap, 0).status() : cache.reset());
      REQUIRE(memra_test::image(cache) ==
              memra_test::straight(cfg, rollback ? memra_test::stream(2) : memra_test::Tokens{}));
      REQUIRE(dev.violations() == 1);
    }
  }
}

TEST_CASE("CanaryDev looks at guards before they are poisoned away, replaced or written in a batch", "[wrappers]") {
  const std::array<ByteRange, 1> plane = {ByteRange{0, 100}};
  {
    memra::PoisonDev<Dev> dev;  // overwrites all of a buffer before it is freed
    dev.inner().check_every(0);
    {
      auto b = memra::check(dev.alloc(256));
      memra::check(dev.inner().guard(b.data(), 256, plane));
      REQUIRE(poke(dev.inner(), b.data() + 100).ok());
    }
    REQUIRE(dev.inner().violations() == 1);
  }
  Dev dev;
  dev.check_every(0);
  auto a = memra::check(dev.zeros(256));
  auto b = memra::check(dev.zeros(256));
  memra::check(dev.guard(a.data(), 256, plane));
  REQUIRE(poke(dev, a.data() + 100).ok());
  REQUIRE(dev.guard(a.data(), 256, plane).kind() == ErrorKind::device_failure);
  REQUIRE(poke(dev, a.data() + 255).ok());
  const memra::CopyItem items[2] = {{b.data(), a.data(), 10}, {a.data(), b.data(), 256}};
  REQUIRE(dev.copy_batch(items, 2).kind() == ErrorKind::device_failure);
  REQUIRE(dev.violations() == 2);
  REQUIRE(std::string(dev.first_violation()->after) == "guard");
  REQUIRE(dev.check_now().ok());
}

TEST_CASE("CanaryDev and calls that fail: allocations too, half-written guards, work in doubt, a lost device",
          "[wrappers]") {
  const std::array<ByteRange, 1> plane = {ByteRange{0, 100}};
  {
    memra::CanaryDev<memra::FaultDev<memra::HostDev>> dev;
    auto b = memra::check(dev.zeros(256));
    auto from = memra::check(dev.zeros(256));
    memra::check(dev.guard(b.data(), 256, plane));
    memra::Fault f;
    f.op = memra::DevOp::fill;
    f.torn = true;  // half of a write over the region: its guards are no longer whole, and nobody overran anything
    dev.inner().arm(f);
    REQUIRE_FALSE(dev.fill(b.data(), std::byte{1}, 256).ok());
    REQUIRE(dev.check_now().ok());
    const memra::CopyItem items[2] = {{b.data(), from.data(), 256}, {from.data(), b.data(), 10}};
    f.op = memra::DevOp::copy_batch;
    dev.inner().arm(f);
    REQUIRE_FALSE(dev.copy_batch(items, 2).ok());
    REQUIRE(dev.violations() == 0);

    f = {};
    f.op = memra::DevOp::alloc;
    dev.inner().arm(f);
    b.data()[100] = std::byte{1};
    REQUIRE(dev.alloc(64).status().kind() == ErrorKind::out_of_memory);
    REQUIRE(dev.violations() == 1);

    f.op = memra::DevOp::synchronize;
    f.kind = ErrorKind::device_lost;
    dev.inner().arm(f);
    b.data()[100] = std::byte{1};
    REQUIRE(dev.synchronize().kind() == ErrorKind::device_lost);
    REQUIRE((dev.violations() == 1 && dev.inner().fired() == 1));  // it was not asked for guards
    dev.inner().disarm();
    REQUIRE_FALSE(dev.check_now().ok());
  }
  // What is queued fails while guards are looked at after a call that fails itself: both are said.
  memra::CanaryDev<memra::OrderedDev<memra::FaultDev<memra::HostDev>>> dev;
  auto b = memra::check(dev.zeros(256));
  memra::check(dev.synchronize());
  dev.check_every(0);
  memra::Fault f;
  f.op = memra::DevOp::fill;
  dev.inner().inner().arm(f);
  memra::check(dev.fill(b.data(), std::byte{1}, 8));
  dev.check_every(1);
  const memra::Status s = poke_and_fail(dev, b.data());
  REQUIRE((std::string(s.operation()) == "broken" && s.asynchronous()));
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

TEST_CASE("CanaryDev guards allocations of a size from their birth", "[wrappers]") {
  Dev dev;
  const std::array<ByteRange, 2> planes = {ByteRange{0, 100}, ByteRange{256, 100}};
  auto before = memra::check(dev.alloc(512));
  memra::check(dev.guard_sized(512, planes));
  memra::check(dev.guard_sized(512, planes));
  REQUIRE(dev.guard_sized(512, std::span(planes).first(1)).kind() == ErrorKind::bad_argument);
  REQUIRE(dev.guard_sized(300, planes).kind() == ErrorKind::bad_argument);
  for (const bool zeroed : {false, true}) {
    auto b = memra::check(zeroed ? dev.zeros(512) : dev.alloc(512));
    REQUIRE(poke(dev, b.data() + 99).ok());
    REQUIRE_FALSE(poke(dev, b.data() + 100).ok());
    memra::check(dev.copy(b.data(), before.data(), 512));  // as a snapshot is made
    REQUIRE_FALSE(poke(dev, b.data() + 511).ok());
    memra::check(dev.guard(b.data(), 512, std::span(planes).first(1)));  // told better
    REQUIRE_FALSE(poke(dev, b.data() + 256).ok());
  }
  auto longer = memra::check(dev.alloc(513));
  REQUIRE(poke(dev, longer.data() + 100).ok());
  REQUIRE(poke(dev, before.data() + 100).ok());
}

/// A host that says where allocations are.
struct Telling : memra::HostDev {
  std::vector<ByteRange> made;  // address, bytes

  memra::Result<Buffer> alloc(std::size_t n) noexcept {
    auto b = memra::HostDev::alloc(n);
    if (b) made.push_back({reinterpret_cast<std::uintptr_t>(b->data()), n});
    return b;
  }
};

/// The slab that was allocated last but `back`: bytes behind its planes are guarded, the last bytes in them are not.
void slab_is_guarded(memra::CanaryDev<Telling>& dev, std::size_t back, const memra::Plan& plan, memra::SlabKind slab) {
  const auto& made = dev.inner().made;
  auto* const data = reinterpret_cast<std::byte*>((made.end() - 1 - static_cast<std::ptrdiff_t>(back))->offset) +
                     memra::plane_alignment;
  const auto write = [&](std::size_t at) {
    data[at] = ~data[at];
    const bool unseen = dev.check_now().ok();
    if (unseen) data[at] = ~data[at];
    return unseen;
  };
  std::size_t planes = 0;
  for (const auto& p : plan.planes) {
    if (p.slab != slab || p.payload == 0) continue;
    const std::size_t end = p.offset + p.payload + p.tail_pad;
    REQUIRE((write(p.offset) && write(end - 1)));
    REQUIRE_FALSE(write(end));
    REQUIRE_FALSE(write(p.offset + p.payload + p.pad - 1));
    ++planes;
  }
  REQUIRE(planes > 1);
}

TEST_CASE("guard_planned guards the planes of snapshots, of prefixes and of what they fill, while they are filled",
          "[wrappers]") {
  for (const auto& cfg : {memra_test::hybrid_model(), memra_test::kinds_model()}) {
    using D = memra::CanaryDev<Telling>;
    D dev;
    const auto on_dev = memra::Placement::single(cfg.layers.size(), memra::plane_gap_of(dev));
    const auto plan = memra::check(memra::plan(cfg, 20, on_dev));
    const auto at_6 = memra::check(memra::plan(cfg, 6, on_dev));
    memra::check(memra::guard_planned(dev, plan, cfg));
    memra::check(memra::guard_planned(dev, at_6, cfg));  // its state slab is the same
    auto cache = memra::check(memra::Cache<D>::create(dev, cfg, 20));
    memra::check(memra_test::feed_by(cache, memra_test::stream(6), 3));
    const auto snap = memra::check(cache.snapshot());
    slab_is_guarded(dev, 0, plan, memra::SlabKind::state);
    memra::check(cache.rollback(snap, 0));
    const std::size_t poked = dev.violations();
    const auto prefix = memra::check(cache.export_prefix(snap));
    REQUIRE(dev.violations() == poked);  // the export kept to its planes
    REQUIRE(prefix.plan().totals.total_bytes == at_6.totals.total_bytes);
    slab_is_guarded(dev, 1, at_6, memra::SlabKind::rows);
    slab_is_guarded(dev, 0, at_6, memra::SlabKind::state);
    const std::size_t poked_too = dev.violations();
    auto other = memra::check(memra::Cache<D>::from_prefix(dev, cfg, 20, prefix));
    REQUIRE(memra_test::image(other) == memra_test::image(cache));
    REQUIRE(dev.violations() == poked_too);
    memra::check(memra::guard_planes(other));  // in their place
    REQUIRE(dev.check_now().ok());
  }
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
