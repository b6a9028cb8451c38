// Runs of a golden text and their distance from transformers' values: logits, taps, K/V, conv and ssm of every layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <engine/rig.hpp>
#include <map>
#include <memra/error.hpp>
#include <memra/taps.hpp>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

namespace golden {

using memra::check;

inline constexpr double logits_tolerance = 2e-4;
inline constexpr double state_tolerance = 2e-5;

struct Observed {
  std::vector<float> logits;  // [rows][n_vocab]
  std::vector<float> taps;    // [rows][n_taps * hidden]
  rig::State state;

  bool operator==(const Observed&) const = default;
};

inline rig::Options options(const std::vector<std::int32_t>& ids, std::size_t chunk, std::size_t stages = 1) {
  rig::Options o;
  o.max_rows = chunk;
  o.stages = stages;
  o.ctx = ids.size();
  return o;
}

/// Runs the golden text in chunks of the rig's rows, with taps after `layers`.
template <class Dev>
Observed observe(rig::RigOn<Dev>& r, const std::vector<std::int32_t>& ids, const std::vector<std::size_t>& layers) {
  const std::size_t hidden = r.trunk->config().hidden;
  auto sink = check(memra::DflashTapSink<Dev>::create(r.trunk->head_device(), layers, hidden, ids.size()));
  check(r.cache->arm_taps(std::move(sink)));
  Observed out;
  r.decoder(false).prime(ids, r.options.max_rows, [&](std::span<const float> rows) {
    out.logits.insert(out.logits.end(), rows.begin(), rows.end());
  });
  const auto taken = r.cache->take_taps();
  REQUIRE(taken->rows() == ids.size());
  out.taps.resize(taken->rows() * taken->row_floats());
  check(taken->device().download(reinterpret_cast<std::byte*>(out.taps.data()),
                                 reinterpret_cast<const std::byte*>(taken->data()), out.taps.size() * sizeof(float)));
  out.state = rig::look(*r.cache);
  return out;
}
/// On the host.
inline Observed observe(const tiny::ModelFiles& files, const std::vector<std::int32_t>& ids, std::size_t chunk,
                        const std::vector<std::size_t>& layers, std::size_t stages = 1) {
  rig::Rig r(files, options(ids, chunk, stages));
  return observe(r, ids, layers);
}

/// Largest error of each kind of value against the golden file.
inline std::map<std::string, double> errors(const Observed& seen, const tiny::ModelFiles& files,
                                            const tiny::SafeTensors& gold, const std::vector<std::size_t>& layers) {
  const tiny::TrunkConfig& c = files.config;
  std::map<std::string, double> worst;
  const auto note = [&](const std::string& kind, const std::vector<float>& a, const std::vector<float>& b) {
    worst[kind] = std::max(worst[kind], rig::max_error(a, b));
  };
  note("logits", seen.logits, rig::read<float>(gold, "logits"));
  const std::size_t rows = seen.logits.size() / c.n_vocab;
  for (std::size_t slot = 0; slot < layers.size(); ++slot) {
    const std::vector<float> want = rig::read<float>(gold, "tap." + std::to_string(layers[slot]));
    if (want.empty()) continue;  // next_random has no taps
    std::vector<float> got;
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = seen.taps.data() + (r * layers.size() + slot) * c.hidden;
      got.insert(got.end(), row, row + c.hidden);
    }
    note("taps", got, want);
  }
  for (std::size_t il = 0; il < c.n_layers(); ++il) {
    const std::string theirs = "layer" + std::to_string(il) + ".";
    const std::string ours = std::to_string(il) + ".";
    if (c.full_attention[il]) {
      for (const std::string plane : {"k", "v"}) {  // theirs: [head][row][dim]
        const std::vector<float> got = rig::floats_of(seen.state.at(ours + plane + "0"));
        std::vector<float> turned;
        for (std::size_t h = 0; h < c.n_kv_heads; ++h) {
          for (std::size_t r = 0; r < rows; ++r) {
            const float* p = got.data() + (r * c.n_kv_heads + h) * c.head_dim;
            turned.insert(turned.end(), p, p + c.head_dim);
          }
        }
        note("kv", turned, rig::read<float>(gold, theirs + plane));
      }
      continue;
    }
    const std::vector<float> conv = rig::read<float>(gold, theirs + "conv");  // theirs: d_conv columns, newest last
    std::vector<float> newest;
    for (std::size_t ch = 0; ch < c.conv_dim(); ++ch) {
      for (std::size_t j = 1; j < c.d_conv; ++j) newest.push_back(conv[ch * c.d_conv + j]);
    }
    note("conv", rig::floats_of(seen.state.at(ours + "conv")), newest);
    const std::vector<float> ssm = rig::read<float>(gold, theirs + "ssm");  // theirs: [head][d_k][d_v]
    std::vector<float> turned(ssm.size());
    for (std::size_t h = 0; h < c.n_v; ++h) {
      for (std::size_t k = 0; k < c.d_k; ++k) {
        for (std::size_t v = 0; v < c.d_v; ++v) {
          turned[(h * c.d_v + v) * c.d_k + k] = ssm[(h * c.d_k + k) * c.d_v + v];
        }
      }
    }
    note("ssm", rig::floats_of(seen.state.at(ours + "ssm")), turned);
  }
  return worst;
}

inline bool within(const std::map<std::string, double>& worst) {
  for (const auto& [kind, e] : worst) {
    if (!(e <= (kind == "logits" ? logits_tolerance : state_tolerance))) return false;
  }
  return true;
}

inline std::string shown(const std::map<std::string, double>& worst) {
  std::string s;
  for (const auto& [kind, e] : worst) s += kind + " " + std::to_string(e * 1e6) + "e-6  ";
  return s;
}

struct Case {
  std::string folder;
  std::vector<std::size_t> layers;
};
inline const Case cases[] = {{"tiny", {0, 2, 4}}, {"next_random", {1, 3}}};

}  // namespace golden
