// A Layout says how a job is spread over its devices: the sizes of the mesh
// axes and how a global batch is cut.

#ifndef MILLRACE_PLANNER_LAYOUT_LAYOUT_H_
#define MILLRACE_PLANNER_LAYOUT_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "planner/layout/mesh.h"
#include "planner/layout/model.h"
#include "planner/layout/numeric_format.h"
#include "planner/layout/recompute.h"

namespace millrace {

// The order of passes in a pipeline. kZeroBubble: one-forward-one-backward too,
// but a stage puts off the weight gradients of as many micro-batches as there
// are stages before it, so that gradients reach those earlier and the work put
// off fills the end; activations of all stages then live as long as those of
// the first (Qi et al., "Zero Bubble Pipeline Parallelism", 2024, ZB-H1).
// kInterleaved: stages hold `interleave` chunks of layers in turn (Narayanan et
// al., 2021). kListScheduled: the order that list scheduling makes of what
// passes cost (planner/pipeline/layout_order.h).
enum class Schedule : uint8_t {
  kOneForwardOneBackward,
  kZeroBubble,
  kInterleaved,
  kListScheduled,
};
struct ScheduleDescriptor {
  Schedule schedule;
  const char* name;  // "1f1b": the value of layout.schedule.
  bool is_lowered;   // Whether planner/lower emits it. False: plan only.
};
std::span<const ScheduleDescriptor> Schedules();
const ScheduleDescriptor& Describe(Schedule schedule);
const char* ScheduleName(Schedule schedule);
Schedule ScheduleOf(absl::string_view name);  // Must be one of these.

// The basis of list scheduling: what one micro-batch's passes through a stage
// cost and hold (as ChunkCosts), and how much all may hold at once. Whole
// numbers, so that every process makes the same order of them.
struct ListedStage {
  int32_t forward_us = 0;
  int32_t input_gradient_us = 0;
  int32_t weight_gradient_us = 0;
  int64_t activation_bytes = 0;
  int64_t weight_gradient_bytes = 0;
  int64_t memory_bytes = 0;
  friend bool operator==(const ListedStage&, const ListedStage&) = default;
};

// The communication of copy engines in NCCL's place
// (planner/program/copy_engines.h).
struct CopyEngineUse {
  bool transfers = false;  // Sends and receives of the pipeline.
  bool tensor_gathers = false;
  bool tensor_reductions = false;  // Reduce-scatters.
  bool data_gathers = false;
  bool any() const {
    return transfers || tensor_gathers || tensor_reductions || data_gathers;
  }
  friend bool operator==(const CopyEngineUse&, const CopyEngineUse&) = default;
};

inline constexpr int32_t kMaximumZero = 3;     // The highest ZeRO stage.
inline constexpr int32_t kMostUnevenZero = 1;  // Of uneven layouts.

// The loss that a step minimizes (training.objective): the cross entropy of
// tokens, or the loss of pairs of a preferred and a rejected answer (Rafailov
// et al., "Direct Preference Optimization", 2023).
enum class Objective : uint8_t { kCrossEntropy, kPreference };

// The format in which replicas send each other the gradients of matrices
// (training.gradient_reduction). kBfloat16Across: fp32 inside the groups of
// Layout::data_groups, bf16 between them, so that only the traffic between
// hosts is rounded. Norms and biases are few and stay in fp32.
enum class GradientReduction : uint8_t {
  kFloat32,
  kBfloat16,
  kBfloat16Across,
};
struct GradientReductionDescriptor {
  GradientReduction reduction;
  const char* name;  // "bf16_across": the value of the key.
};
std::span<const GradientReductionDescriptor> GradientReductions();
const char* GradientReductionName(GradientReduction reduction);
GradientReduction GradientReductionOf(absl::string_view name);  // One of these.

struct Layout {
  int32_t pipeline = 1;  // Stages.
  int32_t data = 1;      // Replicas, each with its share of the global batch.
  // Equal runs of neighbours into which the data axis is cut, usually one a
  // node. ZeRO shards inside a group, and groups hold copies (hybrid sharding);
  // without ZeRO, gradients are summed inside, across and gathered inside
  // (hierarchical all-reduce). 1: the data axis is one group.
  int32_t data_groups = 1;
  int32_t tensor = 1;  // Shards of each layer; sequence-parallel when > 1.
  // Shards of each sequence, and of the experts of a layer. An expert is whole
  // on a rank (expert_tensor 1) or cut as the layer is (expert_tensor =
  // tensor). Experts are spread over the ranks of a stage that are left:
  // `expert` divides data x context x tensor / expert_tensor and adds no ranks.
  int32_t context = 1;
  int32_t expert = 1;
  int32_t expert_tensor = 1;
  int32_t interleave = 1;   // Chunks of layers a stage, with kInterleaved.
  int32_t micro_batch = 1;  // Sequences of one micro-batch.
  // Per step and data replica; the first `extra_microbatches` replicas run one
  // more. 0 <= extra_microbatches < data. Above 0, the layout is uneven, which
  // takes a replica that meets the others once a step alone (ValidateLayout).
  int32_t num_microbatches = 1;
  int32_t extra_microbatches = 0;
  // ZeRO's stage (Rajbhandari et al., 2020). The data axis, and with it the
  // context axis, shards nothing (0), the optimizer's state (1), gradients too
  // (2), parameters too (3).
  int32_t zero = 0;
  Precision precision = Precision::kFloat32;
  GradientReduction gradient_reduction = GradientReduction::kFloat32;
  MomentFormat moments = MomentFormat::kFloat32;
  Objective objective = Objective::kCrossEntropy;
  // Length of the document that a token lies in, averaged over tokens
  // (data.document_length): attention sees no other document, so its work grows
  // with this instead of the sequence. 0: a sequence is one document.
  int32_t document_length = 0;
  GemmFormat gemm_format = GemmFormat::kAsStored;
  // All stages recompute this; where they differ, the union of all.
  Recompute recompute = Recompute::kNone;
  // Where stages differ, of each; else empty.
  std::vector<Recompute> recompute_by_stage;
  Schedule schedule = Schedule::kOneForwardOneBackward;
  // By stage, and of a transfer between two: with kListScheduled alone.
  std::vector<ListedStage> listed_stages;
  int32_t listed_transfer_us = 0;
  CopyEngineUse copy_engines;  // On GPUs alone.

  // Data ranks of one group: with ZeRO they share one copy of the state.
  int32_t group_data() const { return data / data_groups; }
  // Which of the slices of its group a data rank has, and which group it is in.
  int32_t slice_of(int32_t data_idx) const { return data_idx % group_data(); }
  int32_t group_of(int32_t data_idx) const { return data_idx / group_data(); }

  // Whether a rank keeps the optimizer state of its slices alone.
  bool shards_optimizer() const { return zero >= 1 && data * context > 1; }
  bool shards_gradients() const { return zero >= 2 && data * context > 1; }
  bool shards_parameters() const { return zero >= 3 && data * context > 1; }
  Recompute recompute_of(int32_t stage) const {
    return recompute_by_stage.empty()
               ? recompute
               : recompute_by_stage[static_cast<size_t>(stage)];
  }
  // Whether whole gradients are rounded before any reduction.
  bool rounds_gradients() const {
    return gradient_reduction == GradientReduction::kBfloat16 &&
           data * context > 1;
  }
  // Whether only slices are rounded, between the groups of the data axis.
  bool rounds_across() const {
    return gradient_reduction == GradientReduction::kBfloat16Across &&
           data_groups > 1;
  }
  bool trains_preferences() const {
    return objective == Objective::kPreference;
  }
  bool is_uneven() const { return extra_microbatches > 0; }
  // Micro-batches of a data replica. Replica 0 has the most.
  int32_t num_microbatches_of(int32_t data_idx) const {
    return num_microbatches + (data_idx < extra_microbatches ? 1 : 0);
  }
  int32_t most_microbatches() const { return num_microbatches_of(0); }
  // Micro-batches of the replicas before this one.
  int32_t first_microbatch_of(int32_t data_idx) const {
    return data_idx * num_microbatches + std::min(data_idx, extra_microbatches);
  }
  // Sets the micro-batches of all replicas alike.
  void SetMicrobatches(int32_t count) {
    num_microbatches = count;
    extra_microbatches = 0;
  }
  // Shares the micro-batches of `global_batch` sequences among the replicas. A
  // batch that gives a replica none, or that is no multiple of micro_batch,
  // makes a layout that ValidateLayout() refuses for it.
  void ShareBatch(int64_t global_batch);

  int32_t num_ranks() const;  // The product of the axes that add ranks.
  // Sequences of one optimizer step over all replicas.
  int32_t global_batch() const {
    return micro_batch * first_microbatch_of(data);
  }
  friend bool operator==(const Layout&, const Layout&) = default;
};

// Layers [begin, end) of stage `stage`. The last stage, which also has the
// head, takes as many as keep the slowest stage fastest, and never more than
// another; the others share the rest evenly. A remainder goes to the inner
// stages first, the latest first, then to stage 0, which also holds the
// embedding.
struct LayerRange {
  int64_t begin;
  int64_t end;
};
LayerRange StageLayers(const ModelSpec& model, const Layout& layout,
                       int32_t stage);

// Largest value in [1, limit] that divides `value`: what errors suggest.
int64_t LargestDivisorUpTo(int64_t value, int64_t limit);

// Returns InvalidArgument with the reason and the smallest change that would
// help: heads, key-value heads, ffn_hidden, vocabulary and the tokens of a
// micro-batch divisible by `tensor`; at least one layer a stage; global batch =
// micro_batch x (num_microbatches x data + extra_microbatches); what is
// computed again, of every stage or of all. A layout is uneven only where data
// replicas meet once a step: not with ZeRO 2 or 3, whose replicas meet in every
// micro-batch, nor where they share experts or a pipeline's transfers are by
// copy engines.
absl::Status ValidateLayout(const ModelSpec& model, const Layout& layout,
                            int64_t global_batch);

// The recompute, as jobs state it: "norm+activation", or where stages differ
// "full, norm, none". SetRecompute() takes one of these, of which selective
// leaves no choice (ParseRecompute); ValidateLayout() says whether there are as
// many as stages.
std::string RecomputeKey(const Layout& layout);
void SetRecompute(absl::string_view key, Layout* layout);
void SetRecompute(const StageRecomputes& stages, Layout* layout);

// The formats that the layout computes in, and their name in jobs and plans:
// "fp32", "bf16", "fp8", "fp8_blockwise" or "fp4".
const PrecisionRecipe& RecipeOf(const Layout& layout);
const char* PrecisionName(const Layout& layout);

// "pipeline 2 x data 1 x tensor 2, 8 micro-batches of 2, ZeRO 1, bf16"; "6 or 5
// micro-batches" where it is uneven; and ", recompute full" where anything is,
// or ", recompute full (2 stages), norm (6)" in their order; then ", copy
// engines" where they do anything.
std::string LayoutToString(const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_LAYOUT_H_
