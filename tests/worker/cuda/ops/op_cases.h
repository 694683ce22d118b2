// One instruction of every kind, at shapes that fast kernels take and at odd
// ones that they refuse.

#ifndef MILLRACE_TESTS_WORKER_CUDA_OPS_OP_CASES_H_
#define MILLRACE_TESTS_WORKER_CUDA_OPS_OP_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

struct OpCase {
  std::string what;
  OpKind kind;
  OpAttributes attributes;
  Layout layout = {};  // Without the precision, which the test chooses.
  MeshCoordinates coordinates = {};
  // Attention: zero, whole sequences; else packed documents of random lengths,
  // in room for as many, or, below zero, read from document_starts.
  int64_t num_documents = 0;
  bool deterministic = false;
  bool has_d_residual = true;           // kRmsNormBackward.
  double clip_norm = 1.0;               // kClipFactor.
  double loss = 2.5, squared_norm = 7;  // kClipFactor.
  bool skip = false;                    // kAdamW.
  // kAdamW, kCastParameters: as of norms, whose parameters are so in bf16 too.
  bool fp32_parameters = false;

  std::string Name() const;
};

// Every op kind but collectives and transfers.
std::vector<OpCase> AllOpCases();

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_OPS_OP_CASES_H_
