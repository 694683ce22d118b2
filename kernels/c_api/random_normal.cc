#include "kernels/c_api/random_normal.h"

#include "kernels/c_api/result.h"
#include "kernels/pointwise/random_normal_cuda.h"

extern "C" {

int millrace_fill_normal(const millrace_fill_normal_args* args, void* stream) {
  return millrace::CResult(
      millrace::LaunchFillNormalBox({.out = args->out,
                                     .begin = args->begin,
                                     .end = args->end,
                                     .row_begin = args->row_begin,
                                     .col_begin = args->col_begin,
                                     .box_cols = args->box_cols,
                                     .cols = args->cols,
                                     .std = args->std,
                                     .seed = args->seed,
                                     .stream = args->stream},
                                    static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
