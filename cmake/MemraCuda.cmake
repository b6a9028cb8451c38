# How memra's own CUDA tests and examples are compiled. Users of the library never read this file.

set(memra_cuda OFF)
if(NOT MEMRA_CUDA)
  return()
endif()
find_program(MEMRA_NVCC nvcc HINTS /usr/local/cuda/bin)
find_package(CUDAToolkit QUIET)
if(MEMRA_NVCC AND TARGET CUDA::cudart_static)
  set(memra_cuda ON)
elseif(MEMRA_CUDA STREQUAL "AUTO")
  memra_skip("the CUDA backend, its tests and its example are not compiled: no nvcc with the CUDA runtime here"
             ELSEWHERE)
  return()
else()
  message(FATAL_ERROR "memra: MEMRA_CUDA=${MEMRA_CUDA} needs nvcc and the CUDA runtime; put nvcc on the PATH")
endif()
set(MEMRA_CUDA_ARCH 90a CACHE STRING "The GPU that they are compiled for")

# memra_nvcc(<list> <source> [CHECK] [FLAGS ...] [DEFINITIONS ...] [PACKAGES <target>...]): compiles one file with every
# header of ours within reach; its object is appended to the list. PACKAGES give their include directories. CHECK: every
# template is instantiated for the device and the host, but no machine code is made; the object is an empty mark.
#
# nvcc is called by hand: CMake 3.22 to 3.25 do not know how to ask nvcc 13 for C++20.
function(memra_nvcc list source)
  cmake_parse_arguments(arg "CHECK" "" "FLAGS;DEFINITIONS;PACKAGES" ${ARGN})
  get_filename_component(name "${source}" NAME_WE)
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}.cuda.o")
  set(flags -std=c++20 -gencode=arch=compute_${MEMRA_CUDA_ARCH},code=sm_${MEMRA_CUDA_ARCH} -Xcompiler -Wall,-Wextra
      ${arg_FLAGS})
  foreach(folder IN ITEMS include backends/cuda/include tests examples)
    list(APPEND flags "-I${PROJECT_SOURCE_DIR}/${folder}")
  endforeach()
  foreach(package IN LISTS arg_PACKAGES)
    # -I and not -isystem: some are in /usr/include, which must keep its place in the order.
    set(folders "$<TARGET_PROPERTY:${package},INTERFACE_INCLUDE_DIRECTORIES>")
    list(APPEND flags "$<$<BOOL:${folders}>:-I$<JOIN:${folders},$<SEMICOLON>-I>>")
  endforeach()
  foreach(definition IN LISTS arg_DEFINITIONS)
    list(APPEND flags "-D${definition}")
  endforeach()
  if(arg_CHECK)
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${MEMRA_NVCC}" -x cu ${flags} -MD -MF "${object}.d" -MT "${object}" -fdevice-syntax-only -c "${source}" -o
              "${object}.none"
      COMMAND ${CMAKE_COMMAND} -E touch "${object}"
      DEPENDS "${source}"
      DEPFILE "${object}.d"
      COMMAND_EXPAND_LISTS VERBATIM)
    set(${list} ${${list}} "${object}" PARENT_SCOPE)
    return()
  endif()
  add_custom_command(
    OUTPUT "${object}"
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${MEMRA_NVCC}" -x cu ${flags} -MD -MF "${object}.d" -MT "${object}" -c
            "${source}" -o "${object}"
    DEPENDS "${source}"
    DEPFILE "${object}.d"
    COMMAND_EXPAND_LISTS VERBATIM)
  set(${list} ${${list}} "${object}" PARENT_SCOPE)
endfunction()

# memra_cuda_program(<target> <object or source>...): linked with the static runtime.
function(memra_cuda_program target)
  add_executable(${target} ${ARGN})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
