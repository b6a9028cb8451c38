// EQ of the stand-in model as a Catch2 requirement that says what differs.
#pragma once

#include <support/catch.hpp>
#include <support/stand_in.hpp>

namespace memra_test {

inline void require_eq(const Image& got, const Image& want) {
  INFO(difference(got, want));
  REQUIRE(got == want);
}

}  // namespace memra_test
