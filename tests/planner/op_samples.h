// Attributes of made-up size for any op kind that workers execute.

#ifndef MILLRACE_TESTS_PLANNER_OP_SAMPLES_H_
#define MILLRACE_TESTS_PLANNER_OP_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "planner/program/op_table.h"

namespace millrace {

// The kinds that workers execute.
inline std::vector<OpKind> AllOpKinds() {
  std::vector<OpKind> kinds;
  for (int i = 0; i < kNumExecutedOpKinds; ++i) {
    kinds.push_back(static_cast<OpKind>(i));
  }
  return kinds;
}

// Attributes of the type that the kind takes. Tokens, and sizes equal to them,
// grow with `scale`.
inline OpAttributes SampleAttributes(OpKind kind, int64_t scale) {
  const int64_t tokens = 4096 * scale;
  const std::vector<OpAttributes> samples = {
      NoAttributes{},
      VocabAttributes{.num_tokens = tokens,
                      .hidden = 64,
                      .vocab_rows = 128,
                      .chunk_tokens = 256},
      NormAttributes{.num_tokens = tokens, .hidden = 64},
      GemmAttributes{.m = tokens, .n = 64, .k = 32},
      AttentionAttributes{.num_sequences = scale,
                          .sequence_length = 64,
                          .num_heads = 4,
                          .num_kv_heads = 2,
                          .head_dim = 16},
      ElementwiseAttributes{.rows = tokens, .cols = 8},
      CollectiveAttributes{.group = Group::kTensor,
                           .num_elements = tokens * 64,
                           .dtype = DType::kFloat32},
      TransferAttributes{.direction = Direction::kToNext,
                         .num_elements = tokens * 64,
                         .dtype = DType::kFloat32},
      OptimizerAttributes{.num_elements = tokens, .data_sharded = true},
      QuantizeAttributes{.rows = tokens, .cols = 64},
      WeightBucketAttributes{.num_elements = tokens, .data_sharded = true},
  };
  for (const OpAttributes& sample : samples) {
    if (sample.index() == Describe(kind).attributes) return sample;
  }
  CHECK(false) << "no sample of the attributes of " << OpKindName(kind);
  return {};
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_OP_SAMPLES_H_
