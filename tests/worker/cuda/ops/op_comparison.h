// How far two computations of one instruction lie apart, and how far they may:
// the same op on other kernels, in another precision or on another device.

#ifndef MILLRACE_TESTS_WORKER_CUDA_OPS_OP_COMPARISON_H_
#define MILLRACE_TESTS_WORKER_CUDA_OPS_OP_COMPARISON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

// Elements of a buffer on the host, widened without loss; and back, rounded to
// nearest even.
std::vector<double> WidenElements(DType dtype, const std::byte* data,
                                  int64_t num_elements);
void NarrowElements(absl::Span<const double> values, DType dtype,
                    std::byte* data);

struct OpDifference {
  // |actual - expected| / |expected|, both as vectors; |actual| where all that
  // is expected is zero. Not a number where any element is not, in one alone.
  double relative_error;
  int64_t worst_idx;  // The place of the largest difference.
  double worst_expected;
  double worst_actual;
};
// Both have equally many elements. Elements that are not finite in both, and
// alike, are no difference.
OpDifference CompareElements(absl::Span<const double> expected,
                             absl::Span<const double> actual);
std::string OpDifferenceToString(const OpDifference& difference);

// Whether output `i` means anything after the op: workspaces do not, and hold
// what their kernel pleases.
bool IsResult(OpKind kind, size_t i);

// The relative error that output `i` may have, given the very same inputs,
// where one side computes in fp32 on a CPU and the other in `precision`
// elsewhere. Rounding to bf16 once costs 1.7e-3 of a tensor; a wrong row, mask
// or factor costs far more than any value here.
double OpTolerance(const Instruction& instruction, size_t i,
                   Precision precision);

// The log-sum-exps of whole sequences as the GPU's kernels keep them, in the
// order of planner/program/op_table.cc: [sequences, heads, length] to [heads,
// sequences x length].
std::vector<double> HeadsFirst(absl::Span<const double> lse,
                               const AttentionAttributes& attention);

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_OPS_OP_COMPARISON_H_
