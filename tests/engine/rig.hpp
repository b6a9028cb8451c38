// What the engine tests share: fixtures, a trunk with its cache and drafter on chosen devices, and a full look at
// state.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <memra/cache.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/host_ops.hpp>
#include <memra/plan.hpp>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tiny_engine/decoder.hpp>
#include <tiny_engine/drafter.hpp>
#include <tiny_engine/model.hpp>
#include <tiny_engine/trunk.hpp>
#include <utility>
#include <variant>
#include <vector>

#if !defined(MEMRA_TEST_ONE_IN)
#define MEMRA_TEST_ONE_IN 1
#endif

namespace rig {

/// How many tokens a long text has: `n`, in a build with sanitizers a tenth and at least three blocks of drafts.
constexpr std::size_t tokens(std::size_t n) {
  return std::max(n / MEMRA_TEST_ONE_IN, std::min<std::size_t>(n, 24));
}

inline std::string fixture(const std::string& name) {
  return std::string(MEMRA_TEST_FIXTURES) + "/" + name;
}

inline std::vector<std::int32_t> bytes_of(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// A tensor of a fixture as floats or ints.
template <class T>
std::vector<T> read(const tiny::SafeTensors& file, const std::string& name) {
  const tiny::Tensor* t = file.find(name);
  if (t == nullptr) return {};
  std::vector<T> v(t->data.size() / sizeof(T));
  std::memcpy(v.data(), t->data.data(), v.size() * sizeof(T));
  return v;
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

struct Options {
  memra::Format k = memra::Format::f32;
  memra::Format v = memra::Format::f32;
  std::size_t ctx = 512;
  std::size_t max_rows = 64;
  std::size_t stages = 1;
  bool same_device = false;  ///< stages share one device object
  memra::Layout layout = memra::Layout::blocks;
  bool draft_ring = false;
};

/// Every strategy, for rounds of up to a draft block.
inline memra::CacheOptions all_rounds(const tiny::ModelFiles& files) {
  memra::CacheOptions o;
  if (!files.draft) return o;
  o.rounds.rows = files.draft->config.block_size;
  o.rounds.replay = o.rounds.planes = o.rounds.stash = true;
  return o;
}

/// Everything one sequence needs, on devices that `make` gives.
template <class D>
struct RigOn {
  using Dev = D;

  template <class Make>
  RigOn(const tiny::ModelFiles& files, const Options& o, const Make& make) : options(o) {
    for (std::size_t s = 0; s < (o.same_device ? 1 : o.stages); ++s) devs.push_back(std::make_unique<Dev>(make()));
    for (std::size_t s = 0; s < o.stages; ++s) stage_devs.push_back(devs[o.same_device ? 0 : s].get());
    config = tiny::state_config(files.config, o.k, o.v);
    for (memra::LayerSpec& layer : config.layers) {
      for (memra::StateSpec& state : layer.states) {
        if (auto* a = std::get_if<memra::AttentionSpec>(&state)) a->k_layout = a->v_layout = o.layout;
      }
    }
    fence = memra::pp_cuts(config.layers.size(), o.stages);
    cache.emplace(memra::check(memra::Cache<Dev>::create_ppn(stage_devs, fence, config, o.ctx, all_rounds(files))));
    trunk.emplace(
        memra::check(tiny::Trunk<Dev>::create(files.config, files.weights, *cache, tiny::TrunkOptions{o.max_rows})));
    if (files.draft) {
      drafter.emplace(memra::check(
          tiny::Drafter<Dev>::create(files.draft->config, files.draft->weights, *trunk, o.ctx, o.draft_ring)));
    }
  }

  tiny::Decoder<Dev> decoder(bool with_draft = true) {
    return tiny::Decoder<Dev>(*trunk, *cache, with_draft && drafter ? &*drafter : nullptr);
  }

  RigOn(const RigOn&) = delete;  // the trunk points at the devices
  RigOn& operator=(const RigOn&) = delete;

  Options options;
  std::vector<std::unique_ptr<Dev>> devs;
  std::vector<Dev*> stage_devs;
  memra::ModelConfig config;
  std::vector<std::size_t> fence;
  std::optional<memra::Cache<Dev>> cache;
  std::optional<tiny::Trunk<Dev>> trunk;
  std::optional<tiny::Drafter<Dev>> drafter;
};

/// The memory of a Rig, made before and gone after everything that is in it.
struct RigMemory {
  NanAllocator memory;
};

/// On HostDev over memory that is NaN until written.
struct Rig : private RigMemory, RigOn<memra::HostDev> {
  Rig(const tiny::ModelFiles& files, const Options& o)
      : RigOn<memra::HostDev>(files, o, [this] { return memra::HostDev::adopt(memory); }) {}
};

/// Raw bytes of everything a cache has committed, by name: "2.k", "0.conv", ...; with pos and len.
using State = std::map<std::string, std::vector<std::byte>>;

template <class Dev>
State look(const memra::Cache<Dev>& cache) {
  State s;
  const auto put = [&](const std::string& name, const std::size_t& number) {
    const auto* b = reinterpret_cast<const std::byte*>(&number);
    s[name].assign(b, b + sizeof number);
  };
  put("pos", cache.pos());
  put("len", cache.len());
  for (std::size_t il = 0; il < cache.n_layer(); ++il) {
    const std::string at = std::to_string(il) + ".";
    const auto get = [&](const std::string& name, const void* p, std::size_t n) {
      s[at + name].resize(n);
      memra::check(cache.dev(il).download(s[at + name].data(), static_cast<const std::byte*>(p), n));
    };
    if (const auto kv = cache.kv(il)) {
      get("pos_d", kv->pos_d, sizeof(std::int32_t));
      for (const auto& [name, plane] : std::array{std::pair{"k", kv->k}, std::pair{"v", kv->v}}) {
        const memra::Segments rows = memra::segments(plane.shape, 0, cache.len());
        for (std::size_t i = 0; i < rows.count; ++i) {
          get(name + std::to_string(i), plane.data + rows[i].offset, rows[i].bytes);
        }
      }
    }
    if (const auto r = cache.recur(il)) {
      get("conv", r->conv, r->conv_elems() * sizeof(float));
      get("ssm", r->ssm, r->ssm_elems() * sizeof(float));
    }
  }
  return s;
}

/// The first entry in which two states differ; empty if they are equal.
inline std::string first_difference(const State& a, const State& b) {
  for (const auto& [name, bytes] : a) {
    const auto it = b.find(name);
    if (it == b.end() || it->second != bytes) return name;
  }
  return a.size() == b.size() ? "" : "another set of entries";
}

inline std::vector<float> floats_of(const std::vector<std::byte>& bytes) {
  std::vector<float> f(bytes.size() / sizeof(float));
  std::memcpy(f.data(), bytes.data(), f.size() * sizeof(float));
  return f;
}

/// Largest |a - b|; infinite if sizes differ or a value is not a number.
inline double max_error(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return HUGE_VAL;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double e = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(e <= worst)) worst = std::isnan(e) ? HUGE_VAL : e;
  }
  return worst;
}

}  // namespace rig
