// Tunes the GPU kernels of this machine and prints the table, or writes it;
// with --gemm the matrix products instead, into a table of their kind:
//
//   tune_kernels [--only FAMILY] [--out FILE] [--date YYYY-MM-DD]
//   tune_kernels --gemm FILE
//
// The measurements go to standard error.

#include "kernels/autotune/tune_kernels.h"

#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/autotune/tune_gemm.h"
#include "kernels/tuning/tuning_families.h"

namespace millrace {
namespace {

constexpr const char* kUsage =
    "tune_kernels [--only FAMILY] [--out FILE] [--date YYYY-MM-DD], or "
    "tune_kernels --gemm FILE";

void Log(absl::string_view line) { std::cerr << line << "\n"; }

int Fail(absl::string_view what) {
  std::cerr << "tune_kernels: " << what << "\n";
  return 1;
}

int Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file ? 0 : Fail(absl::StrCat("cannot write '", path, "'"));
}

int TuneProducts(const std::string& path) {
  constexpr int kMaxCandidates = 12;
  const auto table = TuneGemms(TrainingGemmShapes(), kMaxCandidates, Log);
  return table.ok() ? Write(path, table->Format())
                    : Fail(table.status().message());
}

int Main(const std::vector<std::string>& args) {
  std::string only, out, gemm;
  std::string date =
      absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  for (size_t i = 0; i < args.size(); i += 2) {
    std::string* value = args[i] == "--only"   ? &only
                         : args[i] == "--out"  ? &out
                         : args[i] == "--date" ? &date
                         : args[i] == "--gemm" ? &gemm
                                               : nullptr;
    if (value == nullptr || i + 1 == args.size()) {
      std::cerr << kUsage << "; got '" << args[i] << "'\n";
      return 2;
    }
    *value = args[i + 1];
  }
  if (!gemm.empty()) return TuneProducts(gemm);
  std::vector<TuningCaseMaker> cases;
  for (TuningCaseMaker& maker : TrainingTuningCases()) {
    if (only.empty() || FamilyOf(maker.kernel).name == only) {
      cases.push_back(std::move(maker));
    }
  }
  if (cases.empty()) return Fail(absl::StrCat("no family '", only, "'"));
  const auto table = TuneKernels(cases, {.log = Log}, MILLRACE_VERSION, date);
  if (!table.ok()) return Fail(table.status().message());
  const std::string text = FormatTuningTable(*table, KernelTuningFamilies());
  if (!out.empty()) return Write(out, text);
  std::cout << text;
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
