# install() and find_package(memra CONFIG).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(memra_package_dir "${CMAKE_INSTALL_DATAROOTDIR}/cmake/memra")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/memra" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(TARGETS memra EXPORT memra-targets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT memra-targets NAMESPACE memra:: DESTINATION "${memra_package_dir}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/memra-config.cmake.in"
                              "${PROJECT_BINARY_DIR}/memra-config.cmake" INSTALL_DESTINATION "${memra_package_dir}")
# Headers only: the same package serves every architecture. Before 1.0 a minor version may break.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/memra-config-version.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/memra-config.cmake" "${PROJECT_BINARY_DIR}/memra-config-version.cmake"
        DESTINATION "${memra_package_dir}")
