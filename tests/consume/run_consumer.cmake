# cmake -DWAY= ... -P run_consumer.cmake: see CMakeLists.txt beside it.
cmake_minimum_required(VERSION 3.22)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE said ERROR_VARIABLE said)
  message(NOTICE "${said}")
  if(NOT status EQUAL 0)
    string(REPLACE ";" " " command "${ARGN}")
    message(FATAL_ERROR "status ${status} from: ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(arguments -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}"
              "-DMEMRA_SOURCE=${MEMRA_SOURCE}" "-DCMAKE_BUILD_TYPE=Debug")
if(WAY STREQUAL "find_package")
  # Installed by the build that runs this test, and used from where it was installed only.
  run("${CMAKE_COMMAND}" --install "${MEMRA_BUILD}" --prefix "${WORK}/prefix")
  list(APPEND arguments "-DCMAKE_PREFIX_PATH=${WORK}/prefix" "-DEXPECTED_VERSION=${MEMRA_VERSION}")
endif()
run("${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/${WAY}" -B "${WORK}/build" ${arguments})
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${WORK}/build/uses_memra")
run("${WORK}/build/no_exceptions")
