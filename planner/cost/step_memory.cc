#include "planner/cost/step_memory.h"

#include <algorithm>
#include <cmath>

#include "planner/program/ops.h"

namespace millrace {
namespace {

constexpr double kFp32Bytes = 4;
constexpr double kBfloat16Bytes = 2;
constexpr double kFloat8Bytes = 1;

// Rounds what is not negative, without the call that std::llround() is.
int64_t Bytes(double value) { return static_cast<int64_t>(value + 0.5); }

double StoredBytes(const Layout& layout) {
  return static_cast<double>(DTypeBytes(ActivationType(layout.precision)));
}

// Elements that a rank keeps of what the data axis shards. Bounds ask for
// shardings whose experts are over more ranks than there are: one replica.
double SliceOf(const Layout& layout, const RankParameters& parameters) {
  return parameters.dense /
             (static_cast<double>(layout.group_data()) * layout.context) +
         parameters.experts / std::max(1, NumExpertReplicas(layout));
}

int32_t NumAxes(const Layout& layout) {
  int32_t axes = 0;
  for (const LayoutSize& row : LayoutSizes()) {
    if (row.axis.has_value() && layout.*row.size > 1) ++axes;
  }
  return axes;
}

// Buffers for what neighbours send: one for the micro-batch under way, or one
// for every micro-batch.
double ReceivedBytes(const Layout& layout, const Implementation& implementation,
                     const StageLoad& load, int32_t stage) {
  if (layout.pipeline == 1) return 0;
  const bool is_inner = stage > 0 && stage < layout.pipeline - 1;
  const double buffers =
      implementation.slices_are_masters
          ? static_cast<double>(layout.most_microbatches()) * layout.interleave
          : 1;
  return load.stream_bytes * buffers *
         (is_inner || layout.interleave > 1 ? 2 : 1);
}

// Bytes that both moments of a number take less than in fp32.
double SavedOfMoments(const Layout& layout) {
  return 2 * (kFp32Bytes - MomentBytes(layout.moments));
}

// PyTorch's fully_shard: Implementation::slices_are_masters.
StepMemory MemoryOfSlices(const Layout& layout, const StageLoad& load) {
  const double slice = SliceOf(layout, load.parameters);
  const double all = load.parameters.dense + load.parameters.experts;
  const double in_flight = 2 * load.layer_parameters;  // In use, and the next.
  const bool stays_whole = layout.pipeline > 1;
  const double gathered = stays_whole ? all : load.end_parameters + in_flight;
  StepMemory memory;
  memory.parameters = Bytes(kFp32Bytes * slice + kBfloat16Bytes * gathered);
  memory.gradients = Bytes(kFp32Bytes * (slice + (stays_whole ? all : 0)));
  memory.optimizer = Bytes(2 * kFp32Bytes * slice);
  // Gradients as products write them, and as they are reduced or added up.
  const double written = (kBfloat16Bytes + kFp32Bytes) *
                         (stays_whole ? load.layer_parameters : in_flight);
  memory.working = std::max(load.layer_working_bytes + Bytes(written),
                            load.end_working_bytes);
  return memory;
}

// Bytes of whole buckets: the one in use and the one being reduced. A bucket
// that is reduced in bf16 is whole in fp32 only until it is rounded. Where only
// slices are rounded, their copies come on top.
double WholeGradientBytes(const Layout& layout,
                          const Implementation& implementation,
                          const StageLoad& load) {
  const double layer = load.layer_parameters;
  const double before = std::max(layer, load.largest_end);
  const double in_use = layout.zero >= 2 ? implementation.gradient_bytes : 0;
  if (!layout.rounds_gradients()) {
    const double slices =
        layout.rounds_across() ? kBfloat16Bytes / layout.group_data() : 0;
    return (in_use + slices) * (layer + before);
  }
  return std::max((in_use + kBfloat16Bytes) * load.largest_end,
                  (in_use + kBfloat16Bytes) * layer + kBfloat16Bytes * before);
}

// Bytes that weights in 8 bits take, beyond those that they would take as
// stored, which they are not where there are master weights. A rank has its
// slices as rows, or all as rows and transposed.
double ExtraBytesOfFloat8(const Layout& layout, double weight_bytes,
                          const StageLoad& load) {
  const double stored = RecipeOf(layout).has_masters() ? weight_bytes : 0;
  const double ranks = static_cast<double>(layout.group_data());
  return layout.shards_parameters()
             ? (kFloat8Bytes - stored) * load.parameters.float8 / ranks
             : (2 * kFloat8Bytes - stored) * load.parameters.float8 +
                   2 * kFloat8Bytes * load.parameters.copied;
}

// Bytes of whole buckets of weights: the one in use, and the next. A backward
// pass transposes one matrix in 8 bits at a time, about half of a layer.
double GatheredBytes(double weight_bytes, const StageLoad& load) {
  const double float8 = kFloat8Bytes * load.layer_float8;
  const double layer =
      weight_bytes * (load.layer_parameters - load.layer_float8) + float8;
  return layer + std::max(layer, weight_bytes * load.largest_end) + float8 / 2;
}

StepMemory MemoryOfBuckets(const Layout& layout,
                           const Implementation& implementation,
                           const StageLoad& load) {
  const double slice = SliceOf(layout, load.parameters);
  const double all = load.parameters.dense + load.parameters.experts;
  const double weight_bytes = implementation.weight_bytes > 0
                                  ? implementation.weight_bytes
                                  : StoredBytes(layout);
  // fp32 weights are their own masters.
  const double optimizer_bytes =
      implementation.optimizer_bytes - SavedOfMoments(layout) -
      (RecipeOf(layout).has_masters() ? 0 : kFp32Bytes);
  StepMemory memory;
  memory.parameters = Bytes(weight_bytes * (layout.zero >= 3 ? slice : all) +
                            ExtraBytesOfFloat8(layout, weight_bytes, load));
  memory.gradients =
      Bytes(implementation.gradient_bytes * (layout.zero >= 2 ? slice : all));
  memory.optimizer = Bytes(optimizer_bytes * (layout.zero >= 1 ? slice : all));
  double whole_bytes = 0;
  if (layout.data * layout.context > 1) {
    if (layout.zero >= 3) whole_bytes += GatheredBytes(weight_bytes, load);
    whole_bytes += WholeGradientBytes(layout, implementation, load);
  }
  memory.working = std::max(load.layer_working_bytes, load.end_working_bytes) +
                   Bytes(whole_bytes);
  return memory;
}

}  // namespace

void AddLayers(const LayerLoad& layer, int64_t count, StageLoad* stage) {
  if (count == 0) return;
  const auto number = static_cast<double>(count);
  const RankParameters& parameters = layer.parameters;
  stage->parameters.dense += number * parameters.dense;
  stage->parameters.experts += number * parameters.experts;
  stage->parameters.float8 += number * parameters.float8;
  stage->parameters.copied += number * parameters.copied;
  stage->layer_float8 = std::max(stage->layer_float8, parameters.float8);
  stage->layer_parameters =
      std::max(stage->layer_parameters, parameters.dense + parameters.experts);
  stage->activation_bytes += count * layer.activation_bytes;
  stage->weight_gradient_bytes += count * layer.weight_gradient_bytes;
  stage->layer_working_bytes =
      std::max(stage->layer_working_bytes, layer.working_bytes);
}

void AddEnd(const LayerLoad& end, StageLoad* stage) {
  stage->parameters.dense += end.parameters.dense;
  stage->end_parameters += end.parameters.dense;
  stage->largest_end = std::max(stage->largest_end, end.parameters.dense);
  stage->activation_bytes += end.activation_bytes;
  stage->weight_gradient_bytes += end.weight_gradient_bytes;
  stage->end_working_bytes =
      std::max(stage->end_working_bytes, end.working_bytes);
}

double MicrobatchesHeld(const Layout& layout, int32_t stage) {
  const double stages = layout.pipeline;
  double held =
      layout.schedule == Schedule::kZeroBubble ? stages : stages - stage;
  if (layout.interleave > 1) {
    const double chunks = layout.interleave;
    held = (stages * (chunks - 1) + 2 * (stages - stage - 1) + 1) / chunks;
  }
  return std::min<double>(held, layout.most_microbatches());
}

int64_t ActivationBytesHeld(const Layout& layout, const StageLoad& load,
                            int32_t stage) {
  const auto all = static_cast<double>(load.activation_bytes);
  if (layout.interleave == 1) {
    return Bytes(MicrobatchesHeld(layout, stage) * all);
  }
  // Chunks take turns of p micro-batches each: when the last chunk's turn is
  // over, the first has begun its next.
  const double stages = layout.pipeline;
  const double microbatches = layout.most_microbatches();
  const double beyond = 2 * (stages - stage - 1) + 1 - stages;
  const double everywhere = std::min(stages, microbatches);
  if (beyond >= 0) {
    return Bytes(everywhere * all +
                 std::min(beyond, microbatches - everywhere) *
                     static_cast<double>(load.first_chunk_bytes));
  }
  const double in_last = std::min(stages + beyond, microbatches);
  return Bytes(everywhere * all -
               (everywhere - in_last) *
                   static_cast<double>(load.last_chunk_bytes));
}

int64_t OverheadBytes(const Layout& layout, const MemoryOverhead& overhead) {
  const int32_t axes = NumAxes(layout);
  if (axes == 0) return overhead.process;
  return overhead.process + overhead.first_communicator +
         (axes - 1) * overhead.communicator;
}

StepMemory MemoryOfStage(const Layout& layout,
                         const Implementation& implementation,
                         const MemoryOverhead& overhead, const StageLoad& load,
                         int32_t stage) {
  StepMemory memory = implementation.slices_are_masters && layout.zero >= 3
                          ? MemoryOfSlices(layout, load)
                          : MemoryOfBuckets(layout, implementation, load);
  memory.activations = ActivationBytesHeld(layout, load, stage);
  memory.working += Bytes(ReceivedBytes(layout, implementation, load, stage));
  memory.overhead = OverheadBytes(layout, overhead);
  return memory;
}

}  // namespace millrace
