// Matrix products on any GPU (gemm.h says what is computed, element_type.h what
// plain means): in fp32 truly, never through tf32, or of bf16 tensors.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_PLAIN_H_
#define MILLRACE_KERNELS_GEMM_GEMM_PLAIN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/element_type.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm.h"

namespace millrace {

struct PlainGemmOptions {
  GemmShape shape;
  ElementType type;          // For a, b and c.
  bool fp32_output = false;  // c is fp32 also where a and b are bf16.
  // From row to row of c, of a and of b as stored, in elements; zero: dense.
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  // The most scratch memory a run may use.
  int64_t max_workspace_bytes = int64_t{32} << 20;
};

// Device pointers, aligned to 16 bytes, or to an element where any stride is no
// multiple of 16 bytes. c overlaps no input.
struct PlainGemmArgs {
  void* c;
  const void* a;
  const void* b;
  void* workspace;  // workspace_bytes(), aligned to 256; null if that is zero.
};

// One shape on one device (that which is current at Create()), ready to run.
// Move-only; one call of Run() at a time.
class PlainGemmPlan {
 public:
  // InvalidArgument names the shape and what it breaks.
  static absl::StatusOr<PlainGemmPlan> Create(const PlainGemmOptions& options);
  PlainGemmPlan(PlainGemmPlan&&) noexcept;
  PlainGemmPlan& operator=(PlainGemmPlan&&) noexcept;
  ~PlainGemmPlan();

  int64_t workspace_bytes() const;

  // Enqueues on `stream` and returns; allocates nothing on the device, and a
  // graph may capture it. Equal inputs give equal bits on equal chips. Runs
  // that may overlap need a workspace each.
  absl::Status Run(const PlainGemmArgs& args, cudaStream_t stream) const;

 private:
  struct Impl;
  explicit PlainGemmPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_PLAIN_H_
