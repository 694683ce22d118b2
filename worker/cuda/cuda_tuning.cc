#include "worker/cuda/cuda_tuning.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/tune_kernels.h"
#include "kernels/tuning_families.h"
#include "planner/op_work.h"
#include "worker/cuda/cuda_kernel_cache.h"
#include "worker/cuda/cuda_profiler.h"

namespace millrace {
namespace {

absl::Status EntryError(absl::string_view list, size_t index,
                        absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("profile: tuning.", list, "[", index, "]: ", what,
                   "; measure it again with millrace profile --tune JOB"));
}

// What is shipped for the device, if anything is.
absl::StatusOr<TuningTable> ShippedChoices(const std::string& device) {
  const absl::string_view text = ShippedTuningTable(device);
  if (text.empty()) return TuningTable{.chip = device};
  return ParseTuningTable(text, KernelTuningFamilies());
}

double ProductFlopsOf(const ProfileOp& op) {
  return WorkOf(Layout{}, op.kind, op.attributes).flops;
}

}  // namespace

absl::StatusOr<CudaChoices> ChoicesFor(const KernelTuning& tuning,
                                       const std::string& device) {
  CudaChoices choices;
  ASSIGN_OR_RETURN(choices.kernels, ShippedChoices(device));
  ASSIGN_OR_RETURN(choices.products, ShippedGemmAlgorithms());
  if (tuning.device != device) return choices;
  // Of two entries of a class, the later one counts.
  for (size_t i = 0; i < tuning.kernels.size(); ++i) {
    const KernelChoice& kernel = tuning.kernels[i];
    absl::StatusOr<TuningEntry> entry =
        TuningEntryOf({.family = kernel.family,
                       .shape_class = kernel.shape_class,
                       .choice = kernel.choice},
                      KernelTuningFamilies());
    if (!entry.ok()) {
      return EntryError("kernels", i, entry.status().message());
    }
    entry->seconds = kernel.seconds;
    entry->start_seconds = kernel.start_seconds;
    choices.kernels.entries.push_back(*std::move(entry));
  }
  const std::string chip = absl::StrReplaceAll(device, {{" ", "_"}});
  for (size_t i = 0; i < tuning.products.size(); ++i) {
    const ProductChoice& product = tuning.products[i];
    // As a line, so that what the table cannot hold is refused.
    const absl::StatusOr<GemmAlgorithmTable> line = GemmAlgorithmTable::Parse(
        absl::StrCat(chip, " ", product.shape, " ", product.algorithm, " ",
                     1e6 * product.seconds));
    if (!line.ok()) return EntryError("products", i, line.status().message());
    for (const auto& [shape, entry] : line->EntriesOf(chip)) {
      choices.products.SetWord(chip, shape, entry);
    }
  }
  return choices;
}

absl::StatusOr<std::string> CurrentDeviceName() {
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  return std::string(properties.name);
}

absl::StatusOr<KernelTuning> MeasureTuning(
    const std::vector<TuningCaseMaker>& cases, const ProfileRequest& request,
    absl::Duration product_time, CudaOpTimer& timer) {
  KernelTuning tuning;
  ASSIGN_OR_RETURN(tuning.device, CurrentDeviceName());
  ASSIGN_OR_RETURN(const TuningTable kernels,
                   TuneKernels(cases, {}, /*version=*/"",
                               /*date=*/""));
  InstallTuning(kernels);
  for (const TuningEntry& entry : kernels.entries) {
    for (const TuningFamily& family : KernelTuningFamilies()) {
      if (family.name != entry.family) continue;
      const TuningWords words = WordsOf(entry, family);
      tuning.kernels.push_back({.family = words.family,
                                .shape_class = words.shape_class,
                                .choice = words.choice,
                                .seconds = entry.seconds,
                                .start_seconds = entry.start_seconds});
    }
  }

  constexpr double kTimingSeconds = 0.03;
  std::vector<ProfileOp> ops = request.ops;
  std::stable_sort(ops.begin(), ops.end(),
                   [](const ProfileOp& a, const ProfileOp& b) {
                     return ProductFlopsOf(a) > ProductFlopsOf(b);
                   });
  const absl::Status mixed = timer.SetSurroundings(StepMix(request));
  if (!absl::IsResourceExhausted(mixed)) RETURN_IF_ERROR(mixed);
  const double end_s = MonotonicSeconds() + absl::ToDoubleSeconds(product_time);
  std::set<std::string> measured;
  for (const ProfileOp& op : ops) {
    for (const GemmAttributes& gemm : Bf16ProductsOf(op)) {
      if (MonotonicSeconds() > end_s) break;
      if (!measured.insert(AttributesToString(gemm)).second) continue;
      const absl::Status chosen = timer.ChooseAlgorithm(gemm, kTimingSeconds);
      if (absl::IsResourceExhausted(chosen)) continue;  // Too large to run.
      RETURN_IF_ERROR(chosen);
      const auto product = timer.ProductChoiceOf(gemm);
      if (product.has_value()) tuning.products.push_back(*product);
    }
  }
  RETURN_IF_ERROR(timer.SetSurroundings({}));
  return tuning;
}

}  // namespace millrace
