// Weights in 8 bits, from those that the optimizer updates to what products
// read; see graph_builder.h and graph_step.h.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "planner/lower/graph_builder.h"
#include "planner/lower/graph_step.h"

namespace millrace {

int64_t GraphBuilder::NumFloat8Elements() const {
  int64_t num_elements = 0;
  for (const Bucket& bucket : graph_.parameters.buckets) {
    if (!bucket.in_float8()) continue;
    num_elements += NumKept(bucket, layout_.shards_parameters());
  }
  return num_elements;
}

int64_t GraphBuilder::UnitsOffset(const Bucket& bucket) const {
  const std::vector<Bucket>& buckets = graph_.parameters.buckets;
  const auto num_before =
      std::count_if(buckets.begin(), buckets.end(), [&](const Bucket& other) {
        return other.in_float8() && other.offset < bucket.offset;
      });
  return kNumberStride * kFloat8Matrices * num_before;
}

TensorId GraphBuilder::AddUnits(const Bucket& bucket) {
  return AddView(absl::StrCat("units/", bucket.name),
                 graph_.persistent.float8_units, UnitsOffset(bucket),
                 {kNumberStride * kFloat8Matrices});
}

void GraphBuilder::AddFloat8Tensors(const std::string& name,
                                    const Bucket& bucket,
                                    int64_t offset_in_bucket,
                                    int64_t rows_offset, Weight* weight) {
  const std::vector<int64_t>& begins = bucket.float8_matrices;
  const auto matrix = std::find(begins.begin(), begins.end(), offset_in_bucket);
  CHECK(matrix != begins.end()) << name;
  const PersistentLayout& persistent = graph_.persistent;
  weight->unit = AddView(
      absl::StrCat("units/", name), persistent.float8_units,
      UnitsOffset(bucket) + kNumberStride * (matrix - begins.begin()), {1});
  // Nothing reads it after a validation pass.
  if (layout_.shards_parameters() || kind_ != ProgramKind::kTraining) return;
  weight->transposed =
      AddView(absl::StrCat("transposed/", name), persistent.float8_weights,
              NumFloat8Elements() + rows_offset + offset_in_bucket,
              {weight->cols, weight->rows});
}

TensorId GraphBuilder::Transposed(const std::string& product, Phase phase,
                                  Weight& weight) {
  if (weight.is_transposed) return weight.transposed;
  const bool is_for_all = weight.transposed >= 0;
  const ElementwiseAttributes attributes = {.rows = weight.rows,
                                            .cols = weight.cols};
  const std::string name = absl::StrCat(product, "/transpose_weight");
  const TensorId transposed =
      is_for_all ? weight.transposed
                 : AddOutput(name, OpKind::kTransposeFloat8, attributes);
  weight.is_transposed = is_for_all;
  Emit({.kind = OpKind::kTransposeFloat8,
        .phase = phase,
        .name = name,
        .attributes = attributes,
        .inputs = {ParameterOf(weight, phase)},
        .outputs = {transposed},
        .first_microbatch_only = is_for_all});
  return transposed;
}

namespace {

WeightBucketAttributes AttributesOf(const GraphBuilder& builder,
                                    const Bucket& bucket) {
  WeightBucketAttributes attributes = {
      .num_elements = bucket.num_elements,
      .data_sharded = builder.layout().shards_optimizer(),
      .num_buckets = 0};
  CHECK(bucket.float8_matrices.size() == attributes.begins.size());
  std::copy(bucket.float8_matrices.begin(), bucket.float8_matrices.end(),
            attributes.begins.begin());
  for (const Bucket& other : builder.graph().parameters.buckets) {
    if (!other.in_float8()) continue;
    if (other.offset == bucket.offset) {
      attributes.bucket_idx = attributes.num_buckets;
    }
    ++attributes.num_buckets;
  }
  return attributes;
}

}  // namespace

TensorId EmitWeightAmaxes(GraphBuilder& builder) {
  const std::vector<Bucket>& buckets = builder.graph().parameters.buckets;
  const auto num_buckets =
      std::count_if(buckets.begin(), buckets.end(),
                    [](const Bucket& bucket) { return bucket.in_float8(); });
  if (num_buckets == 0) return -1;
  const TensorId amaxes = builder.AddTensor(
      "weight_amaxes", {kNumberStride * num_buckets}, DType::kFloat32);
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].in_float8()) continue;
    const WeightBucketAttributes attributes = AttributesOf(builder, buckets[i]);
    builder.Emit(
        {.kind = OpKind::kWeightAmax,
         .phase = Phase::kParameterGather,
         .name = absl::StrCat(buckets[i].name, "/weight_amax"),
         .attributes = attributes,
         .inputs = {builder.bucket_tensors()[i].weights},
         .outputs = {builder.AddPart(
             absl::StrCat("weight_amaxes/", buckets[i].name), amaxes,
             kNumberStride * attributes.bucket_idx, {kNumberStride})}});
  }
  return amaxes;
}

void EmitQuantizeWeights(GraphBuilder& builder, TensorId amaxes) {
  if (amaxes < 0) return;
  const Layout& layout = builder.layout();
  const std::vector<Bucket>& buckets = builder.graph().parameters.buckets;
  const int64_t num_amaxes = builder.graph().tensors[amaxes].dims[0];
  const Group group = ShardGroup(layout);
  const int64_t num_ranks =
      layout.shards_optimizer() ? GroupSize(layout, group) : 1;
  TensorId gathered = amaxes;
  if (num_ranks > 1) {
    gathered = builder.AddTensor("weight_amaxes/of_all_ranks",
                                 {num_ranks * num_amaxes}, DType::kFloat32);
    builder.Emit({.kind = OpKind::kAllGather,
                  .phase = Phase::kParameterGather,
                  .name = "gather_weight_amaxes",
                  .attributes = CollectiveAttributes{.group = group,
                                                     .num_elements =
                                                         num_ranks * num_amaxes,
                                                     .dtype = DType::kFloat32},
                  .inputs = {amaxes},
                  .outputs = {gathered}});
  }
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buckets[i].in_float8()) continue;
    const BucketTensors& tensors = builder.bucket_tensors()[i];
    builder.Emit(
        {.kind = OpKind::kQuantizeWeights,
         .phase = Phase::kParameterGather,
         .name = absl::StrCat(buckets[i].name, "/quantize_weights"),
         .attributes = AttributesOf(builder, buckets[i]),
         .inputs = {tensors.weights, gathered},
         .outputs = {builder.AddUnits(buckets[i]), tensors.parameters}});
  }
}

}  // namespace millrace
