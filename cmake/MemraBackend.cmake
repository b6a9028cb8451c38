# memra_backend(<name> <runtime target>): memra::<name>, the headers of backends/<name> over a vendor's runtime.
#
# The runtime is named, not looked for: a project that links memra::<name> needs it, every other one does not.
# find_package(memra COMPONENTS <name>) looks for it; beside add_subdirectory the project does so itself.
function(memra_backend name runtime)
  add_library(memra_${name} INTERFACE)
  add_library(memra::${name} ALIAS memra_${name})
  set_target_properties(memra_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(
    memra_${name} INTERFACE "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/backends/${name}/include>"
                            "$<INSTALL_INTERFACE:include>")
  target_link_libraries(memra_${name} INTERFACE memra ${runtime})
  if(MEMRA_INSTALL)
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/backends/${name}/include/memra"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(TARGETS memra_${name} EXPORT memra-${name}-targets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
    install(EXPORT memra-${name}-targets NAMESPACE memra:: DESTINATION "${memra_package_dir}")
  endif()
endfunction()
