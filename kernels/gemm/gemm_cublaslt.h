// The calls of cuBLASLt that the GEMM door makes. Only this header's source
// includes cuBLASLt. Matrices here are row-major, as in the door. Those of
// cuBLASLt are column-major, so it computes c^T = op(b)^T op(a)^T.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_CUBLASLT_H_
#define MILLRACE_KERNELS_GEMM_GEMM_CUBLASLT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/fwd.h"
#include "kernels/gemm/gemm_bf16.h"

namespace millrace {

enum class LtType { kBf16, kFp32, kFp8E4M3, kFp8E5M2 };

struct LtProblem {
  std::string name;  // For messages.
  int64_t m, n, k;
  bool trans_a, trans_b, accumulate;
  LtType a_type, b_type, c_type;
  GemmEpilogue epilogue;
  int64_t a_stride, b_stride, c_stride, aux_stride;
  bool fast_accumulation;  // For fp8.
  int num_multiprocessors;
  int64_t max_workspace_bytes;
  int pointer_alignment = 16;  // For all matrices, in bytes.
};

struct LtPointers {
  void* c;
  const void* a;
  const void* b;
  void* bias;
  void* aux;
  const float* a_scale;  // For fp8, on the device.
  const float* b_scale;
  float scale;
  void* workspace;
};

struct LtAlgorithm {
  GemmAlgorithm algorithm;
  int64_t workspace_bytes;
};

// Makes the library ready on the current device, which the first plan does
// otherwise.
absl::Status BeginCublasLt();

// One problem with one algorithm. Move-only.
class LtMatmul {
 public:
  // An empty algorithm text takes the heuristic's first choice.
  static absl::StatusOr<LtMatmul> Create(const LtProblem& problem,
                                         const GemmAlgorithm& algorithm);
  LtMatmul(LtMatmul&&) noexcept;
  LtMatmul& operator=(LtMatmul&&) noexcept;
  ~LtMatmul();

  const LtAlgorithm& algorithm() const;
  absl::Status Run(const LtPointers& pointers, cudaStream_t stream) const;

 private:
  struct Impl;
  explicit LtMatmul(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The heuristic's choices, best guess first.
absl::StatusOr<std::vector<LtAlgorithm>> LtCandidates(const LtProblem& problem,
                                                      int max_candidates);

// Whether an algorithm's text is of cuBLASLt in this library's version, in
// another (FailedPrecondition), or not of cuBLASLt (NotFound).
absl::Status CheckLtVersion(const GemmAlgorithm& algorithm);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_CUBLASLT_H_
