#include "planner/lower/graph_step.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/units.h"

namespace millrace {
namespace {

// A reduce-scatter in place leaves anything in the other ranks' slices; weight
// gradients overwrite it in the next step, but nothing overwrites padding.
void EmitZeroPadding(GraphBuilder& builder, const Bucket& bucket,
                     TensorId gradients) {
  builder.Emit(
      {.kind = OpKind::kZero,
       .phase = Phase::kForward,
       .name = absl::StrCat("zero_gradients/", bucket.name),
       .attributes =
           ElementwiseAttributes{.rows = 1, .cols = bucket.num_elements},
       .outputs = {gradients}});
}

void EmitInPlaceCollective(GraphBuilder& builder, OpKind kind, Group group,
                           Phase phase, std::string name, TensorId tensor,
                           bool of_slice = false) {
  if (GroupSize(builder.layout(), group) == 1) return;
  const GraphTensor& operand = builder.graph().tensors[tensor];
  builder.Emit(
      {.kind = kind,
       .phase = phase,
       .name = std::move(name),
       .attributes = CollectiveAttributes{.group = group,
                                          .num_elements = operand.dims[0],
                                          .dtype = operand.dtype,
                                          .of_slice = of_slice},
       .inputs = {tensor},
       .outputs = {tensor}});
}

void EmitSumOverTensorRanks(GraphBuilder& builder, const Bucket& bucket,
                            TensorId gradients) {
  if (!bucket.tensor_replicated) return;
  EmitInPlaceCollective(
      builder, OpKind::kAllReduce, Group::kTensor, Phase::kGradientReduce,
      absl::StrCat("sum_partial_gradients/", bucket.name), gradients);
}

// Norms and biases, which do not decay, are few and stay in fp32.
bool Rounds(const GraphBuilder& builder, const Bucket& bucket) {
  return builder.layout().rounds_gradients() && bucket.weight_decay;
}

// Makes the bf16 copy of a whole bucket, or of the rank's slice of it.
// `gradients` holds the bucket or the slice alone.
TensorId EmitRound(GraphBuilder& builder, const Bucket& bucket,
                   TensorId gradients, bool of_slice) {
  const int64_t num_elements =
      bucket.num_elements / (of_slice ? builder.layout().group_data() : 1);
  const TensorId rounded = builder.AddTensor(
      absl::StrCat(of_slice ? "gradients/rounded_sum/" : "gradients/rounded/",
                   bucket.name),
      {num_elements}, DType::kBfloat16);
  builder.Emit(
      {.kind = OpKind::kRoundGradients,
       .phase = Phase::kGradientReduce,
       .name = absl::StrCat(of_slice ? "round_sum/" : "round_gradients/",
                            bucket.name),
       .attributes = OptimizerAttributes{.num_elements = bucket.num_elements,
                                         .data_sharded = of_slice},
       .inputs = {gradients},
       .outputs = {rounded}});
  return rounded;
}

void EmitWiden(GraphBuilder& builder, const Bucket& bucket, std::string name,
               TensorId reduced, TensorId gradients, bool of_slice) {
  builder.Emit(
      {.kind = OpKind::kWidenGradients,
       .phase = Phase::kGradientReduce,
       .name = absl::StrCat(name, "/", bucket.name),
       .attributes = OptimizerAttributes{.num_elements = bucket.num_elements,
                                         .data_sharded = of_slice},
       .inputs = {reduced},
       .outputs = {gradients}});
}

// Sums slices across the groups of the data axis. `gradients` holds the whole
// bucket or the rank's slice alone. fp32 slices are rounded on their way where
// the layout rounds what groups send each other.
void EmitSumAcross(GraphBuilder& builder, const Bucket& bucket,
                   TensorId gradients) {
  const Layout& layout = builder.layout();
  const GraphTensor operand = builder.graph().tensors[gradients];
  const bool rounds =
      (Rounds(builder, bucket) && operand.dtype == DType::kFloat32) ||
      (layout.rounds_across() && bucket.weight_decay);
  const TensorId sent =
      rounds ? EmitRound(builder, bucket, gradients, true) : gradients;
  const bool holds_bucket = !rounds && operand.dims[0] == bucket.num_elements;
  EmitInPlaceCollective(
      builder, OpKind::kAllReduce, Group::kReplicas, Phase::kGradientReduce,
      absl::StrCat("reduce_across/", bucket.name), sent, holds_bucket);
  if (rounds) EmitWiden(builder, bucket, "widen_sum", sent, gradients, true);
}

// Sums over the data axis: all of it, or this rank's slice. Where the axis is
// cut into groups, each sums its own first, and then slices go across.
void EmitSumOverData(GraphBuilder& builder, const Bucket& bucket,
                     TensorId tensor) {
  const Layout& layout = builder.layout();
  const bool is_cut = layout.data_groups > 1;
  const bool keeps_slice = layout.shards_optimizer();
  const auto emit = [&](OpKind kind, Group group, const char* name) {
    EmitInPlaceCollective(builder, kind, group, Phase::kGradientReduce,
                          absl::StrCat(name, "/", bucket.name), tensor);
  };
  emit(is_cut || keeps_slice ? OpKind::kReduceScatter : OpKind::kAllReduce,
       ShardGroup(layout), "reduce_gradients");
  if (!is_cut) return;
  EmitSumAcross(builder, bucket, tensor);
  if (keeps_slice) return;
  emit(OpKind::kAllGather, Group::kShards, "gather_gradients");
}

void EmitReduceGradients(GraphBuilder& builder, const Bucket& bucket,
                         TensorId gradients) {
  EmitSumOverTensorRanks(builder, bucket, gradients);
  const bool rounds = Rounds(builder, bucket);
  const TensorId reduced =
      rounds ? EmitRound(builder, bucket, gradients, false) : gradients;
  EmitSumOverData(builder, bucket, reduced);
  if (!rounds) return;
  EmitWiden(builder, bucket, "widen_gradients", reduced, gradients,
            builder.layout().shards_optimizer());
}

// One micro-batch's gradients of the whole bucket -> `shard`.
void EmitReduceToShard(GraphBuilder& builder, const Bucket& bucket,
                       TensorId whole, TensorId shard) {
  EmitSumOverTensorRanks(builder, bucket, whole);
  const bool rounds = Rounds(builder, bucket);
  const DType dtype = rounds ? DType::kBfloat16 : DType::kFloat32;
  const TensorId sent =
      rounds ? EmitRound(builder, bucket, whole, false) : whole;
  const TensorId reduced =
      rounds ? builder.AddTensor(
                   absl::StrCat("gradients/rounded_shard/", bucket.name),
                   builder.graph().tensors[shard].dims, dtype)
             : shard;
  builder.Emit(
      {.kind = OpKind::kReduceScatter,
       .phase = Phase::kGradientReduce,
       .name = absl::StrCat("reduce_gradients/", bucket.name),
       .attributes = CollectiveAttributes{.group = ShardGroup(builder.layout()),
                                          .num_elements = bucket.num_elements,
                                          .dtype = dtype},
       .inputs = {sent},
       .outputs = {reduced}});
  if (rounds) {
    EmitWiden(builder, bucket, "widen_gradients", reduced, shard, true);
  }
}

// ZeRO-2: the first micro-batch's sums go where the gradients stay, later ones
// are added to them. Where the data axis is cut, the slices that groups have
// summed over all micro-batches are summed across, once a step.
void EmitShardedReductions(GraphBuilder& builder) {
  Graph& graph = builder.graph();
  const std::vector<Bucket>& buckets = graph.parameters.buckets;
  graph.first_reduce_by_bucket.resize(buckets.size());
  graph.last_reduce_by_bucket.resize(buckets.size());
  for (size_t i = 0; i < buckets.size(); ++i) {
    const TensorId whole = graph.sharded.gradients[i];
    const TensorId gradients = builder.bucket_tensors()[i].gradients;
    builder.EmitTo(&graph.first_reduce_by_bucket[i]);
    EmitReduceToShard(builder, buckets[i], whole, gradients);
    builder.EmitTo(&graph.reduce_by_bucket[i]);
    const TensorId sum = builder.AddTensor(
        absl::StrCat("gradients/reduced/", buckets[i].name),
        builder.graph().tensors[gradients].dims, DType::kFloat32);
    EmitReduceToShard(builder, buckets[i], whole, sum);
    builder.Emit(
        {.kind = OpKind::kAccumulateGradients,
         .phase = Phase::kGradientReduce,
         .name = absl::StrCat("accumulate_gradients/", buckets[i].name),
         .attributes =
             OptimizerAttributes{.num_elements = buckets[i].num_elements,
                                 .data_sharded = true},
         .inputs = {sum, gradients},
         .outputs = {gradients}});
    builder.EmitTo(&graph.last_reduce_by_bucket[i]);
    if (builder.layout().data_groups > 1) {
      EmitSumAcross(builder, buckets[i], gradients);
    }
  }
}

// Whether the bucket is a tied embedding, of which a pipeline's first and last
// stage have a copy each.
bool IsOnBothEnds(const GraphBuilder& builder, const Bucket& bucket) {
  return builder.model().ties_embedding && builder.layout().pipeline > 1 &&
         (bucket.is_copy || bucket.name == "embedding");
}

// Sums the gradients of both copies of a tied embedding: each end sends its own
// to the other, stage by stage, and adds what comes. A sum of two numbers does
// not depend on their order, so both ends update alike.
void EmitSumOfBothEnds(GraphBuilder& builder) {
  const ModelSpec& model = builder.model();
  const Layout& layout = builder.layout();
  if (!model.ties_embedding || layout.pipeline == 1) return;
  const std::vector<Bucket>& buckets = builder.graph().parameters.buckets;
  const auto own = std::find_if(
      buckets.begin(), buckets.end(),
      [&](const Bucket& bucket) { return IsOnBothEnds(builder, bucket); });
  const int64_t num_elements =
      RoundUp(builder.shapes().vocab_rows * model.hidden,
              layout.data * BucketAlignment(layout));
  const bool sharded = layout.shards_gradients();
  const int64_t num_sent =
      sharded ? num_elements / layout.group_data() : num_elements;
  const auto transfer = [&](OpKind kind, Direction direction, TensorId tensor) {
    GraphOp op{
        .kind = kind,
        .phase = Phase::kOptimizer,
        .name = absl::StrCat(
            kind == OpKind::kSend ? "send" : "receive", "_tied_gradients/",
            direction == Direction::kToNext ? "to_next" : "to_previous"),
        .attributes = TransferAttributes{.direction = direction,
                                         .num_elements = num_sent,
                                         .dtype = DType::kFloat32}};
    (kind == OpKind::kSend ? op.inputs : op.outputs) = {tensor};
    builder.Emit(std::move(op));
  };
  const auto receive = [&](Direction direction) {
    const TensorId received = builder.AddTensor(
        absl::StrCat("tied_gradients/",
                     direction == Direction::kToNext ? "of_first" : "of_last"),
        {num_sent}, DType::kFloat32);
    transfer(OpKind::kReceive, direction, received);
    return received;
  };
  if (own == buckets.end()) {
    for (const Direction direction :
         {Direction::kToNext, Direction::kToPrevious}) {
      transfer(OpKind::kSend, direction, receive(direction));
    }
    return;
  }
  const TensorId gradients =
      builder.bucket_tensors()[own - buckets.begin()].gradients;
  const Direction away =
      builder.is_first_stage() ? Direction::kToNext : Direction::kToPrevious;
  const Direction back =
      builder.is_first_stage() ? Direction::kToPrevious : Direction::kToNext;
  transfer(OpKind::kSend, away, gradients);
  const TensorId others = receive(back);
  builder.Emit({.kind = OpKind::kAccumulateGradients,
                .phase = Phase::kOptimizer,
                .name = "add_tied_gradients",
                .attributes = OptimizerAttributes{.num_elements = num_elements,
                                                  .data_sharded = sharded},
                .inputs = {others, gradients},
                .outputs = {gradients}});
}

void EmitSquaredNorm(GraphBuilder& builder, const Bucket& bucket,
                     TensorId gradients) {
  const Layout& layout = builder.layout();
  const bool sharded = layout.shards_optimizer();
  const double copies = 1.0 * (sharded ? layout.data_groups : layout.data) *
                        (bucket.tensor_replicated ? layout.tensor : 1.0) *
                        (IsOnBothEnds(builder, bucket) ? 2.0 : 1.0);
  builder.Emit(
      {.kind = OpKind::kSquaredNorm,
       .phase = Phase::kOptimizer,
       .name = absl::StrCat("squared_norm/", bucket.name),
       .attributes = OptimizerAttributes{.num_elements = bucket.num_elements,
                                         .data_sharded = sharded,
                                         .share = 1.0 / copies},
       .inputs = {gradients},
       .outputs = {builder.graph().persistent.scalars}});
}

void EmitClipFactor(GraphBuilder& builder) {
  const PersistentLayout& persistent = builder.graph().persistent;
  builder.Emit({.kind = OpKind::kClipFactor,
                .phase = Phase::kOptimizer,
                .name = "clip_factor",
                .attributes = NoAttributes{},
                .inputs = {persistent.scalars},
                .outputs = {persistent.clip_factor, persistent.skip}});
}

// The parameters follow the master weights where there are any, but for those
// in 8 bits, which the next step makes.
void EmitUpdate(GraphBuilder& builder, const Bucket& bucket,
                const BucketTensors& tensors) {
  const PersistentLayout& persistent = builder.graph().persistent;
  const bool in_float8 = bucket.in_float8();
  const TensorId parameters = in_float8 ? tensors.weights : tensors.parameters;
  GraphOp op{
      .kind = OpKind::kAdamW,
      .phase = Phase::kOptimizer,
      .name = absl::StrCat("update/", bucket.name),
      .attributes = OptimizerAttributes{.num_elements = bucket.num_elements,
                                        .data_sharded =
                                            builder.layout().shards_optimizer(),
                                        .weight_decay = bucket.weight_decay,
                                        .in_float8 = in_float8},
      .inputs = {parameters, tensors.gradients, tensors.exp_avg,
                 tensors.exp_avg_sq, persistent.clip_factor, persistent.skip},
      .outputs = {parameters, tensors.exp_avg, tensors.exp_avg_sq}};
  if (tensors.master >= 0) {
    op.inputs.push_back(tensors.master);
    op.outputs.push_back(tensors.master);
  }
  builder.Emit(std::move(op));
}

}  // namespace

void EmitZeroScalars(GraphBuilder& builder) {
  static_assert(kLossScalar == 0 && kSquaredNormScalar == 1);
  const TensorId summed = builder.AddView(
      "scalars/summed", builder.graph().persistent.scalars, 0, {2});
  builder.Emit({.kind = OpKind::kZero,
                .phase = Phase::kForward,
                .name = "zero_scalars",
                .attributes = ElementwiseAttributes{.rows = 1, .cols = 2},
                .outputs = {summed}});
}

void EmitReduceScalars(GraphBuilder& builder) {
  if (builder.layout().num_ranks() == 1) return;
  const TensorId scalars = builder.graph().persistent.scalars;
  builder.Emit(
      {.kind = OpKind::kAllReduce,
       .phase = Phase::kOptimizer,
       .name = "reduce_scalars",
       .attributes = CollectiveAttributes{.group = Group::kWorld,
                                          .num_elements =
                                              NumStepScalars(builder.layout()),
                                          .dtype = DType::kFloat64},
       .inputs = {scalars},
       .outputs = {scalars}});
}

void EmitParameters(GraphBuilder& builder) {
  const Layout& layout = builder.layout();
  TensorId amaxes = EmitWeightAmaxes(builder);
  if (!layout.shards_optimizer() || layout.shards_parameters()) {
    EmitQuantizeWeights(builder, amaxes);
    return;
  }
  const std::vector<BucketTensors>& views = builder.bucket_tensors();
  const std::vector<Bucket>& buckets = builder.graph().parameters.buckets;
  // As the forward pass needs them. Norms and biases, the last, are few and
  // every layer has some: they come before all layers.
  std::vector<size_t> order(buckets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto layers = std::find_if(order.begin(), order.end(), [&](size_t i) {
    return absl::StartsWith(buckets[i].name, "layers.");
  });
  const auto vectors = std::find_if(
      layers, order.end(), [&](size_t i) { return !buckets[i].weight_decay; });
  std::rotate(layers, vectors, order.end());
  for (const size_t i : order) {
    // The buckets before these are gathered while their magnitudes are found.
    if (buckets[i].in_float8()) {
      EmitQuantizeWeights(builder, std::exchange(amaxes, -1));
    }
    EmitInPlaceCollective(builder, OpKind::kAllGather, ShardGroup(layout),
                          Phase::kParameterGather,
                          absl::StrCat("gather_parameters/", buckets[i].name),
                          views[i].parameters);
  }
}

void EmitCastParameters(GraphBuilder& builder) {
  const std::vector<BucketTensors>& views = builder.bucket_tensors();
  const std::vector<Bucket>& buckets = builder.graph().parameters.buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].in_float8()) continue;
    builder.Emit({.kind = OpKind::kCastParameters,
                  .phase = Phase::kOptimizer,
                  .name = absl::StrCat("cast_parameters/", buckets[i].name),
                  .attributes =
                      OptimizerAttributes{
                          .num_elements = buckets[i].num_elements,
                          .data_sharded = builder.layout().shards_optimizer(),
                          .weight_decay = buckets[i].weight_decay},
                  .inputs = {views[i].master},
                  .outputs = {views[i].parameters}});
  }
}

void EmitOptimizer(GraphBuilder& builder) {
  Graph& graph = builder.graph();
  const Layout& layout = builder.layout();
  const std::vector<BucketTensors>& views = builder.bucket_tensors();
  const std::vector<Bucket>& buckets = graph.parameters.buckets;
  const size_t num_buckets = buckets.size();

  graph.reduce_by_bucket.resize(num_buckets);
  if (layout.shards_gradients()) {
    EmitShardedReductions(builder);
  } else {
    builder.EmitTo(&graph.prologue);
    for (size_t i = 0; i < num_buckets; ++i) {
      if (layout.shards_optimizer() &&
          HasPadding(graph.parameters, buckets[i])) {
        EmitZeroPadding(builder, buckets[i], views[i].gradients);
      }
    }
    for (size_t i = 0; i < num_buckets; ++i) {
      builder.EmitTo(&graph.reduce_by_bucket[i]);
      EmitReduceGradients(builder, buckets[i], views[i].gradients);
    }
  }
  builder.EmitTo(&graph.epilogue);
  EmitSumOfBothEnds(builder);
  // In the order in which the reductions end.
  for (const GraphOp& op : graph.backward) {
    if (op.completes_bucket < 0) continue;
    const int32_t i = op.completes_bucket;
    EmitSquaredNorm(builder, buckets[i], views[i].gradients);
  }
  EmitReduceScalars(builder);
  EmitClipFactor(builder);
  for (size_t i = 0; i < num_buckets; ++i) {
    EmitUpdate(builder, buckets[i], views[i]);
  }
}

}  // namespace millrace
