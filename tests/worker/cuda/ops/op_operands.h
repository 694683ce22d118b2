// The Programs of an OpCase and what its operands hold.

#ifndef MILLRACE_TESTS_WORKER_CUDA_OPS_OP_OPERANDS_H_
#define MILLRACE_TESTS_WORKER_CUDA_OPS_OP_OPERANDS_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/program.h"
#include "tests/worker/cuda/ops/op_cases.h"

namespace millrace {

// A Program whose last instruction is the case's, as the CPU or the GPU is to
// bind it, after what that one needs to have been done.
Program MakeOpProgram(const OpCase& op, Precision precision);

struct OpOperands {
  // By input of the GPU's last instruction, of which the CPU's has no more.
  // Values are such as either's types hold exactly.
  std::vector<std::vector<double>> inputs;
  // By output, before the op: the values that are added to, else NaN or, in
  // whole numbers, -1. Empty for an output that is an input too.
  std::vector<std::vector<double>> outputs;
  // Packed documents: of OpCase::num_documents, and one more.
  std::vector<int32_t> document_offsets;
};
// Random but for what must be consistent: statistics and log-sum-exps are those
// of the tensors beside them.
OpOperands MakeOperands(const OpCase& op, const Program& on_gpu);

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_OPS_OP_OPERANDS_H_
