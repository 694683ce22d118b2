// A Graph is one pipeline stage's training step before scheduling: the ops and
// tensors of one micro-batch's forward and backward pass, and the ops that run
// once a step. planner/lower/lower.cc instantiates the passes for every
// micro-batch in pipeline order and adds lanes, waits and arena offsets.
//
// Communication ops stand where their result is first needed or their operand
// is first complete; ops over a group of one rank are left out.

#ifndef MILLRACE_PLANNER_LOWER_GRAPH_H_
#define MILLRACE_PLANNER_LOWER_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/ops.h"
#include "planner/program/parameters.h"
#include "planner/program/program.h"

namespace millrace {

using TensorId = int32_t;  // Index into Graph::tensors.

inline constexpr int64_t kStepTensor = -1;

struct GraphTensor {
  std::string name;  // "layers.2/attention/qkv".
  DType dtype;
  std::vector<int64_t> dims;
  // kStepTensor: one for each micro-batch, in the step arena. Otherwise a view
  // at this offset of the persistent arena, the same for all micro-batches.
  int64_t persistent_offset_bytes = kStepTensor;
  // The step tensor that this one is a part of, and where in it; -1: none.
  TensorId parent = -1;
  int64_t parent_offset_bytes = 0;

  int64_t bytes() const;
};

struct GraphOp {
  OpKind kind;
  Phase phase;
  std::string name;
  // `accumulate` is set wherever gradients of micro-batches add up; lowering
  // clears it for the first micro-batch, which overwrites, unless
  // `adds_always`.
  OpAttributes attributes;
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  // Another op of the same micro-batch has written the gradient before.
  bool adds_always = false;
  // Runs in the pass of the first micro-batch; what it writes stays for all.
  bool first_microbatch_only = false;
  // The bucket (index) whose gradient is complete once the last micro-batch has
  // run this op (under ZeRO-2: once each has); -1: none.
  int32_t completes_bucket = -1;
  // The bucket that this op of a pass gathers (ZeRO-3); -1: none.
  int32_t gathers_bucket = -1;
  // How many of the next pass's buckets of weights have a place once this op,
  // the last that needs an older one, has run.
  int32_t num_gathers_ahead = 0;
};

// The persistent arena: flat buffers one after the other.
struct PersistentLayout {
  TensorId parameters = -1;
  TensorId gradients = -1;
  TensorId exp_avg = -1;     // -1 in a validation Graph; its bytes stay.
  TensorId exp_avg_sq = -1;  // Likewise.
  TensorId scalars = -1;
  TensorId clip_factor = -1;  // As the moments.
  TensorId skip = -1;         // Likewise.
  // bf16 alone; in a validation Graph where weights are read in 8 bits.
  TensorId master = -1;
  // bf16 alone: the parameters of the last bucket, norms, in fp32, with which
  // `parameters` ends otherwise. Near one they move by less than bf16 can show.
  TensorId norms = -1;
  TensorId scratch = -1;  // bf16 alone.
  // For tensorwise products: weights in 8 bits, bucket after bucket: all as
  // rows, then all transposed; under ZeRO-3 the rank's slices as rows. And the
  // units of their matrices. For blockwise ones: copies of the layers'
  // matrices, as rows and transposed, and the units of their blocks; not under
  // ZeRO-3.
  TensorId float8_weights = -1;
  TensorId float8_units = -1;
  // The log-probabilities of answers, [data, T]: of a validation pass of the
  // last stage, where preferences are trained.
  TensorId answers = -1;
  int64_t bytes = 0;
};

// Step tensors of whole buckets, by bucket: what a pass gathers of sharded
// parameters (ZeRO-3), and gradients before they are reduced (ZeRO-2 and 3).
// Empty, or -1 by bucket, where there are none.
struct ShardedPasses {
  std::vector<TensorId> forward_parameters;
  std::vector<TensorId> backward_parameters;
  std::vector<TensorId> gradients;
};

struct Graph {
  StageParameters parameters;
  PersistentLayout persistent;
  ShardedPasses sharded;
  std::vector<GraphTensor> tensors;
  std::vector<GraphOp> prologue;  // Once, before the first micro-batch.
  std::vector<GraphOp> forward;   // For each micro-batch.
  std::vector<GraphOp> backward;  // For each micro-batch.
  // By bucket: once, as soon as its gradient is complete. Under ZeRO-2 for each
  // micro-batch but the first, for which first_reduce_by_bucket stands.
  std::vector<std::vector<GraphOp>> reduce_by_bucket;
  std::vector<std::vector<GraphOp>> first_reduce_by_bucket;
  // By bucket, under ZeRO-2 where Layout::data_groups cuts the data axis: once,
  // after the reduction of the last micro-batch.
  std::vector<std::vector<GraphOp>> last_reduce_by_bucket;
  std::vector<GraphOp> epilogue;  // Once, after everything else.
};

Graph BuildTrainingGraph(const ModelSpec& model, const Layout& layout,
                         int32_t stage);
// Forward and loss only; `backward` and `reduce_by_bucket` are empty.
Graph BuildValidationGraph(const ModelSpec& model, const Layout& layout,
                           int32_t stage);

// Copies of all buckets' master weights, in the prologue; empty in fp32.
Graph BuildPublishGraph(const ModelSpec& model, const Layout& layout,
                        int32_t stage);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LOWER_GRAPH_H_
