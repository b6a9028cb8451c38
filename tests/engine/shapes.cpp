// Models of other shapes, made of random weights: against a float64 reference that knows no cache, whole and in pieces.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memra/error.hpp>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <support/catch.hpp>
#include <vector>

#include <engine/rig.hpp>

namespace shapes_cpp {
namespace {

using memra::check;
using nlohmann::json;
using Vec = std::vector<double>;

struct Shape {
  std::string name;
  json config;
  tiny::WeightType type;
};

/// Tensors of a model as exact values, and as a file.
struct RandomModel {
  std::map<std::string, Vec> values;
  std::vector<std::byte> file;
  tiny::TrunkConfig config;
};

class Builder {
 public:
  Builder(const Shape& shape, unsigned seed) : random_(seed), type_(shape.type) {
    model_.config = check(tiny::parse_trunk_config(shape.config.dump()));
  }

  void add(const std::string& name, const std::vector<std::size_t>& shape, double scale, double centre = 0) {
    std::size_t n = 1;
    for (const std::size_t d : shape) n *= d;
    const std::size_t first = data_.size();
    std::normal_distribution<double> normal(centre, scale);
    Vec v;
    for (std::size_t i = 0; i < n; ++i) {
      // Round to 8 significant bits: exact in every type we store.
      int e = 0;
      const double m = std::frexp(normal(random_), &e);
      const double x = std::ldexp(std::nearbyint(m * 256), e - 8);
      v.push_back(std::fabs(x) < 1e-3 ? 0 : x);
      store(static_cast<float>(v.back()));
    }
    const char* dtype = type_ == tiny::WeightType::f32 ? "F32" : type_ == tiny::WeightType::f16 ? "F16" : "BF16";
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {first, data_.size()}}};
    model_.values[name] = std::move(v);
  }
  void matrix(const std::string& name, std::size_t out, std::size_t in) {
    add(name, {out, in}, 1 / std::sqrt(static_cast<double>(in)));
  }

  RandomModel finish() {
    const std::string text = header_.dump();
    model_.file.resize(8);
    for (std::size_t i = 0; i < 8; ++i) model_.file[i] = static_cast<std::byte>(text.size() >> (8 * i) & 0xff);
    for (const char c : text) model_.file.push_back(static_cast<std::byte>(c));
    model_.file.insert(model_.file.end(), data_.begin(), data_.end());
    return std::move(model_);
  }
  const tiny::TrunkConfig& config() const { return model_.config; }

 private:
  void store(float f) {
    const std::uint32_t u = tiny::float_bits(f);
    std::uint32_t bits = u;
    if (type_ == tiny::WeightType::bf16) bits = u >> 16;
    if (type_ == tiny::WeightType::f16)
      bits = f == 0 ? 0 : (u >> 16 & 0x8000U) | ((u & 0x7fffffffU) - 0x38000000U) >> 13;
    for (std::size_t i = 0; i < tiny::weight_bytes(type_); ++i)
      data_.push_back(static_cast<std::byte>(bits >> (8 * i) & 0xff));
  }

  std::mt19937 random_;
  tiny::WeightType type_;
  json header_ = json::object();
  std::vector<std::byte> data_;
  RandomModel model_;
};

RandomModel make(const Shape& shape, unsigned seed) {
  Builder b(shape, seed);
  const tiny::TrunkConfig& c = b.config();
  const std::size_t values = c.n_v * c.d_v;
  b.add("model.embed_tokens.weight", {c.n_vocab, c.hidden}, 1.0);
  b.add("model.norm.weight", {c.hidden}, 0.2);
  if (!c.tied_head) b.matrix("lm_head.weight", c.n_vocab, c.hidden);
  for (std::size_t il = 0; il < c.n_layers(); ++il) {
    const std::string at = "model.layers." + std::to_string(il) + ".";
    b.add(at + "input_layernorm.weight", {c.hidden}, 0.2);
    b.add(at + "post_attention_layernorm.weight", {c.hidden}, 0.2);
    b.matrix(at + "mlp.gate_proj.weight", c.n_ff, c.hidden);
    b.matrix(at + "mlp.up_proj.weight", c.n_ff, c.hidden);
    b.matrix(at + "mlp.down_proj.weight", c.hidden, c.n_ff);
    if (c.full_attention[il]) {
      b.matrix(at + "self_attn.q_proj.weight", 2 * c.n_heads * c.head_dim, c.hidden);
      b.matrix(at + "self_attn.k_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
      b.matrix(at + "self_attn.v_proj.weight", c.n_kv_heads * c.head_dim, c.hidden);
      b.matrix(at + "self_attn.o_proj.weight", c.hidden, c.n_heads * c.head_dim);
      b.add(at + "self_attn.q_norm.weight", {c.head_dim}, 0.2);
      b.add(at + "self_attn.k_norm.weight", {c.head_dim}, 0.2);
      continue;
    }
    const std::string la = at + "linear_attn.";
    if (c.family == tiny::Family::qwen3_next) {
      b.matrix(la + "in_proj_qkvz.weight", c.conv_dim() + values, c.hidden);
      b.matrix(la + "in_proj_ba.weight", 2 * c.n_v, c.hidden);
    } else {
      b.matrix(la + "in_proj_qkv.weight", c.conv_dim(), c.hidden);
      b.matrix(la + "in_proj_z.weight", values, c.hidden);
      b.matrix(la + "in_proj_b.weight", c.n_v, c.hidden);
      b.matrix(la + "in_proj_a.weight", c.n_v, c.hidden);
    }
    b.add(la + "conv1d.weight", {c.conv_dim(), 1, c.d_conv}, 0.5);
    b.add(la + "A_log", {c.n_v}, 0.5);
    b.add(la + "dt_bias", {c.n_v}, 0.5);
    b.add(la + "norm.weight", {c.d_v}, 0.2, 1.0);
    b.matrix(la + "out_proj.weight", c.hidden, values);
  }
  return b.finish();
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The architecture in float64, token by token, with nothing but vectors.
class Reference {
 public:
  explicit Reference(const RandomModel& m) : m_(m), c_(m.config), layers_(m.config.n_layers()) {}

  /// Logits after `token`.
  Vec feed(std::int32_t token) {
    const Vec& e = m_.values.at("model.embed_tokens.weight");
    Vec h(e.begin() + token * static_cast<std::ptrdiff_t>(c_.hidden),
          e.begin() + (token + 1) * static_cast<std::ptrdiff_t>(c_.hidden));
    for (std::size_t il = 0; il < layers_.size(); ++il) {
      at_ = "model.layers." + std::to_string(il) + ".";
      const Vec x = rms(h, w("input_layernorm.weight"), 1);
      add(h, c_.full_attention[il] ? attention(x, layers_[il]) : delta(x, layers_[il]));
      const Vec n = rms(h, w("post_attention_layernorm.weight"), 1);
      Vec g = times("mlp.gate_proj.weight", n);
      const Vec u = times("mlp.up_proj.weight", n);
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = g[i] * sigmoid(g[i]) * u[i];
      add(h, times("mlp.down_proj.weight", g));
    }
    at_ = "";
    ++pos_;
    const Vec n = rms(h, w("model.norm.weight"), 1);
    return times(c_.tied_head ? "model.embed_tokens.weight" : "lm_head.weight", n);
  }

 private:
  struct Layer {
    std::vector<Vec> k, v;   // attention: every row
    std::vector<Vec> conv;   // raw inputs of every token
    std::vector<Vec> state;  // per value head [d_k][d_v]
  };

  const Vec& w(const std::string& name) const { return m_.values.at(at_ + name); }
  Vec times(const std::string& name, const Vec& x) const {
    const Vec& m = w(name);
    Vec y(m.size() / x.size());
    for (std::size_t o = 0; o < y.size(); ++o) {
      for (std::size_t k = 0; k < x.size(); ++k) y[o] += m[o * x.size() + k] * x[k];
    }
    return y;
  }
  static void add(Vec& a, const Vec& b) {
    for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  }
  static Vec part(const Vec& x, std::size_t first, std::size_t n) {
    return {x.begin() + static_cast<std::ptrdiff_t>(first), x.begin() + static_cast<std::ptrdiff_t>(first + n)};
  }
  Vec rms(Vec x, const Vec& weight, double one) const {
    double s = 0;
    for (const double d : x) s += d * d;
    const double scale = 1 / std::sqrt(s / static_cast<double>(x.size()) + static_cast<double>(c_.eps));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * (one + weight[i]);
    return x;
  }
  Vec roped(Vec x) const {
    const std::size_t half = c_.rot_dim / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double a = pos_ / std::pow(c_.rope_theta, 2.0 * static_cast<double>(i) / static_cast<double>(c_.rot_dim));
      const double p = x[i];
      const double q = x[i + half];
      x[i] = p * std::cos(a) - q * std::sin(a);
      x[i + half] = q * std::cos(a) + p * std::sin(a);
    }
    return x;
  }
  Vec attention(const Vec& x, Layer& l) {
    const std::size_t d = c_.head_dim;
    const Vec qg = times("self_attn.q_proj.weight", x);
    const Vec kx = times("self_attn.k_proj.weight", x);
    Vec k;
    for (std::size_t h = 0; h < c_.n_kv_heads; ++h) {
      const Vec one = roped(rms(part(kx, h * d, d), w("self_attn.k_norm.weight"), 1));
      k.insert(k.end(), one.begin(), one.end());
    }
    l.k.push_back(k);
    l.v.push_back(times("self_attn.v_proj.weight", x));
    Vec out(c_.n_heads * d);
    for (std::size_t h = 0; h < c_.n_heads; ++h) {
      const std::size_t kv = h / (c_.n_heads / c_.n_kv_heads);
      const Vec q = roped(rms(part(qg, 2 * h * d, d), w("self_attn.q_norm.weight"), 1));
      double total = 0;
      Vec sum(d);
      for (std::size_t r = 0; r < l.k.size(); ++r) {
        double s = 0;
        for (std::size_t i = 0; i < d; ++i) s += q[i] * l.k[r][kv * d + i];
        const double p = std::exp(s / std::sqrt(static_cast<double>(d)));
        total += p;
        for (std::size_t i = 0; i < d; ++i) sum[i] += p * l.v[r][kv * d + i];
      }
      for (std::size_t i = 0; i < d; ++i) out[h * d + i] = sum[i] / total * sigmoid(qg[(2 * h + 1) * d + i]);
    }
    return times("self_attn.o_proj.weight", out);
  }
  Vec delta(const Vec& x, Layer& l) {
    const std::size_t n_k = c_.n_k, n_v = c_.n_v, d_k = c_.d_k, d_v = c_.d_v, r = n_v / n_k;
    Vec in(c_.conv_dim()), z(n_v * d_v), a(n_v), b(n_v);
    if (c_.family == tiny::Family::qwen3_next) {
      const Vec f = times("linear_attn.in_proj_qkvz.weight", x);
      const Vec ba = times("linear_attn.in_proj_ba.weight", x);
      const std::size_t group = 2 * d_k + 2 * r * d_v;
      for (std::size_t g = 0; g < n_k; ++g) {
        for (std::size_t i = 0; i < d_k; ++i) {
          in[g * d_k + i] = f[g * group + i];
          in[(n_k + g) * d_k + i] = f[g * group + d_k + i];
        }
        for (std::size_t i = 0; i < r * d_v; ++i) {
          in[2 * n_k * d_k + g * r * d_v + i] = f[g * group + 2 * d_k + i];
          z[g * r * d_v + i] = f[g * group + 2 * d_k + r * d_v + i];
        }
        for (std::size_t i = 0; i < r; ++i) {
          b[g * r + i] = ba[g * 2 * r + i];
          a[g * r + i] = ba[g * 2 * r + r + i];
        }
      }
    } else {
      in = times("linear_attn.in_proj_qkv.weight", x);
      z = times("linear_attn.in_proj_z.weight", x);
      a = times("linear_attn.in_proj_a.weight", x);
      b = times("linear_attn.in_proj_b.weight", x);
    }
    l.conv.push_back(in);
    const Vec& cw = w("linear_attn.conv1d.weight");
    Vec y(in.size());
    for (std::size_t ch = 0; ch < y.size(); ++ch) {
      for (std::size_t j = 0; j < c_.d_conv && j < l.conv.size(); ++j) {
        y[ch] += cw[ch * c_.d_conv + c_.d_conv - 1 - j] * l.conv[l.conv.size() - 1 - j][ch];
      }
      y[ch] *= sigmoid(y[ch]);
    }
    const auto unit = [](Vec v) {
      double s = 1e-6;
      for (const double d : v) s += d * d;
      for (double& d : v) d /= std::sqrt(s);
      return v;
    };
    if (l.state.empty()) l.state.assign(n_v, Vec(d_k * d_v));
    Vec out;
    for (std::size_t h = 0; h < n_v; ++h) {
      const Vec q = unit(part(y, h / r * d_k, d_k));
      const Vec k = unit(part(y, (n_k + h / r) * d_k, d_k));
      const double decay =
          std::exp(-std::exp(w("linear_attn.A_log")[h]) * std::log1p(std::exp(a[h] + w("linear_attn.dt_bias")[h])));
      Vec& s = l.state[h];
      Vec o(d_v);
      for (std::size_t j = 0; j < d_v; ++j) {
        double seen = 0;
        for (std::size_t i = 0; i < d_k; ++i) seen += (s[i * d_v + j] *= decay) * k[i];
        const double u = sigmoid(b[h]) * (y[2 * n_k * d_k + h * d_v + j] - seen);
        for (std::size_t i = 0; i < d_k; ++i) {
          s[i * d_v + j] += k[i] * u;
          o[j] += s[i * d_v + j] * q[i] / std::sqrt(static_cast<double>(d_k));
        }
      }
      o = rms(o, w("linear_attn.norm.weight"), 0);
      for (std::size_t j = 0; j < d_v; ++j) out.push_back(o[j] * z[h * d_v + j] * sigmoid(z[h * d_v + j]));
    }
    return times("linear_attn.out_proj.weight", out);
  }

  const RandomModel& m_;
  const tiny::TrunkConfig& c_;
  std::vector<Layer> layers_;
  std::string at_;
  double pos_ = 0;
};

std::vector<Shape> shapes() {
  const json base = json::parse(R"({"model_type":"qwen3_5_text","vocab_size":71,"hidden_size":52,"intermediate_size":70,
    "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":24,"rms_norm_eps":1e-6,
    "max_position_embeddings":256,"tie_word_embeddings":true,"linear_conv_kernel_dim":4,"linear_key_head_dim":20,
    "linear_value_head_dim":12,"linear_num_key_heads":2,"linear_num_value_heads":6,"rope_theta":5000.0})");
  std::vector<Shape> all;
  const auto add = [&](const char* name, const json& change, tiny::WeightType type) {
    json j = base;
    j.update(change);
    all.push_back({name, j, type});
  };
  add("default interval, odd sizes, f16", json::object(), tiny::WeightType::f16);
  add("attention only, untied", {{"full_attention_interval", 1}, {"tie_word_embeddings", false}},
      tiny::WeightType::f32);
  add("delta rule only, wide values", {{"full_attention_interval", 9}, {"linear_value_head_dim", 40}},
      tiny::WeightType::bf16);
  add("attention first, conv of 2, whole rotation",
      {{"layer_types", {"full_attention", "linear_attention", "linear_attention", "full_attention"}},
       {"linear_conv_kernel_dim", 2},
       {"partial_rotary_factor", 1.0}},
      tiny::WeightType::f32);
  add("Qwen3-Next, two key heads, conv of 6",
      {{"model_type", "qwen3_next"}, {"num_experts", 0}, {"full_attention_interval", 2}, {"linear_conv_kernel_dim", 6}},
      tiny::WeightType::f16);
  add("one head of everything",
      {{"num_attention_heads", 1},
       {"num_key_value_heads", 1},
       {"linear_num_key_heads", 1},
       {"linear_num_value_heads", 1},
       {"full_attention_interval", 2}},
      tiny::WeightType::bf16);
  return all;
}

struct Seen {
  std::vector<float> logits;
  rig::State state;
  bool operator==(const Seen&) const = default;
};

Seen observe(const tiny::ModelFiles& files, const std::vector<std::int32_t>& ids, std::size_t chunk,
             std::size_t stages) {
  rig::Options o;
  o.ctx = ids.size();
  o.max_rows = chunk;
  o.stages = stages;
  rig::Rig r(files, o);
  Seen s;
  r.decoder(false).prime(
      ids, chunk, [&](std::span<const float> rows) { s.logits.insert(s.logits.end(), rows.begin(), rows.end()); });
  s.state = rig::look(*r.cache);
  return s;
}

/// Largest error of a logit, in units of the largest logit.
double worst_error(const RandomModel& m, const std::vector<std::int32_t>& ids, const std::vector<float>& logits) {
  Reference reference(m);
  double worst = 0;
  double largest = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const Vec want = reference.feed(ids[t]);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double e = std::fabs(want[i] - static_cast<double>(logits[t * want.size() + i]));
      if (!(e <= worst)) worst = e;
      largest = std::max(largest, std::fabs(want[i]));
    }
  }
  return worst / largest;
}

constexpr double tolerance = 5e-6;  // f32 against float64, four layers deep

}  // namespace

TEST_CASE("other shapes: the float64 reference, and pieces and stages that change no bit") {
  std::mt19937 random(3);
  for (const Shape& shape : shapes()) {
    const RandomModel m = make(shape, 100 + static_cast<unsigned>(shape.name.size()));
    const tiny::ModelFiles files{m.config, check(tiny::SafeTensors::parse(m.file)), std::nullopt};
    std::vector<std::int32_t> ids;
    for (int t = 0; t < 29; ++t) ids.push_back(static_cast<std::int32_t>(random() % m.config.n_vocab));
    const Seen whole = observe(files, ids, ids.size(), 1);
    const double e = worst_error(m, ids, whole.logits);
    INFO(shape.name << ": relative error " << e);
    REQUIRE(e <= tolerance);
    REQUIRE(observe(files, ids, 1, 1) == whole);
    REQUIRE(observe(files, ids, 5, 2) == whole);
    REQUIRE(observe(files, ids, 2, m.config.n_layers()) == whole);
  }
}

TEST_CASE("other shapes, red arm: the reference notices one changed weight") {
  const Shape shape = shapes()[4];
  const RandomModel good = make(shape, 5);
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const tiny::ModelFiles files{good.config, check(tiny::SafeTensors::parse(good.file)), std::nullopt};
  const Seen seen = observe(files, ids, 3, 1);
  REQUIRE(worst_error(good, ids, seen.logits) <= tolerance);
  for (const std::string name : {"model.layers.0.linear_attn.in_proj_ba.weight", "model.layers.0.linear_attn.A_log",
                                 "model.layers.2.linear_attn.conv1d.weight", "model.layers.1.self_attn.q_norm.weight",
                                 "model.layers.3.mlp.down_proj.weight"}) {
    RandomModel bad = good;
    bad.values.at(name)[0] += 0.25;
    INFO(name);
    REQUIRE_FALSE(worst_error(bad, ids, seen.logits) <= tolerance);
  }
}
}  // namespace shapes_cpp
