#include "kernels/c_api/gemm_fp8.h"

#include <utility>

#include "kernels/c_api/result.h"
#include "kernels/gemm/gemm_fp8.h"
#include "kernels/gemm/gemm_fp8_block.h"

struct millrace_gemm_fp8_plan {
  millrace::GemmFp8Plan plan;
};

extern "C" {

int millrace_gemm_fp8_plan_create(const millrace_gemm_fp8_shape* shape,
                                  const millrace_gemm_options* options,
                                  millrace_gemm_fp8_plan** plan) {
  *plan = nullptr;
  millrace::GemmBf16Options with{
      .max_workspace_bytes = options->max_workspace_bytes,
      .num_multiprocessors = static_cast<int>(options->num_multiprocessors)};
  if (options->algorithm != nullptr) with.algorithm = {options->algorithm};
  auto created = millrace::GemmFp8Plan::Create(
      {.m = shape->m,
       .n = shape->n,
       .k = shape->k,
       .a_is_e5m2 = shape->a_is_e5m2 != 0,
       .b_is_e5m2 = shape->b_is_e5m2 != 0,
       .fp32_output = shape->fp32_output != 0,
       .accumulate = shape->accumulate != 0,
       .bias = shape->bias != 0,
       .fast_accumulation = shape->fast_accumulation != 0,
       .a_stride = shape->a_stride,
       .b_stride = shape->b_stride,
       .c_stride = shape->c_stride},
      with);
  if (created.ok()) *plan = new millrace_gemm_fp8_plan{*std::move(created)};
  return millrace::CResult(created.status());
}

void millrace_gemm_fp8_plan_destroy(millrace_gemm_fp8_plan* plan) {
  delete plan;
}

int64_t millrace_gemm_fp8_plan_workspace_bytes(
    const millrace_gemm_fp8_plan* plan) {
  return plan->plan.workspace_bytes();
}

int millrace_gemm_fp8_run(const millrace_gemm_fp8_plan* plan,
                          const millrace_gemm_fp8_args* args, void* stream) {
  return millrace::CResult(plan->plan.Run({.c = args->c,
                                           .a = args->a,
                                           .b = args->b,
                                           .a_scale = args->a_scale,
                                           .b_scale = args->b_scale,
                                           .bias = args->bias,
                                           .scale = args->scale,
                                           .workspace = args->workspace},
                                          static_cast<cudaStream_t>(stream)));
}

int millrace_gemm_fp8_block(const millrace_gemm_fp8_block_args* args,
                            void* stream) {
  return millrace::CResult(millrace::LaunchGemmFp8BlockSm90(
      {.c = args->c,
       .a = args->a,
       .b = args->b,
       .a_scale = args->a_scale,
       .b_scale = args->b_scale,
       .m = args->m,
       .n = args->n,
       .k = args->k,
       .a_stride = args->a_stride,
       .b_stride = args->b_stride,
       .c_stride = args->c_stride,
       .a_scale_stride = args->a_scale_stride,
       .b_scale_stride = args->b_scale_stride,
       .fp32_output = args->fp32_output != 0,
       .accumulate = args->accumulate != 0,
       .scales_of_b = static_cast<millrace::Fp8ScalesOfB>(args->scales_of_b)},
      /*num_multiprocessors=*/0, static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
