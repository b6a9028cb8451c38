// DflashKvTail: the readable end of a draft cache at a publication boundary.
#pragma once

#include <cstddef>
#include <memra/detail/queued_work.hpp>
#include <memra/kv_dev.hpp>
#include <vector>

namespace memra {

/// Rows [base, base + rows) of every draft layer, committed order, ending at len. Owns its bytes.
///
/// Open on purpose: a transport rebuilds it on the other side, and DflashKv::from_tail trusts none of it.
template <class Dev>
struct DflashKvTail {
  struct Layer {
    typename Dev::Buffer k;  ///< [rows][n_kv * head_dim] f32, normed and roped
    typename Dev::Buffer v;  ///< the same shape, raw
  };

  Dev* dev = nullptr;         ///< device object the buffers belong to; alive while from_tail reads them
  std::vector<Layer> layers;  ///< [n_layer]
  std::size_t base = 0;       ///< stream row of the first row
  std::size_t rows = 0;
  std::size_t len = 0;        ///< the boundary: base + rows
  std::size_t row_bytes = 0;  ///< n_kv * head_dim * 4
  std::size_t floor = 0;      ///< rows below were never visible; at most base
  detail::QueuedWork work;    ///< what it was copied with; nothing for one that was rebuilt
};

}  // namespace memra
