// What send_state and receive_state do: header, verdict, pieces, verdict.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memra/cache.hpp>
#include <memra/detail/cache_core.hpp>
#include <memra/detail/handover_link.hpp>
#include <memra/detail/handover_pieces.hpp>
#include <memra/detail/prefix_io.hpp>
#include <memra/detail/round_state.hpp>
#include <memra/detail/state_pieces.hpp>
#include <memra/detail/takes_state.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/dflash_tail.hpp>
#include <memra/error.hpp>
#include <memra/handover_header.hpp>
#include <memra/plan.hpp>
#include <memra/prefix.hpp>
#include <memra/transport.hpp>
#include <memra/views.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace memra {
template <class Dev>
struct HandoverTarget;
}  // namespace memra

namespace memra::detail {

constexpr const char* piece_name(PlaneKind kind) noexcept {
  switch (kind) {
    case PlaneKind::k:
      return "K";
    case PlaneKind::v:
      return "V";
    case PlaneKind::grouped:
      return "grouped rows";
    case PlaneKind::conv:
      return "conv";
    default:
      return "ssm";
  }
}

template <class Dev>
struct HandoverIo {
  using Piece = PlacedPiece<Dev>;
  using Pieces = std::vector<Piece>;

  // --- where the pieces are ---

  /// @param dev_of  callable: device index -> Dev*
  template <class Slab, class DevOf>
  static Pieces trunk(const Plan& plan, std::size_t n, const Slab& slab, const DevOf& dev_of) {
    Pieces pieces;
    bool in_state = false;
    for (const StatePiece& p : state_pieces(plan, n)) {
      const PlanePlan& plane = plan.planes[p.plane];
      // conv and ssm of all layers lie one after another in the usual state slab: one run.
      const bool joins = p.joins || (plane.slab == SlabKind::state && in_state);
      in_state = plane.slab == SlabKind::state;
      pieces.push_back(
          {dev_of(plane.device), address(plan, p, slab), p.bytes, plane.layer, piece_name(plane.kind), joins});
    }
    return pieces;
  }
  static Pieces of(const CacheCore<Dev>& core, std::size_t n) {
    return trunk(core.plan, n, core.slabs(), [&](std::size_t d) { return core.devices[d].dev; });
  }
  static Pieces of(const CachePrefix<Dev>& prefix) {
    return trunk(prefix.plan_, prefix.pos(), prefix.slabs(), [&](std::size_t d) { return prefix.devices_[d].dev; });
  }
  static void add(Pieces& pieces, Dev& last, const typename Dev::Buffer& logits) {
    pieces.push_back({&last, logits.data(), logits.size(), 0, "logits"});
  }
  static void add(Pieces& pieces, const DflashKvTail<Dev>& tail) {
    for (std::size_t l = 0; l < tail.layers.size(); ++l) {
      pieces.push_back({tail.dev, tail.layers[l].k.data(), tail.layers[l].k.size(), l, "draft K"});
      pieces.push_back({tail.dev, tail.layers[l].v.data(), tail.layers[l].v.size(), l, "draft V"});
    }
  }

  // --- sending ---

  template <class T>
  static Status send(T& link, Cache<Dev>& cache, const HandoverTag& tag, const DflashKvTail<Dev>* tail,
                     std::size_t message_bytes) {
    if (!cache.core_) return refuse(ErrorKind::bad_state, "the cache is empty (moved-from)");
    CacheCore<Dev>& core = *cache.core_;
    if (Status s = detail::settle(core, "send_state"); !s) return s;
    if (core.pos == 0) return refuse(ErrorKind::bad_argument, "the cache is at position 0: no state to hand over");
    HandoverHeader h;
    h.tag = tag;
    h.pos = core.pos;
    h.config = core.config;
    h.scan = core.scan;
    h.has_logits = core.parked_valid && core.parked_pos == core.pos;
    h.message_bytes = message_bytes;
    Pieces pieces = of(core, core.pos);
    if (h.has_logits) add(pieces, *core.devices[core.stages.back().device].dev, *core.parked);
    return core.noted(send(link, std::move(h), std::move(pieces), tail));
  }

  template <class T>
  static Status send(T& link, const CachePrefix<Dev>& prefix, const HandoverTag& tag, const DflashKvTail<Dev>* tail,
                     std::size_t message_bytes) {
    if (prefix.devices_.empty()) return refuse(ErrorKind::bad_argument, "the prefix is empty (moved-from)");
    if (prefix.work_.failed()) return refuse(ErrorKind::bad_state, "the prefix is lost: its copies failed");
    HandoverHeader h;
    h.tag = tag;
    h.pos = prefix.pos();
    h.config = prefix.config_;
    h.scan = prefix.scan_;
    h.has_logits = prefix.logits_.has_value();
    h.message_bytes = message_bytes;
    Pieces pieces = of(prefix);
    if (h.has_logits) add(pieces, *prefix.devices_[prefix.plan_.stages.back().device].dev, *prefix.logits_);
    return send(link, std::move(h), std::move(pieces), tail);
  }

  template <class T>
  static Status send(T& transport, HandoverHeader h, Pieces pieces, const DflashKvTail<Dev>* tail) {
    if (h.message_bytes < HandoverHeader::least_message || h.message_bytes > HandoverHeader::most_message ||
        h.message_bytes % 8 != 0) {
      return refuse(ErrorKind::bad_argument, "message_bytes is not a multiple of 8 from 4 KiB to 1 GiB");
    }
    h.config.layers = meaning(std::move(h.config.layers));
    if (tail != nullptr) {
      h.tail = HandoverTail{tail->layers.size(), tail->base, tail->rows, tail->row_bytes, tail->floor};
      if (tail->dev == nullptr || tail->len != h.pos) {
        return Status::failure(ErrorKind::bad_argument, "send_state", 0, 0,
                               "the draft tail ends at row %zu, the state at %zu", tail->len, h.pos);
      }
      if (tail->work.failed()) return refuse(ErrorKind::bad_state, "the draft tail is lost: its copies failed");
      add(pieces, *tail);
    }
    auto sizes = handover_sizes(h.config, h.pos, h.has_logits, h.tail);
    if (!sizes) return sizes.status();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (sizes->size() == pieces.size() && (*sizes)[i] == pieces[i].bytes) continue;
      return Status::failure(ErrorKind::bad_argument, "send_state", 0, pieces[i].bytes,
                             "%s of layer %zu is not of the size that its shape says", pieces[i].what, pieces[i].layer);
    }
    auto sums = checksums<Dev>(pieces);
    if (!sums) return sums.status();
    for (std::size_t i = 0; i < pieces.size(); ++i) h.pieces.push_back({pieces[i].bytes, (*sums)[i]});

    const std::vector<std::byte> header = h.encode();
    const std::span<const std::byte> bytes(header);
    if (header.size() - HandoverHeader::prelude_bytes > HandoverHeader::most_bytes) {
      return Status::failure(ErrorKind::bad_argument, "send_state", 0, 0,
                             "%zu pieces make a header of %zu bytes; expected at most %zu", h.pieces.size(),
                             header.size() - HandoverHeader::prelude_bytes, HandoverHeader::most_bytes);
    }
    HandoverLink<T> link(transport, h.message_bytes);
    if (Status s = link.template prepare<Dev>(pieces); !s) return s;
    if (Status s = link.send_host(bytes.first(HandoverHeader::prelude_bytes)); !s) return s;
    if (Status s = link.send_host(bytes.subspan(HandoverHeader::prelude_bytes)); !s) return s;
    if (Status s = link.receive_verdict("send_state"); !s) return s;
    if (Status s = link.template send<Dev>(pieces); !s) return s;
    return link.receive_verdict("send_state");
  }

  // --- receiving ---

  template <class T>
  static Result<Cache<Dev>> receive(T& transport, const HandoverTarget<Dev>& target,
                                    std::optional<DflashKvTail<Dev>>& tail_out) {
    HandoverLink<T> link(transport);
    const auto refused = [&](const Status& why) {
      // Why it is refused says more than that nobody listens, but not more than that earlier work has failed.
      const Status told = link.send_verdict(why);
      return told.asynchronous() ? told : why;
    };
    std::vector<std::byte> bytes(HandoverHeader::prelude_bytes);
    if (Status s = link.receive_host(bytes); !s) return s;
    auto prelude = HandoverHeader::parse_prelude(bytes);
    const auto behind = HandoverHeader::header_behind(bytes);
    if (!behind) return refused(prelude.status());
    bytes.resize(*behind);
    if (Status s = link.receive_host(bytes); !s) return s;
    if (!prelude) return refused(prelude.status());  // it was on its way: the link is in order
    auto header = HandoverHeader::parse(*prelude, bytes);
    if (!header) return refused(header.status());
    if (Status s = fits(*header, target); !s) return refused(s);

    // All memory before the first byte of state: who cannot hold it says so now.
    std::vector<std::size_t> fence = target.fence;
    if (fence.empty()) fence = pp_cuts(target.config.layers.size(), target.stages.size());
    auto cache = Cache<Dev>::create_ppn(target.stages, fence, target.config, target.max_ctx, target.options);
    if (!cache) return refused(cache.status());
    CacheCore<Dev>& core = *cache->core_;
    Dev& last = *core.devices[core.stages.back().device].dev;
    Pieces pieces = of(core, header->pos);
    if (header->has_logits) {
      auto logits = last.alloc(target.config.n_vocab * sizeof(float));
      if (!logits) return refused(logits.status());
      core.parked.emplace(*std::move(logits));
      add(pieces, last, *core.parked);
    }
    std::optional<DflashKvTail<Dev>> tail;
    if (header->tail) {
      auto made = empty_tail(target.draft_dev != nullptr ? *target.draft_dev : last, *header);
      if (!made) return refused(made.status());
      tail.emplace(*std::move(made));
      add(pieces, *tail);
    }
    link.set_message(header->message_bytes);
    if (Status s = link.template prepare<Dev>(pieces); !s) return refused(s);
    if (Status s = link.send_verdict({}); !s) return s;

    if (Status s = link.template receive<Dev>(pieces); !s) return s;
    if (Status s = unharmed(*header, pieces); !s) return refused(s);
    if (Status s = core.store_pos(header->pos); !s) return refused(s);
    core.restore(header->pos, header->scan);
    core.parked_pos = header->pos;
    core.parked_valid = header->has_logits;
    if (Status s = link.send_verdict({}); !s) return s;
    tail_out = std::move(tail);
    return cache;
  }

  /// Refuses what this target cannot take, in one sentence.
  static Status fits(const HandoverHeader& h, const HandoverTarget<Dev>& target) {
    const auto no = [](const char* sentence) {
      return Status::failure(ErrorKind::bad_argument, "receive_state", 0, 0, "%s", sentence);
    };
    if (h.tag.fingerprint != target.tag.fingerprint) {
      return no("the stream is of a model with another fingerprint than this receiver's");
    }
    if (h.tag.numeric_class != target.tag.numeric_class) {
      return Status::failure(ErrorKind::bad_argument, "receive_state", 0, 0,
                             "the stream was computed in numeric class %llu, this receiver continues in %llu",
                             static_cast<unsigned long long>(h.tag.numeric_class),
                             static_cast<unsigned long long>(target.tag.numeric_class));
    }
    if (h.scan == ScanClass::chunked && target.scan != ScanClass::chunked) {
      return no("the stream's state came from a chunked scan, this receiver takes sequential ones only");
    }
    if (Status s = takes_state("receive_state", "the stream", target.config, target.max_ctx, h.config, h.pos); !s) {
      return s;
    }
    if (!h.tail) return {};
    if (!target.draft) return no("the stream has a draft tail, this receiver no drafter");
    const DflashCfg& d = *target.draft;
    if (h.tail->layers != d.n_layer || h.tail->row_bytes != d.row_bytes() || h.tail->rows > d.window_rows()) {
      return Status::failure(
          ErrorKind::bad_argument, "receive_state", 0, 0,
          "the stream's draft tail has %zu layers, %zu rows of %zu bytes; this drafter %zu, at most %zu of %zu",
          h.tail->layers, h.tail->rows, h.tail->row_bytes, d.n_layer, d.window_rows(), d.row_bytes());
    }
    return {};
  }

  static Result<DflashKvTail<Dev>> empty_tail(Dev& dev, const HandoverHeader& h) {
    DflashKvTail<Dev> tail;
    tail.dev = &dev;
    tail.base = h.tail->base;
    tail.rows = h.tail->rows;
    tail.len = h.pos;
    tail.row_bytes = h.tail->row_bytes;
    tail.floor = h.tail->floor;
    for (std::size_t l = 0; l < h.tail->layers; ++l) {
      auto k = dev.alloc(tail.rows * tail.row_bytes);
      if (!k) return k.status();
      auto v = dev.alloc(tail.rows * tail.row_bytes);
      if (!v) return v.status();
      tail.layers.push_back({*std::move(k), *std::move(v)});
    }
    return tail;
  }

  static Status unharmed(const HandoverHeader& h, const Pieces& pieces) {
    auto sums = checksums<Dev>(pieces);
    if (!sums) return sums.status();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if ((*sums)[i] == h.pieces[i].sum) continue;
      return Status::failure(ErrorKind::corrupt, "receive_state", 0, pieces[i].bytes,
                             "piece %zu (%s of layer %zu) arrived with other bytes than were sent", i, pieces[i].what,
                             pieces[i].layer);
    }
    return {};
  }

  static Status refuse(ErrorKind kind, const char* sentence) noexcept {
    return Status::failure(kind, "send_state", 0, 0, "%s", sentence);
  }
};

}  // namespace memra::detail
