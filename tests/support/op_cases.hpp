// Every op of ops_for on one device, from the same inputs: what it wrote, as bytes, to be compared between devices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memra/codec.hpp>
#include <memra/ops.hpp>
#include <memra/round_views.hpp>
#include <string>
#include <support/planes.hpp>
#include <vector>

namespace memra_test {

/// Device memory filled from host values; every device starts from the same bytes.
template <class Dev>
class OnDev {
 public:
  OnDev(Dev& dev, std::size_t bytes, int fill = 0xFF) : dev_(&dev), buffer_(memra::check(dev.alloc(bytes + 64))) {
    memra::check(dev.fill(buffer_.data(), static_cast<std::byte>(fill), buffer_.size()));
    bytes_ = bytes;
  }
  template <class T>
  OnDev(Dev& dev, const std::vector<T>& values) : OnDev(dev, values.size() * sizeof(T)) {
    memra::check(dev.upload(buffer_.data(), reinterpret_cast<const std::byte*>(values.data()), bytes_));
  }
  std::byte* data() const { return buffer_.data(); }
  float* floats() const { return reinterpret_cast<float*>(buffer_.data()); }
  std::int32_t* ints() const { return reinterpret_cast<std::int32_t*>(buffer_.data()); }
  /// All bytes, those after the end included: nothing may be written there.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> v(buffer_.size());
    memra::check(dev_->download(v.data(), buffer_.data(), v.size()));
    return v;
  }

 private:
  Dev* dev_;
  typename Dev::Buffer buffer_;
  std::size_t bytes_ = 0;
};

using Bytes = std::vector<std::byte>;
inline void join(Bytes& all, const Bytes& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Values with large spread, zeros of both signs, and now and then an infinity or NaN if `wild`.
inline std::vector<float> values(Rng& rng, std::size_t n, bool wild = false) {
  std::vector<float> v = rng.vector(n, 2.0F);
  for (float& x : v) {
    const std::uint32_t r = rng.next() % 64;
    if (r == 0) x = 0.0F;
    if (r == 1) x = -0.0F;
    if (r == 2) x *= 1e-30F;
    if (wild && r == 3) x *= 1e30F;
    if (wild && r == 4 && rng.next() % 4 == 0) x = std::numeric_limits<float>::infinity();
    if (wild && r == 5 && rng.next() % 4 == 0) x = std::numeric_limits<float>::quiet_NaN();
  }
  return v;
}

struct KvShape {
  memra::Format k_format = memra::Format::q8_0;
  memra::Format v_format = memra::Format::q5_1;
  memra::Layout layout = memra::Layout::blocks;
  std::size_t n_heads = 4, n_kv = 2, dk = 64, dv = 32;
  std::size_t rows = 200;  ///< of the planes
  std::size_t base = 0;
  std::size_t window = 0;
  bool ring = false;    ///< row r is physical row r mod rows
  bool v_in_k = false;  ///< no V plane
};

/// Appends at `pos`, `t` rows: both planes.
template <class Dev>
Bytes run_append(Dev& dev, const KvShape& s, std::int32_t pos, std::size_t t, std::size_t capacity, bool wild,
                 std::uint64_t seed) {
  Rng rng(seed);
  const memra::PlaneShape ks{s.k_format, s.layout, s.rows, s.n_kv * s.dk};
  const memra::PlaneShape vs{s.v_format, s.layout, s.rows, s.n_kv * s.dv};
  const OnDev<Dev> k(dev, memra::sub_planes(ks).bytes + 8);
  const OnDev<Dev> v(dev, memra::sub_planes(vs).bytes + 8);
  const OnDev<Dev> k_in(dev, values(rng, t * ks.width, wild));
  const OnDev<Dev> v_in(dev, values(rng, t * vs.width, wild));
  const OnDev<Dev> pos_d(dev, std::vector<std::int32_t>{pos});
  memra::KvWriteView view{{k.data(), ks, s.base, s.ring},
                          {v.data(), vs, s.base, s.ring},
                          s.n_kv,
                          s.dk,
                          s.dv,
                          {pos_d.ints(), t, static_cast<std::size_t>(pos < 0 ? 0 : pos), capacity},
                          s.v_in_k};
  if (s.v_in_k) view.v = {};
  memra::check(memra::ops_for<Dev>(dev).append(view, k_in.floats(), v_in.floats()));
  Bytes all = k.bytes();
  join(all, v.bytes());
  return all;
}

/// A layer with `len` written rows, ready to be attended on `dev`.
template <class Dev>
struct AttendOn {
  KvShape s;
  std::size_t len;
  memra::PlaneShape ks, vs;
  std::vector<float> q_host;
  OnDev<Dev> k, v, q;

  AttendOn(Dev& dev, const KvShape& shape, std::size_t written, std::uint64_t seed)
      : s(shape),
        len(written),
        ks{s.k_format, s.layout, s.rows, s.n_kv * s.dk},
        vs{s.v_format, s.layout, s.rows, s.n_kv * s.dv},
        q_host(queries(seed)),
        k(dev, plane(ks, seed * 2 + 1)),
        v(dev, plane(vs, seed * 2 + 2)),
        q(dev, q_host) {}

  std::vector<float> queries(std::uint64_t seed) const {
    Rng rng(seed);
    return rng.vector(len * s.n_heads * s.dk, 2.0F);
  }

  /// Rows [base, len) written by the host's encoder, the rest NaN.
  Bytes plane(const memra::PlaneShape& shape, std::uint64_t seed) const {
    Rng rng(seed);
    Plane p(shape.format, shape.layout, shape.rows, shape.width, s.base);
    for (std::size_t r = s.base; r < len; ++r) {
      const std::vector<float> x = rng.vector(shape.width, 2.0F);
      memra::encode_row(p.view(), s.ring ? r % s.rows : r - s.base, x.data());
    }
    return p.bytes();
  }

  /// Output of query rows [pos, pos + t) in one call; nothing if it wrote behind its scratch.
  Bytes run(Dev& dev, std::size_t pos, std::size_t t) const {
    const std::size_t bytes = memra::detail::attend_scratch_bytes(s.n_heads, s.n_kv, s.dk, s.dv, t);
    constexpr std::size_t guard = 4096;
    const OnDev<Dev> scratch(dev, bytes + guard);
    const OnDev<Dev> out(dev, t * s.n_heads * s.dv * 4);
    const OnDev<Dev> pos_d(dev, std::vector<std::int32_t>{static_cast<std::int32_t>(pos)});
    memra::KvReadView view{{k.data(), ks, s.base, s.ring},
                           {v.data(), vs, s.base, s.ring},
                           s.n_kv,
                           s.dk,
                           s.dv,
                           s.window,
                           {pos_d.ints(), t, pos, s.rows + s.base},
                           s.v_in_k};
    if (s.v_in_k) view.v = {};
    const memra::AttendArgs a{q.floats() + pos * s.n_heads * s.dk, out.floats(), s.n_heads, 0.125F};
    memra::check(memra::ops_for<Dev>(dev).attend(view, a, {scratch.data(), bytes}));
    Bytes behind(guard);
    memra::check(dev.download(behind.data(), scratch.data() + bytes, guard));
    for (const std::byte x : behind) {
      if (x != std::byte{0xFF}) return {};  // written behind the scratch's end
    }
    Bytes b = out.bytes();
    b.resize(t * s.n_heads * s.dv * 4);
    return b;
  }
};

struct RecurShape {
  std::size_t n_k = 2, n_v = 4, d_k = 32, d_v = 48, d_conv = 4;
  memra::KeyHeadMode mode = memra::KeyHeadMode::grouped;
  memra::ScanRule rule = memra::ScanRule::gated_delta;
  memra::Format format = memra::Format::f32;  ///< of conv and ssm
  memra::ScanClass scan = memra::ScanClass::sequential;
  std::size_t conv_dim() const { return 2 * n_k * d_k + n_v * d_v; }
  std::size_t decay_width() const { return rule == memra::ScanRule::kda ? d_k : 1; }
  /// Without addresses.
  memra::RecurView view(std::size_t rows) const {
    memra::RecurView r;
    r.n_k_heads = n_k;
    r.n_v_heads = n_v;
    r.d_k = d_k;
    r.d_v = d_v;
    r.d_conv = d_conv;
    r.map.mode = mode;
    r.rows = rows;
    r.rule = rule;
    r.conv_format = r.ssm_format = format;
    r.scan = scan;
    return r;
  }
};

/// A recurrent state on a device, from values, in the format it is kept in.
template <class Dev>
struct StateOn {
  OnDev<Dev> bytes;
  memra::Format format;

  StateOn(Dev& dev, const std::vector<float>& x, memra::Format f) : bytes(dev, encoded(x, f)), format(f) {}
  static Bytes encoded(const std::vector<float>& x, memra::Format f) {
    Bytes b(memra::row_bytes(f, x.size()));
    memra::encode(f, x.data(), b.data(), x.size());
    return b;
  }
  float* f32() const { return format == memra::Format::f32 ? bytes.floats() : nullptr; }
  std::uint16_t* bits() const {
    return format == memra::Format::f32 ? nullptr : reinterpret_cast<std::uint16_t*>(bytes.data());
  }
};

/// conv_update of `t` rows in calls of `step`: y and the ring.
template <class Dev>
Bytes run_conv(Dev& dev, const RecurShape& s, std::size_t t, std::size_t step, bool silu, bool bias,
               std::uint64_t seed) {
  Rng rng(seed);
  const StateOn<Dev> ring(dev, values(rng, s.conv_dim() * (s.d_conv - 1)), s.format);
  const OnDev<Dev> x(dev, values(rng, t * s.conv_dim()));
  const OnDev<Dev> w(dev, values(rng, s.conv_dim() * s.d_conv));
  const OnDev<Dev> b(dev, values(rng, s.conv_dim()));
  const OnDev<Dev> y(dev, t * s.conv_dim() * 4);
  for (std::size_t done = 0; done < t; done += step) {
    memra::RecurView r = s.view(std::min(step, t - done));
    r.conv = ring.f32();
    r.conv16 = ring.bits();
    const memra::ConvArgs a{x.floats() + done * s.conv_dim(), w.floats(), bias ? b.floats() : nullptr,
                            y.floats() + done * s.conv_dim(), silu};
    memra::check(memra::ops_for<Dev>(dev).conv_update(r, a));
  }
  Bytes all = y.bytes();
  join(all, ring.bytes.bytes());
  return all;
}

/// What a scan of `t` tokens is given.
template <class Dev>
struct ScanInputs {
  RecurShape s;
  std::size_t g_row;  ///< numbers of g per token
  OnDev<Dev> qkv, g, beta, rates, scratch;

  ScanInputs(Dev& dev, const RecurShape& shape, std::size_t t, Rng& rng)
      : s(shape),
        g_row(mamba1() ? s.d_v : s.n_v * s.decay_width()),
        qkv(dev, scaled(rng, t * s.conv_dim(), 0.3F)),
        g(dev, of_sign(rng, t * g_row, mamba1() ? 1.0F : -1.0F)),
        beta(dev, rng.vector(t * s.n_v)),
        rates(dev, of_sign(rng, s.d_v * s.d_k, -1.0F)),
        scratch(dev, memra::detail::chunk_scan_bytes(s.n_v, t)) {}

  /// From token `first` on.
  memra::ScanArgs args(std::size_t first, float* out) const {
    memra::ScanArgs a;
    a.q = qkv.floats() + first * s.conv_dim();
    a.k = a.q + s.n_k * s.d_k;
    a.v = a.k + s.n_k * s.d_k;
    a.q_stride = a.k_stride = a.v_stride = s.conv_dim();
    a.g = g.floats() + first * g_row;
    a.beta = s.rule == memra::ScanRule::linear && s.d_v % 2 == 0 ? nullptr : beta.floats() + first * s.n_v;
    a.a = rates.floats();
    a.out = out + first * s.n_v * s.d_v;
    return a;
  }
  memra::Status run(Dev& dev, const memra::RecurView& r, const memra::ScanArgs& a) const {
    const memra::ops_for<Dev> ops(dev);
    const bool delta = s.rule == memra::ScanRule::gated_delta || s.rule == memra::ScanRule::kda;
    return delta ? ops.delta_scan(r, a, {scratch.data(), memra::detail::chunk_scan_bytes(s.n_v, r.rows)})
                 : ops.linear_scan(r, a);
  }

 private:
  bool mamba1() const { return s.rule == memra::ScanRule::mamba1; }
  static std::vector<float> scaled(Rng& rng, std::size_t n, float by) {
    std::vector<float> x = rng.vector(n);
    for (float& e : x) e *= by;
    return x;
  }
  static std::vector<float> of_sign(Rng& rng, std::size_t n, float sign) {
    std::vector<float> x = rng.vector(n);
    for (float& e : x) e = sign * (e < 0 ? -e : e);
    return x;
  }
};

/// delta_scan or linear_scan of `t` rows in calls of `step`: outputs and the state.
template <class Dev>
Bytes run_scan(Dev& dev, const RecurShape& s, std::size_t t, std::size_t step, std::uint64_t seed) {
  Rng rng(seed);
  const ScanInputs<Dev> in(dev, s, t, rng);
  const StateOn<Dev> state(dev, rng.vector(s.n_v * s.d_v * s.d_k), s.format);
  const OnDev<Dev> out(dev, t * s.n_v * s.d_v * 4);
  for (std::size_t done = 0; done < t; done += step) {
    memra::RecurView r = s.view(std::min(step, t - done));
    r.ssm = state.f32();
    r.ssm16 = state.bits();
    memra::check(in.run(dev, r, in.args(done, out.floats())));
  }
  Bytes all = out.bytes();
  join(all, state.bytes.bytes());
  return all;
}

/// A round of `t` rows whose current plane is the second: conv_update and the scan, then its end. Everything that was
/// read or written.
template <class Dev>
Bytes run_round(Dev& dev, const RecurShape& s, memra::RoundMode mode, std::size_t t, std::int32_t accept,
                std::uint64_t seed) {
  Rng rng(seed);
  const std::size_t width = s.conv_dim();
  const std::size_t state = s.n_v * s.d_v * s.d_k;
  const ScanInputs<Dev> in(dev, s, t, rng);
  const OnDev<Dev> raw(dev, values(rng, t * width)), w(dev, values(rng, width * s.d_conv));
  const OnDev<Dev> y(dev, t * width * 4), out(dev, t * s.n_v * s.d_v * 4), conv_rows(dev, t * width * 4);
  const StateOn<Dev> ring(dev, values(rng, width * (s.d_conv - 1) + 1), s.format);
  const StateOn<Dev> ssm(dev, rng.vector(state), s.format), planes(dev, rng.vector((t + 1) * state), s.format);
  const OnDev<Dev> k(dev, t * s.n_k * s.d_k * 4), u(dev, t * s.n_v * s.d_v * 4);
  const OnDev<Dev> decay(dev, t * s.n_v * s.decay_width() * 4);
  const OnDev<Dev> words(dev, std::vector<std::int32_t>{1, 5, 0, 0}), pos(dev, std::vector<std::int32_t>{40});
  const OnDev<Dev> accept_d(dev, std::vector<std::int32_t>{accept});
  memra::RecurView r = s.view(t);
  r.conv = ring.f32();
  r.conv16 = ring.bits();
  r.ssm = ssm.f32();
  r.ssm16 = ssm.bits();
  r.round = {mode,       words.ints(), planes.f32(),   t + 2,        conv_rows.floats(),
             k.floats(), u.floats(),   decay.floats(), planes.bits()};
  const memra::ops_for<Dev> ops(dev);
  memra::check(ops.conv_update(r, {raw.floats(), w.floats(), nullptr, y.floats(), true}));
  memra::check(in.run(dev, r, in.args(0, out.floats())));
  const OnDev<Dev> layers(dev, std::vector<memra::RecurView>{r});
  memra::RoundCommit c;
  c.layers = reinterpret_cast<const memra::RecurView*>(layers.data());
  c.n_layers = 1;
  c.conv_dim = width;
  c.heads = s.n_v;
  c.pos_d = pos.ints();
  c.words = reinterpret_cast<memra::RoundWords*>(words.data());
  c.accept_d = accept_d.ints();
  c.rows = static_cast<std::int32_t>(t);
  c.capacity = 1000;
  c.n_planes = static_cast<std::int32_t>(t + 2);
  c.mode = mode;
  c.plain = r.plain();
  if (mode == memra::RoundMode::stash) memra::check(ops.round_apply(c));
  memra::check(ops.round_commit(c));
  Bytes all = y.bytes();
  for (const OnDev<Dev>* part :
       {&out, &ring.bytes, &ssm.bytes, &planes.bytes, &conv_rows, &k, &u, &decay, &words, &pos}) {
    join(all, part->bytes());
  }
  return all;
}

struct DraftShape {
  std::size_t n_heads = 4, n_kv = 2, head_dim = 64, window = 0, floor = 0, base = 0, rows = 120, len = 90, block = 8;
  bool ring = false;  ///< the base is on the device, behind the length; the view has another one
};

/// draft_write of a block, then draft_attend: planes and outputs.
template <class Dev>
Bytes run_draft(Dev& dev, const DraftShape& s, memra::DraftArm arm, std::uint64_t seed) {
  Rng rng(seed);
  const std::size_t width = s.n_kv * s.head_dim;
  const OnDev<Dev> k(dev, rng.vector(s.rows * width));
  const OnDev<Dev> v(dev, rng.vector(s.rows * width));
  const OnDev<Dev> k_in(dev, rng.vector(s.block * width));
  const OnDev<Dev> v_in(dev, rng.vector(s.block * width));
  const OnDev<Dev> q(dev, rng.vector(s.block * s.n_heads * s.head_dim));
  const OnDev<Dev> out(dev, s.block * s.n_heads * s.head_dim * 4);
  const OnDev<Dev> len(dev,
                       std::vector<std::int32_t>{static_cast<std::int32_t>(s.len), static_cast<std::int32_t>(s.base)});
  const std::size_t bytes =
      memra::detail::draft_scratch_bytes(s.n_heads, s.n_kv, s.head_dim, s.block, std::min(s.len, s.rows));
  const OnDev<Dev> scratch(dev, bytes);
  memra::DraftView d;
  d.k = k.floats();
  d.v = v.floats();
  d.n_kv = s.n_kv;
  d.head_dim = s.head_dim;
  d.window = s.window;
  d.floor = s.floor;
  d.base = s.ring ? 5 : s.base;
  d.phys_rows = s.rows;
  d.len_d = len.ints();
  if (s.ring) d.base_d = len.ints() + 1;
  d.len_bound = s.len;
  d.block_rows = s.block;
  const memra::ops_for<Dev> ops(dev);
  memra::check(ops.draft_write(d, k_in.floats(), v_in.floats()));
  memra::check(ops.draft_attend(d, {q.floats(), out.floats(), s.n_heads, 0.2F, arm}, {scratch.data(), bytes}));
  Bytes all = out.bytes();
  join(all, k.bytes());
  join(all, v.bytes());
  return all;
}

template <class Dev>
Bytes run_argmax(Dev& dev, std::size_t rows, std::size_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> x = values(rng, rows * n, true);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = std::numeric_limits<float>::quiet_NaN();                         // row 0: NaN only
    if (rows > 1) x[n + i] = -std::numeric_limits<float>::infinity();       // row 1: -inf only
    if (rows > 2) x[2 * n + i] = static_cast<float>((i + rng.next()) % 7);  // row 2: ties
    if (rows > 3) x[3 * n + i] = i % 2 == 0 ? -0.0F : 0.0F;                 // row 3: zeros
  }
  const OnDev<Dev> in(dev, x);
  const OnDev<Dev> out(dev, rows * 4);
  memra::check(memra::ops_for<Dev>(dev).argmax_rows(in.floats(), rows, n, out.ints()));
  return out.bytes();
}

/// gather_rows, read_rows, repack to the other layout and back, copy_rows.
template <class Dev>
Bytes run_rows(Dev& dev, memra::Format format, memra::Layout layout, std::size_t width, std::uint64_t seed) {
  Rng rng(seed);
  const std::size_t n = 23;
  Plane host(format, layout, n, width, 5);
  Plane table(format, memra::Layout::blocks, n, width);
  for (std::size_t r = 0; r < n; ++r) {
    const std::vector<float> x = values(rng, width, true);
    memra::encode_row(host.view(), r, x.data());
    memra::encode_row(table.view(), r, x.data());
  }
  const memra::ops_for<Dev> ops(dev);
  const OnDev<Dev> plane(dev, host.bytes());
  const OnDev<Dev> rows(dev, table.bytes());
  const memra::ConstPlaneView view{plane.data(), host.view().shape, 5};
  const OnDev<Dev> read(dev, 9 * width * 4);
  memra::check(ops.read_rows(view, 7, 9, read.floats()));
  const OnDev<Dev> index(dev, std::vector<std::int32_t>{3, 22, -1, 23, 0, 3});
  const OnDev<Dev> got(dev, 6 * width * 4);
  memra::check(ops.gather_rows({rows.data(), format, n, width}, index.ints(), 6, got.floats()));
  const memra::Layout other = layout == memra::Layout::blocks ? memra::Layout::split : memra::Layout::blocks;
  const memra::PlaneShape turned{format, other, n + 2, width};
  const OnDev<Dev> there(dev, memra::sub_planes(turned).bytes + 8);
  memra::check(ops.repack({there.data(), turned, 0}, 2, view, 1, 20));
  const OnDev<Dev> back(dev, host.bytes().size());
  memra::check(ops.repack({back.data(), host.view().shape, 0}, 1, {there.data(), turned, 0}, 2, 20));
  Bytes all = read.bytes();
  join(all, got.bytes());
  join(all, there.bytes());
  join(all, back.bytes());
  for (const std::size_t shift : {std::size_t{0}, std::size_t{4}, std::size_t{1}}) {
    const OnDev<Dev> to(dev, 4096);
    memra::check(ops.copy_rows(to.data() + shift, 160 + shift, plane.data() + shift, 48, 32 + shift, 7));
    join(all, to.bytes());
  }
  return all;
}

/// One named case: what each device is to run.
template <class Dev>
struct OpCase {
  std::string name;
  std::function<Bytes(Dev&)> run;
};

inline std::vector<KvShape> kv_shapes() {
  std::vector<KvShape> all;
  for (const memra::Format f : memra::all_formats) {
    for (const memra::Layout l : {memra::Layout::blocks, memra::Layout::split}) {
      KvShape s;
      s.k_format = f;
      s.v_format = memra::all_formats[(static_cast<std::size_t>(f) + 3) % memra::all_formats.size()];
      s.layout = l;
      all.push_back(s);
      s.window = 70;
      s.n_heads = 6;
      s.dv = 96;
      all.push_back(s);
    }
  }
  KvShape odd;  // no blocks: any width
  odd.k_format = memra::Format::f16;
  odd.v_format = memra::Format::f32;
  odd.dk = 40;
  odd.dv = 7;
  all.push_back(odd);
  KvShape based;
  based.base = 100;
  based.rows = 90;
  based.window = 60;
  all.push_back(based);
  KvShape wide;  // the default pair at a common geometry
  wide.n_heads = 8;
  wide.dk = wide.dv = 128;
  wide.layout = memra::Layout::split;
  all.push_back(wide);
  wide.n_heads = 6;  // K's scales are 24 bytes a row, which stay whole; V's fifth bits and scales three columns
  wide.n_kv = 3;
  all.push_back(wide);
  KvShape ring;  // 64 rows of which the last 20 are seen: the calls below wrap
  ring.rows = 64;
  ring.window = 20;
  ring.ring = true;
  all.push_back(ring);
  ring.k_format = memra::Format::q4_0;  // four columns of scales; V two of each
  ring.v_format = memra::Format::q5_1;
  ring.layout = memra::Layout::split;
  ring.n_heads = ring.n_kv = 8;
  ring.dk = 128;
  ring.dv = 32;
  all.push_back(ring);
  based.layout = memra::Layout::split;
  based.k_format = memra::Format::q5_1;
  based.v_format = memra::Format::q8_0;
  based.n_heads = based.n_kv = 8;
  based.dk = based.dv = 64;
  all.push_back(based);
  KvShape latent;
  latent.n_kv = 1;
  latent.n_heads = 16;
  latent.dk = 96;
  latent.dv = 64;
  latent.v_in_k = true;
  all.push_back(latent);
  latent.ring = true;
  latent.rows = 128;
  latent.window = 70;
  latent.k_format = memra::Format::bf16;
  latent.layout = memra::Layout::split;
  all.push_back(latent);
  return all;
}

// Named, with their types: nvcc 13 translates a range of braces in a template wrongly.
inline constexpr std::array<memra::ScanRule, 4> scan_rules = {memra::ScanRule::gated_delta, memra::ScanRule::kda,
                                                              memra::ScanRule::linear, memra::ScanRule::mamba1};
inline constexpr std::array<memra::Format, 3> state_formats = {memra::Format::f32, memra::Format::f16,
                                                               memra::Format::bf16};

/// Every op, every format, both layouts; `name` says which.
template <class Dev>
std::vector<OpCase<Dev>> op_cases() {
  std::vector<OpCase<Dev>> all;
  const auto add = [&](std::string name, std::function<Bytes(Dev&)> run) {
    all.push_back({std::move(name), std::move(run)});
  };
  std::uint64_t seed = 1;
  for (const KvShape& s : kv_shapes()) {
    const std::string label = std::string(memra::to_string(s.k_format)) + "/" +
                              std::string(memra::to_string(s.v_format)) + " " +
                              std::string(memra::to_string(s.layout)) + " kv heads " + std::to_string(s.n_kv) + " dv " +
                              std::to_string(s.dv) + " window " + std::to_string(s.window) + " base " +
                              std::to_string(s.base) + (s.ring ? " ring" : "") + (s.v_in_k ? " latent" : "");
    const std::uint64_t n = ++seed;
    const auto start = static_cast<std::int32_t>(s.base + 3);
    add("append " + label, [=](Dev& d) { return run_append(d, s, start, 5, s.base + s.rows, true, n); });
    add("append past capacity " + label,
        [=](Dev& d) { return run_append(d, s, start + 80, 9, s.base + 87, false, n); });
    add("append below 0 " + label, [=](Dev& d) { return run_append(d, s, -4, 9, s.base + s.rows, false, n); });
    add("attend " + label, [=](Dev& d) {
      const AttendOn<Dev> a(d, s, s.base + 89, n);
      Bytes b = a.run(d, s.base + 80, 9);
      join(b, a.run(d, s.base + 1, 2));
      return b;
    });
  }
  for (const std::size_t d_conv : {1U, 2U, 4U, 9U}) {
    RecurShape s;
    s.d_conv = d_conv;
    for (const std::size_t t : {1U, 2U, 11U}) {
      const std::uint64_t n = ++seed;
      add("conv " + std::to_string(d_conv) + " taps, rows " + std::to_string(t),
          [=](Dev& d) { return run_conv(d, s, t, t, t != 2, t != 1, n); });
      add("conv by one " + std::to_string(d_conv) + " taps, rows " + std::to_string(t),
          [=](Dev& d) { return run_conv(d, s, t, 1, t != 2, t != 1, n); });
    }
  }
  for (const std::size_t d_k : {32U, 128U, 24U, 64U}) {
    RecurShape s;
    s.d_k = d_k;
    s.d_v = d_k == 128 ? 128 : 48;
    s.mode = d_k == 32 ? memra::KeyHeadMode::interleaved : memra::KeyHeadMode::grouped;
    for (const std::size_t t : {1U, 3U, 17U}) {
      const std::uint64_t n = ++seed;
      add("scan d_k " + std::to_string(d_k) + ", rows " + std::to_string(t),
          [=](Dev& d) { return run_scan(d, s, t, t, n); });
      add("scan by one, d_k " + std::to_string(d_k) + ", rows " + std::to_string(t),
          [=](Dev& d) { return run_scan(d, s, t, 1, n); });
    }
  }
  for (const std::size_t d_k : {24U, 64U, 128U}) {
    RecurShape s;
    s.d_k = d_k;
    s.scan = memra::ScanClass::chunked;
    const std::uint64_t n = ++seed;
    add("chunked scan d_k " + std::to_string(d_k), [=](Dev& d) { return run_scan(d, s, 150, 150, n); });
    add("chunked scan in pieces, d_k " + std::to_string(d_k), [=](Dev& d) { return run_scan(d, s, 150, 64, n); });
  }
  for (const memra::ScanRule rule : scan_rules) {
    for (const memra::Format f : state_formats) {
      RecurShape s;
      s.rule = rule;
      s.format = f;
      const bool mamba1 = rule == memra::ScanRule::mamba1;
      if (mamba1) s.n_k = s.n_v = 1;
      for (const std::size_t d_k : {24U, mamba1 ? 16U : 32U}) {
        s.d_k = d_k;
        s.d_v = d_k == 24 ? 20 : 21;
        const std::string label = std::string(memra::to_string(rule)) + " in " + std::string(memra::to_string(f)) +
                                  ", d_k " + std::to_string(d_k);
        const std::uint64_t n = ++seed;
        add("scan " + label, [=](Dev& d) { return run_scan(d, s, 7, 7, n); });
        add("scan by two, " + label, [=](Dev& d) { return run_scan(d, s, 7, 2, n); });
        add("planes of " + label, [=](Dev& d) { return run_round(d, s, memra::RoundMode::planes, 5, 3, n); });
        if (mamba1) continue;
        add("stash of " + label, [=](Dev& d) { return run_round(d, s, memra::RoundMode::stash, 5, 3, n); });
      }
      const std::uint64_t n = ++seed;
      if (rule != memra::ScanRule::kda) continue;
      add("conv in " + std::string(memra::to_string(f)), [=](Dev& d) { return run_conv(d, s, 7, 7, true, true, n); });
      add("conv by two in " + std::string(memra::to_string(f)),
          [=](Dev& d) { return run_conv(d, s, 7, 2, true, true, n); });
    }
  }
  const RecurShape rounds[] = {{2, 4, 32, 48, 4},
                               {2, 4, 128, 128, 4, memra::KeyHeadMode::interleaved},
                               {1, 3, 64, 5, 2},
                               {2, 6, 24, 18, 1},
                               {3, 3, 21, 7, 9}};
  for (const memra::RoundMode mode : {memra::RoundMode::planes, memra::RoundMode::stash}) {
    for (const std::int32_t accept : {0, 1, 2, 7, 9, 12}) {  // of 9: the last is clamped
      for (const RecurShape& s : rounds) {
        const std::uint64_t n = ++seed;
        add("round of mode " + std::to_string(static_cast<int>(mode)) + ", d_k " + std::to_string(s.d_k) + ", accept " +
                std::to_string(accept),
            [=](Dev& d) { return run_round(d, s, mode, 9, accept, n); });
      }
    }
  }
  for (const memra::DraftArm arm : {memra::DraftArm::clip, memra::DraftArm::full_scan}) {
    for (int kind = 0; kind < 6; ++kind) {
      DraftShape s;
      if (kind >= 1) s.window = 40;
      if (kind == 2) s.floor = 70;
      if (kind == 3) {
        s.base = 30;
        s.rows = 68;
        s.head_dim = 40;
      }
      if (kind >= 4) {
        s.ring = true;
        s.len = 1000;  // scratch is that of the rows that there are
        s.base = kind == 4 ? 940 : 888;
      }
      const std::uint64_t n = ++seed;
      add("draft d" + std::to_string(s.head_dim) + ", " + std::to_string(kind) +
              (arm == memra::DraftArm::clip ? " clip" : " full scan"),
          [=](Dev& d) { return run_draft(d, s, arm, n); });
    }
  }
  for (const std::size_t n : {1U, 37U, 5003U}) {
    add("argmax " + std::to_string(n), [=](Dev& d) { return run_argmax(d, 6, n, n); });
  }
  for (const memra::Format f : memra::all_formats) {
    for (const memra::Layout l : {memra::Layout::blocks, memra::Layout::split}) {
      const std::uint64_t n = ++seed;
      add("rows " + std::string(memra::to_string(f)) + " " + std::string(memra::to_string(l)),
          [=](Dev& d) { return run_rows(d, f, l, memra::facts(f).block_elems == 1 ? 45 : 96, n); });
    }
  }
  return all;
}

}  // namespace memra_test
