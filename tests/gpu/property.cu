// Random histories of Cache and DflashKv on a GPU against the models of the rules that the host's histories use.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memra/counting_dev.hpp>
#include <memra/fault_dev.hpp>
#include <memra/poison_dev.hpp>
#include <optional>
#include <property/cache_machine.hpp>
#include <property/draft_machine.hpp>
#include <property/history.hpp>
#include <string>
#include <support/catch.hpp>

#include "gpu_ops.hpp"
#include "support.hpp"

namespace property {

/// Three device objects of one GPU, each with a stream of its own; their memory starts as NaN and their calls may fail.
using Device = memra::FaultDev<memra::CountingDev<memra::PoisonDev<memra_test::DefaultGpu>>>;
/// The values written come from the host, so that the oracle shares nothing with our kernels.
template <>
inline constexpr bool runs_plain_bodies<Device> = false;

}  // namespace property

namespace {

using property::CachePlant;
using property::Device;
using property::DraftPlant;
using property::Script;

std::optional<property::Failure> run(const Script& s, CachePlant cache, DraftPlant draft, property::Did* did) {
  if (s.machine == "draft") return property::run_on<property::DraftMachine<Device>>(s, draft, did);
  return property::run_on<property::CacheMachine<Device>>(s, cache, did);
}

/// @param seed  from where on few operations meet all that `did_enough` asks for, with something to spare: found with
///              the same machines on host devices that write by copies, too
void histories(const std::string& machine, std::size_t ops, std::uint64_t seed) {
  property::Did did;
  for (; did.ops < ops; ++seed) {
    const Script s = property::make(machine, seed, 100);
    const auto failed = run(s, {}, {}, &did);
    INFO(property::to_line(s));
    if (failed) FAIL("operation " << failed->op << ": " << failed->what);
  }
  std::printf(
      "property: %s on a GPU: %zu operations, %zu refused, %zu device failures, %zu taints, %zu replays, %zu "
      "chunked steps, %zu states handed over, %zu not taken\n",
      machine.c_str(), did.ops, did.refusals, did.faults, did.taints, did.replays, did.chunks, did.handed, did.turned);
  REQUIRE(property::did_enough(did, machine));
}

bool finds(const std::string& machine, CachePlant cache, DraftPlant draft) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Script s = property::make(machine, seed, 100);
    if (run(s, cache, draft, nullptr)) return !run(s, {}, {}, nullptr);
  }
  return false;
}

TEST_CASE("random histories of a cache on a GPU", "[property]") {
  histories("cache", 4000, 3500);
}

TEST_CASE("random histories of a draft cache on a GPU", "[property]") {
  histories("draft", 2000, 5600);
}

TEST_CASE("red arms: planted bugs show in histories on a GPU", "[property]") {
  REQUIRE(finds("cache", CachePlant::conv_not_restored, {}));
  REQUIRE(finds("cache", CachePlant::refresh_does_nothing, {}));
  REQUIRE(finds("cache", CachePlant::mirror_forgotten, {}));
  REQUIRE(finds("cache", CachePlant::chunks_are_plain, {}));
  REQUIRE(finds("cache", CachePlant::sent_is_spoiled, {}));
  REQUIRE(finds("draft", {}, DraftPlant::truncate_keeps_one));
  REQUIRE(finds("draft", {}, DraftPlant::tail_rows_not_zeroed));
}

}  // namespace
