// GEMM: c[m, n] = op(a)[m, k] op(b)[k, n], or += when `accumulate`, with
// op(x) = x or its transpose. Row-major fp32, dense rows: a is stored [m, k],
// or [k, m] when trans_a; b is stored [k, n], or [n, k] when trans_b.

#ifndef MILLRACE_KERNELS_GEMM_H_
#define MILLRACE_KERNELS_GEMM_H_

#include <cstdint>
#include <memory>

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
// allocates nothing of its own. (oneDNN 2.6 itself makes six or seven
// allocations a run, 272 bytes in all, for its argument lists.) Move-only; one
// run at a time.
class GemmPlan {
 public:
  // InvalidArgument on a size or num_threads below one, Internal if oneDNN
  // refuses.
  static absl::StatusOr<GemmPlan> Create(const GemmShape& shape,
                                         int num_threads);
  GemmPlan(GemmPlan&&) noexcept;
  GemmPlan& operator=(GemmPlan&&) noexcept;
  ~GemmPlan();

  const GemmShape& shape() const;
  // Scratch memory of a run; zero is common.
  int64_t workspace_bytes() const;

  // `c` overlaps neither input. `workspace` holds workspace_bytes(), aligned to
  // 64, or is null if that is zero. Equal inputs give equal bits.
  absl::Status Run(float* c, const float* a, const float* b, void* workspace);

 private:
  struct Impl;
  explicit GemmPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What Run() means.
void GemmReference(const GemmShape& shape, float* c, const float* a,
                   const float* b);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_H_
