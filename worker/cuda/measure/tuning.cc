#include "worker/cuda/measure/tuning.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/autotune/tune_kernels.h"
#include "kernels/tuning/tuning_families.h"
#include "planner/program/op_work.h"
#include "worker/cuda/measure/profiler.h"
#include "worker/cuda/ops/kernel_choices.h"

namespace millrace {
namespace {

double ProductFlopsOf(const ProfileOp& op) {
  return WorkOf(Layout{}, op.kind, op.attributes).flops;
}

}  // namespace

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
  // The products of the largest mix gain most by a good choice.
  RETURN_IF_ERROR(SurroundByLargest(request.mixes, timer));
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
