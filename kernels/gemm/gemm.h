// GEMM: c[m, n] = op(a)[m, k] op(b)[k, n], or += when `accumulate`, with
// op(x) = x or its transpose. Row-major fp32, dense rows: a is stored [m, k],
// or [k, m] when trans_a; b is stored [k, n], or [n, k] when trans_b.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_H_
#define MILLRACE_KERNELS_GEMM_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct GemmShape {
  int64_t m, n, k;  // Each at least one.
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
};

// One GEMM shape made ready at set-up, so that running it decides nothing and
// allocates nothing. One run at a time.
//
// An element of c has the same bits for any number of threads, in products of
// any m and n and at any place in them. They depend on its row of op(a), its
// column of op(b), the value added to, and on the instruction set level
// (kernels/cpu/loops.h).
class GemmPlan {
 public:
  // InvalidArgument on a size or num_threads below one, or if
  // MILLRACE_CPU_LEVEL names no level of this processor.
  static absl::StatusOr<GemmPlan> Create(const GemmShape& shape,
                                         int num_threads);

  const GemmShape& shape() const { return shape_; }
  // Scratch memory of a run.
  int64_t workspace_bytes() const;

  // `c` overlaps neither input. `workspace` holds workspace_bytes(), aligned to
  // 64. InvalidArgument if it is null.
  absl::Status Run(float* c, const float* a, const float* b,
                   void* workspace) const;

 private:
  GemmPlan(const GemmShape& shape, int row_parts, int col_parts)
      : shape_(shape), row_parts_(row_parts), col_parts_(col_parts) {}

  GemmShape shape_;
  // Each thread computes one of row_parts_ x col_parts_ rectangles of c.
  int row_parts_;
  int col_parts_;
};

// The meaning of Run(), in plain loops.
void GemmReference(const GemmShape& shape, float* c, const float* a,
                   const float* b);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_H_
