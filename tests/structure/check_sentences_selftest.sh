#!/bin/sh
# The red arms of check_sentences.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/include/memra/detail" "$dir/tests/compile_fail/cases"
cat >"$dir/include/memra/a.hpp" <<'END'
/// It says "memra: a sentence in a comment".
static_assert(A, "memra: the device needs `Status copy("
                 "int n) noexcept`");
std::string m = std::string("memra: ") + text;
END
printf '#error "memra: -ffast-math is set; build without it."\n' >"$dir/include/memra/detail/b.hpp"
printf '// EXPECT: memra: the device needs `Status\n// EXPECT: copy(int n) noexcept`\nint x;\n' >"$dir/tests/compile_fail/cases/a.cpp"
printf '// EXPECT: memra: -ffast-math is set\n// FLAGS: -ffast-math\n' >"$dir/tests/compile_fail/cases/b.cpp"
check() { sh "$here/check_sentences.sh" "$dir" >"$dir/said" 2>&1; }
check || { echo "sentences that have a case are refused"; cat "$dir/said"; exit 1; }
noticed() { # WHAT SENTENCE
  if check; then echo "NOT NOTICED: $1"; exit 1; fi
  grep -qF "expects: $2" "$dir/said" || { echo "does not name: $2"; cat "$dir/said"; exit 1; }
}
mv "$dir/tests/compile_fail/cases/b.cpp" "$dir/kept"
noticed "an #error without a case" 'memra: -ffast-math is set; build'
mv "$dir/kept" "$dir/tests/compile_fail/cases/b.cpp"
sed -i.bak 's/copy(int n)/copy(long n)/' "$dir/tests/compile_fail/cases/a.cpp"
noticed "a case that expects another end" 'memra: the device needs `Status copy(int n)'
printf '// EXPECT: memra: the device\n' >"$dir/tests/compile_fail/cases/a.cpp"
noticed "a text that stands for many" 'memra: the device needs `Status copy(int n)'
rm "$dir"/include/memra/a.hpp "$dir"/include/memra/detail/b.hpp
if check; then echo "NOT NOTICED: no sentences"; exit 1; fi
echo "every red arm was noticed"
