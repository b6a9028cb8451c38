// Draft caches with rows that depend on layer, position and token, and a look at what they hold.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <support/stand_in.hpp>
#include <vector>

namespace memra_test {

template <class Dev>
struct DraftRows {
  using Kv = memra::DflashKv<Dev>;

  /// What the K or V row of token t at position pos is, whatever wrote it.
  static std::vector<float> want(const Kv& kv, bool k, std::size_t layer, Token t, std::size_t pos) {
    return stand_in::row(k ? stand_in::kind_k : stand_in::kind_v, layer, 0, kv.row_bytes() / sizeof(float), t, pos);
  }

  /// An int of the cache on its device: 0 is len_d, 1 a ring's base_d.
  static std::int32_t int_d(const Kv& kv, std::size_t nth) {
    std::int32_t n = -1;
    const std::byte* first = reinterpret_cast<const std::byte*>(kv.k(0)) - kv.plan().k_offset(0);
    memra::check(kv.device().download(reinterpret_cast<std::byte*>(&n), first + nth * sizeof n, sizeof n));
    return n;
  }

  /// Writes `tokens` into the rows a view stands for, where the device says they go.
  static memra::Status write(Kv& kv, const typename Kv::Rows& rows, const Tokens& tokens) {
    Dev& dev = kv.device();
    for (std::size_t l = 0; l < kv.n_layer(); ++l) {
      const memra::DraftView d = rows.view(l);
      std::int32_t at[2] = {-1, 0};
      const std::size_t ints = d.base_d == nullptr ? 1 : 2;
      if (auto s = dev.download(reinterpret_cast<std::byte*>(at), reinterpret_cast<const std::byte*>(d.len_d),
                                ints * sizeof at[0]);
          !s) {
        return s;
      }
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::size_t pos = static_cast<std::size_t>(at[0]) + i;
        const std::size_t phys = pos - static_cast<std::size_t>(at[1]);
        for (const bool k : {true, false}) {
          const auto x = want(kv, k, l, tokens[i], pos);
          auto* to = reinterpret_cast<std::byte*>((k ? d.k : d.v) + phys * x.size());
          if (auto s = dev.upload(to, reinterpret_cast<const std::byte*>(x.data()), kv.row_bytes()); !s) return s;
        }
      }
    }
    return {};
  }

  static memra::Status commit(Kv& kv, const Tokens& tokens) {
    auto rows = kv.begin_rows(tokens.size());
    if (!rows) return rows.status();
    if (auto s = write(kv, *rows, tokens); !s) return s;
    return kv.commit();
  }

  /// Writes a block of guesses and leaves it.
  static memra::Status draft(Kv& kv, const Tokens& tokens) {
    auto rows = kv.begin_block(tokens.size());
    if (!rows) return rows.status();
    return write(kv, *rows, tokens);
  }

  /// True if rows [first, end) of every layer are those of t[first..end).
  static bool holds(const Kv& kv, const Tokens& t, std::size_t first, std::size_t end) {
    if (first < kv.base() || end - kv.base() > kv.plan().phys_rows) return false;
    std::vector<float> got(kv.row_bytes() / sizeof(float));
    for (std::size_t l = 0; l < kv.n_layer(); ++l) {
      for (std::size_t r = first; r < end; ++r) {
        for (const bool k : {true, false}) {
          const float* from = (k ? kv.k(l) : kv.v(l)) + (r - kv.base()) * got.size();
          memra::check(kv.device().download(reinterpret_cast<std::byte*>(got.data()),
                                            reinterpret_cast<const std::byte*>(from), kv.row_bytes()));
          if (std::memcmp(got.data(), want(kv, k, l, t[r], r).data(), kv.row_bytes()) != 0) return false;
        }
      }
    }
    return true;
  }
};

}  // namespace memra_test
