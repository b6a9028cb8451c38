# Sourced by examples/run.sh and tests/run.sh (POSIX sh): what this machine has, and installing what it lacks.

# have COMMAND
have() { command -v "$1" >/dev/null 2>&1; }

# The C++ compiler to use: $CXX, g++ or clang++; nothing if there is none.
cxx() {
  if [ -n "${CXX:-}" ]; then echo "$CXX"
  elif have g++; then echo g++
  elif have clang++; then echo clang++
  fi
}

# has_clang_runtime: what clang++ links under its sanitizers. Its package only recommends it.
has_clang_runtime() { have clang++ && [ -e "$(clang++ -rtlib=compiler-rt -print-libgcc-file-name)" ]; }

# sanitizer_cxx: the compiler under sanitizers, which clang++ compiles for in half the time.
sanitizer_cxx() { if has_clang_runtime; then echo clang++; else cxx; fi; }

# has_header NAME: the compiler finds <NAME>.
has_header() {
  compiler=$(cxx)
  [ -n "$compiler" ] && printf '#include <%s>\n' "$1" | $compiler -E -x c++ -std=c++20 - >/dev/null 2>&1
}

# lacking PACKAGE...: those of the packages whose content is not on this machine, however it got there.
lacking() {
  for package in "$@"; do
    case $package in
      g++) [ -n "$(cxx)" ] || echo "$package" ;;
      clang) have clang++ || echo "$package" ;;
      libclang-rt-*-dev) has_clang_runtime || echo "$package" ;;
      ninja-build) have ninja || echo "$package" ;;
      catch2) has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || echo "$package" ;;
      nlohmann-json3-dev) has_header nlohmann/json.hpp || echo "$package" ;;
      libcli11-dev) has_header CLI/CLI.hpp || echo "$package" ;;
      libbenchmark-dev) has_header benchmark/benchmark.h || echo "$package" ;;
      libopenmpi-dev) have mpicxx || echo "$package" ;;
      libamdhip64-dev) has_header hip/hip_version.h || echo "$package" ;;
      rocm-device-libs) ls /usr/lib/*/amdgcn/bitcode /opt/rocm/amdgcn/bitcode >/dev/null 2>&1 || echo "$package" ;;
      librocprim-dev) [ -d /usr/include/rocprim ] || [ -d /opt/rocm/include/rocprim ] || echo "$package" ;;
      openmpi-bin) have mpirun || echo "$package" ;;
      *) have "$package" || echo "$package" ;;
    esac
  done
}

# as_root COMMAND...: as root, or fails. Never asks for a password and never reads our stdin.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@" </dev/null
  elif have sudo && sudo -n true 2>/dev/null; then sudo -n "$@" </dev/null
  else return 1
  fi
}

# install PACKAGE...: returns 1 if they could not be installed here.
install() {
  have apt-get && as_root true || return 1
  echo "== installing: $*" >&2
  if [ -z "${apt_lists_are_fresh:-}" ]; then
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || return 1
    apt_lists_are_fresh=yes
  fi
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
}

# require PACKAGE...: installs what is missing, or names it and exits 1.
require() {
  missing=$(lacking "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086  # a list of package names
  install $missing || true
  # Some can only be seen to be missing once there is a compiler.
  missing=$(lacking "$@" | tr '\n' ' ')
  # shellcheck disable=SC2086
  [ -z "$missing" ] || install $missing || true
  missing=$(lacking "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  echo "This needs packages that are not installed here (names of Debian and Ubuntu): $missing" >&2
  echo "Install them, for example with: sudo apt-get install $missing" >&2
  exit 1
}

# wish PACKAGE...: as require, but what stays missing is printed, one per line, and goes unused.
wish() {
  missing=$(lacking "$@" | tr '\n' ' ')
  # shellcheck disable=SC2086
  [ -z "$missing" ] || for package in $missing; do install "$package" || true; done
  lacking "$@"
}

# uses REGEX FOLDER...: a source file there has a line that matches. So nothing is installed that nothing includes.
uses() {
  pattern=$1
  shift
  grep -rqE --include='*.cpp' --include='*.hpp' "$pattern" "$@" 2>/dev/null
}

jobs() { nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2; }

# configure BUILD_DIR PRESET [ARGUMENT...]: from the folder of the presets; with the compiler above if the preset names
# none. Ninja and ccache where there are.
configure() {
  build_dir=$1
  preset=$2
  shift 2
  case $preset in
    release) set -- -DCMAKE_CXX_COMPILER="$(cxx)" "$@" ;;
    asan | tsan) set -- -DCMAKE_CXX_COMPILER="$(sanitizer_cxx)" "$@" ;;
  esac
  if have ninja && [ ! -f "$build_dir/Makefile" ]; then set -- -G Ninja "$@"; fi
  if have ccache; then set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"; fi
  cmake --preset "$preset" -B "$build_dir" "$@"
}
