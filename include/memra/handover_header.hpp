// HandoverHeader: what goes ahead of handed-over state, and says of it everything that must be known to take it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memra/detail/checksum.hpp>
#include <memra/detail/handover_wire.hpp>
#include <memra/detail/state_pieces.hpp>
#include <memra/detail/wire.hpp>
#include <memra/error.hpp>
#include <memra/model_config.hpp>
#include <memra/plan.hpp>
#include <memra/views.hpp>
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
  /// Nor has a layer so many states. Who shares one looks for it among all of its donor's.
  static constexpr std::size_t most_states = 64;
  static constexpr std::size_t least_message = std::size_t{4} << 10;
  static constexpr std::size_t most_message = std::size_t{1} << 30;

  HandoverTag tag;
  std::size_t pos = 0;                     ///< the boundary: tokens that the state stands for
  ModelConfig config;                      ///< without what only sizes scratch
  ScanClass scan = ScanClass::sequential;  ///< chunked: a step of that class is behind the state
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
  /// Bytes of the header behind a prelude of ours, of whatever version: magic, its length and that it comes next are
  /// the same in all of them. nullopt: no prelude of ours, or a length that is not believed.
  static std::optional<std::size_t> header_behind(std::span<const std::byte> bytes);

  /// Reads a header that may be anything. Allocates no more than a small multiple of its size.
  /// @return corrupt, saying what contradicts what: the checksum, a length, a geometry that has no plan, pieces that
  ///         are not those of the geometry
  static Result<HandoverHeader> parse(const Prelude& prelude, std::span<const std::byte> bytes);

 private:
  static bool reads_magic(detail::WireReader& r) noexcept;
  static Status corrupt(const char* sentence) noexcept {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "%s", sentence);
  }
};

namespace detail {

/// Pieces of a state of this shape: trunk, logits, draft tail. Counted, so that a shape which lies about its size costs
/// nothing.
inline CheckedSize handover_count(const ModelConfig& cfg, const Plan& plan, std::size_t pos, bool has_logits,
                                  const std::optional<HandoverTail>& tail) noexcept {
  const std::size_t logits = has_logits && cfg.n_vocab != 0 ? 1 : 0;
  return CheckedSize(state_piece_count(plan, pos)) + logits + CheckedSize(2) * (tail ? tail->layers : 0);
}

inline Result<std::vector<std::size_t>> handover_sizes(const ModelConfig& cfg, const Plan& plan, std::size_t pos,
                                                       bool has_logits, const std::optional<HandoverTail>& tail) {
  std::vector<std::size_t> sizes;
  for (const StatePiece& p : state_pieces(plan, pos)) sizes.push_back(p.bytes);
  if (has_logits && cfg.n_vocab != 0) sizes.push_back(cfg.n_vocab * sizeof(float));
  if (tail) {
    const CheckedSize plane = CheckedSize(tail->rows) * tail->row_bytes;
    if (!plane.valid() || !(plane * tail->layers * 2).valid()) {
      return Status::failure(ErrorKind::bad_argument, "handover", 0, 0, "the draft tail's size does not fit");
    }
    sizes.insert(sizes.end(), 2 * tail->layers, plane.value());
  }
  return sizes;
}

}  // namespace detail

/// Sizes of all pieces of a state of this shape: trunk, logits, draft tail.
/// @return bad_argument if the geometry has no plan or a size does not fit
inline Result<std::vector<std::size_t>> handover_sizes(const ModelConfig& cfg, std::size_t pos, bool has_logits,
                                                       const std::optional<HandoverTail>& tail) {
  auto planned = plan(cfg, pos);
  if (!planned) return planned.status();
  return detail::handover_sizes(cfg, *planned, pos, has_logits, tail);
}

inline std::vector<std::byte> HandoverHeader::encode() const {
  detail::WireWriter w;
  w.bytes(tag.fingerprint);
  w.u64(tag.numeric_class);
  w.u64(pos);
  w.u64(config.n_vocab);
  w.u64(message_bytes);
  w.u32((has_logits ? detail::wire_has_logits : 0U) | (tail ? detail::wire_has_tail : 0U) |
        (scan == ScanClass::chunked ? detail::wire_chunked : 0U));
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

inline bool HandoverHeader::reads_magic(detail::WireReader& r) noexcept {
  bool ours = true;
  for (const char c : magic) ours = r.u8() == static_cast<std::uint8_t>(c) && ours;
  return ours;
}

inline Result<HandoverHeader::Prelude> HandoverHeader::parse_prelude(std::span<const std::byte> bytes) {
  detail::WireReader r(bytes);
  const bool ours = reads_magic(r);
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

inline std::optional<std::size_t> HandoverHeader::header_behind(std::span<const std::byte> bytes) {
  detail::WireReader r(bytes);
  const bool ours = reads_magic(r);
  static_cast<void>(r.u64());  // version and reserved bytes
  const std::uint64_t n = r.u64();
  if (!r.ok() || !ours || n > most_bytes) return std::nullopt;
  return static_cast<std::size_t>(n);
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
    if (states > most_states) {
      return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "layer %zu has %zu states; expected at most %zu", il,
                             states, most_states);
    }
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
  if ((flags & detail::wire_chunked) != 0) h.scan = ScanClass::chunked;
  if ((flags & detail::wire_has_tail) != 0) {
    HandoverTail t;
    for (std::size_t* n : {&t.layers, &t.base, &t.rows, &t.row_bytes, &t.floor}) *n = r.u64();
    h.tail = t;
  }
  const std::size_t pieces = r.count(r.u64(), 16);
  for (std::size_t i = 0; i < pieces; ++i) h.pieces.push_back({static_cast<std::size_t>(r.u64()), r.u64()});
  if (!r.ok()) return corrupt("the header is cut off: a count is larger than what follows");
  if (r.left() != 0) return corrupt("bytes are left behind the header's last piece");
  if (flags > (detail::wire_has_logits | detail::wire_has_tail | detail::wire_chunked))
    return corrupt("a flag this build does not know");
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
  // A plan is no larger than what describes it. The pieces of a ring may be: they are counted before they are made.
  const auto none = [](const Status& why) {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "no such state: %s", why.text());
  };
  const auto planned = plan(h.config, h.pos);
  if (!planned) return none(planned.status());
  if (h.scan == ScanClass::chunked && planned->chunk_heads == 0) {
    return corrupt("a state of the chunked scan, but no layer that has one");
  }
  const detail::CheckedSize count = detail::handover_count(h.config, *planned, h.pos, h.has_logits, h.tail);
  if (!count.valid() || count.value() != h.pieces.size()) {
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "%zu pieces; this state has %zu", h.pieces.size(),
                           count.value());
  }
  const auto sizes = detail::handover_sizes(h.config, *planned, h.pos, h.has_logits, h.tail);
  if (!sizes) return none(sizes.status());
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    if ((*sizes)[i] == h.pieces[i].bytes) continue;
    return Status::failure(ErrorKind::corrupt, "handover", 0, 0, "piece %zu has %zu bytes; in this state it has %zu", i,
                           h.pieces[i].bytes, (*sizes)[i]);
  }
  return h;
}

}  // namespace memra
