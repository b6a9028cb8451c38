# How memra's own tests, examples and benchmarks are compiled. Users of the library never read this file.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

# memra_skip(<words> [ELSEWHERE]): says what this build leaves out and why. tests/run.sh repeats it where it will be read,
# and with --strict it fails: unless it is for ELSEWHERE, another kind of machine or what no package of run.sh's gives.
file(WRITE "${PROJECT_BINARY_DIR}/skipped.txt" "")
function(memra_skip words)
  message(STATUS "memra: SKIPPED: ${words}")
  if("ELSEWHERE" IN_LIST ARGN)
    set(words "[elsewhere] ${words}")
  endif()
  file(APPEND "${PROJECT_BINARY_DIR}/skipped.txt" "${words}\n")
endfunction()

# memra_own_code(<target>): warnings, C++20 without extensions, the library.
function(memra_own_code target)
  target_link_libraries(${target} PRIVATE memra::memra)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion $<$<BOOL:${MEMRA_WERROR}>:-Werror>)
endfunction()

# memra_mentions(<result> <regex> <file>...): ON if a file has a line that matches.
# So a package is asked for only once something uses it.
function(memra_mentions result regex)
  set(${result} OFF PARENT_SCOPE)
  foreach(path IN LISTS ARGN)
    file(STRINGS "${path}" hits LIMIT_COUNT 1 REGEX "${regex}")
    if(hits)
      set(${result} ON PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# memra_third_party(<target> <file>...): links what the files include. Imported targets are SYSTEM: their warnings are
# not ours.
function(memra_third_party target)
  memra_mentions(wants_json "nlohmann/|tiny_engine/|memra/config/|config/support" ${ARGN})
  if(wants_json)
    find_package(nlohmann_json QUIET)
    if(NOT nlohmann_json_FOUND)
      message(FATAL_ERROR "memra: ${target} needs nlohmann-json: install nlohmann-json3-dev, or configure with "
                          "-DMEMRA_BUILD_EXAMPLES=OFF -DMEMRA_BUILD_TESTS=OFF")
    endif()
    target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
  endif()
  memra_mentions(wants_cli "CLI/" ${ARGN})
  if(wants_cli)
    find_package(CLI11 QUIET)
    if(NOT CLI11_FOUND)
      message(FATAL_ERROR "memra: ${target} needs CLI11: install libcli11-dev, or configure with "
                          "-DMEMRA_BUILD_EXAMPLES=OFF")
    endif()
    target_link_libraries(${target} PRIVATE CLI11::CLI11)
  endif()
  memra_mentions(wants_benchmark "benchmark/benchmark[.]h" ${ARGN})
  if(wants_benchmark)
    find_package(benchmark QUIET)
    if(NOT benchmark_FOUND)
      message(FATAL_ERROR "memra: ${target} needs Google Benchmark: install libbenchmark-dev, or configure with "
                          "-DMEMRA_BUILD_BENCH=OFF")
    endif()
    target_link_libraries(${target} PRIVATE benchmark::benchmark)
  endif()
endfunction()
