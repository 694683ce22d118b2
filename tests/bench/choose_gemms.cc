// Measures the ways to compute every matrix product of jobs' Programs, those of
// the head among them, and prints those that are fastest, for
// kernels/gemm/gemm_algorithms_*.txt:
//
//   choose_gemms seconds=60 JOB.yaml pipeline=1,data=1,tensor=1,micro_batch=4
//   ...
//
// Each job file is followed by the layouts that are wanted of it. On the device
// that is current; what was known before is kept where it is not measured
// again.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "planner/lower/lower.h"
#include "planner/program/op_work.h"
#include "worker/cuda/measure/op_timer.h"
#include "worker/cuda/measure/profiler.h"
#include "worker/cuda/ops/kernel_cache.h"

namespace millrace {
namespace {

absl::StatusOr<Layout> ParseLayout(const std::string& text,
                                   const JobSpec& job) {
  Layout layout = {.precision = PrecisionOf(job.training.precision)};
  const std::map<std::string, int32_t*> fields = {
      {"pipeline", &layout.pipeline},
      {"data", &layout.data},
      {"tensor", &layout.tensor},
      {"micro_batch", &layout.micro_batch},
      {"zero", &layout.zero}};
  for (const absl::string_view word : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> field =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto found = fields.find(field.first);
    if (found == fields.end() ||
        !absl::SimpleAtoi(field.second, found->second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": expected NAME=NUMBER,... of a layout"));
    }
  }
  layout.num_microbatches = static_cast<int32_t>(job.training.global_batch) /
                            (layout.data * layout.micro_batch);
  RETURN_IF_ERROR(ValidateLayout(job.model, layout, job.training.global_batch));
  return layout;
}

// Adds every distinct product of the layout's training Programs, and the mix of
// ops that surrounds them.
absl::Status AddProducts(const JobSpec& job, const Layout& layout,
                         std::set<std::string>& seen, ProfileRequest& request) {
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    ASSIGN_OR_RETURN(const Program program,
                     BuildTrainingProgram(job.model, layout, stage));
    for (const Instruction& in : program.instructions) {
      const ProfileOp op = {in.kind, in.attributes, layout.micro_batch};
      if (Bf16ProductsOf(op).empty()) continue;
      if (seen.insert(AttributesToString(in.attributes)).second) {
        request.ops.push_back(op);
      }
    }
  }
  for (StepMix& mix : MixesOf(job.model, {layout})) {
    request.mixes.push_back(std::move(mix));
  }
  return absl::OkStatus();
}

// The largest first, until the time is up; what the table has already is left
// as it is.
absl::Status Choose(ProfileRequest request, absl::Duration budget) {
  ASSIGN_OR_RETURN(GemmAlgorithmTable shipped, ShippedGemmAlgorithms());
  ASSIGN_OR_RETURN(auto timer, CudaOpTimer::Create(Precision::kBfloat16,
                                                   std::move(shipped)));
  const auto flops = [](const ProfileOp& op) {
    return WorkOf(Layout{}, op.kind, op.attributes).flops;
  };
  std::stable_sort(request.ops.begin(), request.ops.end(),
                   [&](const ProfileOp& a, const ProfileOp& b) {
                     return flops(a) > flops(b);
                   });
  RETURN_IF_ERROR(timer->SetSurroundings(request.mixes.back().ops));
  const double end_s = MonotonicSeconds() + absl::ToDoubleSeconds(budget);
  int num_left = 0;
  for (const ProfileOp& op : request.ops) {
    std::vector<GemmAttributes> unknown = Bf16ProductsOf(op);
    std::erase_if(unknown, [&](const GemmAttributes& gemm) {
      return timer->HasAlgorithm(gemm);
    });
    if (unknown.empty()) continue;
    if (MonotonicSeconds() > end_s) {
      ++num_left;
      continue;
    }
    constexpr double kTimingSeconds = 0.03;
    ASSIGN_OR_RETURN(const double guess, timer->Time(op, kTimingSeconds));
    for (const GemmAttributes& gemm : unknown) {
      RETURN_IF_ERROR(timer->ChooseAlgorithm(gemm, kTimingSeconds));
    }
    ASSIGN_OR_RETURN(const double best, timer->Time(op, kTimingSeconds));
    std::cerr << absl::StrFormat(
        "%-22s %-46s %8.1f us, was %.1f us; %.0f TFLOP/s\n",
        OpKindName(op.kind), AttributesToString(op.attributes), 1e6 * best,
        1e6 * guess, 1e-12 * flops(op) / best);
  }
  std::cerr << num_left << " ops left for another run\n";
  std::cout << timer->algorithms().Format();
  return absl::OkStatus();
}

absl::Status Run(int argc, char** argv) {
  absl::Duration budget = absl::Minutes(1);
  std::map<Precision, ProfileRequest> requests;
  std::map<Precision, std::set<std::string>> seen;
  JobSpec job;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    int32_t seconds = 0;
    if (absl::EndsWith(word, ".yaml")) {
      ASSIGN_OR_RETURN(job, LoadJob(word));
    } else if (absl::StartsWith(word, "seconds=") &&
               absl::SimpleAtoi(word.substr(8), &seconds)) {
      budget = absl::Seconds(seconds);
    } else {
      ASSIGN_OR_RETURN(const Layout layout, ParseLayout(word, job));
      RETURN_IF_ERROR(AddProducts(job, layout, seen[layout.precision],
                                  requests[layout.precision]));
    }
  }
  const ProfileRequest& request = requests[Precision::kBfloat16];
  if (request.ops.empty()) {
    return absl::InvalidArgumentError(
        "usage: choose_gemms [seconds=60] JOB.yaml LAYOUT... of bf16 jobs; see "
        "the top of its source");
  }
  return Choose(request, budget);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const absl::Status status = millrace::Run(argc, argv);
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
