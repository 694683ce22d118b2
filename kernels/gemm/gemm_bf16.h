// GEMM of bf16 tensors on the GPU, summed in fp32:
//   c[m, n] = epilogue(scale * op(a)[m, k] op(b)[k, n]), or c += when
//   `accumulate`, with op(x) = x or its transpose (gemm.h).
//
// One door to several kernels: cuBLASLt's and, on Hopper, our own. A plan is
// made at set-up for one shape; which kernel runs is a GemmAlgorithm, which
// prints as text so that a hardware profile keeps it. Without one the plan
// takes the first choice of cuBLASLt's heuristic; MeasureGemmBf16() finds a
// better one, and only where it is called.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_BF16_H_
#define MILLRACE_KERNELS_GEMM_GEMM_BF16_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/fwd.h"

namespace millrace {

// The operation on the sum before it is stored in c. x is scale * op(a) op(b);
// gelu is the tanh form. `bias` and bias gradients are bf16 if c is, else fp32;
// `aux` [m, n] is bf16. Gradients of a bias are overwritten, never added.
enum class GemmEpilogue {
  kNone,
  kBias,              // x + bias[n]
  kGelu,              // gelu(x)
  kGeluBias,          // gelu(x + bias[n])
  kGeluSave,          // gelu(x); aux = x
  kGeluBiasSave,      // gelu(x + bias[n]); aux = x + bias[n]
  kGeluGradient,      // x gelu'(aux): the way back through kGeluSave
  kGeluBiasGradient,  // The same, and bias[n] = its sum over m.
  kSumA,  // x; bias[m] = sum over k of op(a); with trans_a. For a weight
          // gradient d_w[out, in] = d_y^T x: the gradient of the bias [out].
  kSumB,  // x; bias[n] = sum over k of op(b).
};

struct GemmBf16Shape {
  int64_t m, n, k;  // Each at least one.
  // Row-major. a is stored [m, k], or [k, m] when trans_a; b is stored [k, n],
  // or [n, k] when trans_b, as weights [out, in] are.
  bool trans_a = false;
  bool trans_b = false;
  bool fp32_output = false;  // c is fp32, as weight gradients are; else bf16.
  // c += ; with kNone, kSumA and kSumB alone. In bf16 the product may be
  // rounded before it is added.
  bool accumulate = false;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  // From row to row as stored, in elements; zero: dense. Multiples of 8 run
  // fastest, others may be refused.
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  int64_t aux_stride = 0;  // A multiple of 8.

  bool operator==(const GemmBf16Shape&) const = default;
};

// One way to compute one shape, on one chip, as a word of text without spaces:
// "cublaslt/<version>/<words>" or "wgmma/<version>/<tile>...". Text of another
// version of cuBLAS, or of a kernel this library has not, is refused by name
// where a plan is made from it.
struct GemmAlgorithm {
  std::string text;

  bool operator==(const GemmAlgorithm&) const = default;
};

struct GemmBf16Options {
  // The most scratch memory a run may use. cuBLASLt asks for 32 MiB at most on
  // Hopper; with zero it does without, slower at some shapes.
  int64_t max_workspace_bytes = int64_t{32} << 20;
  // Zero: all. Else the kernel leaves the other multiprocessors to what runs
  // beside it, such as communication.
  int num_multiprocessors = 0;
  std::optional<GemmAlgorithm> algorithm;
};

// Device pointers, aligned to 16 bytes. c overlaps no input.
struct GemmBf16Args {
  void* c = nullptr;        // bf16 or fp32.
  const void* a = nullptr;  // bf16.
  const void* b = nullptr;  // bf16.
  // As the epilogue says; null where it has none.
  void* bias = nullptr;
  void* aux = nullptr;
  float scale = 1.0f;
  void* workspace = nullptr;  // workspace_bytes(), aligned to 256.
};

// One shape on one device (that which is current at Create()), ready to run.
// Move-only; one call of Run() at a time.
class GemmBf16Plan {
 public:
  // InvalidArgument names the shape and what it breaks, or an algorithm that
  // cannot do it; FailedPrecondition an algorithm of another version;
  // ResourceExhausted a workspace that is too small for the algorithm.
  static absl::StatusOr<GemmBf16Plan> Create(const GemmBf16Shape& shape,
                                             const GemmBf16Options& options);
  GemmBf16Plan(GemmBf16Plan&&) noexcept;
  GemmBf16Plan& operator=(GemmBf16Plan&&) noexcept;
  ~GemmBf16Plan();

  const GemmBf16Shape& shape() const;
  const GemmAlgorithm& algorithm() const;
  int64_t workspace_bytes() const;

  // Enqueues on `stream` and returns; allocates nothing on the device, and a
  // graph may capture it. Equal inputs give equal bits on equal chips. Runs
  // that may overlap need a workspace each.
  absl::Status Run(const GemmBf16Args& args, cudaStream_t stream) const;

 private:
  struct Impl;
  explicit GemmBf16Plan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct GemmMeasurement {
  GemmAlgorithm algorithm;
  double milliseconds;  // Median of a run.
  int64_t workspace_bytes;
};

// Runs every candidate (the heuristic's first `max_candidates`, and our own
// kernels) on `sets` of buffers in turn, those within 2 % of the fastest more
// often, and returns them fastest first.
// `options.algorithm` is ignored. Several sets, together larger than the L2
// cache, measure what training sees. Each set's workspace holds
// options.max_workspace_bytes. Overwrites outputs, allocates nothing on the
// device, blocks, and is meant for a chip that does nothing else.
absl::StatusOr<std::vector<GemmMeasurement>> MeasureGemmBf16(
    const GemmBf16Shape& shape, const GemmBf16Options& options,
    absl::Span<const GemmBf16Args> sets, int max_candidates,
    cudaStream_t stream);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_BF16_H_
