// A stand-in model without weights: one token too many, too few, twice or from the wrong position shows in its state.
//
// ssm <- g * ssm + k (x) v with g != 1 and k, v depending on token, layer and head; conv holds the last d_conv - 1 raw
// inputs, oldest first; a K or V row is a function of layer, head, position and token, encoded in the plane's format.
// It touches device memory through upload and download only, so any wrapper device sees all of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/codec.hpp>
#include <memra/detail/strict_fp.hpp>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace memra_test {

using Token = std::uint32_t;
using Tokens = std::vector<Token>;

/// `n` tokens that depend on `seed`: two seeds give two streams.
inline Tokens stream(std::size_t n, std::uint32_t seed = 1) {
  Tokens t(n);
  for (std::size_t i = 0; i < n; ++i) t[i] = static_cast<Token>(i * 2654435761U + seed * 40503U + 7U);
  return t;
}
inline Tokens part(const Tokens& t, std::size_t first, std::size_t n) {
  return Tokens(t.begin() + static_cast<std::ptrdiff_t>(first), t.begin() + static_cast<std::ptrdiff_t>(first + n));
}
inline Tokens join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

namespace stand_in {

/// A float in [-1, 1) that looks random and depends on every argument.
inline float value(std::uint64_t kind, std::uint64_t layer, std::uint64_t nth, std::uint64_t at, std::uint64_t token,
                   std::uint64_t pos) {
  std::uint64_t h = 0x9E3779B97F4A7C15ULL;
  for (const std::uint64_t x : {kind, layer, nth, at, token, pos}) {
    h = (h ^ (x + 0x632BE59BD9B4E019ULL)) * 0xFF51AFD7ED558CCDULL;
    h ^= h >> 32;
  }
  return static_cast<float>(static_cast<std::int32_t>(static_cast<std::uint32_t>(h))) * (1.0F / 2147483648.0F);
}

enum Kind : std::uint64_t { kind_k, kind_v, kind_conv, kind_key, kind_value, kind_tap, kind_group };

/// One K or V row, not yet encoded.
inline std::vector<float> row(Kind kind, std::size_t layer, std::size_t nth, std::size_t width, Token token,
                              std::size_t pos) {
  std::vector<float> x(width);
  for (std::size_t e = 0; e < width; ++e) x[e] = value(kind, layer, nth, e, token, pos);
  return x;
}

/// Elements of a state at `at`, which is aligned for them.
inline memra::StateElems elems(memra::Format f, std::byte* at) {
  return f == memra::Format::f32 ? memra::StateElems{reinterpret_cast<float*>(at), nullptr, f}
                                 : memra::StateElems{nullptr, reinterpret_cast<std::uint16_t*>(at), f};
}

inline std::size_t conv_bytes(const memra::RecurrentSpec& r) {
  return memra::row_bytes(r.conv_format, r.conv_dim() * (r.d_conv - 1));
}
inline std::size_t ssm_bytes(const memra::RecurrentSpec& r) {
  return memra::row_bytes(r.ssm_format, r.n_v_heads * r.d_v * r.d_k);
}

inline constexpr float decay = 0.875F;

/// Moves conv and ssm on by one token: of any rule the same, every store rounded to the state's format. What it does is
/// what a stash says, with k, u and decay of these values. The chunked class has numbers of its own.
inline void move_on(const memra::RecurrentSpec& r, std::size_t layer, std::size_t nth, Token token,
                    const memra::StateElems& conv, const memra::StateElems& ssm,
                    memra::ScanClass scan = memra::ScanClass::sequential) {
  const float keeps = scan == memra::ScanClass::chunked ? 0.75F : decay;
  const std::size_t history = r.d_conv - 1;
  for (std::size_t c = 0; history != 0 && c < r.conv_dim(); ++c) {
    const memra::StateElems line = conv + c * history;
    for (std::size_t i = 0; i + 1 < history; ++i) line.store(i, line.load(i + 1));
    line.store(history - 1, value(kind_conv, layer, nth, c, token, 0));
  }
  for (std::size_t h = 0; h < r.n_v_heads; ++h) {
    const std::size_t key_head = r.map.key_head(h, r.n_k_heads, r.n_v_heads);
    for (std::size_t v = 0; v < r.d_v; ++v) {
      for (std::size_t k = 0; k < r.d_k; ++k) {
        const std::size_t at = (h * r.d_v + v) * r.d_k + k;
        const float key = value(kind_key, layer, nth, key_head * r.d_k + k, token, 0);
        const float val = value(kind_value, layer, nth, h * r.d_v + v, token, 0);
        ssm.store(at, memra::detail::product(keeps, ssm.load(at)) + memra::detail::product(key, val));
      }
    }
  }
}

/// Rows encoded in a plane of their own; `shape.rows` of them.
inline std::vector<std::byte> encode_rows(Kind kind, std::size_t layer, std::size_t nth, memra::PlaneShape shape,
                                          std::span<const Token> tokens, std::size_t first_pos) {
  shape.rows = tokens.size();
  std::vector<std::byte> bytes(memra::sub_planes(shape).bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<float> x = row(kind, layer, nth, shape.width, tokens[i], first_pos + i);
    memra::encode_row(memra::PlaneView{bytes.data(), shape, 0}, i, x.data());
  }
  return bytes;
}

template <class Dev>
memra::Status write_rows(Dev& dev, const memra::PlaneView& plane, std::size_t first, const std::vector<std::byte>& rows,
                         std::size_t n) {
  memra::PlaneShape from = plane.shape;
  from.rows = n;
  for (std::size_t done = 0; done < n;) {  // a ring starts again at its first row
    const std::size_t at = plane.phys(first + done);
    const std::size_t now = std::min(n - done, plane.shape.rows - at);
    const memra::Segments src = memra::segments(from, done, now);
    const memra::Segments dst = memra::segments(plane.shape, at, now);
    for (std::size_t i = 0; i < dst.count; ++i) {
      const auto* bytes = rows.data() + src[i].offset;
      if (auto s = dev.upload(plane.data + dst[i].offset, bytes, dst[i].bytes); !s) return s;
    }
    done += now;
  }
  return {};
}

/// Rows [first, n) of a plane, sub-plane after sub-plane; nothing of a plane that is not there.
template <class Dev>
std::vector<std::byte> read_rows(Dev& dev, const memra::ConstPlaneView& plane, std::size_t first, std::size_t n) {
  std::vector<std::byte> out;
  if (!plane) return out;
  for (std::size_t part = 0; part < memra::sub_planes(plane.shape).columns; ++part) {
    for (std::size_t row = first; row < n;) {
      const std::size_t from = plane.phys(row);
      const std::size_t now = std::min(n - row, plane.shape.rows - from);
      const memra::Segment run = memra::segments(plane.shape, from, now)[part];
      const std::size_t at = out.size();
      out.resize(at + run.bytes);
      memra::check(dev.download(out.data() + at, plane.data + run.offset, run.bytes));
      row += now;
    }
  }
  return out;
}

/// The tokens that end a group of `stride`, of a stream whose first one is at `first_pos`: grouped rows are theirs.
/// Their own number is the row's.
inline Tokens group_ends(std::span<const Token> tokens, std::size_t first_pos, std::size_t stride) {
  Tokens ends;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if ((first_pos + i + 1) % stride == 0) ends.push_back(tokens[i]);
  }
  return ends;
}

/// The first row that a query at `pos` sees of a ring; 0 for planes of max_ctx rows.
inline std::size_t first_row(const memra::AttentionSpec& a, std::size_t pos) {
  return a.ring_slack == 0 || pos < a.window ? 0 : pos - (a.window - 1);
}

/// Writes every layer of an open step but `skip`. Leaves the step open.
template <class Dev>
memra::Status forward(memra::Cache<Dev>& cache, memra::Step<Dev>& step, std::span<const Token> tokens,
                      std::size_t skip = static_cast<std::size_t>(-1)) {
  const memra::ModelConfig& cfg = cache.config();
  for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
    if (il == skip) continue;
    Dev& dev = cache.dev(il);
    std::size_t attention = 0;
    std::size_t recurrent = 0;
    std::size_t grouped = 0;
    for (const memra::StateSpec& spec : cfg.layers[il].states) {
      if (const auto* group = std::get_if<memra::GroupedRowsSpec>(&spec)) {
        auto w = step.grouped(il, grouped);
        if (!w) return w.status();
        std::int32_t pos = -1;
        if (auto s = dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(w->at.pos_d),
                                  sizeof pos);
            !s) {
          return s;
        }
        const Tokens ends = group_ends(tokens, static_cast<std::size_t>(pos), group->stride);
        const std::size_t first = static_cast<std::size_t>(pos) / group->stride;
        const auto rows = encode_rows(kind_group, il, grouped++, w->rows.shape, ends, first);
        if (auto s = write_rows(dev, w->rows, first, rows, ends.size()); !s) return s;
      } else if (std::holds_alternative<memra::SharedKvSpec>(spec)) {
        if (auto s = step.kv_read(il, attention++).status(); !s) return s;  // the donor's rows, written before
      } else if (const auto* kv = std::get_if<memra::AttentionSpec>(&spec)) {
        auto w = step.kv_write(il, attention);
        if (!w) return w.status();
        std::int32_t pos = -1;  // the device's word for the position, not the host's
        if (auto s = dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(w->at.pos_d),
                                  sizeof pos);
            !s) {
          return s;
        }
        const auto first = static_cast<std::size_t>(pos);
        const auto k = encode_rows(kind_k, il, attention, w->k.shape, tokens, first);
        if (auto s = write_rows(dev, w->k, first, k, tokens.size()); !s) return s;
        if (!kv->v_in_k) {
          const auto v = encode_rows(kind_v, il, attention, w->v.shape, tokens, first);
          if (auto s = write_rows(dev, w->v, first, v, tokens.size()); !s) return s;
        }
        ++attention;
      } else {
        const auto& r = std::get<memra::RecurrentSpec>(spec);
        auto w = step.recur(il, recurrent);
        if (!w) return w.status();
        std::vector<std::byte> conv(conv_bytes(r));
        std::vector<std::byte> ssm(ssm_bytes(r));
        const std::array<std::pair<std::vector<std::byte>*, std::byte*>, 2> places{
            {{&conv, w->conv_state().data()}, {&ssm, w->plane_state(0).data()}}};
        for (auto [host, at] : places) {
          if (auto s = dev.download(host->data(), at, host->size()); !s) return s;
        }
        for (const Token t : tokens) {
          move_on(r, il, recurrent, t, elems(r.conv_format, conv.data()), elems(r.ssm_format, ssm.data()));
        }
        for (auto [host, at] : places) {
          if (auto s = dev.upload(at, host->data(), host->size()); !s) return s;
        }
        ++recurrent;
      }
    }
    if (auto tap = step.tap(il)) {
      Dev& sink = cache.dflash_taps()->device();
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto x = row(kind_tap, il, 0, tap->hidden, tokens[i], step.pos() + i);
        if (auto s = sink.upload(reinterpret_cast<std::byte*>(tap->data + i * tap->row_stride),
                                 reinterpret_cast<const std::byte*>(x.data()), x.size() * sizeof(float));
            !s) {
          return s;
        }
      }
    }
  }
  return {};
}

}  // namespace stand_in

/// One step of all `tokens`: begin, every layer, advance.
template <class Dev>
memra::Status feed(memra::Cache<Dev>& cache, std::span<const Token> tokens) {
  auto step = cache.begin_step(tokens.size());
  if (!step) return step.status();
  if (auto s = stand_in::forward(cache, *step, tokens); !s) return s;
  return cache.advance();
}

/// The tokens in steps of up to `rows`.
template <class Dev>
memra::Status feed_by(memra::Cache<Dev>& cache, const Tokens& tokens, std::size_t rows = 1) {
  for (std::size_t i = 0; i < tokens.size(); i += rows) {
    const std::span<const Token> all(tokens);
    if (auto s = feed(cache, all.subspan(i, std::min(rows, tokens.size() - i))); !s) return s;
  }
  return {};
}

/// Everything a cache says and holds at rest. EQ of the case list is ==.
struct Image {
  std::size_t pos = 0;
  std::size_t len = 0;
  bool mirrors_agree = true;                  ///< pos_d of every stage is pos
  std::vector<std::vector<std::byte>> parts;  ///< per state: live K rows and V rows, or conv and ssm

  friend bool operator==(const Image&, const Image&) = default;
};

/// What differs first, for messages.
inline std::string difference(const Image& a, const Image& b) {
  if (a.pos != b.pos) return "pos " + std::to_string(a.pos) + " and " + std::to_string(b.pos);
  if (a.len != b.len) return "len " + std::to_string(a.len) + " and " + std::to_string(b.len);
  if (a.mirrors_agree != b.mirrors_agree) return "a mirror of pos";
  if (a.parts.size() != b.parts.size()) return "number of parts";
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    if (a.parts[i] != b.parts[i]) {
      return "part " + std::to_string(i) + (i % 2 == 0 ? " (K, conv or grouped rows)" : " (V or ssm)");
    }
  }
  return "nothing";
}

/// The cache fed exactly `tokens`, computed without a cache: the oracle.
inline Image straight(const memra::ModelConfig& cfg, const Tokens& tokens) {
  Image image;
  image.pos = image.len = tokens.size();
  for (std::size_t il = 0; il < cfg.layers.size(); ++il) {
    std::size_t attention = 0;
    std::size_t recurrent = 0;
    std::size_t grouped = 0;
    for (const memra::StateSpec& spec : cfg.layers[il].states) {
      if (const auto* g = std::get_if<memra::GroupedRowsSpec>(&spec)) {
        const Tokens ends = stand_in::group_ends(tokens, 0, g->stride);
        const memra::PlaneShape shape{g->format, g->layout, ends.size(), g->dim};
        const auto bytes = stand_in::encode_rows(stand_in::kind_group, il, grouped++, shape, ends, 0);
        image.parts.emplace_back();
        const memra::Segments runs = memra::segments(shape, 0, ends.size());
        for (std::size_t i = 0; i < runs.count; ++i) {
          const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(runs[i].offset);
          image.parts.back().insert(image.parts.back().end(), at, at + static_cast<std::ptrdiff_t>(runs[i].bytes));
        }
        image.parts.emplace_back();
      } else if (std::holds_alternative<memra::SharedKvSpec>(spec)) {
        ++attention;
      } else if (const auto* a = std::get_if<memra::AttentionSpec>(&spec)) {
        const memra::PlaneShape k{a->k_format, a->k_layout, 0, a->n_kv_heads * a->head_dim_k};
        const memra::PlaneShape v{a->v_format, a->v_layout, 0, a->n_kv_heads * a->head_dim_v};
        const std::size_t first = stand_in::first_row(*a, tokens.size());
        for (const auto& [kind, shape] : std::array{std::pair{stand_in::kind_k, k}, std::pair{stand_in::kind_v, v}}) {
          image.parts.emplace_back();
          if (a->v_in_k && kind == stand_in::kind_v) continue;
          memra::PlaneShape exact = shape;
          exact.rows = tokens.size();
          const auto bytes = stand_in::encode_rows(kind, il, attention, shape, tokens, 0);
          const memra::Segments runs = memra::segments(exact, first, tokens.size() - first);
          for (std::size_t i = 0; i < runs.count; ++i) {  // without the alignment between sub-planes
            const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(runs[i].offset);
            image.parts.back().insert(image.parts.back().end(), at, at + static_cast<std::ptrdiff_t>(runs[i].bytes));
          }
        }
        ++attention;
      } else {
        const auto& r = std::get<memra::RecurrentSpec>(spec);
        std::vector<std::byte> conv(stand_in::conv_bytes(r));
        std::vector<std::byte> ssm(stand_in::ssm_bytes(r));
        for (const Token t : tokens) {
          stand_in::move_on(r, il, recurrent, t, stand_in::elems(r.conv_format, conv.data()),
                            stand_in::elems(r.ssm_format, ssm.data()));
        }
        image.parts.push_back(std::move(conv));
        image.parts.push_back(std::move(ssm));
        ++recurrent;
      }
    }
  }
  return image;
}

/// What a cache holds now.
template <class Dev>
Image image(const memra::Cache<Dev>& cache) {
  Image out;
  out.pos = cache.pos();
  out.len = cache.len();
  for (std::size_t s = 0; s < cache.n_stages(); ++s) {
    std::int32_t pos = -1;
    Dev& dev = cache.stage_dev(s);
    memra::check(dev.download(reinterpret_cast<std::byte*>(&pos), reinterpret_cast<const std::byte*>(cache.pos_d(s)),
                              sizeof pos));
    out.mirrors_agree = out.mirrors_agree && pos == static_cast<std::int32_t>(out.pos);
  }
  for (std::size_t il = 0; il < cache.n_layer(); ++il) {
    Dev& dev = cache.dev(il);
    std::size_t attention = 0;
    std::size_t recurrent = 0;
    std::size_t grouped = 0;
    for (const memra::StateSpec& spec : cache.config().layers[il].states) {
      if (const auto* g = std::get_if<memra::GroupedRowsSpec>(&spec)) {
        const auto layer = *cache.grouped(il, grouped++);
        if (layer.len != out.len / g->stride || layer.rows.shape.rows != cache.max_ctx() / g->stride) {
          out.mirrors_agree = false;
        }
        out.parts.push_back(stand_in::read_rows(dev, layer.rows, 0, layer.len));
        out.parts.emplace_back();
      } else if (const auto* shared = std::get_if<memra::SharedKvSpec>(&spec)) {
        const auto layer = *cache.kv(il, attention++);
        const auto donor = *cache.kv(shared->donor, shared->nth);
        const bool same = layer.k.data == donor.k.data && layer.v.data == donor.v.data && layer.len == out.len &&
                          layer.spec == donor.spec && layer.first == donor.first;
        if (!same) out.mirrors_agree = false;
      } else if (std::holds_alternative<memra::AttentionSpec>(spec)) {
        const auto layer = *cache.kv(il, attention++);
        if (layer.len != out.len || layer.first > stand_in::first_row(layer.spec, out.pos)) out.mirrors_agree = false;
        const std::size_t first = stand_in::first_row(layer.spec, out.len);
        out.parts.push_back(stand_in::read_rows(dev, layer.k, first, out.len));
        out.parts.push_back(stand_in::read_rows(dev, layer.v, first, out.len));
      } else {
        const auto layer = *cache.recur(il, recurrent++);
        const std::array<std::pair<const std::byte*, std::size_t>, 2> places{
            {{layer.conv_data, layer.conv_bytes()}, {layer.ssm_data, layer.ssm_bytes()}}};
        for (const auto& [at, n] : places) {
          out.parts.emplace_back(n);
          memra::check(dev.download(out.parts.back().data(), at, n));
        }
      }
    }
  }
  return out;
}

/// Overwrites one byte of device memory with another value; a red arm uses it.
template <class Dev>
void spoil(Dev& dev, const void* at) {
  auto* p = const_cast<std::byte*>(static_cast<const std::byte*>(at));
  std::byte b{};
  memra::check(dev.download(&b, p, 1));
  b ^= std::byte{0x10};
  memra::check(dev.upload(p, &b, 1));
}

// --- models ---

inline memra::AttentionSpec attention_spec(memra::Format k = memra::Format::q8_0, memra::Format v = memra::Format::q5_1,
                                           memra::Layout layout = memra::Layout::blocks) {
  memra::AttentionSpec a;
  a.n_heads = 4;
  a.n_kv_heads = 2;
  a.head_dim_k = 32;
  a.head_dim_v = 32;
  a.k_format = k;
  a.v_format = v;
  a.k_layout = layout;
  a.v_layout = layout;
  return a;
}
inline memra::RecurrentSpec recurrent_spec(std::size_t d_conv = 4) {
  memra::RecurrentSpec r;
  r.n_k_heads = 1;
  r.n_v_heads = 2;
  r.d_k = 4;
  r.d_v = 3;
  r.d_conv = d_conv;
  return r;
}

/// Every shape of layer at once: both kinds in one layer, two of a kind in one layer, none, widths that differ, a
/// window, a second buffer, and a last layer past the usual fence.
inline memra::ModelConfig hybrid_model(memra::Format k = memra::Format::q8_0, memra::Format v = memra::Format::q5_1,
                                       memra::Layout layout = memra::Layout::blocks) {
  memra::AttentionSpec wide = attention_spec(k, v, layout);
  wide.head_dim_v = layout == memra::Layout::split ? 256 : 64;  // wide enough for columns in every block format
  wide.window = 5;
  memra::AttentionSpec narrow = attention_spec(v, k, layout);
  narrow.n_heads = 1;
  narrow.n_kv_heads = 1;
  narrow.v_layout = memra::Layout::blocks;
  memra::RecurrentSpec other = recurrent_spec(3);
  other.n_k_heads = 2;
  other.n_v_heads = 4;
  memra::RecurrentSpec doubled = recurrent_spec();
  doubled.second_buffer = true;
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(recurrent_spec()),
                memra::full_attention(attention_spec(k, v, layout)),
                {{other, wide}},
                memra::no_state(),
                {{narrow, attention_spec(k, v, layout)}},
                {{recurrent_spec(), recurrent_spec(2)}},
                memra::recurrent(doubled),
                memra::full_attention(narrow)};
  cfg.n_vocab = 16;
  return cfg;
}
inline memra::ModelConfig attention_model(memra::Format k = memra::Format::q8_0, memra::Format v = memra::Format::q5_1,
                                          memra::Layout layout = memra::Layout::blocks) {
  memra::ModelConfig cfg;
  cfg.layers = {memra::full_attention(attention_spec(k, v, layout)),
                memra::full_attention(attention_spec(v, k, layout))};
  cfg.n_vocab = 16;
  return cfg;
}
/// Every kind of layer that the hybrid model has not: rings, latent rows, shared K and V, every rule and state format,
/// a convolution alone, and a block past the trunk. Layers 1 to 4 are on one device wherever placements() puts the
/// model: the donor and those that share with it.
inline memra::ModelConfig kinds_model(memra::Format k = memra::Format::q8_0, memra::Format v = memra::Format::q5_1,
                                      memra::Layout layout = memra::Layout::blocks) {
  using memra::Format;
  const memra::AttentionSpec ring = memra::windowed(attention_spec(k, v, layout), 5, 40);
  const memra::AttentionSpec tight = memra::windowed(attention_spec(v, k, layout), 40, 24);
  const memra::AttentionSpec latent = memra::latent_rows(4, 32, 32, k, layout);
  memra::ModelConfig cfg;
  cfg.layers = {
      {{ring, memra::gated_delta(1, 2, 16, 3, 4)}},
      {{tight, memra::stored_as(memra::mamba2(2, 4, 1, 16, 4), Format::bf16, Format::f32)}},
      memra::recurrent(memra::stored_as(memra::kda(2, 5, 3, 4), Format::f32, Format::bf16)),
      memra::shared_attention(1, 4),
      {{latent, memra::SharedKvSpec{1, 0, 0}, memra::index_rows(32, v, layout)}},
      {{memra::mamba1(6, 4, 3), memra::grouped_rows(32, 4, k, layout), memra::grouped_rows(64, 7, v, layout)}},
      memra::recurrent(memra::stored_as(memra::lightning(2, 5, 3), Format::f32, Format::f16)),
      memra::recurrent(memra::stored_as(memra::short_conv(7, 3), Format::f16, Format::f32)),
      {{memra::grouped_rows(32, 128, k, layout)}},
      memra::no_state(),
      {{memra::windowed(latent, 20, 30)}}};
  cfg.n_vocab = 16;
  cfg.n_mtp = 1;
  return cfg;
}
/// The same without recurrent layers: rollbacks leave nothing to replay.
inline memra::ModelConfig ring_model(memra::Format k = memra::Format::q8_0, memra::Format v = memra::Format::q5_1,
                                     memra::Layout layout = memra::Layout::blocks) {
  memra::ModelConfig cfg;
  for (memra::LayerSpec layer : kinds_model(k, v, layout).layers) {
    std::erase_if(layer.states, [](const auto& s) { return std::holds_alternative<memra::RecurrentSpec>(s); });
    cfg.layers.push_back(layer);
  }
  cfg.n_vocab = 16;
  return cfg;
}
inline memra::ModelConfig recurrent_model() {
  memra::ModelConfig cfg;
  cfg.layers = {memra::recurrent(recurrent_spec()), memra::recurrent(recurrent_spec(1))};
  cfg.n_vocab = 16;
  return cfg;
}

}  // namespace memra_test
