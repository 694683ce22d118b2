// Tunes the GPU kernels of this machine and prints the table, or writes it:
//
//   tune_kernels [--only FAMILY] [--out FILE] [--date YYYY-MM-DD]
//
// What it measured goes to standard error.

#include "kernels/tune_kernels.h"

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/tuning_families.h"

namespace millrace {
namespace {

int Main(const std::vector<std::string>& args) {
  std::string only, out;
  std::string date =
      absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  for (size_t i = 0; i < args.size(); i += 2) {
    std::string* value = args[i] == "--only"   ? &only
                         : args[i] == "--out"  ? &out
                         : args[i] == "--date" ? &date
                                               : nullptr;
    if (value == nullptr || i + 1 == args.size()) {
      std::cerr << "tune_kernels [--only FAMILY] [--out FILE] [--date "
                   "YYYY-MM-DD]; got '"
                << args[i] << "'\n";
      return 2;
    }
    *value = args[i + 1];
  }
  std::vector<TuningCaseMaker> cases;
  for (TuningCaseMaker& maker : TrainingTuningCases()) {
    if (only.empty() || FamilyOf(maker.kernel).name == only) {
      cases.push_back(std::move(maker));
    }
  }
  if (cases.empty()) {
    std::cerr << "tune_kernels: no family '" << only << "'\n";
    return 2;
  }
  const auto table = TuneKernels(
      cases, {.log = [](absl::string_view line) { std::cerr << line << "\n"; }},
      MILLRACE_VERSION, date);
  if (!table.ok()) {
    std::cerr << "tune_kernels: " << table.status().message() << "\n";
    return 1;
  }
  const std::string text = FormatTuningTable(*table, KernelTuningFamilies());
  if (out.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(out);
  file << text;
  file.close();
  if (!file) {
    std::cerr << "tune_kernels: cannot write '" << out << "'\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}
