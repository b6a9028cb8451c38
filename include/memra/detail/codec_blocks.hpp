// encode_blocks and decode_blocks of every format.
#pragma once

#include <cstddef>
#include <memra/detail/codec_scalar.hpp>
#include <memra/format.hpp>

namespace memra::detail {

template <Format F>
void encode_blocks(const float* x, std::size_t n_blocks, BlockCursor to) noexcept {
  scalar_encode_blocks<F>(x, n_blocks, to);
}
template <Format F>
void decode_blocks(ConstBlockCursor from, std::size_t n_blocks, float* y) noexcept {
  scalar_decode_blocks<F>(from, n_blocks, y);
}

}  // namespace memra::detail
