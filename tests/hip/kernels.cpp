// Every kernel of HipDev, so that a HIP compiler emits all of them: what isa.sh looks at.
#include <cstddef>
#include <memra/hip/ops.hip.hpp>
#include <support/op_cases.hpp>

std::size_t every_kernel() {
  return memra_test::op_cases<memra::HipDev>().size();
}
