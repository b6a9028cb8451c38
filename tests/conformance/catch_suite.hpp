// The conformance suite as sections of a Catch2 test case.
#pragma once

#include <conformance/conformance.hpp>
#include <support/catch.hpp>

namespace memra_conformance {

template <class Make>
void require_conformance() {
  for (const Property& p : properties<Make>()) {
    DYNAMIC_SECTION(p.name) {
      const Report report = attempt(p);
      INFO(report.text());
      REQUIRE(report.ok());
    }
  }
}

}  // namespace memra_conformance
