#include "kernels/cpu/loops.h"

#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

constexpr char kLevelVariable[] = "MILLRACE_CPU_LEVEL";

absl::StatusOr<const CpuLoops*> FindChosenLevel() {
  const char* wish = std::getenv(kLevelVariable);
  if (wish == nullptr) return AllLevels().levels[0];
  std::string names;
  for (int level = 0; level < AllLevels().num_levels; ++level) {
    const CpuLoops* loops = AllLevels().levels[level];
    if (absl::string_view(wish) == loops->name) return loops;
    absl::StrAppend(&names, level == 0 ? "" : ", ", loops->name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kLevelVariable, ": expected one of ", names,
                   ", the levels that this processor runs, found '", wish,
                   "'; unset the variable for the fastest"));
}

absl::StatusOr<const CpuLoops*>& Chosen() {
  static absl::StatusOr<const CpuLoops*> chosen = FindChosenLevel();
  return chosen;
}

}  // namespace

const CpuLoops& Loops() {
  CHECK(Chosen().ok()) << Chosen().status();
  return **Chosen();
}

absl::Status CheckCpuLevel() { return Chosen().status(); }

int NumCpuLevels() { return AllLevels().num_levels; }

const CpuLoops& LoopsOfLevel(int level) {
  CHECK(level >= 0);
  CHECK(level < NumCpuLevels());
  return *AllLevels().levels[level];
}

void UseCpuLevelForTesting(int level) { Chosen() = &LoopsOfLevel(level); }

}  // namespace millrace
