// The one source of the version; CMakeLists.txt reads these three numbers.
#pragma once

namespace memra {

inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;

}  // namespace memra
