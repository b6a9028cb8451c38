// memra-plan --verify, where the bytes are as planned and where they are not.
#include <unistd.h>
#include <array>
#include <cstddef>
#include <cstdio>
#include <memra/canary_dev.hpp>
#include <plan/numbers.hpp>
#include <plan/request.hpp>
#include <plan/run.hpp>
#include <plan/verify.hpp>
#include <string>
#include <support/catch.hpp>

namespace plan_verify_cpp {
namespace {

/// Asks for more than it is asked: guards around every allocation.
using Guarded = memra::CanaryDev<planner::Counted>;

planner::Flags flags_for(const char* model) {
  planner::Flags f;
  f.model = std::string(MEMRA_TEST_FIXTURES) + "/configs/" + model;
  f.ctx = "300";
  f.verify = true;
  return f;
}

struct Seen {
  int exit_status = 0;
  std::string output;
};

/// What the program writes to its standard output.
template <class Dev>
Seen program(const planner::Flags& flags) {
  std::FILE* const file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stdout);
  const int kept = dup(1);
  dup2(fileno(file), 1);
  Seen seen;
  seen.exit_status = planner::run<Dev>(flags);
  std::fflush(stdout);
  dup2(kept, 1);
  close(kept);
  std::rewind(file);
  std::array<char, 4096> part{};
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), file)) != 0;) seen.output.append(part.data(), n);
  std::fclose(file);
  return seen;
}

bool has(const Seen& seen, const std::string& text) {
  return seen.output.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("what is allocated is what was planned: exit status 0") {
  planner::Flags f = flags_for("nemotron_h_4.json");
  f.stages = "2";
  const Seen seen = program<planner::Counted>(f);
  INFO(seen.output);
  REQUIRE(seen.exit_status == 0);
  REQUIRE(has(seen, " planned: equal\n"));
  f.json = true;
  REQUIRE(has(program<planner::Counted>(f), "\"verified\": true"));
}

TEST_CASE("red arm: a device that takes more than the plan says is seen: exit status 1, and both numbers") {
  planner::Flags f = flags_for("nemotron_h_4.json");
  const Seen seen = program<Guarded>(f);
  INFO(seen.output);
  REQUIRE(seen.exit_status == 1);
  REQUIRE(has(seen, "verify: stage 0 allocated "));
  REQUIRE(has(seen, " planned: DIFFERENT\n"));
  f.json = true;
  const Seen json = program<Guarded>(f);
  REQUIRE(json.exit_status == 1);
  REQUIRE(has(json, "\"verified\": false"));
}

TEST_CASE("red arm: a plan that is a byte off is seen, in the stage that it is off in") {
  for (const bool less : {true, false}) {
    planner::Flags f = flags_for("qwen3_5_27b.json");
    f.stages = "2";
    const planner::Request r = planner::read_request(f);
    planner::Figures figures = planner::figures(r);
    REQUIRE(planner::verify(r, figures).equal);
    const std::size_t right = figures.stages[1].bytes;
    const std::size_t all = figures.sequence_bytes;
    const auto off = [&](std::size_t n) { return less ? n - 1 : n + 1; };
    figures.stages[1].bytes = off(right);
    figures.sequence_bytes = off(all);
    const planner::Verdict v = planner::verify(r, figures);
    REQUIRE(v.exit_status() == 1);
    REQUIRE(v.words == "verify: stage 1 allocated " + planner::thousands(right) + " bytes, planned " +
                           planner::thousands(off(right)) + "\nverify: " + planner::thousands(all) +
                           " bytes allocated, " + planner::thousands(off(all)) + " planned: DIFFERENT");
  }
}

}  // namespace plan_verify_cpp
