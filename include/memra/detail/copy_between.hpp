// Copies between device objects: directly where the pair can, else through the host in bounded pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <memra/error.hpp>
#include <memra/kv_dev.hpp>
#include <new>
#include <type_traits>

namespace memra::detail {

/// Largest host buffer of a staged copy: big enough to run at link speed, small beside any model.
inline constexpr std::size_t staging_bytes = std::size_t{4} << 20;

/// Copies `n` bytes from `src` on `from` to `dst` on `to`, ordered on both streams.
///
/// @return what failed first; out_of_memory if the staging buffer could not be had; dst may be partly written then
template <class To, class From>
Status copy_between(To& to, std::byte* dst, From& from, const std::byte* src, std::size_t n) {
  if (n == 0) return {};
  if constexpr (std::is_same_v<To, From>) {
    if (&to == &from) return to.copy(dst, src, n);
  }
  if constexpr (PeerCopyDev<To, From>) {
    return to.copy_peer(dst, from, src, n);
  } else {
    const std::size_t piece = std::min(n, staging_bytes);
    const std::unique_ptr<std::byte[]> stage(new (std::nothrow) std::byte[piece]);
    if (!stage) {
      return Status::failure(ErrorKind::out_of_memory, "copy_between", 0, piece, "no host memory to stage a copy");
    }
    for (std::size_t done = 0; done < n; done += piece) {
      const std::size_t now = std::min(piece, n - done);
      if (Status s = from.download(stage.get(), src + done, now); !s) return s;
      if (Status s = to.upload(dst + done, stage.get(), now); !s) return s;
    }
    return {};
  }
}

}  // namespace memra::detail
