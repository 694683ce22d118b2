#include "kernels/c_api/gemm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/c_api/result.h"
#include "kernels/gemm/gemm_bf16.h"
#include "kernels/gemm/gemm_grouped_bf16.h"

struct millrace_gemm_plan {
  millrace::GemmBf16Plan plan;
};

namespace millrace {
namespace {

static_assert(MILLRACE_GEMM_SUM_B == static_cast<int>(GemmEpilogue::kSumB));

absl::StatusOr<GemmBf16Shape> Shape(const millrace_gemm_shape& shape) {
  if (shape.epilogue < MILLRACE_GEMM_NONE ||
      shape.epilogue > MILLRACE_GEMM_SUM_B) {
    return absl::InvalidArgumentError(absl::StrCat("GEMM epilogues are 0 to ",
                                                   MILLRACE_GEMM_SUM_B,
                                                   "; got ", shape.epilogue));
  }
  return GemmBf16Shape{.m = shape.m,
                       .n = shape.n,
                       .k = shape.k,
                       .trans_a = shape.trans_a != 0,
                       .trans_b = shape.trans_b != 0,
                       .fp32_output = shape.fp32_output != 0,
                       .accumulate = shape.accumulate != 0,
                       .epilogue = static_cast<GemmEpilogue>(shape.epilogue),
                       .a_stride = shape.a_stride,
                       .b_stride = shape.b_stride,
                       .c_stride = shape.c_stride,
                       .aux_stride = shape.aux_stride};
}

GemmBf16Options Options(const millrace_gemm_options& options) {
  GemmBf16Options result{
      .max_workspace_bytes = options.max_workspace_bytes,
      .num_multiprocessors = static_cast<int>(options.num_multiprocessors)};
  if (options.algorithm != nullptr) result.algorithm = {options.algorithm};
  return result;
}

GemmBf16Args Args(const millrace_gemm_args& args) {
  return {.c = args.c,
          .a = args.a,
          .b = args.b,
          .bias = args.bias,
          .aux = args.aux,
          .scale = args.scale,
          .workspace = args.workspace};
}

}  // namespace
}  // namespace millrace

extern "C" {

int millrace_gemm_bf16_plan_create(const millrace_gemm_shape* shape,
                                   const millrace_gemm_options* options,
                                   millrace_gemm_plan** plan) {
  *plan = nullptr;
  const auto checked = millrace::Shape(*shape);
  if (!checked.ok()) return millrace::CResult(checked.status());
  auto created =
      millrace::GemmBf16Plan::Create(*checked, millrace::Options(*options));
  if (created.ok()) *plan = new millrace_gemm_plan{*std::move(created)};
  return millrace::CResult(created.status());
}

void millrace_gemm_bf16_plan_destroy(millrace_gemm_plan* plan) { delete plan; }

int64_t millrace_gemm_bf16_plan_workspace_bytes(
    const millrace_gemm_plan* plan) {
  return plan->plan.workspace_bytes();
}

const char* millrace_gemm_bf16_plan_algorithm(const millrace_gemm_plan* plan) {
  return plan->plan.algorithm().text.c_str();
}

int millrace_gemm_bf16_run(const millrace_gemm_plan* plan,
                           const millrace_gemm_args* args, void* stream) {
  return millrace::CResult(
      plan->plan.Run(millrace::Args(*args), static_cast<cudaStream_t>(stream)));
}

int millrace_gemm_bf16_measure(const millrace_gemm_shape* shape,
                               const millrace_gemm_options* options,
                               const millrace_gemm_args* sets, int64_t num_sets,
                               int64_t max_candidates,
                               millrace_gemm_measurement* measurements,
                               int64_t capacity, int64_t* num_measurements,
                               void* stream) {
  *num_measurements = 0;
  const auto checked = millrace::Shape(*shape);
  if (!checked.ok()) return millrace::CResult(checked.status());
  std::vector<millrace::GemmBf16Args> args;
  for (int64_t i = 0; i < num_sets; ++i) {
    args.push_back(millrace::Args(sets[i]));
  }
  const auto measured = millrace::MeasureGemmBf16(
      *checked, millrace::Options(*options), args,
      static_cast<int>(max_candidates), static_cast<cudaStream_t>(stream));
  if (!measured.ok()) return millrace::CResult(measured.status());
  for (const millrace::GemmMeasurement& measurement : *measured) {
    if (*num_measurements == capacity) break;
    millrace_gemm_measurement& out = measurements[(*num_measurements)++];
    const size_t length = measurement.algorithm.text.copy(
        out.algorithm, sizeof(out.algorithm) - 1);
    out.algorithm[length] = '\0';
    out.milliseconds = measurement.milliseconds;
    out.workspace_bytes = measurement.workspace_bytes;
  }
  return 0;
}

int millrace_gemm_grouped_bf16(const millrace_gemm_grouped_args* args,
                               void* stream) {
  return millrace::CResult(millrace::LaunchGroupedGemmBf16(
      {.c = args->c,
       .a = args->a,
       .b = args->b,
       .group_offsets = args->group_offsets,
       .scale = args->scale,
       .shape = {.num_rows = args->num_rows,
                 .n = args->n,
                 .k = args->k,
                 .num_groups = args->num_groups,
                 .trans_b = args->trans_b != 0}},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
