# cmake -DCOMPILER= -DCASE= -DINCLUDE= -DTESTS= -P run_case.cmake: see CMakeLists.txt beside it.
cmake_minimum_required(VERSION 3.22)

# What a red arm looks for must not depend on where the checkout lies: FATAL_ERROR breaks lines at a width, and a path
# moves the break into the sentence; NOTICE prints it as it is.
function(fail sentence)
  message(NOTICE "${sentence}")
  message(FATAL_ERROR "the case failed")
endfunction()

file(READ "${CASE}" text)
set(expected "")
set(flags "")
set(folders "")
# The lines at the top that speak to this script. Two that are the same way are one line that was too long for the
# format check; that check breaks such a line by itself, and what it broke off would be in nobody's eyes.
while(text MATCHES "^// ([A-Z]+): ([^\n]*)\n")
  string(LENGTH "${CMAKE_MATCH_0}" length)
  set(word "${CMAKE_MATCH_1}")
  set(rest "${CMAKE_MATCH_2}")
  string(SUBSTRING "${text}" ${length} -1 text)
  if(word STREQUAL "EXPECT")
    string(APPEND expected " ${rest}")
  elseif(word STREQUAL "FLAGS")
    string(APPEND flags " ${rest}")
  elseif(word STREQUAL "FOLDERS")
    string(APPEND folders " ${rest}")
  elseif(NOT word STREQUAL "NEEDS")
    fail("${CASE}: nobody reads a line `// ${word}:`")
  endif()
endwhile()
string(STRIP "${expected}" expected)
if(text MATCHES "^//")
  fail("${CASE}: a broken line: go on in the next one with the same word")
endif()
if(text MATCHES "(^|\n)// ?(EXPECT|FLAGS|FOLDERS|NEEDS)")
  fail("${CASE}: a line for run_case.cmake that is not at the top, or not as it reads them")
endif()
if(expected STREQUAL "")
  fail("${CASE} has no line `// EXPECT: text`")
endif()
separate_arguments(flags UNIX_COMMAND "${flags}")
separate_arguments(folders UNIX_COMMAND "${folders}")
list(TRANSFORM folders PREPEND "-I${INCLUDE}/../")

# Translated messages would not contain the words around ours.
set(ENV{LC_ALL} C)
set(command "${COMPILER}" -std=c++20 -fsyntax-only ${folders} "-I${INCLUDE}" "-I${TESTS}")

execute_process(COMMAND ${command} -DMEMRA_TEST_CORRECTED=1 "${CASE}" RESULT_VARIABLE status OUTPUT_VARIABLE said
                ERROR_VARIABLE said)
if(NOT status EQUAL 0)
  fail("${said}\nthe corrected twin does not compile")
endif()

execute_process(COMMAND ${command} -DMEMRA_TEST_CORRECTED=0 ${flags} "${CASE}" RESULT_VARIABLE status
                OUTPUT_VARIABLE said ERROR_VARIABLE said)
if(status EQUAL 0)
  fail("the case compiles; expected an error with: ${expected}")
endif()
string(FIND "${said}" "${expected}" at)
if(at EQUAL -1)
  fail("${said}\nThe compiler does not say: ${expected}")
endif()
