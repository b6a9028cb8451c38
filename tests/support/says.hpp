// A refusal is of the kind that was meant and says why.
#pragma once

#include <memra/error.hpp>
#include <string>
#include <support/catch.hpp>

namespace memra_test {

/// Whether `s` is of this kind and its sentence has these words; a test that fails shows the sentence.
inline bool says(const memra::Status& s, memra::ErrorKind kind, const char* words) {
  UNSCOPED_INFO(s.text());
  return s.kind() == kind && std::string(s.text()).find(words) != std::string::npos;
}

}  // namespace memra_test
