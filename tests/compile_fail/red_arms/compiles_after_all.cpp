// EXPECT: memra: the device needs
#include <concepts/minimal_dev.hpp>
#include <memra/kv_dev.hpp>

static_assert(memra::check_kv_dev<memra_test::MinimalDev>());
