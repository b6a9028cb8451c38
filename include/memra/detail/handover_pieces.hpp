// Pieces of a hand-over where they are in memory, and their checksums, taken where the bytes are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memra/detail/checksum.hpp>
#include <memra/detail/copy_between.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <memra/kv_dev.hpp>
#include <memra/launch.hpp>
#include <new>
#include <span>
#include <type_traits>
#include <vector>

namespace memra::detail {

/// A piece of the payload in memory of a device object.
template <class Dev>
struct PlacedPiece {
  Dev* dev = nullptr;
  std::byte* at = nullptr;
  std::size_t bytes = 0;
  std::size_t layer = 0;
  const char* what = "";  ///< "K", "ssm", "logits": for sentences
  bool joins = false;     ///< its bytes travel in one run with those of the piece before
};

/// Checksums of the pieces on one device that runs kernels: one pass over the bytes, at the speed of
/// its memory.
///
/// @param mine  indices into `pieces`
/// @param sums  [pieces] those of `mine` are set
template <class Dev>
Status checksum_by_kernel(Dev& dev, std::span<const PlacedPiece<Dev>> pieces, std::span<const std::size_t> mine,
                          std::span<std::uint64_t> sums) {
  // Spans of one size, so that long and short pieces keep the device equally busy; enough lanes to fill a large GPU, if
  // there is something to do for them.
  constexpr std::size_t span_bytes = std::size_t{4} << 20;
  constexpr std::size_t most_lanes = 2048;
  constexpr std::size_t kept = 32;
  std::vector<ChecksumSpan> spans;
  std::vector<std::size_t> piece_of;
  std::size_t lanes = 1;
  for (const std::size_t i : mine) {
    for (std::size_t done = 0; done < pieces[i].bytes; done += span_bytes) {
      const auto* at = reinterpret_cast<const std::uint8_t*>(pieces[i].at + done);
      spans.push_back({at, std::min(span_bytes, pieces[i].bytes - done), done / 8});
      lanes = std::min(std::max(lanes, static_cast<std::size_t>(spans.back().bytes) / sizeof(WordPair)), most_lanes);
      piece_of.push_back(i);
    }
  }
  if (spans.empty()) return {};
  auto table = dev.alloc(spans.size() * sizeof(ChecksumSpan));
  if (!table) return table.status();
  auto all = dev.alloc(spans.size() * lanes * sizeof(std::uint64_t));
  if (!all) return all.status();
  auto few = dev.alloc(spans.size() * kept * sizeof(std::uint64_t));
  if (!few) return few.status();
  if (Status s = dev.upload(table->data(), reinterpret_cast<const std::byte*>(spans.data()),
                            spans.size() * sizeof(ChecksumSpan));
      !s) {
    return s;
  }
  if (Status s = dev.synchronize(); !s) return s;  // the kernel follows the addresses that stand there
  auto* wide = reinterpret_cast<std::uint64_t*>(all->data());
  auto* narrow = reinterpret_cast<std::uint64_t*>(few->data());
  const auto* on_device = reinterpret_cast<const ChecksumSpan*>(table->data());
  if (Status s = launch(dev, "checksum", {lanes, spans.size(), 1}, ChecksumBody{on_device, wide, lanes}); !s) return s;
  const ChecksumFoldBody fold{wide, narrow, lanes, kept};
  if (Status s = launch(dev, "checksum_fold", {kept, spans.size(), 1}, fold); !s) return s;
  std::vector<std::uint64_t> parts(spans.size() * kept);
  if (Status s = dev.download(reinterpret_cast<std::byte*>(parts.data()), few->data(), few->size()); !s) return s;
  for (std::size_t i = 0; i < parts.size(); ++i) sums[piece_of[i / kept]] += parts[i];
  return {};
}

/// The checksum of a piece on a device without kernels of ours: its bytes come to the host.
template <class Dev>
Status checksum_by_download(const PlacedPiece<Dev>& piece, std::uint64_t& sum) {
  const std::size_t most = std::min(piece.bytes, staging_bytes);
  const std::unique_ptr<std::byte[]> host(new (std::nothrow) std::byte[most]);
  if (!host) {
    return Status::failure(ErrorKind::out_of_memory, "checksum", 0, most, "no host memory to look at a piece");
  }
  for (std::size_t done = 0; done < piece.bytes; done += most) {
    const std::size_t now = std::min(most, piece.bytes - done);
    if (Status s = piece.dev->download(host.get(), piece.at + done, now); !s) return s;
    sum += checksum({host.get(), now}, done / 8);
  }
  return {};
}

/// @return [pieces]
template <class Dev>
Result<std::vector<std::uint64_t>> checksums(std::span<const PlacedPiece<Dev>> pieces) {
  std::vector<std::uint64_t> sums(pieces.size(), 0);
  if constexpr (std::is_same_v<Dev, HostDev>) {
    for (std::size_t i = 0; i < pieces.size(); ++i) sums[i] = checksum({pieces[i].at, pieces[i].bytes});
  } else if constexpr (LaunchDev<Dev>) {
    std::vector<Dev*> devs;
    for (const PlacedPiece<Dev>& p : pieces) {
      if (std::find(devs.begin(), devs.end(), p.dev) == devs.end()) devs.push_back(p.dev);
    }
    for (Dev* dev : devs) {
      std::vector<std::size_t> mine;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].dev == dev) mine.push_back(i);
      }
      if (Status s = checksum_by_kernel<Dev>(*dev, pieces, mine, sums); !s) return s;
    }
  } else {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (Status s = checksum_by_download(pieces[i], sums[i]); !s) return s;
    }
  }
  return sums;
}

}  // namespace memra::detail
