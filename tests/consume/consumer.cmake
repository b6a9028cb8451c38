# What every consumer checks once it has memra::memra.
foreach(property IN ITEMS INTERFACE_COMPILE_OPTIONS INTERFACE_COMPILE_DEFINITIONS INTERFACE_LINK_LIBRARIES
                          INTERFACE_LINK_OPTIONS)
  get_target_property(value memra::memra ${property})
  if(value)
    message(FATAL_ERROR "memra::memra puts ${property} on its users: ${value}")
  endif()
endforeach()
if(TARGET memra_unit_tests OR TARGET memra_headers OR TARGET quickstart OR TARGET memra_catch_main)
  message(FATAL_ERROR "memra builds its own tests or examples inside its user's project")
endif()

add_executable(uses_memra "${CMAKE_CURRENT_LIST_DIR}/uses_memra.cpp")
target_link_libraries(uses_memra PRIVATE memra::memra)
add_executable(no_exceptions "${CMAKE_CURRENT_LIST_DIR}/no_exceptions.cpp")
target_link_libraries(no_exceptions PRIVATE memra::memra)
target_compile_options(no_exceptions PRIVATE -fno-exceptions -fno-rtti)
