// C3: the plan is what is allocated, to the byte; hand-computed sizes of known models; every refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/host_dev.hpp>
#include <memra/plan.hpp>
#include <memra/workspace.hpp>
#include <set>
#include <string>
#include <string_view>
#include <support/catch.hpp>
#include <support/placements.hpp>
#include <support/says.hpp>
#include <support/stand_in.hpp>
#include <utility>
#include <vector>

namespace plan_cpp {
namespace {

using memra::ErrorKind;
using memra::Format;
using memra::HostDev;
using memra::HostStream;
using memra::Layout;
using memra::ModelConfig;
using memra::Placement;
using memra::PlaneKind;
using memra::SlabKind;
using memra_test::attention_spec;
using memra_test::hybrid_model;
using memra_test::placements;
using memra_test::recurrent_model;
using memra_test::says;
using memra_test::stream;

constexpr std::size_t most = std::numeric_limits<std::size_t>::max();

/// Counts what a HostDev asks of an engine.
struct CountingAllocator {
  std::size_t live = 0;
  std::size_t total = 0;
  int blocks = 0;
  void* allocate(HostStream, std::size_t bytes, std::size_t align) noexcept {
    live += bytes;
    total += bytes;
    ++blocks;
    return std::aligned_alloc(align, (bytes + align - 1) / align * align);
  }
  void deallocate(HostStream, void* p, std::size_t bytes, std::size_t) noexcept {
    live -= bytes;
    std::free(p);
  }
};

memra::AttentionSpec attention(std::size_t heads, std::size_t kv, std::size_t dim, Format k, Format v) {
  memra::AttentionSpec a;
  a.n_heads = heads;
  a.n_kv_heads = kv;
  a.head_dim_k = a.head_dim_v = dim;
  a.k_format = k;
  a.v_format = v;
  return a;
}

/// Three recurrent layers, then one with full attention, and so on; `mtp` full ones past the trunk.
ModelConfig qwen(std::size_t layers, std::size_t mtp) {
  ModelConfig cfg;
  memra::RecurrentSpec r;
  r.n_k_heads = 16;
  r.n_v_heads = 48;
  r.d_k = r.d_v = 128;
  r.d_conv = 4;
  const auto a = attention(24, 4, 256, Format::q8_0, Format::q5_1);
  for (std::size_t il = 0; il < layers; ++il) {
    cfg.layers.push_back(il % 4 == 3 ? memra::full_attention(a) : memra::recurrent(r));
  }
  for (std::size_t i = 0; i < mtp; ++i) cfg.layers.push_back(memra::full_attention(a));
  return cfg;
}

TEST_CASE("kinds of planes and slabs have names, each its own") {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(PlaneKind::round_decay); ++i) {
    names.insert(to_string(static_cast<PlaneKind>(i)));
  }
  REQUIRE(names.size() == static_cast<std::size_t>(PlaneKind::round_decay) + 1);
  REQUIRE(names.count("unknown") == 0);
  REQUIRE(to_string(PlaneKind::ssm_alt) == "ssm_alt");
  REQUIRE(to_string(SlabKind::rows) == "rows");
  REQUIRE(to_string(SlabKind::state) == "state");
  REQUIRE(to_string(SlabKind::extra) == "extra");
  REQUIRE(to_string(static_cast<PlaneKind>(99)) == "unknown");
}

TEST_CASE("C3 a 64-layer hybrid of 16 full layers: bytes by hand", "[plan]") {
  // Per full layer and row: 1024 / 32 * (34 + 24) = 1856. Per recurrent layer: conv 10240 * 3 * 4 = 122880,
  // ssm 48 * 128 * 128 * 4 = 3145728.
  const auto p = memra::check(memra::plan(qwen(64, 0), 1000));
  const auto& t = p.totals;
  REQUIRE(t.bytes_per_token == 29696);
  REQUIRE((t.k_bytes == 16 * 1088 * 1000 && t.v_bytes == 16 * 768 * 1000));
  REQUIRE((t.conv_bytes == 48 * 122880 && t.ssm_bytes == 48 * 3145728));
  REQUIRE(t.conv_bytes + t.ssm_bytes == 156893184);
  REQUIRE(t.snapshot_bytes == 156893184);  // every plane is a multiple of 256: no padding
  REQUIRE((t.tail_pad_bytes == 32 * 8 && t.mirror_bytes == 4 && t.second_buffer_bytes == 0));
  REQUIRE(memra::check(memra::plan(qwen(64, 1), 1000)).totals.bytes_per_token == 31552);

  // The same with 2 kv heads of 256 and 10 of 40 layers: 9280.
  ModelConfig small;
  for (int i = 0; i < 10; ++i) {
    small.layers.push_back(memra::full_attention(attention(16, 2, 256, Format::q8_0, Format::q5_1)));
  }
  REQUIRE(memra::check(memra::plan(small, 8)).totals.bytes_per_token == 9280);
}

TEST_CASE("C3 B93 B97 known models by hand", "[plan]") {
  ModelConfig cfg;
  for (int i = 0; i < 64; ++i)
    cfg.layers.push_back(memra::full_attention(attention(64, 8, 128, Format::bf16, Format::bf16)));
  REQUIRE(memra::check(memra::plan(cfg, 3)).totals.bytes_per_token == 262144);
  REQUIRE(memra::check(memra::plan(cfg, 40960)).totals.k_bytes == 64ULL * 2048 * 40960);

  ModelConfig lfm2;
  for (const int kv : {0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0}) {
    lfm2.layers.push_back(kv == 0 ? memra::no_state()
                                  : memra::full_attention(attention(32, 8, 64, Format::f16, Format::f16)));
  }
  const auto t = memra::check(memra::plan(lfm2, 32768)).totals;
  REQUIRE(t.k_bytes + t.v_bytes == 402653184);

  // Row bytes of the table of formats: K and V widths that differ.
  ModelConfig wide;
  memra::AttentionSpec a = attention(8, 4, 192, Format::q8_0, Format::q4_0);
  a.head_dim_v = 128;
  wide.layers = {memra::full_attention(a)};
  REQUIRE((memra::check(memra::plan(wide, 1)).totals.k_bytes == 816));
  REQUIRE((memra::check(memra::plan(wide, 1)).totals.v_bytes == 288));
}

TEST_CASE("C3 every plane is aligned, apart, and inside its slab; the sums are the slabs", "[plan]") {
  for (const Layout layout : {Layout::blocks, Layout::split}) {
    for (const std::size_t gap : {0U, 1U, 256U, 5000U}) {
      const auto cfg = hybrid_model(Format::q4_0, Format::q5_1, layout);
      for (const auto& place : placements(cfg.layers.size())) {
        CAPTURE(place.name, gap);
        const Placement placement{place.fence, place.devices, {gap, gap, gap}};
        const auto p = memra::check(memra::plan(cfg, 37, placement));
        std::size_t sum = 0;
        for (const auto& d : p.devices) sum += d.rows_bytes + d.state_bytes + d.extra_bytes;
        const auto& t = p.totals;
        REQUIRE(sum == t.total_bytes);
        REQUIRE(t.k_bytes + t.v_bytes + t.grouped_bytes + t.conv_bytes + t.ssm_bytes + t.second_buffer_bytes +
                    t.mirror_bytes + t.tail_pad_bytes + t.pad_bytes ==
                t.total_bytes);
        REQUIRE(t.mirror_bytes == 4 * place.devices.size());
        std::set<std::pair<std::size_t, std::size_t>> mirrors;
        for (const auto& s : p.stages) REQUIRE(mirrors.insert({s.device, s.pos_offset}).second);
        for (std::size_t i = 0; i < p.planes.size(); ++i) {
          const auto& a = p.planes[i];
          REQUIRE(a.offset % memra::plane_alignment == 0);
          REQUIRE(a.tail_pad == (a.slab == SlabKind::rows ? memra::kv_tail_pad : 0));
          REQUIRE(a.offset + a.payload + a.tail_pad + gap <= p.devices[a.device].bytes(a.slab));
          REQUIRE(a.pad >= gap);
          for (const auto& s : p.stages) {
            if (s.device == a.device && a.slab == SlabKind::rows) REQUIRE(s.pos_offset + 256 <= a.offset);
          }
          for (std::size_t j = 0; j < i; ++j) {
            const auto& b = p.planes[j];
            if (a.device != b.device || a.slab != b.slab) continue;
            REQUIRE(b.offset + b.payload + b.tail_pad + gap <= a.offset);
          }
        }
      }
    }
  }
}

TEST_CASE("C3 B95 B101 B104 payload sums do not depend on the fence", "[plan]") {
  ModelConfig cfg = qwen(8, 1);
  const auto whole = memra::check(memra::plan(cfg, 100)).totals;
  for (const auto& fence : std::vector<std::vector<std::size_t>>{{0, 1, 3, 8},
                                                                 {0, 4, 4, 8},
                                                                 {0, 8},
                                                                 {0, 9},
                                                                 {0, 0, 9},
                                                                 {0, 9, 9},
                                                                 {0, 1},
                                                                 memra::pp_cuts(9, 4),
                                                                 memra::pp_cuts(9, 12)}) {
    for (const bool same : {true, false}) {
      Placement p{fence, {}, {}};
      for (std::size_t s = 0; s + 1 < fence.size(); ++s) p.device_of.push_back(same ? 0 : s);
      const auto made = memra::check(memra::plan(cfg, 100, p));
      const auto& t = made.totals;
      REQUIRE((t.k_bytes == whole.k_bytes && t.v_bytes == whole.v_bytes && t.conv_bytes == whole.conv_bytes &&
               t.ssm_bytes == whole.ssm_bytes && t.bytes_per_token == whole.bytes_per_token));
      REQUIRE(t.snapshot_bytes == whole.snapshot_bytes);
      REQUIRE(memra::stage_of(p, 8) == [&] {  // past the fence: the last stage; on it: whoever starts last at or below
        std::size_t last = 0;
        for (std::size_t s = 0; s + 1 < fence.size(); ++s) last = fence[s] <= 8 ? s : last;
        return last;
      }());
      for (const auto& plane : made.planes) {
        REQUIRE(plane.stage == memra::stage_of(p, plane.layer));
        REQUIRE(made.stages[plane.stage].first_layer <= plane.layer);
        REQUIRE(plane.layer < made.stages[plane.stage].end_layer);
      }
    }
  }
  REQUIRE(memra::pp_cuts(41, 2) == std::vector<std::size_t>{0, 20, 41});
  REQUIRE(memra::pp_cuts(7, 3) == std::vector<std::size_t>{0, 2, 4, 7});
  REQUIRE(memra::pp_cuts(most, 2) == std::vector<std::size_t>{0, most / 2, most});
  REQUIRE(memra::pp_cuts(5, 0).empty());
  // As many sequences as caches: attention bytes are those of an attention-only model of the same layers.
  ModelConfig only;
  for (const auto& l : cfg.layers) {
    if (std::holds_alternative<memra::AttentionSpec>(l.states[0])) only.layers.push_back(l);
  }
  REQUIRE(memra::check(memra::plan(only, 100)).totals.k_bytes == whole.k_bytes);
}

TEST_CASE("C3 S6 a counting allocator sees exactly the plan, snapshot and draft plan included", "[plan]") {
  CountingAllocator allocator;
  {
    HostDev dev = HostDev::adopt(allocator);
    const auto cfg = hybrid_model();
    auto c = memra::check(memra::Cache<HostDev>::create(dev, cfg, 33));
    REQUIRE(allocator.live == c.plan().totals.total_bytes);
    REQUIRE(allocator.blocks == 3);
    {
      const auto s = memra::check(c.snapshot());
      REQUIRE(allocator.live == c.plan().totals.total_bytes + c.plan().totals.snapshot_bytes);
      REQUIRE(s.bytes() == c.plan().totals.snapshot_bytes);
    }
    REQUIRE(allocator.live == c.plan().totals.total_bytes);
    const std::size_t before = allocator.live;
    memra::DflashCfg draft;
    draft.n_layer = 3, draft.n_kv = 2, draft.head_dim = 8, draft.block_size = 4, draft.sliding_window = 8;
    const auto kv = memra::check(memra::DflashKv<HostDev>::create(dev, draft, 50));
    REQUIRE(allocator.live - before == memra::check(memra::plan(draft, 50)).total_bytes);
    REQUIRE(allocator.live - before == kv.plan().total_bytes);
    REQUIRE(kv.plan().plane_bytes == 54 * 2 * 8 * 4);
    const auto ws = memra::check(memra::Workspace<HostDev>::create(dev, c.plan().workspace_bytes(8)));
    REQUIRE((ws.bytes() == c.plan().workspace_bytes(8) && ws.view().bytes == ws.bytes()));
  }
  REQUIRE(allocator.live == 0);
}

TEST_CASE("S6 C11 a cache over the engine's blocks allocates nothing and stays inside them", "[plan]") {
  CountingAllocator allocator;
  HostDev dev = HostDev::adopt(allocator);
  HostDev owner;
  const auto cfg = hybrid_model();
  const auto p = memra::check(memra::plan(cfg, 20));
  const auto& d = p.devices[0];
  constexpr std::size_t guard = 256;
  std::vector<HostDev::Buffer> memory;
  std::vector<memra::AdoptedBlock> blocks;
  for (const std::size_t bytes : {d.rows_bytes, d.state_bytes, d.extra_bytes}) {
    memory.push_back(memra::check(owner.alloc(bytes + 2 * guard)));
    memra::check(owner.fill(memory.back().data(), std::byte{0xA5}, memory.back().size()));
    blocks.push_back({memory.back().data() + guard, bytes});
  }
  const auto untouched = [&](bool inside) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t b = 0; b < memory[i].size(); ++b) {
        const bool in = b >= guard && b < guard + blocks[i].bytes;
        if ((inside || !in) && memory[i].data()[b] != std::byte{0xA5}) return false;
      }
    }
    return true;
  };
  const auto create = [&] { return memra::Cache<HostDev>::create(dev, cfg, 20, {blocks}); };
  {  // refusals, one by one, before the first write
    auto saved = blocks;
    blocks.pop_back();
    REQUIRE(says(create().status(), ErrorKind::bad_argument, "2 adopted blocks for 1 devices"));
    blocks = saved;
    blocks[2].bytes -= 1;
    REQUIRE(says(create().status(), ErrorKind::bad_argument, "an adopted block has"));
    blocks = saved;
    blocks[2].data += 8;
    REQUIRE(says(create().status(), ErrorKind::bad_argument, "aligned to 256"));
    blocks = saved;
    blocks[2] = {blocks[0].data + 256, d.extra_bytes};
    REQUIRE(says(create().status(), ErrorKind::bad_argument, "overlap"));
    blocks = saved;
    REQUIRE(untouched(true));
  }
  auto c = memra::check(create());
  REQUIRE(allocator.total == 0);
  REQUIRE(memra_test::image(c) == memra_test::straight(cfg, {}));
  REQUIRE(memra_test::feed_by(c, stream(20), 6).ok());
  REQUIRE(memra_test::image(c) == memra_test::straight(cfg, stream(20)));
  REQUIRE(untouched(false));
  REQUIRE(!untouched(true));  // red arm
  blocks[1].data = nullptr;   // one of them the cache's own
  auto mixed = memra::check(create());
  REQUIRE(allocator.total == d.state_bytes);
}

TEST_CASE("B79 a head of two and a half blocks is refused in block formats and held in others", "[plan]") {
  const auto with = [](std::size_t k, Format k_format, std::size_t v, Format v_format) {
    ModelConfig cfg = hybrid_model();
    auto& a = std::get<memra::AttentionSpec>(cfg.layers[1].states[0]);
    a.n_kv_heads = 1;
    a.head_dim_k = k, a.k_format = k_format;
    a.head_dim_v = v, a.v_format = v_format;
    return memra::plan(cfg, 16).status();
  };
  for (const Format f : memra::all_formats) {
    INFO(memra::to_string(f));
    if (memra::facts(f).block_elems == 1) {
      REQUIRE(with(80, f, 80, f).ok());
      continue;
    }
    REQUIRE(with(64, f, 96, f).ok());
    REQUIRE(says(with(80, f, 64, f), ErrorKind::bad_argument, "multiple of 32"));
    REQUIRE(says(with(64, f, 80, f), ErrorKind::bad_argument, "multiple of 32"));
    REQUIRE(says(with(64, f, 33, f), ErrorKind::bad_argument, "multiple of 32"));
    REQUIRE(with(80, Format::bf16, 64, f).ok());
  }
}

TEST_CASE("plan refuses by name: layers, fences, sizes", "[plan]") {
  const auto with = [](auto change) {
    ModelConfig cfg = hybrid_model();
    change(std::get<memra::AttentionSpec>(cfg.layers[1].states[0]));
    return memra::plan(cfg, 16).status();
  };
  REQUIRE(with([](auto&) {}).ok());
  REQUIRE(says(with([](auto& a) { a.n_kv_heads = 0; }), ErrorKind::bad_argument, "layer 1"));
  REQUIRE(says(with([](auto& a) { a.head_dim_k = 0; }), ErrorKind::bad_argument, "layer 1"));
  REQUIRE(says(with([](auto& a) { a.head_dim_v = 0; }), ErrorKind::bad_argument, "layer 1"));
  REQUIRE(says(with([](auto& a) { a.n_heads = 3; }), ErrorKind::bad_argument, "n_heads"));
  REQUIRE(says(with([](auto& a) { a.n_heads = a.n_kv_heads = std::size_t{1} << 62; }), ErrorKind::bad_argument, "fit"));
  REQUIRE(says(with([](auto& a) { a.head_dim_k = std::size_t{1} << 60; }), ErrorKind::bad_argument, "fit"));
  REQUIRE(says(with([](auto& a) { a.n_heads = std::size_t{1} << 62; }), ErrorKind::bad_argument, "scratch"));

  const auto with_r = [](auto change) {
    ModelConfig cfg = hybrid_model();
    change(std::get<memra::RecurrentSpec>(cfg.layers[0].states[0]));
    return memra::plan(cfg, 16).status();
  };
  for (auto field : {&memra::RecurrentSpec::n_k_heads, &memra::RecurrentSpec::n_v_heads, &memra::RecurrentSpec::d_k,
                     &memra::RecurrentSpec::d_v, &memra::RecurrentSpec::d_conv}) {
    REQUIRE(says(with_r([&](auto& r) { r.*field = 0; }), ErrorKind::bad_argument, "layer 0"));
    REQUIRE(says(with_r([&](auto& r) { r.*field = most; }), ErrorKind::bad_argument, "layer 0"));
    REQUIRE(says(with_r([&](auto& r) { r.*field = (most >> 5) + 1; }), ErrorKind::bad_argument, "layer 0"));
  }
  // The largest count whose state fits: answered at once, not after a loop over the heads.
  REQUIRE(says(with_r([](auto& r) { r.n_v_heads = std::size_t{1} << 55, r.n_k_heads = 3; }), ErrorKind::bad_argument,
               "map"));

  const auto cfg = hybrid_model();
  REQUIRE(says(memra::plan(cfg, 0).status(), ErrorKind::bad_argument, "max_ctx is 0"));
  REQUIRE(says(memra::plan(cfg, std::size_t{1} << 31).status(), ErrorKind::bad_argument, "2147483647"));
  REQUIRE(says(memra::plan(cfg, most).status(), ErrorKind::bad_argument, "2147483647"));
  REQUIRE(memra::plan(cfg, (std::size_t{1} << 31) - 1).ok());

  const auto fence = [&](std::vector<std::size_t> f, std::vector<std::size_t> devs,
                         std::vector<std::size_t> gaps = {}) {
    return memra::plan(cfg, 16, Placement{std::move(f), std::move(devs), std::move(gaps)}).status();
  };
  REQUIRE(says(fence({}, {}), ErrorKind::bad_argument, "0 entries for 0 stages"));
  REQUIRE(says(fence({0}, {}), ErrorKind::bad_argument, "fence"));
  REQUIRE(says(fence({0, 8}, {0, 1}), ErrorKind::bad_argument, "2 entries for 2 stages"));
  REQUIRE(says(fence({1, 8}, {0}), ErrorKind::bad_argument, "start with layer 0"));
  REQUIRE(says(fence({0, 5, 4}, {0, 1}), ErrorKind::bad_argument, "from layer 5 back to 4 of 8 layers"));
  REQUIRE(says(fence({0, 9}, {0}), ErrorKind::bad_argument, "ends at layer 9 of 8"));
  REQUIRE(says(fence({0, 8}, {most}), ErrorKind::bad_argument, "device"));
  REQUIRE(says(fence({0, 4, 8}, {0, 2}), ErrorKind::bad_argument, "device 2"));
  REQUIRE(says(fence({0, 4, 8}, {0, 1}, {0}), ErrorKind::bad_argument, "1 plane gaps"));
  REQUIRE(says(fence({0, 8}, {0}, {most}), ErrorKind::bad_argument, "do not fit"));
  REQUIRE(says(fence({0, 8}, {0}, {most / 4}), ErrorKind::bad_argument, "do not fit"));

  ModelConfig huge;
  for (int i = 0; i < 3; ++i) {  // each fits, together they do not
    memra::AttentionSpec a = attention(1, 1, std::size_t{1} << 30, Format::f16, Format::f16);
    huge.layers.push_back(memra::full_attention(a));
    huge.layers.push_back(memra::full_attention(a));
    huge.layers.push_back(memra::full_attention(a));
  }
  REQUIRE(says(memra::plan(huge, 0x7fffffff).status(), ErrorKind::bad_argument, "do not fit"));
  Placement apart{memra::pp_cuts(9, 9), {0, 1, 2, 3, 4, 5, 6, 7, 8}, {}};  // nor over nine devices
  REQUIRE(says(memra::plan(huge, 0x7fffffff, apart).status(), ErrorKind::bad_argument, "total does not fit"));

  memra::HostDev dev;
  memra::HostDev* const none[] = {nullptr};
  const std::size_t whole[] = {0, 8};
  using Cache = memra::Cache<memra::HostDev>;
  REQUIRE(says(Cache::create_ppn(none, whole, cfg, 4).status(), ErrorKind::bad_argument, "null"));
  REQUIRE(says(Cache::create_ppn({}, {}, cfg, 4).status(), ErrorKind::bad_argument, "stages"));
  REQUIRE(says(Cache::create_pp2(dev, dev, 9, cfg, 4).status(), ErrorKind::bad_argument, "fence"));
  REQUIRE(Cache::create_pp2(dev, dev, 8, cfg, 4).ok());
}

TEST_CASE("a model of no layers and a model of no state are legal", "[plan]") {
  memra::HostDev dev;
  for (const auto& cfg : {ModelConfig{}, ModelConfig{{memra::no_state(), memra::no_state()}, 0}}) {
    auto c = memra::check(memra::Cache<memra::HostDev>::create(dev, cfg, 4));
    REQUIRE(c.plan().totals.bytes_per_token == 0);
    const auto s = memra::check(c.snapshot());
    REQUIRE(memra_test::feed(c, stream(4)).ok());
    REQUIRE(c.pos() == 4);
    REQUIRE(c.begin_step(1).status().kind() == ErrorKind::bad_argument);
    REQUIRE(memra::check(c.rollback(s, 3)).pos == 3);
  }
}

TEST_CASE("workspace_bytes grows with rows up to a block, with batch, and never wraps", "[plan]") {
  const auto p = memra::check(memra::plan(hybrid_model(), 16));
  REQUIRE(p.workspace_bytes(1) > 0);
  REQUIRE(p.workspace_bytes(8) >= p.workspace_bytes(1));
  REQUIRE(p.workspace_bytes(4, 3) == 3 * p.workspace_bytes(4));
  REQUIRE(p.workspace_bytes(4, most) == most);
  REQUIRE(p.workspace_bytes(most) >= p.workspace_bytes(64));
  REQUIRE(memra::check(memra::plan(recurrent_model(), 16)).workspace_bytes(8) == 0);
  memra::HostDev dev;
  REQUIRE(memra::Workspace<memra::HostDev>::create(dev, most).status().kind() == ErrorKind::out_of_memory);
}

TEST_CASE("the key-head map's answer is that of asking every head", "[plan]") {
  for (const auto mode : {memra::KeyHeadMode::grouped, memra::KeyHeadMode::interleaved}) {
    for (std::size_t total_k = 1; total_k <= 4; ++total_k) {
      for (std::size_t total_v = 1; total_v <= 12; ++total_v) {
        for (std::size_t n_k = 1; n_k <= total_k + 1; ++n_k) {
          for (std::size_t n_v = 1; n_v <= total_v + 1; ++n_v) {
            for (std::size_t first = 0; first <= total_v; ++first) {
              const memra::KeyHeadMap m{mode, first, total_v, total_k};
              bool want = n_k <= total_k && total_v % total_k == 0 && first + n_v <= total_v;
              for (std::size_t h = 0; want && h < n_v; ++h) want = m.key_head(h, n_k, n_v) < n_k;
              CAPTURE(total_k, total_v, n_k, n_v, first);
              if (m.fits(n_k, n_v) != want) REQUIRE(m.fits(n_k, n_v) == want);
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace plan_cpp
