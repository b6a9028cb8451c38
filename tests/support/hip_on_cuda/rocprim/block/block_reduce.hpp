// The part of rocPRIM that memra uses, by CUB. For tests only.
#pragma once

#include <cub/block/block_reduce.cuh>

namespace rocprim {

template <class T, unsigned Threads>
struct block_reduce {
  using storage_type = typename cub::BlockReduce<T, Threads>::TempStorage;

  template <class Better>
  __device__ void reduce(T input, T& output, storage_type& storage, Better better) {
    output = cub::BlockReduce<T, Threads>(storage).Reduce(input, better);
  }
};

}  // namespace rocprim
