// Everything one sequence of the tiny model needs, over any number of stages, and byte comparison of its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <memra/memra.hpp>
#include <optional>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <tiny_engine/decoder.hpp>
#include <tiny_engine/drafter.hpp>
#include <tiny_engine/model.hpp>
#include <tiny_engine/trunk.hpp>
#include <vector>

namespace rig {

inline const char* const prompts[] = {"Ge1:1 In the beginning", "Ps23:1 The LORD is my", "Joh3:16 For God so",
                                      "Mt5:3 Blessed are the"};

inline std::vector<std::int32_t> ids_of(const std::string& text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// Host memory that starts as NaN and is made NaN again before it is freed.
struct NanAllocator {
  void* allocate(memra::HostStream, std::size_t bytes, std::size_t align) noexcept {
    void* p = ::operator new (bytes, std::align_val_t{align}, std::nothrow);
    if (p != nullptr) std::memset(p, 0xff, bytes);
    return p;
  }
  void deallocate(memra::HostStream, void* p, std::size_t bytes, std::size_t align) noexcept {
    std::memset(p, 0xff, bytes);
    ::operator delete (p, std::align_val_t{align}, std::nothrow);
  }
};

inline const tiny::ModelFiles& model() {
  static const tiny::ModelFiles files = memra::check(tiny::load_model(MEMRA_TEST_FIXTURES "/tiny"));
  return files;
}

using Cache = memra::Cache<memra::HostDev>;

/// One sequence: devices, cache, trunk, drafter, decoder. Fresh device memory is NaN.
struct Sequence {
  Sequence(memra::Format k, memra::Format v, std::size_t stages, std::size_t ctx,
           memra::Layout layout = memra::Layout::blocks)
      : config(tiny::state_config(model().config, k, v)), max_ctx(ctx) {
    for (memra::LayerSpec& layer : config.layers) {
      for (memra::StateSpec& state : layer.states) {
        if (auto* a = std::get_if<memra::AttentionSpec>(&state)) a->k_layout = a->v_layout = layout;
      }
    }
    for (std::size_t s = 0; s < stages; ++s) devices.push_back(memra::HostDev::adopt(memory));
    fence = memra::pp_cuts(config.layers.size(), stages);
    cache.emplace(memra::check(Cache::create_ppn(pointers(), fence, config, ctx)));
    trunk.emplace(memra::check(tiny::Trunk<memra::HostDev>::create(model().config, model().weights, *cache)));
    drafter.emplace(memra::check(
        tiny::Drafter<memra::HostDev>::create(model().draft->config, model().draft->weights, *trunk, ctx)));
    decoder.emplace(*trunk, *cache, &*drafter);
  }

  std::vector<memra::HostDev*> pointers() {
    std::vector<memra::HostDev*> p;
    for (memra::HostDev& d : devices) p.push_back(&d);
    return p;
  }

  tiny::Generated plain(std::size_t n) { return decoder->plain(options(n)); }
  tiny::Generated speculative(std::size_t n, memra::DraftArm arm = memra::DraftArm::clip) {
    return decoder->speculative(options(n, arm));
  }

  static tiny::GenerateOptions options(std::size_t n, memra::DraftArm arm = memra::DraftArm::clip) {
    tiny::GenerateOptions o;
    o.max_tokens = n;
    o.ignore_eos = true;
    o.arm = arm;
    return o;
  }

  NanAllocator memory;
  memra::ModelConfig config;
  std::size_t max_ctx;
  std::deque<memra::HostDev> devices;  // stable addresses
  std::vector<std::size_t> fence;
  std::optional<Cache> cache;
  std::optional<tiny::Trunk<memra::HostDev>> trunk;
  std::optional<tiny::Drafter<memra::HostDev>> drafter;
  std::optional<tiny::Decoder<memra::HostDev>> decoder;
};

/// A cache fed exactly these tokens one at a time, without a drafter: what every other way must equal.
inline std::unique_ptr<Sequence> one_by_one(memra::Format k, memra::Format v, std::span<const std::int32_t> tokens,
                                            std::size_t ctx, memra::Layout layout = memra::Layout::blocks) {
  auto s = std::make_unique<Sequence>(k, v, 1, ctx, layout);
  for (const std::int32_t& t : tokens) s->trunk->forward(*s->cache, {&t, 1}, 1);
  return s;
}

inline std::vector<std::byte> rows_of(const memra::ConstPlaneView& plane, std::size_t n) {
  std::vector<std::byte> out;
  const memra::Segments parts = memra::segments(plane.shape, 0, n);
  for (std::size_t i = 0; i < parts.count; ++i) {
    const std::byte* at = plane.data + parts.run[i].offset;
    out.insert(out.end(), at, at + parts.run[i].bytes);
  }
  return out;
}

/// Empty if both caches are in the same state to the last byte, else what differs first.
inline std::string difference(const Cache& a, const Cache& b) {
  if (a.pos() != b.pos() || a.len() != b.len()) return "positions";
  for (std::size_t il = 0; il < a.n_layer(); ++il) {
    const std::string at = " of layer " + std::to_string(il);
    const auto ka = a.kv(il);
    const auto kb = b.kv(il);
    const auto ra = a.recur(il);
    const auto rb = b.recur(il);
    if (ka.has_value() != kb.has_value() || ra.has_value() != rb.has_value()) return "kind" + at;
    if (ka) {
      if (ka->len != kb->len || *ka->pos_d != *kb->pos_d) return "length" + at;
      if (static_cast<std::size_t>(*ka->pos_d) != a.pos()) return "pos_d" + at;
      if (rows_of(ka->k, a.len()) != rows_of(kb->k, b.len())) return "K rows" + at;
      if (rows_of(ka->v, a.len()) != rows_of(kb->v, b.len())) return "V rows" + at;
    }
    if (ra) {
      if (std::memcmp(ra->conv, rb->conv, ra->conv_elems() * sizeof(float)) != 0) return "conv" + at;
      if (std::memcmp(ra->ssm, rb->ssm, ra->ssm_elems() * sizeof(float)) != 0) return "ssm" + at;
    }
  }
  return {};
}

/// Empty if both draft caches hold the same committed rows from `first` on.
inline std::string difference(const memra::DflashKv<memra::HostDev>& a, const memra::DflashKv<memra::HostDev>& b,
                              std::size_t first = 0) {
  if (a.len() != b.len()) return "draft length";
  const std::size_t skip = first * a.row_bytes() / sizeof(float);
  const std::size_t bytes = (a.len() - first) * a.row_bytes();
  for (std::size_t l = 0; l < a.n_layer(); ++l) {
    if (std::memcmp(a.k(l) + skip, b.k(l) + skip, bytes) != 0) return "draft K of layer " + std::to_string(l);
    if (std::memcmp(a.v(l) + skip, b.v(l) + skip, bytes) != 0) return "draft V of layer " + std::to_string(l);
  }
  return {};
}

inline std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace rig
