// A product of copies in 8 bits on a CPU, which multiplies what they mean in
// fp32.

#ifndef MILLRACE_WORKER_CPU_DECODED_PRODUCT_H_
#define MILLRACE_WORKER_CPU_DECODED_PRODUCT_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/cpu/ops.h"

namespace millrace {

// Writes what the operands mean to a [m, k] and b [n, k].
using DecodeOperands =
    std::function<absl::Status(float* a, float* b, int num_threads)>;

// Binds an op with GemmAttributes: c [m, n] (+)= a b^T + bias. c is output 0, a
// bias input 4. Both decoded operands lie in the kernels' scratch.
absl::StatusOr<BoundOp> BindDecodedProduct(const OpContext& context,
                                           const Instruction& in,
                                           DecodeOperands decode);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_DECODED_PRODUCT_H_
