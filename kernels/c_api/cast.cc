#include "kernels/c_api/cast.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/cast_bf16.h"

extern "C" {

int millrace_cast_to_bf16(const millrace_cast_to_bf16_args* args,
                          void* stream) {
  return millrace::CResult(
      millrace::LaunchCastToBf16({.y = args->y,
                                  .x = args->x,
                                  .num_elements = args->num_elements,
                                  .stochastic = args->stochastic != 0,
                                  .seed = args->seed,
                                  .stream = args->stream,
                                  .first_index = args->first_index},
                                 static_cast<cudaStream_t>(stream)));
}

int millrace_cast_to_float(const millrace_cast_to_float_args* args,
                           void* stream) {
  return millrace::CResult(millrace::LaunchCastToFloat(
      {.y = args->y, .x = args->x, .num_elements = args->num_elements},
      static_cast<cudaStream_t>(stream)));
}

int millrace_amax_bf16(const millrace_amax_args* args, void* stream) {
  return millrace::CResult(
      millrace::LaunchAmaxBf16({.amax = args->amax,
                                .x = args->x,
                                .x_row_stride = args->x_row_stride,
                                .rows = args->rows,
                                .columns = args->columns},
                               static_cast<cudaStream_t>(stream)));
}

int millrace_quantize_fp8_bf16(const millrace_quantize_fp8_args* args,
                               void* stream) {
  return millrace::CResult(millrace::LaunchQuantizeFloat8Bf16(
      {.y = args->y,
       .y_transposed = args->y_transposed,
       .amax = args->amax,
       .x = args->x,
       .x_row_stride = args->x_row_stride,
       .rows = args->rows,
       .columns = args->columns,
       .scale = args->scale,
       .scale_of_amax = args->scale_of_amax,
       .unit = args->unit,
       .format = args->e5m2 != 0 ? millrace::Float8Format::kE5m2
                                 : millrace::Float8Format::kE4m3},
      static_cast<cudaStream_t>(stream)));
}

int millrace_transpose_fp8(const millrace_transpose_fp8_args* args,
                           void* stream) {
  return millrace::CResult(
      millrace::LaunchTransposeFloat8({.y = args->y,
                                       .x = args->x,
                                       .x_row_stride = args->x_row_stride,
                                       .rows = args->rows,
                                       .columns = args->columns},
                                      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
