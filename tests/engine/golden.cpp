// Both golden files: logits, taps, K/V, conv and ssm of every layer against transformers' values, whole and in chunks.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <engine/golden.hpp>
#include <support/catch.hpp>
#include <utility>
#include <vector>

namespace golden_cpp {
using golden::cases;
using golden::errors;
using golden::observe;
using golden::Observed;
using golden::shown;
using golden::within;
using memra::check;

TEST_CASE("golden: the whole text in one call") {
  for (const golden::Case& one : cases) {
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
  for (const golden::Case& one : cases) {
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
  const golden::Case& one = cases[0];
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
}  // namespace golden_cpp
