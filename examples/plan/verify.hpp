// --verify: the plan's caches are allocated on a device that counts, and what it counted must be what was planned.
#pragma once

#include <cstddef>
#include <fstream>
#include <memory>
#include <memra/cache.hpp>
#include <memra/counting_dev.hpp>
#include <memra/dflash_kv.hpp>
#include <memra/error.hpp>
#include <memra/host_dev.hpp>
#include <plan/figures.hpp>
#include <plan/numbers.hpp>
#include <plan/request.hpp>
#include <string>
#include <vector>

namespace planner {

/// Bytes this machine can give without swapping; the largest number if it does not say.
inline std::size_t available_bytes() {
  std::ifstream in("/proc/meminfo");
  std::string name;
  std::size_t kib = 0;
  std::string unit;
  while (in >> name >> kib >> unit) {
    if (name == "MemAvailable:") return kib * 1024;
  }
  return static_cast<std::size_t>(-1);
}

struct Verdict {
  bool equal = false;
  std::string words;

  int exit_status() const { return equal ? 0 : 1; }
};

/// What counts the bytes; a test puts a device on top of it that asks for more.
using Counted = memra::CountingDev<memra::HostDev>;

inline const Counted& counted(const Counted& dev) {
  return dev;
}
template <class Dev>
const Counted& counted(const Dev& dev) {
  return counted(dev.inner());
}

/// Allocates the caches of one sequence.
template <class Dev = Counted>
Verdict verify(const Request& r, const Figures& f) {
  const std::size_t available = available_bytes();
  if (f.sequence_bytes > available / 10 * 9) {
    refuse("--verify allocates " + in_units(f.sequence_bytes) + " and this machine has " + in_units(available) +
           "; expected a smaller --ctx");
  }
  std::vector<std::unique_ptr<Dev>> devs;
  std::vector<Dev*> stages;
  for (std::size_t s = 0; s < r.n_stages(); ++s) {
    devs.push_back(std::make_unique<Dev>(memra::HostDev()));
    stages.push_back(devs.back().get());
  }
  const auto cache = memra::check(
      memra::Cache<Dev>::create_ppn(stages, r.placement.fence, r.model.state, r.ctx, {.rounds = r.rounds}));
  std::vector<memra::DflashKv<Dev>> drafts;
  if (r.draft) drafts.push_back(memra::check(memra::DflashKv<Dev>::create(*stages.back(), *r.draft, r.ctx)));
  Verdict v;
  v.equal = true;
  std::size_t sum = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::size_t allocated = counted(*stages[s]).counters().live_bytes;
    sum += allocated;
    if (allocated == f.stages[s].bytes) continue;
    v.equal = false;
    v.words += "verify: stage " + std::to_string(s) + " allocated " + thousands(allocated) + " bytes, planned " +
               thousands(f.stages[s].bytes) + "\n";
  }
  v.equal = v.equal && sum == f.sequence_bytes;
  v.words += "verify: " + thousands(sum) + " bytes allocated, " + thousands(f.sequence_bytes) +
             " planned: " + (v.equal ? "equal" : "DIFFERENT");
  return v;
}

}  // namespace planner
