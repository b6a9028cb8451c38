#!/bin/sh
# The red arms of check_readme.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
readme() { # SOURCE OUTPUT
  printf '<!-- quickstart.cpp -->\n```cpp\n%s\n```\n\n<!-- quickstart output -->\n```\n%s\n```\n' "$1" "$2" >"$dir/README.md"
}
check() { sh "$here/check_readme.sh" "$dir/README.md" "$dir/q.cpp" "$dir/q" >/dev/null 2>&1; }
echo 'int main() {}' >"$dir/q.cpp"
printf '#!/bin/sh\necho hello\n' >"$dir/q"
chmod +x "$dir/q"
readme 'int main() {}' hello
check || { echo "a true README is refused"; exit 1; }
readme 'int main() { return 0; }' hello
! check || { echo "NOT NOTICED: other source"; exit 1; }
readme 'int main() {}' goodbye
! check || { echo "NOT NOTICED: other output"; exit 1; }
echo 'nothing' >"$dir/README.md"
! check || { echo "NOT NOTICED: no block"; exit 1; }
echo "every red arm was noticed"
