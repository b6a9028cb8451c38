// One door to Catch2: 2.13 (Debian 12) and 3.x (newer systems) spell their headers differently.
#pragma once

// Without a try block around each assertion clang++ compiles a test in an eighth less time under sanitizers. What
// leaves an assertion still fails its test case, which then ends, and is printed with the line.
#define CATCH_CONFIG_FAST_COMPILE

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif
