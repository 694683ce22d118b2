#include "planner/lower/graph_builder.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/units.h"
#include "planner/program/op_table.h"
#include "planner/program/workspace.h"

namespace millrace {

GraphBuilder::GraphBuilder(const ModelSpec& model, const Layout& layout,
                           int32_t stage)
    : model_(model), layout_(layout), stage_(stage) {
  const int64_t num_tokens = layout.micro_batch * model.sequence_length;
  shapes_ = {.num_sequences = layout.micro_batch,
             .sequence_length = model.sequence_length,
             .num_tokens = num_tokens,
             .shard_tokens = num_tokens / layout.tensor,
             .hidden = model.hidden,
             .num_heads = model.num_heads / layout.tensor,
             .num_kv_heads = model.num_kv_heads / layout.tensor,
             .head_dim = model.head_dim,
             .ffn_hidden = model.ffn_hidden / layout.tensor,
             .vocab_rows = model.vocab_size / layout.tensor,
             .position_rows = model.learned_positions / layout.tensor};
  graph_.parameters = BuildStageParameters(model, layout, stage);
}

void GraphBuilder::AddPersistentTensors(ProgramKind kind) {
  kind_ = kind;
  const bool is_training = kind == ProgramKind::kTraining;
  PersistentLayout& persistent = graph_.persistent;
  auto add = [&](std::string name, int64_t num_elements, DType dtype,
                 bool present) {
    TensorId id = -1;
    if (present) {
      id = AddTensor(std::move(name), {num_elements}, dtype);
      graph_.tensors[id].persistent_offset_bytes = persistent.bytes;
    }
    persistent.bytes = RoundUp(
        persistent.bytes + num_elements * DTypeBytes(dtype), kBufferAlignment);
    return id;
  };
  const int64_t num_elements = graph_.parameters.num_elements;
  const int64_t num_moments = graph_.parameters.num_optimizer_elements;
  const bool has_masters = RecipeOf(layout_).has_masters();
  const Bucket& norms = graph_.parameters.buckets.back();
  CHECK(norms.name == "norms") << norms.name;
  const int64_t num_norms = NumKept(norms, layout_.shards_parameters());
  const int64_t num_float8 = NumFloat8Elements();
  persistent.parameters =
      add("parameters",
          (layout_.shards_parameters() ? num_moments : num_elements) -
              (has_masters ? num_norms + num_float8 : 0),
          activation_type(), true);
  persistent.gradients =
      add("gradients", layout_.shards_gradients() ? num_moments : num_elements,
          DType::kFloat32, true);
  const MomentDescriptor& moments = Describe(layout_.moments);
  const int64_t numbers = DTypeNumbers(moments.exp_avg);
  persistent.exp_avg =
      add("exp_avg", num_moments / numbers, moments.exp_avg, is_training);
  persistent.exp_avg_sq =
      add("exp_avg_sq", num_moments / numbers, moments.exp_avg_sq, is_training);
  persistent.scalars =
      add("scalars", NumStepScalars(layout_), DType::kFloat64, true);
  persistent.clip_factor = add("clip_factor", 1, DType::kFloat32, is_training);
  persistent.skip = add("skip", 1, DType::kInt32, is_training);
  if (has_masters) {
    persistent.master = add("master", num_moments, DType::kFloat32,
                            kind != ProgramKind::kValidation || num_float8 > 0);
    persistent.norms = add("norms", num_norms, DType::kFloat32, true);
    persistent.scratch =
        add("scratch", kComputeScratchBytes / DTypeBytes(DType::kInt32),
            DType::kInt32, true);
  }
  if (num_float8 > 0) {
    const int64_t num_forms = layout_.shards_parameters() ? 1 : 2;
    persistent.float8_weights =
        add("float8_weights", num_forms * num_float8, DType::kFloat8E4m3, true);
    const auto num_buckets = std::count_if(
        graph_.parameters.buckets.begin(), graph_.parameters.buckets.end(),
        [](const Bucket& bucket) { return bucket.in_float8(); });
    persistent.float8_units =
        add("float8_units", kNumberStride * kFloat8Matrices * num_buckets,
            DType::kFloat32, true);
  }
  if (layout_.gemm_format == GemmFormat::kFloat8Blocks &&
      !layout_.shards_parameters() && NumCopiedLayers() > 0) {
    const bool is_read = kind != ProgramKind::kPublish;
    persistent.float8_weights = add("float8_weights", 2 * NumCopiedElements(),
                                    DType::kFloat8E4m3, is_read);
    persistent.float8_units =
        add("float8_units", NumBlockUnits(), DType::kFloat32, is_read);
  }
  if (layout_.trains_preferences() && is_last_stage()) {
    persistent.answers = add("answers", layout_.data * shapes_.num_tokens,
                             DType::kFloat32, kind == ProgramKind::kValidation);
  }
  AddBucketTensors();
}

int64_t GraphBuilder::NumKept(const Bucket& bucket, bool sharded) const {
  return bucket.num_elements / (sharded ? layout_.group_data() : 1);
}

void GraphBuilder::PlaceBuckets() {
  const PersistentLayout& persistent = graph_.persistent;
  int64_t num_stored = 0, num_float8 = 0;
  for (const Bucket& bucket : graph_.parameters.buckets) {
    const int64_t kept = NumKept(bucket, layout_.shards_parameters());
    const bool has_masters = persistent.norms >= 0;
    Place place = {persistent.parameters, num_stored};
    Place update = {-1, 0};
    if (has_masters && bucket.name == "norms") {
      place = {persistent.norms, 0};
    } else if (bucket.in_float8()) {
      if (!has_masters) update = place;
      place = {persistent.float8_weights, num_float8};
      num_float8 += kept;
    }
    if (place.flat == persistent.parameters || update.flat >= 0) {
      num_stored += kept;
    }
    places_.push_back(place);
    update_places_.push_back(update);
  }
}

void GraphBuilder::AddBucketTensors() {
  PlaceBuckets();
  const PersistentLayout& persistent = graph_.persistent;
  int64_t slice_offset = 0;
  for (size_t i = 0; i < graph_.parameters.buckets.size(); ++i) {
    const Bucket& bucket = graph_.parameters.buckets[i];
    const int64_t slice = NumKept(bucket, layout_.shards_optimizer());
    auto view = [&](absl::string_view flat_name, TensorId flat, bool sharded) {
      if (flat < 0) return TensorId{-1};
      const int64_t numbers = DTypeNumbers(graph_.tensors[flat].dtype);
      return AddView(absl::StrCat(flat_name, "/bucket/", bucket.name), flat,
                     (sharded ? slice_offset : bucket.offset) / numbers,
                     {(sharded ? slice : bucket.num_elements) / numbers});
    };
    const auto whole = [&](absl::string_view flat_name, const Place& place) {
      return AddView(absl::StrCat(flat_name, "/bucket/", bucket.name),
                     place.flat, place.element_offset,
                     {NumKept(bucket, layout_.shards_parameters())});
    };
    BucketTensors tensors = {
        .parameters = whole("parameters", places_[i]),
        .weights = -1,
        .gradients =
            view("gradients", persistent.gradients, layout_.shards_gradients()),
        .exp_avg = view("exp_avg", persistent.exp_avg, true),
        .exp_avg_sq = view("exp_avg_sq", persistent.exp_avg_sq, true),
        .master = view("master", persistent.master, true)};
    if (bucket.in_float8()) {
      tensors.weights = update_places_[i].flat < 0
                            ? tensors.master
                            : whole("weights", update_places_[i]);
    }
    bucket_tensors_.push_back(tensors);
    slice_offset += slice;
  }
}

TensorId GraphBuilder::AddTensor(std::string name, std::vector<int64_t> dims) {
  return AddTensor(std::move(name), std::move(dims), activation_type());
}

TensorId GraphBuilder::AddOutput(std::string name, OpKind kind,
                                 const OpAttributes& attributes, size_t i) {
  const OperandSpec& output = Describe(kind).outputs[i];
  return AddTensor(std::move(name), OperandDims(output, layout_, attributes),
                   OperandType(output, layout_, attributes));
}

TensorId GraphBuilder::AddTensor(std::string name, std::vector<int64_t> dims,
                                 DType dtype) {
  graph_.tensors.push_back(
      {.name = std::move(name), .dtype = dtype, .dims = std::move(dims)});
  return static_cast<TensorId>(graph_.tensors.size()) - 1;
}

TensorId GraphBuilder::AddView(std::string name, TensorId flat,
                               int64_t element_offset,
                               std::vector<int64_t> dims) {
  const DType dtype = graph_.tensors[flat].dtype;
  const int64_t offset_bytes = graph_.tensors[flat].persistent_offset_bytes +
                               element_offset * DTypeBytes(dtype);
  const TensorId id = AddTensor(std::move(name), std::move(dims), dtype);
  graph_.tensors[id].persistent_offset_bytes = offset_bytes;
  return id;
}

TensorId GraphBuilder::AddPart(std::string name, TensorId whole,
                               int64_t element_offset,
                               std::vector<int64_t> dims) {
  const DType dtype = graph_.tensors[whole].dtype;
  const TensorId id = AddTensor(std::move(name), std::move(dims), dtype);
  graph_.tensors[id].parent = whole;
  graph_.tensors[id].parent_offset_bytes = element_offset * DTypeBytes(dtype);
  return id;
}

Weight GraphBuilder::AddWeight(const std::string& name, absl::string_view first,
                               int64_t rows, int64_t cols) {
  const int64_t offset = SlotOf(first).offset;
  const int32_t bucket = BucketAt(offset);
  const Bucket& held_by = graph_.parameters.buckets[bucket];
  const int64_t offset_in_bucket = offset - held_by.offset;
  const Place& place = places_[static_cast<size_t>(bucket)];
  const std::vector<int64_t> dims =
      rows == 1 ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols};
  ShardedPasses& sharded = graph_.sharded;
  const auto part = [&](std::vector<TensorId>& by_bucket,
                        absl::string_view kind, DType dtype) {
    return AddPart(absl::StrCat(kind, "/", name),
                   StepBucket(by_bucket, bucket, kind, dtype), offset_in_bucket,
                   dims);
  };
  Weight weight{.rows = rows, .cols = cols};
  if (layout_.shards_parameters()) {
    const DType dtype = graph_.tensors[place.flat].dtype;
    weight.parameter = part(sharded.forward_parameters, "parameters", dtype);
    weight.backward_parameter =
        part(sharded.backward_parameters, "parameters_again", dtype);
  } else {
    weight.parameter = AddView(absl::StrCat("parameters/", name), place.flat,
                               place.element_offset + offset_in_bucket, dims);
    weight.backward_parameter = weight.parameter;
  }
  if (held_by.in_float8()) {
    AddFloat8Tensors(name, held_by, offset_in_bucket, place.element_offset,
                     &weight);
  }
  weight.gradient = layout_.shards_gradients()
                        ? part(sharded.gradients, "gradients", DType::kFloat32)
                        : AddView(absl::StrCat("gradients/", name),
                                  graph_.persistent.gradients, offset, dims);
  return weight;
}

void GraphBuilder::EmitTo(std::vector<GraphOp>* ops) { ops_ = ops; }

GraphOp& GraphBuilder::Emit(GraphOp op) {
  CHECK(ops_ != nullptr);
  if (FindsAmax(op.attributes)) {
    const TensorId amax =
        AddTensor(absl::StrCat(op.name, "/amax"), {1}, DType::kFloat32);
    amax_of_[op.outputs.at(MainOutput(op.kind))] = amax;
    op.outputs.push_back(amax);
  }
  ops_->push_back(std::move(op));
  return ops_->back();
}

GraphOp& GraphBuilder::Emit(std::string name, const LayerOp& op,
                            std::vector<TensorId> inputs,
                            std::vector<TensorId> outputs) {
  return Emit({.kind = op.kind,
               .phase = op.phase,
               .name = std::move(name),
               .attributes = op.attributes,
               .inputs = std::move(inputs),
               .outputs = std::move(outputs)});
}

TensorId GraphBuilder::EmitLinear(const std::string& name, const LayerOp& op,
                                  TensorId x, const Weight& weight,
                                  const Weight& bias) {
  const TensorId y = AddOutput(name, op, 0);
  GraphOp& linear = Emit(name, op, {x, ParameterOf(weight, op.phase)}, {y});
  if (std::get<GemmAttributes>(op.attributes).bias) {
    linear.inputs.push_back(ParameterOf(bias, op.phase));
  }
  return y;
}

TensorId GraphBuilder::EmitInputGradient(const std::string& name,
                                         const LayerOp& op, TensorId d_y,
                                         const Weight& weight) {
  const TensorId d_x = AddOutput(name, op, 0);
  Emit(name, op, {d_y, weight.backward_parameter}, {d_x});
  return d_x;
}

GraphOp GraphBuilder::WeightGradient(std::string name, const LayerOp& op,
                                     TensorId d_y, TensorId x,
                                     const Weight& weight) {
  return {.kind = op.kind,
          .phase = op.phase,
          .name = std::move(name),
          .attributes = op.attributes,
          .inputs = {d_y, x},
          .outputs = {weight.gradient}};
}

void GraphBuilder::EmitQuantize(const std::string& name, const LayerOp& op,
                                TensorId x, Float8Copies* copies) {
  if (op.kind == OpKind::kQuantizeFloat8Blocks) {
    return EmitQuantizeBlocks(name, op, x, copies);
  }
  auto attributes = std::get<QuantizeAttributes>(op.attributes);
  if (kind_ == ProgramKind::kValidation) attributes.keeps_transposed = false;
  const auto output = [&](const char* what, size_t i) {
    return AddOutput(absl::StrCat(name, "/", what), op.kind, attributes, i);
  };
  copies->unit = copies->transposed_unit = output("unit", 0);
  GraphOp quantize{.kind = op.kind,
                   .phase = op.phase,
                   .name = name,
                   .attributes = attributes,
                   .inputs = {x},
                   .outputs = {copies->unit}};
  if (attributes.amax_given) {
    quantize.inputs.push_back(amax_of_.at(x));
  } else {
    quantize.outputs.push_back(output("amax", 1));
  }
  if (attributes.keeps_rows) {
    copies->rows = output("rows", 2);
    quantize.outputs.push_back(copies->rows);
  }
  if (attributes.keeps_transposed) {
    copies->transposed = output("transposed", 3);
    quantize.outputs.push_back(copies->transposed);
  }
  Emit(std::move(quantize));
}

Float8Copies GraphBuilder::CopiesOf(const std::string& product, Phase phase,
                                    Weight& weight, bool transposed) {
  if (layout_.gemm_format == GemmFormat::kFloat8Blocks) {
    return BlockCopiesOf(absl::StrCat(product, "/quantize_weight"), phase,
                         weight, transposed);
  }
  Float8Copies copies = {.unit = weight.unit,
                         .rows = ParameterOf(weight, phase),
                         .transposed_unit = weight.unit};
  // The first forward pass transposes it for all passes.
  if (transposed || weight.transposed >= 0) {
    copies.transposed = Transposed(product, phase, weight);
  }
  return copies;
}

TensorId GraphBuilder::EmitFloat8Linear(const std::string& name,
                                        const LayerOp& op,
                                        const Float8Copies& x, Weight& weight,
                                        const Weight& bias) {
  const Float8Copies copies =
      CopiesOf(name, op.phase, weight, /*transposed=*/false);
  const TensorId y = AddOutput(name, op, 0);
  GraphOp& linear =
      Emit(name, op, {x.rows, copies.rows, x.unit, copies.unit}, {y});
  if (std::get<GemmAttributes>(op.attributes).bias) {
    linear.inputs.push_back(ParameterOf(bias, op.phase));
  }
  return y;
}

TensorId GraphBuilder::EmitFloat8InputGradient(const std::string& name,
                                               const LayerOp& op,
                                               const Float8Copies& d_y,
                                               Weight& weight) {
  const Float8Copies copies =
      CopiesOf(name, op.phase, weight, /*transposed=*/true);
  const TensorId d_x = AddOutput(name, op, 0);
  Emit(name, op,
       {d_y.rows, copies.transposed, d_y.unit, copies.transposed_unit}, {d_x});
  return d_x;
}

GraphOp GraphBuilder::Float8WeightGradient(std::string name, const LayerOp& op,
                                           const Float8Copies& d_y,
                                           const Float8Copies& x,
                                           const Weight& weight) {
  return {.kind = op.kind,
          .phase = op.phase,
          .name = std::move(name),
          .attributes = op.attributes,
          .inputs = {d_y.transposed, x.transposed, d_y.transposed_unit,
                     x.transposed_unit},
          .outputs = {weight.gradient}};
}

TensorId GraphBuilder::EmitTensorGather(const std::string& name,
                                        const LayerOp& op, TensorId shard) {
  const TensorId full = AddTensor(name, {shapes_.num_tokens, shapes_.hidden});
  Emit(name, op, {shard}, {full});
  return full;
}

TensorId GraphBuilder::EmitTensorReduceScatter(const std::string& name,
                                               const LayerOp& op,
                                               TensorId full) {
  const TensorId shard =
      AddTensor(name, {shapes_.shard_tokens, shapes_.hidden});
  Emit(name, op, {full}, {shard});
  return shard;
}

SavedNorm GraphBuilder::AddNormWeights(const std::string& name,
                                       const std::string& parameter) {
  SavedNorm norm{};
  norm.weight =
      AddWeight(name, absl::StrCat(parameter, ".weight"), 1, shapes_.hidden);
  if (model_.norm == NormKind::kLayer) {
    norm.bias = AddWeight(absl::StrCat(name, "_bias"),
                          absl::StrCat(parameter, ".bias"), 1, shapes_.hidden);
  }
  return norm;
}

SavedNorm GraphBuilder::EmitNorm(const std::string& name, const LayerOp& op,
                                 TensorId x, TensorId delta,
                                 const SavedNorm& norm) {
  const bool adds = AddsToStream(op.kind);
  const bool has_mean = norm.bias.parameter >= 0;
  const size_t y = adds ? 1 : 0;  // After the sum of the stream.
  SavedNorm saved = norm;
  saved.output = AddOutput(absl::StrCat(name, "/output"), op, y);
  saved.rstd = AddOutput(absl::StrCat(name, "/rstd"), op, y + 1);
  if (has_mean) {
    saved.mean = AddOutput(absl::StrCat(name, "/mean"), op, y + 2);
  }
  saved.residual = adds ? AddOutput(absl::StrCat(name, "/residual"), op, 0) : x;
  GraphOp emitted{.kind = op.kind,
                  .phase = op.phase,
                  .name = name,
                  .attributes = op.attributes,
                  .inputs = {x}};
  if (adds) {
    emitted.inputs.push_back(delta);
    emitted.outputs.push_back(saved.residual);
  }
  emitted.inputs.push_back(ParameterOf(norm.weight, op.phase));
  emitted.outputs.push_back(saved.output);
  emitted.outputs.push_back(saved.rstd);
  if (has_mean) {
    emitted.inputs.push_back(ParameterOf(norm.bias, op.phase));
    emitted.outputs.push_back(saved.mean);
  }
  Emit(std::move(emitted));
  return saved;
}

TensorId GraphBuilder::EmitNormBackward(const std::string& name,
                                        const LayerOp& op,
                                        const SavedNorm& saved, TensorId d_y,
                                        TensorId d_residual) {
  const TensorId d_x = AddOutput(name, op, 0);
  GraphOp norm{.kind = op.kind,
               .phase = op.phase,
               .name = name,
               .attributes = op.attributes,
               .inputs = {d_y, saved.residual, saved.rstd},
               .outputs = {d_x, saved.weight.gradient}};
  if (saved.mean >= 0) {
    norm.inputs.push_back(saved.mean);
    norm.outputs.push_back(saved.bias.gradient);
  }
  norm.inputs.push_back(saved.weight.backward_parameter);
  if (d_residual >= 0) norm.inputs.push_back(d_residual);
  Emit(std::move(norm));
  return d_x;
}

void GraphBuilder::EmitDeferred() {
  if (holds_deferred_) return;
  for (GraphOp& op : deferred_) Emit(std::move(op));
  deferred_.clear();
}

int32_t GraphBuilder::BucketIndex(absl::string_view name) const {
  const std::vector<Bucket>& buckets = graph_.parameters.buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].name == name) return static_cast<int32_t>(i);
  }
  CHECK(false) << "stage " << stage_ << " has no bucket " << name;
  return -1;
}

bool GraphBuilder::IsGradientOf(size_t bucket, TensorId tensor) const {
  const GraphTensor& found = graph_.tensors[static_cast<size_t>(tensor)];
  if (layout_.shards_gradients()) {
    return found.parent >= 0 &&
           found.parent == graph_.sharded.gradients[bucket];
  }
  const Bucket& of = graph_.parameters.buckets[bucket];
  const GraphTensor& flat =
      graph_.tensors[static_cast<size_t>(graph_.persistent.gradients)];
  const int64_t begin =
      flat.persistent_offset_bytes + of.offset * DTypeBytes(DType::kFloat32);
  return found.persistent_offset_bytes >= begin &&
         found.persistent_offset_bytes <
             begin + of.num_elements * DTypeBytes(DType::kFloat32);
}

void GraphBuilder::CompleteAtLast(absl::string_view bucket,
                                  std::vector<GraphOp>* ops) {
  const std::vector<Bucket>& buckets = graph_.parameters.buckets;
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i].name != bucket) continue;
    const auto last =
        std::find_if(ops->rbegin(), ops->rend(), [&](const GraphOp& op) {
          return std::any_of(
              op.outputs.begin(), op.outputs.end(),
              [&](TensorId output) { return IsGradientOf(i, output); });
        });
    CHECK(last != ops->rend()) << bucket;
    last->completes_bucket = static_cast<int32_t>(i);
  }
}

const ParameterSlot& GraphBuilder::SlotOf(absl::string_view parameter) const {
  const std::vector<ParameterSlot>& slots = graph_.parameters.slots;
  const auto found =
      std::find_if(slots.begin(), slots.end(), [&](const ParameterSlot& slot) {
        return slot.parameter.name == parameter;
      });
  CHECK(found != slots.end())
      << "stage " << stage_ << " has no parameter " << parameter;
  return *found;
}

int32_t GraphBuilder::BucketAt(int64_t element_offset) const {
  const std::vector<Bucket>& buckets = graph_.parameters.buckets;
  const auto after =
      std::upper_bound(buckets.begin(), buckets.end(), element_offset,
                       [](int64_t offset, const Bucket& bucket) {
                         return offset < bucket.offset;
                       });
  CHECK(after != buckets.begin());
  return static_cast<int32_t>(after - buckets.begin()) - 1;
}

TensorId GraphBuilder::StepBucket(std::vector<TensorId>& by_bucket,
                                  int32_t bucket, absl::string_view name,
                                  DType dtype) {
  const std::vector<Bucket>& buckets = graph_.parameters.buckets;
  by_bucket.resize(buckets.size(), -1);
  if (by_bucket[bucket] < 0) {
    by_bucket[bucket] =
        AddTensor(absl::StrCat(name, "/whole_bucket/", buckets[bucket].name),
                  {buckets[bucket].num_elements}, dtype);
  }
  return by_bucket[bucket];
}

}  // namespace millrace
