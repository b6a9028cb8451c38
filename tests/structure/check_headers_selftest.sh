#!/bin/sh
# The red arms of check_headers.sh: a header that keeps every rule passes, and each planted fault is reported.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/memra/detail" "$dir/memra/config"
failed=0

# Everything that looks like a fault and is none. "cuda" in neither comment nor code; chips and ships are fine.
good='#pragma once
#include <cstddef>
#include <memra/error.hpp>
#define MEMRA_ONE 1
namespace memra {
// No throw and no static state here; try a chip, a ship, catch a whip.
inline constexpr int answer = 42;
inline constexpr char quote = '"'\"'"';
inline constexpr const char* text = "static int x; throw thread_local";
constexpr long big = 1'"'"'000'"'"'000;
template <class T>
concept C = requires(T& t) {
  { t.f() } noexcept;
}
&& requires { typename T::X; };
template <class T>
struct Traits;
template <>
struct Traits<int> {
  static constexpr std::size_t size = 4;
  static int make(int n) noexcept { return n; }
  static Traits
  other();
  int value = 0;
};
enum class Kind : unsigned char { a, b };
class Klass final : public Traits<int> {
 public:
  explicit Klass(int n) : n_{n} {}
  void each() const {
    static_assert(sizeof(int) == 4);
    static constexpr int table[] = {1, 2};
    int local = table[0];
    auto lambda = [&](int i) { int k = i; return k; };
    for (int i = 0; i < 3; ++i) { local += lambda(i); }
  }
 private:
  int n_;
};
inline int call(const Klass& k) { k.each(); return static_cast<int>(answer); }
using Alias = Klass;
int declared(int);
inline Status later(const Klass& k, int n);
inline std::vector<int> none();
inline std::function<int()> hook_of(std::function<void(int)> f) { return g(f); }
inline decltype(answer) again() { return answer; }
int given(int (*callback)(int), std::array<int, 3> three);
extern "C" int of_c(int);
extern template struct Traits<int>;
MEMRA_ONE_OF(3);
inline namespace v1 {
struct S {
  static std::function<void(int)> make(std::function<int()> f);
  static int call(int (*callback)(int));
  std::function<void(int)> f;
  int (*hook)(int);
};
bool operator<(const S& a, const S& b);
inline bool operator==(const S& a, const S& b) { return true; }
}  // namespace v1
}  // namespace memra'

run() { TMPDIR="$dir" sh "$here/check_headers.sh" "$dir" >"$dir/said" 2>&1; }

printf '%s\n' "$good" >"$dir/memra/good.hpp"
if ! run; then
  echo "the good header is refused:"; cat "$dir/said"; failed=1
fi

# arm RULE FILE TEXT: TEXT in FILE must be reported as RULE.
arm() {
  printf '%s\n' "$3" >"$dir/memra/$2"
  if run; then
    echo "NOT NOTICED: $1: $3"; failed=1
  elif ! grep -q "^memra/$2:[0-9]*: $1: " "$dir/said"; then
    echo "WRONG REPORT for $1: $3"; cat "$dir/said"; failed=1
  fi
  rm "$dir/memra/$2"
}
# clean FILE TEXT: must pass.
clean() {
  printf '%s\n' "$2" >"$dir/memra/$1"
  run || { echo "REFUSED WITHOUT REASON: $2"; cat "$dir/said"; failed=1; }
  rm "$dir/memra/$1"
}
o='#pragma once
namespace memra {
'
c='
}'
arm vendor-token bad.hpp "#pragma once
// as cudaMemcpyAsync does"
arm vendor-token bad.hpp "#pragma once
void f(hipStream_t);"
arm vendor-token bad.hpp "#pragma once
// for HIP"
arm vendor-token bad.hpp "#pragma once
__device__ void f();"
arm vendor-token detail/bad.hpp "#pragma once
#if defined(__CUDACC__)
#endif"
clean detail/gpu_dev.hpp "#pragma once
// the cudaStream_t of"
arm mutable-state bad.hpp "${o}inline int counter = 0;${c}"
for words in AMD gfx90a "an amdgpu" __builtin_amdgcn_x "f(); __syncthreads" threadIdx.x blockIdx.y "(blockDim"; do
  arm vendor-token bad.hpp "#pragma once
// of $words"
done
arm mutable-state bad.hpp "${o}inline std::atomic<int> counter{0};${c}"
# Brackets in the type or behind the name make no function.
arm mutable-state bad.hpp "${o}inline std::vector<int> pool(3);${c}"
arm mutable-state bad.hpp "${o}inline std::vector<int> pool(answer);${c}"
arm mutable-state bad.hpp "${o}inline std::string name(\"a\");${c}"
arm mutable-state bad.hpp "${o}std::pair<int, int> both(one(), -1);${c}"
arm mutable-state bad.hpp "${o}inline std::function<int()> hook;${c}"
arm mutable-state bad.hpp "${o}inline std::function<int()> hook = [] { return 1; };${c}"
arm mutable-state bad.hpp "${o}inline int (*hook)(int) = nullptr;${c}"
arm mutable-state bad.hpp "${o}inline decltype(f()) last{};${c}"
arm mutable-state bad.hpp "${o}struct S { static inline std::function<void(int)> f; };${c}"
arm mutable-state bad.hpp "${o}struct S { static int (*hook)(int); };${c}"
arm mutable-state bad.hpp "${o}extern int counter;${c}"
arm mutable-state bad.hpp "${o}extern \"C\" int counter;${c}"
arm mutable-state bad.hpp "${o}extern std::function<int()> hook;${c}"
arm mutable-state bad.hpp "${o}inline struct S* head = nullptr;${c}"
arm mutable-state bad.hpp "${o}struct S head;${c}"
arm mutable-state bad.hpp "${o}static const char* name;${c}"
arm mutable-state bad.hpp "${o}template <class T> inline T zero = T{};${c}"
arm mutable-state bad.hpp "${o}struct S { int x; } instance;${c}"
arm mutable-state bad.hpp "${o}struct S { static inline int n = f(); };${c}"
arm mutable-state bad.hpp "${o}struct S {
 public:
  static int n;
};${c}"
arm mutable-state bad.hpp "${o}inline int next() { static int n = 0; return ++n; }${c}"
arm mutable-state bad.hpp "${o}inline int next() {
  if (true) {
    static const auto t = make();
  }
}${c}"
arm mutable-state bad.hpp "${o}inline thread_local int n = 0;${c}"
arm environment bad.hpp "${o}inline bool on() { return std::getenv(\"X\") != nullptr; }${c}"
arm throw bad.hpp "${o}inline void f() { throw 1; }${c}"
arm catch bad.hpp "${o}inline void f() { try { g(); } catch (...) {} }${c}"
clean error.hpp "${o}inline void f() { throw 1; }${c}"
arm macro bad.hpp "#pragma once
#define HELPER(x) x"
arm macro zlast.hpp "#pragma once
#define MEMRA_TWO 1
#define MEMRA_THREE 1
#define MEMRA_FOUR 1
#define MEMRA_FIVE 1"
clean zlast.hpp "#pragma once
#define MEMRA_TWO 1
#define MEMRA_THREE 1
#define MEMRA_FOUR 1
#define MEMRA_FIVE 1
#undef MEMRA_FIVE"
arm pragma-once bad.hpp "namespace memra {}"
clean detail/strict_fp_push.hpp "#pragma GCC push_options"
arm include bad.hpp '#pragma once
#include "memra/error.hpp"'
arm include bad.hpp "#pragma once
#include <vendor/thing.h>"
arm include bad.hpp "#pragma once
#include <immintrin.h>"
clean detail/simd.hpp "#pragma once
#include <immintrin.h>"
arm include bad.hpp "#pragma once
#include <nlohmann/json.hpp>"
clean config/json.hpp "#pragma once
#include <nlohmann/json.hpp>"
arm giant bad.hpp "#pragma once
$(i=0; while [ $i -lt 400 ]; do echo "// $i"; i=$((i + 1)); done)"

[ $failed -eq 0 ] && echo "every red arm was noticed"
exit $failed
