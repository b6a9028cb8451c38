# cmake -DCOMPILER= -DINCLUDE= -DWORK= -DALTERNATIVE= -P run_new_kind.cmake
# C4: one more kind of state does not compile until everything handles it. The library is read with StateSpec changed to
# have the alternatives ALTERNATIVE (empty: as it is); every header that must know all kinds has to be in the complaints.
cmake_minimum_required(VERSION 3.22)

file(READ "${INCLUDE}/memra/model_config.hpp" text)
set(kinds "using StateSpec = std::variant<AttentionSpec, SharedKvSpec, RecurrentSpec, GroupedRowsSpec>;")
string(FIND "${text}" "${kinds}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "model_config.hpp no longer says: ${kinds}")
endif()
if(ALTERNATIVE)
  string(REPLACE
           "${kinds}"
           "struct OneMoreSpec {\n  friend bool operator==(const OneMoreSpec&, const OneMoreSpec&) = default;\n};\nusing StateSpec = std::variant<AttentionSpec, SharedKvSpec, RecurrentSpec, GroupedRowsSpec, OneMoreSpec>;"
           text "${text}")
endif()
file(WRITE "${WORK}/memra/model_config.hpp" "${text}")
file(WRITE "${WORK}/uses_all.cpp" "#include <memra/cache.hpp>
#include <memra/handover.hpp>
#include <memra/host_dev.hpp>
using Dev = memra::HostDev;
memra::Result<memra::Cache<Dev>> all(Dev& dev, const memra::ModelConfig& cfg) {
  auto cache = memra::Cache<Dev>::create(dev, cfg, 8);
  if (!cache) return cache.status();
  auto snap = cache->snapshot();
  if (!snap) return snap.status();
  auto prefix = cache->export_prefix(*snap);
  if (!prefix) return prefix.status();
  return memra::Cache<Dev>::from_prefix(dev, cfg, 8, *prefix);
}
")
set(ENV{LC_ALL} C)
execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only -ferror-limit=0 "-I${WORK}" "-I${INCLUDE}"
                        "${WORK}/uses_all.cpp" RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(said MATCHES "unrecognized command.line option")
  execute_process(COMMAND "${COMPILER}" -std=c++20 -fsyntax-only -fmax-errors=0 "-I${WORK}" "-I${INCLUDE}"
                          "${WORK}/uses_all.cpp" RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
endif()
if(NOT ALTERNATIVE)
  if(NOT status EQUAL 0)
    message(NOTICE "${said}")
    message(FATAL_ERROR "the kinds there are do not compile")
  endif()
  return()
endif()
if(status EQUAL 0)
  message(FATAL_ERROR "a kind that nothing handles compiles")
endif()
# What it is in a layer, its checks and planes, its rows for the workspace, its component, what a prefix of it means, its
# form on the wire.
foreach(header IN ITEMS model_config.hpp plan.hpp detail/build_core.hpp detail/takes_state.hpp handover_header.hpp)
  # Where a compiler stands in our code when a visitor lacks an overload; not the lines that say who included whom.
  if(NOT said MATCHES "memra/${header}:[0-9]+:[0-9]+: +(error|required from|note: in instantiation)")
    message(NOTICE "${said}")
    message(FATAL_ERROR "${header} takes a kind it does not know")
  endif()
endforeach()
