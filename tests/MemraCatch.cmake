# Catch2 2.13 (Debian 12) and 3.x: programs made of test files, one ctest test per file.

find_package(Catch2 QUIET)
if(NOT Catch2_FOUND)
  message(FATAL_ERROR "memra: the tests need Catch2 (2.13 or 3.x): install catch2, or configure with "
                      "-DMEMRA_BUILD_TESTS=OFF")
endif()

# The runner is compiled once for all programs. Catch2 3 brings its own.
if(TARGET Catch2::Catch2WithMain AND Catch2_VERSION VERSION_GREATER_EQUAL 3)
  add_library(memra_catch_main INTERFACE)
  target_link_libraries(memra_catch_main INTERFACE Catch2::Catch2WithMain)
else()
  add_library(memra_catch_main STATIC EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/support/main.cpp")
  target_link_libraries(memra_catch_main PUBLIC Catch2::Catch2)
  # Of the tests' standard: what the runner can print (string_view, byte) depends on it.
  target_compile_features(memra_catch_main PRIVATE cxx_std_20)
  # Nobody debugs the runner, and at -O2 or under a sanitizer it takes longer to compile than many tests.
  target_compile_options(memra_catch_main PRIVATE -O0 -fno-sanitize=all)
endif()

# memra_catch_program(<target> <file>...)
function(memra_catch_program target)
  add_executable(${target} ${ARGN})
  memra_own_code(${target})
  # Most of a test's compile time is the library's templates: several files share them, and so each has its tests in a
  # namespace FILE_cpp.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  memra_third_party(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE memra_catch_main)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_compile_definitions(${target} PRIVATE MEMRA_TEST_FIXTURES="${PROJECT_SOURCE_DIR}/tests/fixtures"
                                               MEMRA_DEFAULT_MODEL="${PROJECT_SOURCE_DIR}/tests/fixtures/tiny")
endfunction()

# memra_catch_tests(<group> <tags> <command> <file>...): each file that has test cases becomes the ctest test
# <prefix><group>.<file>, of those with all of <tags> ("" for every one).
#
# Catch2's `-#` gives every test case its file's name as a tag. Unlike test discovery this runs nothing at build time,
# and it starts one process per file. Hidden test cases ([.]) stay hidden.
function(memra_catch_tests group tags command)
  foreach(source IN LISTS ARGN)
    memra_mentions(has_tests "TEST_CASE|SCENARIO" "${source}")
    if(has_tests)
      get_filename_component(name "${source}" NAME_WLE)
      set(test "${MEMRA_TEST_PREFIX}${group}.${name}")
      add_test(NAME "${test}" COMMAND ${command} "-#" "[#${name}]${tags}~[.]")
      # A filter that matches nothing is success to Catch2 2.13. 77 is our own "cannot run here".
      set_tests_properties("${test}" PROPERTIES FAIL_REGULAR_EXPRESSION "No tests? ran" SKIP_RETURN_CODE 77 LABELS
                                                                                        ${group})
    endif()
  endforeach()
endfunction()
