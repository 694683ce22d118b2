// The load that a device is under while it trains: the ops of a micro-batch. An
// op is timed among them, since a chip sets its clocks by the power of what it
// ran in the last tens of milliseconds.

#ifndef MILLRACE_PLANNER_LEARN_STEP_MIX_H_
#define MILLRACE_PLANNER_LEARN_STEP_MIX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/ops.h"

namespace millrace {

// One op to time on a rank that computes alone. All kinds but collectives and
// transfers.
struct ProfileOp {
  OpKind kind;
  OpAttributes attributes;
  // The micro-batch of a layout that has this op; it is timed among that
  // micro-batch's other ops.
  int32_t micro_batch = 1;
};

struct StepMix {
  int32_t micro_batch;         // Sequences.
  std::vector<ProfileOp> ops;  // In the order in which they run.
};

// The op as it is measured. The first micro-batch overwrites gradients, later
// ones add, which costs one more read: the overwriting product is measured. A
// head has no logits to take over.
ProfileOp AsMeasured(OpKind kind, const OpAttributes& attributes,
                     int32_t micro_batch);

// The work of an op in FLOPs of a GPU that computes 600 TFLOP/s and moves
// 4 TB/s. It is the larger one of computing and moving, counted as in bf16.
double LoadOf(const ProfileOp& op);

// The mixes of the micro-batches that the layouts have, in increasing order:
// forward and backward pass on one rank that has whole layers, as many of them
// as a GPU computes in about ten milliseconds, and the optimizer's work divided
// by the micro-batches of a step. Where these are not all layers, the ends of
// the model are left out of the passes. Micro-batches whose ops take a GPU more
// than some milliseconds are left out, but not the smallest one. At most six
// mixes are returned.
std::vector<StepMix> MixesOf(const ModelSpec& model,
                             const std::vector<Layout>& layouts);

// The index of the mix whose micro-batch is closest, as a ratio. There must be
// at least one mix.
size_t ClosestMix(std::span<const StepMix> mixes, int32_t micro_batch);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_STEP_MIX_H_
