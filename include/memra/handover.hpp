// Hand-over: a cache's state goes to another process, prefill to decode, over any Transport.
#pragma once

#include <cstddef>
#include <memra/cache.hpp>
#include <memra/cache_types.hpp>
#include <memra/detail/handover_io.hpp>
#include <memra/dflash_cfg.hpp>
#include <memra/dflash_tail.hpp>
#include <memra/error.hpp>
#include <memra/handover_header.hpp>
#include <memra/kv_dev.hpp>
#include <memra/prefix.hpp>
#include <memra/transport.hpp>
#include <memra/views.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace memra {

/// Where a received state is to live, and what it must be.
template <class Dev>
struct HandoverTarget {
  std::vector<Dev*> stages;             ///< device of each stage, as for Cache::create_ppn
  std::vector<std::size_t> fence = {};  ///< [stages + 1]; empty: pp_cuts
  ModelConfig config = {};
  std::size_t max_ctx = 0;
  HandoverTag tag = {};
  ScanClass scan = ScanClass::sequential;  ///< chunked: a state behind which is a step of that class is taken, too
  CacheOptions options = {};
  std::optional<DflashCfg> draft = {};  ///< the drafter a tail must fit; none: a state with a tail is refused
  Dev* draft_dev = nullptr;             ///< where the tail goes; nullptr: the last stage's device
};

/// What was received. The tail, if the sender had one, is for DflashKv::from_tail.
template <class Dev>
struct HandedOver {
  Cache<Dev> cache;
  std::optional<DflashKvTail<Dev>> tail;
};

/// Sends the state of a cache at rest, up to its position, with the logits if they are parked there. The cache stays
/// as it is. Returns when the receiver has said that it took it.
///
/// @param link  used by nothing else meanwhile
/// @param tail  the drafter's rows, ending at the cache's position; may be nullptr
/// @return bad_state as Cache::snapshot; bad_argument at position 0, for a tail that ends elsewhere or for more pieces
///         than a header holds; what the receiver refused it for, in its words; link_failure, after which the link is
///         to be thrown away, unlike after a refusal; device_failure, which taints the cache if it is one of earlier
///         work (S5): with pieces on their way the receiver learns of it from silence, and the link is to be thrown
///         away, too
template <class Dev, class T>
Status send_state(T& link, Cache<Dev>& cache, const HandoverTag& tag,
                  const std::type_identity_t<DflashKvTail<Dev>>* tail = nullptr,
                  std::size_t message_bytes = HandoverHeader{}.message_bytes) {
  return detail::HandoverIo<Dev>::send(link, cache, tag, tail, message_bytes);
}

/// The same for a prompt that was published: the cache it came from may have moved on, or be gone.
template <class Dev, class T>
Status send_state(T& link, const CachePrefix<Dev>& prefix, const HandoverTag& tag,
                  const std::type_identity_t<DflashKvTail<Dev>>* tail = nullptr,
                  std::size_t message_bytes = HandoverHeader{}.message_bytes) {
  return detail::HandoverIo<Dev>::send(link, prefix, tag, tail, message_bytes);
}

/// Receives a state into a fresh cache, which continues to the bit as the sender's would. All or nothing: the header
/// is checked against `target` before anything is allocated, every byte against its checksum before there is a cache.
/// Memory handed over in target.options is written as soon as the header has passed.
///
/// @return bad_argument if geometry, formats, layouts, tag or drafter differ or the state does not fit max_ctx; corrupt
///         if the stream contradicts itself; unsupported for another version; as Cache::create; link_failure. The
///         sender is told, except of a link_failure, and of a device failure while pieces are on their way: that it
///         learns from silence, and the link is to be thrown away
template <class Dev, class T>
Result<HandedOver<Dev>> receive_state(T& link, const HandoverTarget<Dev>& target) {
  std::optional<DflashKvTail<Dev>> tail;
  auto cache = detail::HandoverIo<Dev>::receive(link, target, tail);
  if (!cache) return cache.status();
  return HandedOver<Dev>{*std::move(cache), std::move(tail)};
}

}  // namespace memra
