// Scans and convolutions of every rule and state format: against float64, T tokens against T calls, rounds against
// single tokens, the portable bodies against the host's.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/host_ops.hpp>
#include <memra/portable_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <support/rule_layer.hpp>
#include <vector>

namespace kinds_scan_cpp {
namespace {

using memra::Format;
using memra::RecurrentSpec;
using memra::RoundMode;
using memra::ScanRule;
using memra_test::max_error;
using memra_test::RuleLayer;
using memra_test::same_bits;

struct PortableHost : memra::HostDev {
  using kernels = memra::PortableKernels;
};

constexpr std::array formats = {Format::f32, Format::f16, Format::bf16};

/// One of each family, with tails past vectors of 16 and columns of 4, and one whose columns go alone.
std::vector<RecurrentSpec> families() {
  RecurrentSpec shard = memra::mamba2(4, 5, 2, 18, 4);
  shard.map.mode = memra::KeyHeadMode::interleaved;
  return {memra::gated_delta(2, 4, 20, 9, 4),
          memra::kda(3, 33, 6, 4),
          memra::kda(1, 600, 5, 2),
          memra::mamba2(6, 7, 2, 16, 4),
          shard,
          memra::lightning(2, 24, 10),
          memra::mamba1(37, 16, 4),
          memra::mamba1(5, 19, 3),
          memra::short_conv(75, 3)};
}

/// To nearest even, by the definition: the neighbours of x, the nearer one, of two as near the even one.
float rounded(float x, Format f) {
  if (f == Format::f32) return x;
  const int digits = f == Format::bf16 ? 8 : 11;
  const int lowest = f == Format::bf16 ? -126 : -14;
  if (x == 0.0F) return x;
  int e = 0;
  (void)std::frexp(x, &e);  // |x| in [2^(e-1), 2^e)
  const double unit = std::ldexp(1.0, std::max(e, lowest + 1) - digits);
  return static_cast<float>(std::nearbyint(static_cast<double>(x) / unit) * unit);
}

/// The layer's tokens in float64, the state rounded after each as its format says.
struct Oracle {
  std::vector<double> y, out, s, ring;

  Oracle(const RuleLayer& l, std::size_t rows) {
    const RecurrentSpec& r = l.spec;
    const auto conv = l.conv.decoded();
    const auto ssm = l.ssm.decoded();
    const std::size_t c = r.conv_dim();
    const std::size_t kept = r.d_conv - 1;
    ring.assign(conv.begin(), conv.begin() + static_cast<std::ptrdiff_t>(c * kept));
    s.assign(ssm.begin(), ssm.begin() + static_cast<std::ptrdiff_t>(l.state()));
    for (std::size_t t = 0; t < rows; ++t) {
      for (std::size_t ch = 0; ch < c; ++ch) {
        double* line = ring.data() + ch * kept;
        const float in = l.x[t * c + ch];
        double sum = static_cast<double>(l.weight[ch * r.d_conv + kept]) * static_cast<double>(in);
        for (std::size_t j = 0; j < kept; ++j) sum += static_cast<double>(l.weight[ch * r.d_conv + j]) * line[j];
        y.push_back(sum / (1.0 + std::exp(-sum)));
        for (std::size_t j = 0; j + 1 < kept; ++j) line[j] = line[j + 1];
        if (kept != 0) line[kept - 1] = static_cast<double>(rounded(in, r.conv_format));
      }
      token(l, t);
    }
  }

 private:
  void token(const RuleLayer& l, std::size_t t) {
    const RecurrentSpec& r = l.spec;
    const bool delta = r.rule == ScanRule::gated_delta || r.rule == ScanRule::kda;
    for (std::size_t h = 0; h < r.n_v_heads; ++h) {
      const std::size_t kh =
          r.map.mode == memra::KeyHeadMode::grouped ? h / (r.n_v_heads / r.n_k_heads) : h % r.n_k_heads;
      for (std::size_t c = 0; c < r.d_v; ++c) {
        double* col = s.data() + (h * r.d_v + c) * r.d_k;
        const auto key = [&](const std::vector<float>& from, std::size_t i) {
          return static_cast<double>(from[(t * r.n_k_heads + kh) * r.d_k + i]);
        };
        const double v = static_cast<double>(l.v[(t * r.n_v_heads + h) * r.d_v + c]);
        const double beta = static_cast<double>(l.beta[t * r.n_v_heads + h]);
        double read = 0;
        for (std::size_t i = 0; i < r.d_k; ++i) {
          double g = 0;
          if (r.rule == ScanRule::kda) {
            g = static_cast<double>(l.g[(t * r.n_v_heads + h) * r.d_k + i]);
          } else if (r.rule == ScanRule::mamba1) {
            g = static_cast<double>(l.g[t * r.d_v + c]) * static_cast<double>(l.a[c * r.d_k + i]);
          } else {
            g = static_cast<double>(l.g[t * r.n_v_heads + h]);
          }
          col[i] *= std::exp(g);
          read += col[i] * key(l.k, i);
        }
        double u = delta ? beta * (v - read) : beta * v;
        if (r.rule == ScanRule::mamba1) u = static_cast<double>(l.g[t * r.d_v + c]) * v;
        double answer = 0;
        for (std::size_t i = 0; i < r.d_k; ++i) {
          col[i] += key(l.k, i) * u;
          answer += col[i] * key(l.q, i);
          if (r.ssm_format != Format::f32) {
            col[i] = static_cast<double>(rounded(static_cast<float>(col[i]), r.ssm_format));
          }
        }
        out.push_back(delta ? answer / std::sqrt(static_cast<double>(r.d_k)) : answer);
      }
    }
  }
};

TEST_CASE("every rule and state format against float64", "[ops][scan][kinds]") {
  for (const RecurrentSpec& family : families()) {
    for (const Format f : formats) {
      CAPTURE(memra::to_string(family.rule), family.d_k, memra::to_string(f));
      RuleLayer l(memra::stored_as(family, f, f), 30);
      RuleLayer before = l;
      const Oracle want(l, 30);
      const auto got = l.run<memra::HostDev>(0, 30);
      // A rounding that goes the other way moves an element by its last place; 30 tokens may do so.
      const double tolerance = f == Format::f32 ? 2e-5 : f == Format::f16 ? 4e-3 : 3e-2;
      REQUIRE(max_error(got.y, want.y) < 1e-5);  // only what is stored is rounded, and that is exact
      REQUIRE(max_error(got.out, want.out) < tolerance);
      REQUIRE(max_error(l.current(), want.s) < tolerance);
      auto ring = l.conv.decoded();
      ring.resize(want.ring.size());
      REQUIRE(max_error(ring, want.ring) == 0.0);
      REQUIRE(before.run<PortableHost>(0, 30) == got);
      REQUIRE((before.ssm == l.ssm && before.conv == l.conv));
      // Red arm: one token twice; coarse formats would need a larger step.
      if (family.rule == ScanRule::none || f != Format::f32) continue;
      (void)l.run<memra::HostDev>(29, 1);
      REQUIRE(max_error(l.current(), want.s) > 10 * tolerance);
    }
  }
}

TEST_CASE("bf16 and f16 states are rounded once per token, when they are stored", "[ops][scan][kinds]") {
  // One element by hand: S = 1, no decay, k = q = 1, u = 2^-9: the answer is 1 + 2^-9, the state keeps 1 in bf16 (whose
  // places end at 2^-7) and 1 + 2^-9 in f16 (2^-10). After ten tokens bf16 is still at 1.
  for (const Format f : {Format::bf16, Format::f16}) {
    RecurrentSpec spec = memra::stored_as(memra::lightning(1, 1, 1), Format::f32, f);
    RuleLayer l(spec, 10);
    l.ssm = {{1.0F, 0.0F}, f};
    l.g.assign(10, 0.0F);
    l.beta.assign(10, 1.0F);
    l.k.assign(10, 1.0F);
    l.q.assign(10, 1.0F);
    l.v.assign(10, 0.001953125F);
    const auto got = l.run<memra::HostDev>(0, 10);
    const float end = f == Format::bf16 ? 1.0F : 1.0F + 10 * 0.001953125F;
    REQUIRE(l.current()[0] == end);
    REQUIRE(got.out[9] == (f == Format::bf16 ? 1.001953125F : end));
  }
}

TEST_CASE("T tokens in one call are T calls, for every rule and format", "[ops][scan][kinds][identity]") {
  for (const RecurrentSpec& family : families()) {
    for (const Format f : formats) {
      for (const std::size_t rows : {2U, 5U, 64U, 139U}) {
        CAPTURE(memra::to_string(family.rule), family.d_k, memra::to_string(f), rows);
        RuleLayer whole(memra::stored_as(family, f, f), rows);
        RuleLayer single = whole;
        RuleLayer chunks = whole;
        const auto want = whole.run<memra::HostDev>(0, rows);
        RuleLayer::Outputs got;
        for (std::size_t t = 0; t < rows; ++t) got.append(single.run<memra::HostDev>(t, 1));
        REQUIRE(got == want);
        REQUIRE((single.ssm == whole.ssm && single.conv == whole.conv));
        got = {};
        for (std::size_t t = 0; t < rows; t += 7) {
          got.append(chunks.run<PortableHost>(t, std::min<std::size_t>(7, rows - t)));
        }
        REQUIRE(got == want);
        REQUIRE((chunks.ssm == whole.ssm && chunks.conv == whole.conv));
      }
    }
  }
}

template <class Dev>
memra::Status finish(const memra::RoundCommit& c) {
  Dev dev;
  const memra::ops_for<Dev> ops(dev);
  if (c.mode == RoundMode::stash) {
    if (auto s = ops.round_apply(c); !s) return s;
  }
  return ops.round_commit(c);
}

template <class Dev>
void rounds_are_single_tokens(const RecurrentSpec& spec, RoundMode mode) {
  for (const std::size_t rows : {1U, 2U, 5U, 16U}) {
    for (std::size_t accept = 0; accept <= rows; accept += accept < 2 ? 1 : 4) {
      CAPTURE(memra::to_string(spec.rule), spec.d_k, memra::to_string(spec.ssm_format), static_cast<int>(mode), rows,
              accept);
      RuleLayer l(spec, 16);
      RuleLayer plain(spec, 16);
      for (int turn = 0; turn < 2; ++turn) {  // the second starts from the plane that the first one chose
        const auto conv = l.conv;
        const auto got = l.run<Dev>(0, rows, mode);
        REQUIRE(l.conv == conv);
        RuleLayer all = plain;
        RuleLayer::Outputs want;
        for (std::size_t t = 0; t < rows; ++t) want.append(all.run<memra::HostDev>(t, 1));
        REQUIRE(got == want);
        for (std::size_t t = 0; t < accept; ++t) (void)plain.run<memra::HostDev>(t, 1);
        const memra::RecurView table = l.view(0, mode);
        memra::check(finish<Dev>(l.commit(table, rows, accept, mode)));
        REQUIRE(same_bits(l.current(), plain.current()));
        REQUIRE(l.conv == plain.conv);
        RuleLayer wrong = plain;
        (void)wrong.run<memra::HostDev>(0, 1);
        if (spec.rule != ScanRule::none) REQUIRE_FALSE(same_bits(l.current(), wrong.current()));  // red arm
      }
    }
  }
}

TEST_CASE("rounds by planes and by stash leave what single tokens leave", "[ops][round][kinds]") {
  for (const RecurrentSpec& family : families()) {
    for (const Format f : formats) {
      const RecurrentSpec spec = memra::stored_as(family, f, f);
      rounds_are_single_tokens<memra::HostDev>(spec, RoundMode::planes);
      rounds_are_single_tokens<PortableHost>(spec, RoundMode::planes);
      if (family.rule == ScanRule::mamba1) continue;
      rounds_are_single_tokens<memra::HostDev>(spec, RoundMode::stash);
      rounds_are_single_tokens<PortableHost>(spec, RoundMode::stash);
    }
  }
}

TEST_CASE("each scan takes its rules and says which takes the others", "[ops][scan][kinds]") {
  memra::HostDev dev;
  const memra::ops_for<memra::HostDev> ops(dev);
  const auto says = [](const memra::Status& s, const char* words) {
    INFO(s.text());
    return s.kind() == memra::ErrorKind::bad_argument && std::string(s.text()).find(words) != std::string::npos;
  };
  for (const RecurrentSpec& family : families()) {
    RuleLayer l(family, 4);
    std::vector<float> out(4 * family.n_v_heads * family.d_v);
    const bool delta = family.rule == ScanRule::gated_delta || family.rule == ScanRule::kda;
    const auto other = delta ? ops.linear_scan(l.view(4, RoundMode::none), l.scan_args(0, out.data()))
                             : ops.delta_scan(l.view(4, RoundMode::none), l.scan_args(0, out.data()));
    REQUIRE(says(other, "the layer's rule is"));
  }
  RuleLayer m(memra::mamba1(8, 16, 4), 4);
  std::vector<float> out(4 * 8);
  REQUIRE(says(ops.linear_scan(m.view(4, RoundMode::stash), m.scan_args(0, out.data())), "planes or replay"));
  memra::ScanArgs without = m.scan_args(0, out.data());
  without.a = nullptr;
  REQUIRE(says(ops.linear_scan(m.view(4, RoundMode::none), without), "A is null"));
  // A state in 16 bits has no f32 address: kernels that know no other cannot take it for theirs.
  RuleLayer h(memra::stored_as(memra::kda(1, 16, 16, 4), Format::bf16, Format::f16), 1);
  const memra::RecurView r = h.view(1, RoundMode::none);
  REQUIRE((r.conv == nullptr && r.ssm == nullptr && r.conv16 != nullptr && r.ssm16 != nullptr));
  REQUIRE_FALSE(r.plain());
  // Without beta a linear rule adds v as it is.
  RuleLayer ones(memra::lightning(2, 16, 4), 6);
  RuleLayer none = ones;
  ones.beta.assign(ones.beta.size(), 1.0F);
  const auto want = ones.run<memra::HostDev>(0, 6);
  std::vector<float> got(want.out.size());
  memra::ScanArgs a = none.scan_args(0, got.data());
  a.beta = nullptr;
  REQUIRE(ops.linear_scan(none.view(6, RoundMode::none), a).ok());
  REQUIRE(same_bits(got, want.out));
  REQUIRE(none.ssm == ones.ssm);
}

}  // namespace
}  // namespace kinds_scan_cpp
