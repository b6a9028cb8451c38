#!/bin/sh
# usage: check_examples.sh EXAMPLES_DIR
# Examples show what a user may write: public headers only, nothing of memra::detail; a device in under 60 lines. Exit
# status 1 if one does not.
set -eu
cd "$1"
found=$(find . -type f \( -name '*.cpp' -o -name '*.hpp' \) -exec grep -nE 'memra/detail/|memra::detail' {} + || true)
if [ -n "$found" ]; then
  printf '%s\n' "$found"
  echo "examples use what is not public"
  exit 1
fi
device=custom_device/custom_dev.hpp
if [ -f $device ] && [ "$(wc -l <$device)" -ge 60 ]; then
  echo "$device has $(wc -l <$device) lines; expected fewer than 60"
  exit 1
fi
echo "examples use public headers only"
