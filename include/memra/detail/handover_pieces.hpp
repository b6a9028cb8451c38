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
  // Long spans have lanes enough to fill a large GPU. Short ones, of which rings and narrow columns have tens of
  // thousands, have few, whose sums need no fold: else those would take more memory than the state has.
  constexpr std::size_t long_span = std::size_t{4} << 20;
  constexpr std::size_t short_span = std::size_t{64} << 10;
  constexpr std::size_t many = 2048;
  constexpr std::size_t few = many * short_span / long_span;  // so that no lane has more to do than another
  struct Part {
    ChecksumSpan span;
    std::size_t piece;
  };
  std::vector<Part> parts;
  for (const std::size_t i : mine) {
    for (std::size_t done = 0; done < pieces[i].bytes; done += long_span) {
      const auto* at = reinterpret_cast<const std::uint8_t*>(pieces[i].at + done);
      parts.push_back({{at, std::min(long_span, pieces[i].bytes - done), done / 8}, i});
    }
  }
  if (parts.empty()) return {};
  const auto shorter =
      std::partition(parts.begin(), parts.end(), [](const Part& p) { return p.span.bytes > short_span; });
  const auto n_long = static_cast<std::size_t>(shorter - parts.begin());
  const std::size_t n_short = parts.size() - n_long;
  std::vector<ChecksumSpan> spans;
  for (const Part& p : parts) spans.push_back(p.span);

  auto table = dev.alloc(spans.size() * sizeof(ChecksumSpan));
  if (!table) return table.status();
  auto memory = dev.alloc((n_long * many + spans.size() * few) * sizeof(std::uint64_t));
  if (!memory) return memory.status();
  if (Status s = dev.upload(table->data(), reinterpret_cast<const std::byte*>(spans.data()),
                            spans.size() * sizeof(ChecksumSpan));
      !s) {
    return s;
  }
  if (Status s = dev.synchronize(); !s) return s;  // the kernel follows the addresses that stand there
  const auto* on_device = reinterpret_cast<const ChecksumSpan*>(table->data());
  auto* const wide = reinterpret_cast<std::uint64_t*>(memory->data());
  std::uint64_t* const narrow = wide + n_long * many;
  const ChecksumBody of_short{on_device + n_long, narrow + n_long * few, few};
  if (Status s = launch(dev, "checksum", {many, n_long, 1}, ChecksumBody{on_device, wide, many}); !s) return s;
  if (Status s = launch(dev, "checksum", {few, n_short, 1}, of_short); !s) return s;
  if (Status s = launch(dev, "checksum_fold", {few, n_long, 1}, ChecksumFoldBody{wide, narrow, many, few}); !s)
    return s;
  std::vector<std::uint64_t> found(spans.size() * few);
  if (Status s = dev.download(reinterpret_cast<std::byte*>(found.data()), reinterpret_cast<const std::byte*>(narrow),
                              found.size() * sizeof(std::uint64_t));
      !s) {
    return s;
  }
  for (std::size_t i = 0; i < found.size(); ++i) sums[parts[i / few].piece] += found[i];
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
