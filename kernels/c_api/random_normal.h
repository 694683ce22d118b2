/* Initial weights as a pure function of seed, stream and index;
   kernels/pointwise/random_normal_cuda.h says what each field means. */

#ifndef MILLRACE_KERNELS_C_API_RANDOM_NORMAL_H_
#define MILLRACE_KERNELS_C_API_RANDOM_NORMAL_H_

#include "kernels/c_api/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  float* out;
  int64_t begin, end;
  int64_t row_begin, col_begin, box_cols, cols;
  double std;
  uint64_t seed, stream;
} millrace_fill_normal_args;

MILLRACE_API int millrace_fill_normal(const millrace_fill_normal_args* args,
                                      void* stream);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_KERNELS_C_API_RANDOM_NORMAL_H_ */
