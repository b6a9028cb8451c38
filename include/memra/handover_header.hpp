// HandoverHeader: what goes ahead of handed-over state, and says of it everything that must be known to take it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memra/detail/checksum.hpp>
#include <memra/detail/state_pieces.hpp>
#include <memra/detail/wire.hpp>
#include <memra/error.hpp>
#include <memra/format.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace memra {

/// What only the engine knows of its state; sender and receiver must say the same.
struct HandoverTag {
  /// Of the weights and whatever else decides the numbers, the drafter included: a hash, say. memra only compares it.
  std::array<std::byte, 32> fingerprint{};
  /// The numeric class that computed the state, as the engine numbers them: 0 is that of single steps. A state of
  /// another class continues, but not as the receiver's own would have.
  std::uint64_t numeric_class = 0;

  friend bool operator==(const HandoverTag&, const HandoverTag&) = default;
};

/// Shape of a draft tail that travels along. It ends at the boundary.
struct HandoverTail {
  std::size_t layers = 0;
  std::size_t base = 0;  ///< base + rows is the boundary
  std::size_t rows = 0;
  std::size_t row_bytes = 0;
  std::size_t floor = 0;

  friend bool operator==(const HandoverTail&, const HandoverTail&) = default;
};

/// One run of bytes of the payload and its checksum.
struct HandoverPiece {
  std::size_t bytes = 0;
  std::uint64_t sum = 0;

  friend bool operator==(const HandoverPiece&, const HandoverPiece&) = default;
};

/// Version 1 of the stream: a prelude of fixed size, this header, then the pieces, in the order of docs/handover.md.
struct HandoverHeader {
  static constexpr std::array<char, 8> magic = {'M', 'E', 'M', 'R', 'A', '-', 'H', 'O'};
  static constexpr std::uint32_t version = 1;
  static constexpr std::size_t prelude_bytes = 32;
  /// No header of a model that exists comes near; a length from outside is not believed beyond it.
  static constexpr std::size_t most_bytes = std::size_t{16} << 20;
  static constexpr std::size_t least_message = std::size_t{4} << 10;
  static constexpr std::size_t most_message = std::size_t{1} << 30;

  HandoverTag tag;
  std::size_t pos = 0;  ///< the boundary: tokens that the state stands for
  ModelConfig config;   ///< without what only sizes scratch
  bool has_logits = false;
  std::optional<HandoverTail> tail;
  std::size_t message_bytes = std::size_t{64} << 20;  ///< pieces are sent in messages of at most so many bytes
  std::vector<HandoverPiece> pieces;

  /// Prelude and header as they are sent.
  std::vector<std::byte> encode() const;

  /// Bytes of the header that follows a prelude, with the header's checksum.
  struct Prelude {
    std::size_t header_bytes = 0;
    std::uint64_t sum = 0;
  };
  /// @return corrupt or unsupported: no stream of ours, or of another version
  static Result<Prelude> parse_prelude(std::span<const std::byte> bytes);

  /// Reads a header that may be anything. Allocates no more than a small multiple of its size.
  /// @return corrupt, saying what contradicts what: the checksum, a length, a geometry that has no plan, pieces that
  ///         are not those of the geometry
  static Result<HandoverHeader> parse(const Prelude& prelude, std::span<const std::byte> bytes);

 private:
  static Status corrupt(const char* sentence) noexcept {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "%s", sentence);
  }
};

/// Sizes of all pieces of a state of this shape: trunk, logits, draft tail.
/// @return bad_argument if the geometry has no plan or a size does not fit
inline Result<std::vector<std::size_t>> handover_sizes(const ModelConfig& cfg, std::size_t pos, bool has_logits,
                                                       const std::optional<HandoverTail>& tail) {
  auto planned = plan(cfg, pos);
  if (!planned) return planned.status();
  std::vector<std::size_t> sizes;
  for (const detail::StatePiece& p : detail::state_pieces(*planned, pos)) sizes.push_back(p.bytes);
  if (has_logits && cfg.n_vocab != 0) sizes.push_back(cfg.n_vocab * sizeof(float));
  if (tail) {
    const detail::CheckedSize plane = detail::CheckedSize(tail->rows) * tail->row_bytes;
    if (!plane.valid() || !(plane * tail->layers * 2).valid()) {
      return Status::failure(ErrorKind::bad_argument, "handover", 0, 0, "the draft tail's size does not fit");
    }
    sizes.insert(sizes.end(), 2 * tail->layers, plane.value());
  }
  return sizes;
}

namespace detail {

// Numbers on the wire are the enumerators' own; these keep them from moving.
static_assert(static_cast<int>(Format::f32) == 0 && static_cast<int>(Format::f16) == 1 &&
              static_cast<int>(Format::bf16) == 2 && static_cast<int>(Format::q8_0) == 3 &&
              static_cast<int>(Format::q5_1) == 4 && static_cast<int>(Format::q4_0) == 5 &&
              static_cast<int>(Format::fp8_e4m3) == 6 && all_formats.size() == 7);
static_assert(static_cast<int>(Layout::blocks) == 0 && static_cast<int>(Layout::split) == 1);
static_assert(static_cast<int>(ScanRule::gated_delta) == 0 && static_cast<int>(ScanRule::kda) == 1 &&
              static_cast<int>(ScanRule::linear) == 2 && static_cast<int>(ScanRule::mamba1) == 3 &&
              static_cast<int>(ScanRule::none) == 4 && all_scan_rules == 5);
static_assert(static_cast<int>(KeyHeadMode::grouped) == 0 && static_cast<int>(KeyHeadMode::interleaved) == 1);
static_assert(sizeof(std::size_t) == 8, "memra: a hand-over needs 64-bit sizes");

inline constexpr std::uint32_t wire_attention = 1;
inline constexpr std::uint32_t wire_recurrent = 2;
inline constexpr std::uint32_t wire_shared = 3;
inline constexpr std::uint32_t wire_has_logits = 1;
inline constexpr std::uint32_t wire_has_tail = 2;

inline void write_state(WireWriter& w, const AttentionSpec& a) {
  w.u32(wire_attention);
  w.u8(static_cast<std::uint8_t>(a.k_format));
  w.u8(static_cast<std::uint8_t>(a.v_format));
  w.u8(static_cast<std::uint8_t>(a.k_layout));
  w.u8(static_cast<std::uint8_t>(a.v_layout));
  for (const std::size_t n : {a.n_kv_heads, a.head_dim_k, a.head_dim_v, a.window}) w.u64(n);
  w.u8(a.ring_slack == 0 ? 0 : 1);  // whose rows beyond the window do not travel
  w.u8(a.v_in_k ? 1 : 0);
}

inline void write_state(WireWriter& w, const SharedKvSpec& s) {
  w.u32(wire_shared);
  w.u64(s.donor);
  w.u64(s.nth);
}

inline void write_state(WireWriter& w, const RecurrentSpec& r) {
  w.u32(wire_recurrent);
  w.u32(static_cast<std::uint32_t>(r.map.mode));
  w.u8(static_cast<std::uint8_t>(r.rule));
  w.u8(static_cast<std::uint8_t>(r.conv_format));
  w.u8(static_cast<std::uint8_t>(r.ssm_format));
  for (const std::size_t n : {r.n_k_heads, r.n_v_heads, r.d_k, r.d_v, r.d_conv, r.conv_channels, r.map.first_v,
                              r.map.total_v, r.map.total_k}) {
    w.u64(n);
  }
}

/// @return false for an id or kind that is none of ours
inline bool read_state(WireReader& r, LayerSpec& layer) {
  const std::uint32_t kind = r.u32();
  if (kind == wire_attention) {
    AttentionSpec a;
    std::uint8_t id[4] = {};
    for (std::uint8_t& i : id) i = r.u8();
    for (std::size_t* n : {&a.n_kv_heads, &a.head_dim_k, &a.head_dim_v, &a.window}) *n = r.u64();
    const std::uint8_t ring = r.u8();
    const std::uint8_t v_in_k = r.u8();
    if (id[0] >= all_formats.size() || id[1] >= all_formats.size() || id[2] > 1 || id[3] > 1) return false;
    if (ring > 1 || v_in_k > 1) return false;
    a.ring_slack = ring;
    a.v_in_k = v_in_k == 1;
    a.k_format = static_cast<Format>(id[0]);
    a.v_format = static_cast<Format>(id[1]);
    a.k_layout = static_cast<Layout>(id[2]);
    a.v_layout = static_cast<Layout>(id[3]);
    layer.states.emplace_back(a);
    return r.ok();
  }
  if (kind == wire_shared) {
    SharedKvSpec s;
    s.donor = r.u64();
    s.nth = r.u64();
    layer.states.emplace_back(s);
    return r.ok();
  }
  if (kind != wire_recurrent) return false;
  RecurrentSpec s;
  const std::uint32_t mode = r.u32();
  std::uint8_t id[3] = {};
  for (std::uint8_t& i : id) i = r.u8();
  for (std::size_t* n : {&s.n_k_heads, &s.n_v_heads, &s.d_k, &s.d_v, &s.d_conv, &s.conv_channels, &s.map.first_v,
                         &s.map.total_v, &s.map.total_k}) {
    *n = r.u64();
  }
  if (mode > 1 || id[0] >= all_scan_rules || id[1] >= all_formats.size() || id[2] >= all_formats.size()) return false;
  s.rule = static_cast<ScanRule>(id[0]);
  s.conv_format = static_cast<Format>(id[1]);
  s.ssm_format = static_cast<Format>(id[2]);
  s.map.mode = static_cast<KeyHeadMode>(mode);
  layer.states.emplace_back(s);
  return r.ok();
}

}  // namespace detail

inline std::vector<std::byte> HandoverHeader::encode() const {
  detail::WireWriter w;
  w.bytes(tag.fingerprint);
  w.u64(tag.numeric_class);
  w.u64(pos);
  w.u64(config.n_vocab);
  w.u64(message_bytes);
  w.u32((has_logits ? detail::wire_has_logits : 0U) | (tail ? detail::wire_has_tail : 0U));
  w.u32(static_cast<std::uint32_t>(config.layers.size()));
  for (const LayerSpec& layer : config.layers) {
    w.u32(static_cast<std::uint32_t>(layer.states.size()));
    for (const StateSpec& state : layer.states) {
      std::visit([&](const auto& s) { detail::write_state(w, s); }, state);
    }
  }
  if (tail) {
    for (const std::size_t n : {tail->layers, tail->base, tail->rows, tail->row_bytes, tail->floor}) w.u64(n);
  }
  w.u64(pieces.size());
  for (const HandoverPiece& p : pieces) {
    w.u64(p.bytes);
    w.u64(p.sum);
  }
  const std::vector<std::byte> header = w.take();
  detail::WireWriter all;
  for (const char c : magic) all.u8(static_cast<std::uint8_t>(c));
  all.u32(version);
  all.u32(0);
  all.u64(header.size());
  all.u64(detail::checksum(header));
  all.bytes(header);
  return all.take();
}

inline Result<HandoverHeader::Prelude> HandoverHeader::parse_prelude(std::span<const std::byte> bytes) {
  detail::WireReader r(bytes);
  bool ours = true;
  for (const char c : magic) ours = r.u8() == static_cast<std::uint8_t>(c) && ours;
  const std::uint32_t theirs = r.u32();
  const std::uint32_t zero = r.u32();
  Prelude p;
  p.header_bytes = r.u64();
  p.sum = r.u64();
  if (!r.ok() || !ours) return corrupt("no hand-over begins here: the first bytes are not its magic");
  if (theirs != version) {
    return Status::failure(ErrorKind::unsupported, "handover", 0, 0, "the stream has version %u; this build reads %u",
                           theirs, version);
  }
  if (zero != 0) return corrupt("the reserved bytes of the prelude are not zero");
  if (p.header_bytes > most_bytes) {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "a header of %zu bytes; expected at most %zu",
                           p.header_bytes, most_bytes);
  }
  return p;
}

inline Result<HandoverHeader> HandoverHeader::parse(const Prelude& prelude, std::span<const std::byte> bytes) {
  if (bytes.size() != prelude.header_bytes) return corrupt("the header has another length than the prelude says");
  if (detail::checksum(bytes) != prelude.sum) return corrupt("the header does not have the checksum of the prelude");
  detail::WireReader r(bytes);
  HandoverHeader h;
  r.bytes(h.tag.fingerprint);
  h.tag.numeric_class = r.u64();
  h.pos = r.u64();
  h.config.n_vocab = r.u64();
  h.message_bytes = r.u64();
  const std::uint32_t flags = r.u32();
  const std::size_t layers = r.count(r.u32(), 4);
  h.config.layers.resize(layers);
  for (std::size_t il = 0; il < layers && r.ok(); ++il) {
    const std::size_t states = r.count(r.u32(), 20);
    for (std::size_t i = 0; i < states; ++i) {
      if (!detail::read_state(r, h.config.layers[il])) {
        return Status::failure(
            ErrorKind::corrupt, "handover", 0, 0,
            "state %zu of layer %zu is cut off, or has a kind, format, layout or map this build does "
            "not know",
            i, il);
      }
    }
  }
  h.has_logits = (flags & detail::wire_has_logits) != 0;
  if ((flags & detail::wire_has_tail) != 0) {
    HandoverTail t;
    for (std::size_t* n : {&t.layers, &t.base, &t.rows, &t.row_bytes, &t.floor}) *n = r.u64();
    h.tail = t;
  }
  const std::size_t pieces = r.count(r.u64(), 16);
  for (std::size_t i = 0; i < pieces; ++i) h.pieces.push_back({static_cast<std::size_t>(r.u64()), r.u64()});
  if (!r.ok()) return corrupt("the header is cut off: a count is larger than what follows");
  if (r.left() != 0) return corrupt("bytes are left behind the header's last piece");
  if (flags > (detail::wire_has_logits | detail::wire_has_tail)) return corrupt("a flag this build does not know");
  if (h.message_bytes < least_message || h.message_bytes > most_message || h.message_bytes % 8 != 0) {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "messages of %zu bytes; expected %zu to %zu",
                           h.message_bytes, least_message, most_message);
  }
  if (h.has_logits && h.config.n_vocab == 0) return corrupt("logits of a model without a vocabulary");
  if (h.tail) {
    const HandoverTail& t = *h.tail;
    const detail::CheckedSize end = detail::CheckedSize(t.base) + t.rows;
    if (t.layers > h.pieces.size() || t.rows == 0 || t.row_bytes == 0 || !end.valid() || end.value() != h.pos ||
        t.floor > t.base) {
      return corrupt(
          "the draft tail does not end at the boundary, or has no rows, layers that are not there or a floor "
          "above its base");
    }
  }
  // One piece per plane at least: a plan is only made of what the bytes at hand can describe.
  const auto sizes = handover_sizes(h.config, h.pos, h.has_logits, h.tail);
  if (!sizes) return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "no such state: %s", sizes.status().text());
  if (sizes->size() != h.pieces.size()) {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "%zu pieces; this state has %zu", h.pieces.size(),
                           sizes->size());
  }
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    if ((*sizes)[i] == h.pieces[i].bytes) continue;
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "piece %zu has %zu bytes; in this state it has %zu", i,
                           h.pieces[i].bytes, (*sizes)[i]);
  }
  return h;
}

}  // namespace memra
