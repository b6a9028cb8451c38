// EXPECT: memra: the device needs `Status copy(
// NEEDS: memra/cache.hpp
#include <concepts/near_misses.hpp>
#include <memra/cache.hpp>

// The class asserts before anything in it can fail in a worse way.
static_assert(sizeof(memra::Cache<memra_test::CopyMayThrow<MEMRA_TEST_CORRECTED>>) != 0);
