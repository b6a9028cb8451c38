// What the tests on a CUDA device share.
#pragma once

#include <memra/cuda/device.hpp>
#include <memra/portable_ops.hpp>
#include <utility>

namespace memra_test {

inline memra::CudaDev make_cuda() {
  return memra::check(memra::CudaDev::create());
}

/// A CUDA device that runs the portable kernels only.
struct PortableCuda : memra::CudaDev {
  using kernels = memra::PortableKernels;
  PortableCuda() : memra::CudaDev(make_cuda()) {}
};

}  // namespace memra_test
