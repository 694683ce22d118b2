// Compares two backends op by op: the fp32 Program on a CPU and the same
// Program, of either precision, on a GPU, with equal weights and batch. Their
// instructions correspond one to one.
//
// Isolated: before each op its operands on the GPU are set to the CPU's, which
// are rounded to what the GPU stores. Nothing adds up, so an op that differs is
// itself to blame, and the tolerances are narrow. Chained: each backend goes on
// with its own results, as in training, and errors add up over the step.

#ifndef MILLRACE_WORKER_COMPARE_COMPARE_H_
#define MILLRACE_WORKER_COMPARE_COMPARE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/program/program.h"
#include "worker/train/stepper.h"

namespace millrace {

enum class CompareMode : uint8_t { kIsolated, kChained };
const char* CompareModeName(CompareMode mode);  // "isolated", "chained".

// The allowed errors of an output compared with the CPU's values c: the norm of
// the difference over the norm of c, and the largest difference over the
// largest |c|.
struct Tolerance {
  double relative_l2;
  double max_error;
};

// `output` is that of the GPU, whose Program stores `precision`, and where
// `in_float8` some ops of the step read copies in 8 bits. compare.cc says what
// each follows from.
Tolerance ToleranceOf(CompareMode mode, Precision precision, bool in_float8,
                      OpKind kind, DType output);

struct OutputComparison {
  InstructionId instruction;
  OpKind kind;
  Phase phase;
  int32_t microbatch_idx;
  std::string name;    // The instruction's name.
  std::string buffer;  // The output buffer's name.
  double relative_l2;  // Not a number if the GPU's values are none.
  double max_error;
  Tolerance tolerance;
  bool within;
};

struct Comparison {
  CompareMode mode;
  Precision precision;
  GemmFormat gemm_format;
  std::vector<OutputComparison> outputs;  // In the Program's order.
  // Each backend's own step, so only in mode kChained; nats per token.
  double cpu_loss, gpu_loss;
  double cpu_gradient_norm, gpu_gradient_norm;

  // The first output beyond its tolerance.
  std::optional<OutputComparison> FirstDifference() const;
};

// Runs the whole step on both. `cpu` holds weights and moments, which are
// rounded to what the GPU's kernels read and given to `gpu` first. Internal if
// the Programs do not correspond.
absl::StatusOr<Comparison> CompareSteps(Stepper& cpu, Stepper& gpu,
                                        CompareMode mode);

// Writes text for people: what differs first, then the worst output of each op
// kind.
std::string ComparisonToText(const Comparison& comparison);
std::string ComparisonToJson(const Comparison& comparison);

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMPARE_COMPARE_H_
