#!/bin/sh
# usage: run_selftest.sh ROOT
# The red arms of tests/run.sh --strict: tools are taken away one by one from a machine of stand-ins, where nothing is
# compiled and nothing can be installed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/root/tests/bench" "$dir/root/examples" "$dir/root/cmake" "$dir/bin"
cp "$1/cmake/machine.sh" "$dir/root/cmake/"
cp "$1/tests/run.sh" "$dir/root/tests/"
for tool in sh cat cut dirname grep head id ls mkdir rm tr uname; do ln -s "$(command -v $tool)" "$dir/bin/$tool"; done
stand_in() { # NAME: its body comes from stdin
  { echo '#!/bin/sh' && cat; } >"$dir/bin/$1"
  chmod +x "$dir/bin/$1"
}
for tool in ninja ccache clang-format-14 clang-tidy-14 valgrind mpicxx mpirun hipcc ctest; do stand_in $tool </dev/null; done
compiler() { # NAME FLAGS_IT_REFUSES: its program does nothing
  stand_in "$1" <<END
case "\$*" in
  --version) echo "$1" ;; -dumpversion) echo 14.0.6 ;; *print-libgcc*) echo / ;;
  *$2*) exit 1 ;;
esac
while [ \$# -gt 0 ]; do
  [ "\$1" != -o ] || { printf '#!/bin/sh\n' >"\$2" && PATH=/bin:/usr/bin chmod +x "\$2"; }
  shift
done
END
}
compiler g++ no-such-flag
compiler clang++ no-such-flag
stand_in cmake <<END
[ "\$1" = --preset ] || exit 0
mkdir -p "\$4" && cat "$dir/skipped" >"\$4/skipped.txt"
END
: >"$dir/skipped"
run() { PATH=$dir/bin CXX=g++ sh "$dir/root/tests/run.sh" "$@" >"$dir/said" 2>&1 </dev/null; }
run --strict || { echo "refused, although nothing is missing:"; cat "$dir/said"; exit 1; }

noticed() { # WORDS
  run || { echo "a user without it gets no tests: $1"; cat "$dir/said"; exit 1; }
  grep -q "^SKIPPED HERE: .*$1" "$dir/said" || { echo "not said aloud: $1"; cat "$dir/said"; exit 1; }
  ! run --strict || { echo "NOT NOTICED: $1"; exit 1; }
  grep -q "^SKIPPED HERE: .*$1" "$dir/said" || { echo "fails without saying: $1"; cat "$dir/said"; exit 1; }
}
for tool in clang-format-14 clang-tidy-14 valgrind hipcc clang++; do
  mv "$dir/bin/$tool" "$dir/kept"
  noticed "$(echo "$tool" | sed 's/-14$//')"
  mv "$dir/kept" "$dir/bin/$tool"
done
for flag in fsanitize=thread fsanitize=address; do
  compiler clang++ $flag
  noticed "cannot build or run with -$flag"
done
compiler clang++ no-such-flag
echo "the hand-over between two processes: no MPI found" >"$dir/skipped"
noticed "release: the hand-over between two processes"
echo "[elsewhere] the CUDA backend: no nvcc" >"$dir/skipped"
run --strict || { echo "refused for what another machine does:"; cat "$dir/said"; exit 1; }
grep -q "^SKIPPED HERE: release: the CUDA backend" "$dir/said" || { echo "not said aloud: no nvcc"; exit 1; }
# CI asks for it.
grep -q '^exec sh tests/run[.]sh --strict ' "$1/.ci/run" || { echo "NOT NOTICED: CI without --strict"; exit 1; }
echo "every red arm was noticed"
