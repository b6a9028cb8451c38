// Everything a cache has committed, as bytes: what two caches fed the same tokens must agree on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/cache.hpp>
#include <memra/error.hpp>
#include <memra/layout.hpp>
#include <vector>

namespace tiny {

/// pos, len, then per layer the rows [0, len) of K and V, conv and ssm. Throws memra::Error.
template <class Dev>
std::vector<std::byte> committed_bytes(const memra::Cache<Dev>& cache) {
  std::vector<std::byte> out;
  const auto put = [&](Dev& dev, const std::byte* from, std::size_t n) {
    out.resize(out.size() + n);
    memra::check(dev.download(out.data() + out.size() - n, from, n));
  };
  for (const std::size_t value : {cache.pos(), cache.len()}) {
    out.resize(out.size() + sizeof value);
    std::memcpy(out.data() + out.size() - sizeof value, &value, sizeof value);
  }
  for (std::size_t il = 0; il < cache.n_layer(); ++il) {
    Dev& dev = cache.dev(il);
    if (const auto kv = cache.kv(il)) {
      put(dev, reinterpret_cast<const std::byte*>(kv->pos_d), sizeof(std::int32_t));
      for (const memra::ConstPlaneView& plane : std::array{kv->k, kv->v}) {
        const memra::Segments rows = memra::segments(plane.shape, 0, kv->len);
        for (std::size_t i = 0; i < rows.count; ++i) put(dev, plane.data + rows[i].offset, rows[i].bytes);
      }
    }
    if (const auto r = cache.recur(il)) {
      put(dev, reinterpret_cast<const std::byte*>(r->conv), r->conv_elems() * sizeof(float));
      put(dev, reinterpret_cast<const std::byte*>(r->ssm), r->ssm_elems() * sizeof(float));
    }
  }
  return out;
}

}  // namespace tiny
