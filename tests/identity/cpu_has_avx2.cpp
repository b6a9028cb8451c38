// Runs the program it is given, or says that this CPU cannot (exit status 77: skipped).
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::puts("SKIPPED: this CPU has no AVX2 or no FMA; identity tests for x86-64-v3 cannot run here");
    return 77;
  }
  execv(argv[1], argv + 1);
  std::perror(argv[1]);
  return 1;
}
