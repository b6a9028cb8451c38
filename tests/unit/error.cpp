// Status, Result, Error and check: what a failure says and what it costs.
#include <cstddef>
#include <cstring>
#include <memory>
#include <memra/error.hpp>
#include <string>
#include <support/catch.hpp>
#include <type_traits>
#include <utility>

namespace error_cpp {
namespace {

using memra::Error;
using memra::ErrorKind;
using memra::Result;
using memra::Status;

TEST_CASE("Status: ok, and a sentence with operation, code and bytes", "[error]") {
  const Status ok;
  REQUIRE((ok.ok() && ok && ok.kind() == ErrorKind::ok && std::string(ok.text()).empty() && ok.message() == "ok"));
  REQUIRE((std::string(ok.operation()).empty() && ok.native() == 0 && ok.bytes() == 0));
  const Status s = Status::failure(ErrorKind::device_failure, "copy", 700, 4096, "rows %d of %s", 3, "K");
  REQUIRE((!s.ok() && !s && s.kind() == ErrorKind::device_failure && s.native() == 700 && s.bytes() == 4096));
  REQUIRE((std::string(s.operation()) == "copy" && std::string(s.text()) == "rows 3 of K"));
  REQUIRE(s.message() == "memra: copy: device_failure: rows 3 of K (native code 700, 4096 bytes)");
  REQUIRE(Status::failure(ErrorKind::bad_state, "advance", 0, 0, "no step").message() ==
          "memra: advance: bad_state: no step");
  REQUIRE(Status::failure(ErrorKind::device_failure, "x", -1, 0, "y").message() ==
          "memra: x: device_failure: y (native code -1, 0 bytes)");
  const Status copy = s;
  REQUIRE(copy.message() == s.message());
}

TEST_CASE("Status: a long sentence is cut, never overrun, and percent signs of arguments are plain text", "[error]") {
  for (const std::size_t n : {0U, 1U, 230U, 231U, 232U, 233U, 5000U}) {
    const std::string long_text(n, 'x');
    const Status s = Status::failure(ErrorKind::corrupt, "read", 0, 0, "%s", long_text.c_str());
    REQUIRE(std::string(s.text()) == long_text.substr(0, Status::text_capacity - 1));
    REQUIRE(std::strlen(s.text()) < Status::text_capacity);
  }
  REQUIRE(std::string(Status::failure(ErrorKind::corrupt, "read", 0, 0, "%s", "100%n%s").text()) == "100%n%s");
  static_assert(std::is_nothrow_copy_constructible_v<Status> && std::is_nothrow_default_constructible_v<Status>);
}

TEST_CASE("every kind has a name of its own", "[error]") {
  std::string names;
  for (const ErrorKind k : {ErrorKind::ok, ErrorKind::out_of_memory, ErrorKind::bad_argument, ErrorKind::bad_state,
                            ErrorKind::device_failure, ErrorKind::device_lost, ErrorKind::unsupported,
                            ErrorKind::corrupt, ErrorKind::link_failure}) {
    const std::string name = memra::to_string(k);
    REQUIRE(name != "unknown");
    REQUIRE(names.find("<" + name + ">") == std::string::npos);
    names += "<" + name + ">";
  }
  REQUIRE(std::string(memra::to_string(static_cast<ErrorKind>(200))) == "unknown");
}

TEST_CASE("check throws an Error that carries the Status, and only for failures", "[error]") {
  REQUIRE_NOTHROW(memra::check(Status()));
  try {
    memra::check(Status::failure(ErrorKind::out_of_memory, "alloc", 2, 77, "none left"));
    FAIL("check returned");
  } catch (const Error& e) {
    REQUIRE((e.status().kind() == ErrorKind::out_of_memory && e.status().bytes() == 77));
    REQUIRE(std::string(e.what()) == "memra: alloc: out_of_memory: none left (native code 2, 77 bytes)");
  }
}

TEST_CASE("Result holds a value or a reason, moves what only moves, and never is ok without a value", "[error]") {
  Result<int> five = 5;
  REQUIRE((five.ok() && five && *five == 5 && five.status().ok()));
  *five = 6;
  REQUIRE(memra::check(std::move(five)) == 6);
  const Result<int> none = Status::failure(ErrorKind::bad_argument, "f", 0, 0, "no");
  REQUIRE((!none.ok() && !none && none.status().kind() == ErrorKind::bad_argument));
  REQUIRE_THROWS_AS(memra::check(Result<int>(none)), Error);
  Result<std::unique_ptr<int>> owned = std::make_unique<int>(3);
  REQUIRE(**owned == 3);
  REQUIRE(*owned->get() == 3);
  const std::unique_ptr<int> out = memra::check(std::move(owned));
  REQUIRE(*out == 3);
  const Result<int> liar = Status();
  REQUIRE((!liar.ok() && !liar.status().ok() && liar.status().kind() == ErrorKind::bad_state));
  REQUIRE_THROWS_AS(memra::check(Result<int>(Status())), Error);
}

}  // namespace
}  // namespace error_cpp
