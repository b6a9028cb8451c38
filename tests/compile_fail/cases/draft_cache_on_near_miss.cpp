// EXPECT: memra: the device needs `Status copy(
// NEEDS: memra/dflash_kv.hpp
#include <concepts/near_misses.hpp>
#include <memra/dflash_kv.hpp>

static_assert(sizeof(memra::DflashKv<memra_test::CopyMayThrow<MEMRA_TEST_CORRECTED>>) != 0);
