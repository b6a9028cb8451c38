# cmake -DCOMPILER= -DCASE= -DINCLUDE= -DTESTS= -P run_case.cmake: see CMakeLists.txt beside it.
cmake_minimum_required(VERSION 3.22)

file(STRINGS "${CASE}" expected REGEX "^// EXPECT: ")
file(STRINGS "${CASE}" flags REGEX "^// FLAGS: ")
string(REPLACE "// EXPECT: " "" expected "${expected}")
string(REPLACE "// FLAGS: " "" flags "${flags}")
separate_arguments(flags UNIX_COMMAND "${flags}")
if(NOT expected)
  message(FATAL_ERROR "${CASE} has no line `// EXPECT: text`")
endif()

# Translated messages would not contain the words around ours.
set(ENV{LC_ALL} C)
set(command "${COMPILER}" -std=c++20 -fsyntax-only "-I${INCLUDE}" "-I${TESTS}")

execute_process(COMMAND ${command} -DMEMRA_TEST_CORRECTED=1 "${CASE}" RESULT_VARIABLE status OUTPUT_VARIABLE said
                ERROR_VARIABLE said)
if(NOT status EQUAL 0)
  message(NOTICE "${said}")
  message(FATAL_ERROR "the corrected twin does not compile")
endif()

execute_process(COMMAND ${command} -DMEMRA_TEST_CORRECTED=0 ${flags} "${CASE}" RESULT_VARIABLE status
                OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(status EQUAL 0)
  message(NOTICE "the case compiles; expected an error with: ${expected}")
  message(FATAL_ERROR "no error")
endif()
string(FIND "${said}" "${expected}" at)
if(at EQUAL -1)
  message(NOTICE "${said}\nThe compiler does not say: ${expected}")
  message(FATAL_ERROR "the text is missing")
endif()
