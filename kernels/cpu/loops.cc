#include "kernels/cpu/loops.h"

#include "base/check.h"

namespace millrace {

extern const CpuLoops kLoopsBaseline;
#if defined(__x86_64__)
extern const CpuLoops kLoopsV3;
extern const CpuLoops kLoopsV4;
#endif

namespace {

struct Levels {
  const CpuLoops* levels[3];
  int num_levels = 0;
};

Levels FindLevels() {
  Levels found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") &&
                  __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") &&
                  __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (v4) found.levels[found.num_levels++] = &kLoopsV4;
  if (v3) found.levels[found.num_levels++] = &kLoopsV3;
#endif
  found.levels[found.num_levels++] = &kLoopsBaseline;
  return found;
}

const Levels& AllLevels() {
  static const Levels levels = FindLevels();
  return levels;
}

const CpuLoops*& Chosen() {
  static const CpuLoops* chosen = AllLevels().levels[0];
  return chosen;
}

}  // namespace

const CpuLoops& Loops() { return *Chosen(); }

int NumCpuLevels() { return AllLevels().num_levels; }

const CpuLoops& LoopsOfLevel(int level) {
  CHECK(level >= 0);
  CHECK(level < NumCpuLevels());
  return *AllLevels().levels[level];
}

void UseCpuLevelForTesting(int level) { Chosen() = &LoopsOfLevel(level); }

}  // namespace millrace
