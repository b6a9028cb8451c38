// Both golden files: logits, taps, K/V, conv and ssm of every layer against transformers' values, whole and in chunks.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memra/error.hpp>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

#include <engine/rig.hpp>

namespace {

using memra::check;

constexpr double logits_tolerance = 2e-4;
constexpr double state_tolerance = 2e-5;

struct Observed {
  std::vector<float> logits;  // [rows][n_vocab]
  std::vector<float> taps;    // [rows][n_taps * hidden]
  rig::State state;

  bool operator==(const Observed&) const = default;
};

/// Runs the golden text in chunks, with taps after `layers`.
Observed observe(const tiny::ModelFiles& files, const std::vector<std::int32_t>& ids, std::size_t chunk,
                 const std::vector<std::size_t>& layers, std::size_t stages = 1) {
  rig::Options o;
  o.max_rows = chunk;
  o.stages = stages;
  o.ctx = ids.size();
  rig::Rig r(files, o);
  auto sink = check(
      memra::DflashTapSink<memra::HostDev>::create(r.trunk->head_device(), layers, files.config.hidden, ids.size()));
  check(r.cache->arm_taps(std::move(sink)));
  Observed out;
  r.decoder(false).prime(
      ids, chunk, [&](std::span<const float> rows) { out.logits.insert(out.logits.end(), rows.begin(), rows.end()); });
  const auto taken = r.cache->take_taps();
  REQUIRE(taken->rows() == ids.size());
  out.taps.assign(taken->data(), taken->data() + taken->rows() * taken->row_floats());
  out.state = rig::look(*r.cache);
  return out;
}

/// Largest error of each kind of value against the golden file.
std::map<std::string, double> errors(const Observed& seen, const tiny::ModelFiles& files, const tiny::SafeTensors& gold,
                                     const std::vector<std::size_t>& layers) {
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

bool within(const std::map<std::string, double>& worst) {
  for (const auto& [kind, e] : worst) {
    if (!(e <= (kind == "logits" ? logits_tolerance : state_tolerance))) return false;
  }
  return true;
}

std::string shown(const std::map<std::string, double>& worst) {
  std::string s;
  for (const auto& [kind, e] : worst) s += kind + " " + std::to_string(e * 1e6) + "e-6  ";
  return s;
}

struct Case {
  std::string folder;
  std::vector<std::size_t> layers;
};
const Case cases[] = {{"tiny", {0, 2, 4}}, {"next_random", {1, 3}}};

}  // namespace

TEST_CASE("golden: the whole text in one call") {
  for (const Case& one : cases) {
    const auto files = check(tiny::load_model(rig::fixture(one.folder)));
    const auto gold = check(tiny::SafeTensors::open(rig::fixture(one.folder + "/golden.safetensors")));
    const auto ids = rig::read<std::int32_t>(gold, "ids");
    const Observed seen = observe(files, ids, ids.size(), one.layers);
    const auto worst = errors(seen, files, gold, one.layers);
    INFO(one.folder << ": " << shown(worst));
    REQUIRE(within(worst));
    REQUIRE(worst.size() == (one.folder == "tiny" ? 5U : 4U));
  }
}

TEST_CASE("golden: chunks of 1, 7 and 64 and stages change no bit") {
  for (const Case& one : cases) {
    const auto files = check(tiny::load_model(rig::fixture(one.folder)));
    const auto gold = check(tiny::SafeTensors::open(rig::fixture(one.folder + "/golden.safetensors")));
    const auto ids = rig::read<std::int32_t>(gold, "ids");
    const Observed whole = observe(files, ids, ids.size(), one.layers);
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
      const Observed seen = observe(files, ids, chunk, one.layers);
      INFO(one.folder << " in chunks of " << chunk << ": " << rig::first_difference(whole.state, seen.state));
      REQUIRE(seen == whole);
    }
    for (const std::size_t stages : {std::size_t{2}, std::size_t{3}}) {
      const Observed seen = observe(files, ids, 7, one.layers, stages);
      INFO(one.folder << " in " << stages << " stages: " << rig::first_difference(whole.state, seen.state));
      REQUIRE(seen == whole);
    }
  }
}

TEST_CASE("golden red arm: each kind of value is seen to fail") {
  const Case& one = cases[0];
  const auto files = check(tiny::load_model(rig::fixture(one.folder)));
  const auto gold = check(tiny::SafeTensors::open(rig::fixture(one.folder + "/golden.safetensors")));
  const auto ids = rig::read<std::int32_t>(gold, "ids");
  const Observed good = observe(files, ids, ids.size(), one.layers);
  REQUIRE(within(errors(good, files, gold, one.layers)));

  const auto nudge = [](std::vector<std::byte>& bytes, std::size_t i, float by) {
    float f;
    std::memcpy(&f, bytes.data() + 4 * i, 4);
    f += by;
    std::memcpy(bytes.data() + 4 * i, &f, 4);
  };
  SECTION("one logit") {
    Observed bad = good;
    bad.logits[777] += 5e-4F;
    REQUIRE_FALSE(within(errors(bad, files, gold, one.layers)));
  }
  SECTION("one tap value") {
    Observed bad = good;
    bad.taps[12345] += 1e-4F;
    REQUIRE_FALSE(within(errors(bad, files, gold, one.layers)));
  }
  for (const std::string entry : {"2.k0", "5.v0", "0.conv", "4.ssm"}) {
    DYNAMIC_SECTION("one value of " << entry) {
      Observed bad = good;
      nudge(bad.state.at(entry), 99, 1e-4F);
      REQUIRE_FALSE(within(errors(bad, files, gold, one.layers)));
      REQUIRE_FALSE(bad == good);
    }
  }
  SECTION("a conv state one column off") {
    Observed bad = good;
    auto conv = rig::floats_of(bad.state.at("0.conv"));
    for (std::size_t ch = 0; ch + 1 < conv.size() / 3; ++ch) std::swap(conv[ch * 3], conv[ch * 3 + 1]);
    std::memcpy(bad.state.at("0.conv").data(), conv.data(), conv.size() * 4);
    REQUIRE_FALSE(within(errors(bad, files, gold, one.layers)));
  }
  SECTION("one token of the text changed") {
    auto other = ids;
    other[3] += 1;
    REQUIRE_FALSE(within(errors(observe(files, other, 64, one.layers), files, gold, one.layers)));
  }
  SECTION("one token fed twice") {
    auto other = ids;
    other.insert(other.begin() + 5, other[5]);
    other.pop_back();
    REQUIRE_FALSE(observe(files, other, 64, one.layers) == good);
  }
}
