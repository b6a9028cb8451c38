#!/bin/sh
# The red arms of check_examples.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/engine"
printf '#include <memra/ops.hpp>\nint x = engine::detail::f();\n' >"$dir/good.cpp"
sh "$here/check_examples.sh" "$dir" >/dev/null || { echo "a good example is refused"; exit 1; }
for line in '#include <memra/detail/scratch.hpp>' 'auto x = memra::detail::f();' 'using memra::detail::f;'; do
  echo "$line" >"$dir/engine/bad.hpp"
  if sh "$here/check_examples.sh" "$dir" >/dev/null; then echo "NOT NOTICED: $line"; exit 1; fi
done
rm "$dir/engine/bad.hpp"
mkdir "$dir/custom_device"
for lines in 59 60; do
  yes '// a line' | head -n $lines >"$dir/custom_device/custom_dev.hpp"
  if sh "$here/check_examples.sh" "$dir" >/dev/null; then
    [ $lines = 59 ] || { echo "NOT NOTICED: a device of $lines lines"; exit 1; }
  else
    [ $lines = 60 ] || { echo "a device of $lines lines is refused"; exit 1; }
  fi
done
echo "every red arm was noticed"
