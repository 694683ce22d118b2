#include "kernels/gemm/gemm.h"

namespace millrace {

void GemmReference(const GemmShape& shape, float* c, const float* a,
                   const float* b) {
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double sum = shape.accumulate ? c[i * shape.n + j] : 0.0;
      for (int64_t p = 0; p < shape.k; ++p) {
        const float left =
            shape.trans_a ? a[p * shape.m + i] : a[i * shape.k + p];
        const float right =
            shape.trans_b ? b[j * shape.k + p] : b[p * shape.n + j];
        sum += double{left} * right;
      }
      c[i * shape.n + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace millrace
