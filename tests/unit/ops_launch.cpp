// Host kernels on a device that is not HostDev: one launch per op, late execution, items in any order.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memra/codec.hpp>
#include <memra/host_ops.hpp>
#include <string>
#include <support/catch.hpp>
#include <support/planes.hpp>
#include <type_traits>
#include <utility>
#include <vector>

namespace ops_launch_cpp {
namespace {

using memra::Format;
using memra::Layout;
using memra_test::Plane;
using memra_test::Rng;
using memra_test::same_bits;

/// Runs launches when told to, items last to first.
class LateDev {
 public:
  using kernels = memra::HostKernels;

  template <class Body>
  memra::Status launch(const char* name, memra::Grid grid, const Body& body) noexcept {
    static_assert(std::is_trivially_copyable_v<Body>);
    names.emplace_back(name);
    queue_.emplace_back([grid, body] {
      for (std::size_t z = grid.z; z-- > 0;) {
        for (std::size_t y = grid.y; y-- > 0;) {
          for (std::size_t x = grid.x; x-- > 0;) body(memra::Item{x, y, z});
        }
      }
    });
    return {};
  }
  void flush() {
    for (const auto& work : std::exchange(queue_, {})) work();
  }

  std::vector<std::string> names;

 private:
  std::vector<std::function<void()>> queue_;
};
static_assert(memra::LaunchDev<LateDev>);

/// Every op once, on small inputs; what they wrote, as floats.
struct Everything {
  static constexpr std::size_t n_kv = 2, heads = 4, dim = 32, rows = 19, held = 100;
  Plane k{Format::q8_0, Layout::blocks, held, n_kv* dim};
  Plane v{Format::q5_1, Layout::split, held, n_kv* dim};
  Plane packed{Format::q5_1, Layout::blocks, held, n_kv* dim};
  std::int32_t pos = 0;
  std::int32_t len = 0;
  std::vector<float> k_rows, v_rows, q, out, read;
  std::vector<float> draft_k, draft_v, draft_out;
  std::vector<float> conv, ssm, x, weight, y, g, beta, scan_out;
  std::vector<float> gathered;
  std::vector<std::int32_t> index = {3, -1, 0}, best = std::vector<std::int32_t>(rows);
  std::vector<std::byte> copied = std::vector<std::byte>(64);
  memra_test::Scratch scratch{2U << 20};  // more than any op below asks for

  Everything() {
    Rng rng(1);
    k_rows = rng.vector(held * n_kv * dim);
    v_rows = rng.vector(held * n_kv * dim);
    for (std::size_t r = 0; r < 70; ++r) {
      memra::encode_row(k.view(), r, k_rows.data() + r * n_kv * dim);
      memra::encode_row(v.view(), r, v_rows.data() + r * n_kv * dim);
    }
    q = rng.vector(rows * heads * dim);
    out.resize(rows * heads * dim);
    read.resize(3 * n_kv * dim);
    draft_k = rng.vector(50 * n_kv * dim);
    draft_v = rng.vector(50 * n_kv * dim);
    draft_out.resize(rows * heads * dim);
    ssm = rng.vector(n_kv * dim * dim);
    conv = rng.vector(4 * n_kv * dim * 3);
    x = rng.vector(rows * 4 * n_kv * dim);
    weight = rng.vector(4 * n_kv * dim * 4);
    y.resize(x.size());
    g = rng.vector(rows * n_kv, 0.1F);
    beta = rng.vector(rows * n_kv);
    scan_out.resize(rows * n_kv * dim);
    gathered.resize(3 * 32);
  }

  template <class Dev>
  void run(Dev& dev) {
    const memra::ops_for<Dev> ops(dev);
    const std::size_t width = n_kv * dim;
    const memra::StepPos at{&pos, rows, held, held};
    memra::check(ops.append({k.view(), v.view(), n_kv, dim, dim, at}, k_rows.data(), v_rows.data()));
    memra::check(
        ops.attend({k.view(), v.view(), n_kv, dim, dim, 0, at}, {q.data(), out.data(), heads, 0.2F}, scratch.view()));
    memra::RecurView r;
    r.conv = conv.data();
    r.ssm = ssm.data();
    r.n_k_heads = r.n_v_heads = n_kv;
    r.d_k = r.d_v = dim;
    r.d_conv = 4;
    r.rows = rows;
    memra::check(ops.conv_update(r, {x.data(), weight.data(), nullptr, y.data(), true}));
    memra::ScanArgs s;
    s.q = y.data();
    s.k = y.data() + width;
    s.v = y.data() + 2 * width;
    s.q_stride = s.k_stride = s.v_stride = 3 * width;
    s.g = g.data();
    s.beta = beta.data();
    s.out = scan_out.data();
    memra::check(ops.delta_scan(r, s));
    r.rule = memra::ScanRule::linear;
    memra::check(ops.linear_scan(r, s));
    memra::DraftView d{draft_k.data(), draft_v.data(), n_kv, dim, 8, 0, 0, 50, &len, 45, 5};
    memra::check(ops.draft_write(d, k_rows.data(), v_rows.data()));
    memra::check(ops.draft_attend(d, {q.data(), draft_out.data(), heads, 0.2F, memra::DraftArm::clip}, scratch.view()));
    memra::check(ops.argmax_rows(out.data(), rows, heads * dim, best.data()));
    memra::check(ops.gather_rows({k.bytes().data(), Format::q8_0, 4, 32}, index.data(), 3, gathered.data()));
    memra::check(ops.copy_rows(copied.data(), 16, k.bytes().data(), 34, 16, 4));
    memra::check(ops.repack(packed.view(), 10, v.view(), 20, 30));
    memra::check(ops.read_rows(packed.view(), 11, 3, read.data()));
  }

  bool equals(const Everything& o) const {
    return k.bytes() == o.k.bytes() && v.bytes() == o.v.bytes() && packed.bytes() == o.packed.bytes() &&
           same_bits(out, o.out) && same_bits(read, o.read) && same_bits(draft_k, o.draft_k) &&
           same_bits(draft_v, o.draft_v) && same_bits(draft_out, o.draft_out) && same_bits(conv, o.conv) &&
           same_bits(ssm, o.ssm) && same_bits(y, o.y) && same_bits(scan_out, o.scan_out) &&
           same_bits(gathered, o.gathered) && best == o.best && copied == o.copied;
  }
};

TEST_CASE("host kernels run late, in any item order, with the position of that moment", "[ops][launch][identity]") {
  Everything now;
  now.pos = 70;
  now.len = 33;
  memra::HostDev host;
  now.run(host);

  Everything later;
  LateDev dev;
  const Everything before = later;
  later.run(dev);
  REQUIRE(later.equals(before));  // nothing ran yet
  REQUIRE(dev.names == std::vector<std::string>{"append", "attend", "conv_update", "delta_scan", "linear_scan",
                                                "draft_write", "draft_attend", "argmax_rows", "gather_rows",
                                                "copy_rows", "repack", "read_rows"});
  later.pos = 70;
  later.len = 33;
  dev.flush();
  REQUIRE(later.equals(now));

  // Red arm: another position at that moment is another result.
  Everything wrong;
  wrong.run(dev);
  wrong.pos = 71;
  wrong.len = 33;
  dev.flush();
  REQUIRE_FALSE(wrong.equals(now));
}

TEST_CASE("a refused op launches nothing", "[ops][launch]") {
  Everything e;
  LateDev dev;
  const memra::ops_for<LateDev> ops(dev);
  const memra::StepPos at{&e.pos, 4, 100, 100};
  const memra::KvReadView view{e.k.view(), e.v.view(), 2, 32, 32, 0, at};
  const memra::AttendArgs a{e.q.data(), e.out.data(), 4, 1.0F};
  const std::size_t bytes = memra::detail::attend_scratch_bytes(4, 2, 32, 32, 4);
  REQUIRE_FALSE(ops.attend(view, a, {e.scratch.view().data, bytes - 1}).ok());
  REQUIRE_FALSE(ops.attend(view, {e.q.data(), e.out.data(), 3, 1.0F}, e.scratch.view()).ok());
  REQUIRE_FALSE(ops.append({e.k.view(), e.v.view(), 2, 32, 64, at}, e.q.data(), e.q.data()).ok());
  REQUIRE_FALSE(ops.argmax_rows(e.q.data(), 1, 0, e.best.data()).ok());
  REQUIRE(dev.names.empty());
  REQUIRE(ops.attend(view, a, {e.scratch.view().data, bytes}).ok());
  REQUIRE(dev.names.size() == 1);
}

}  // namespace
}  // namespace ops_launch_cpp
