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

namespace {

// Each matrix is there as rows and transposed, with its unit and its amax.
constexpr int64_t kCopiesOfWeight = 2;
constexpr int64_t kNumbersOfCopies = 2;
// Buffers begin at multiples of kBufferAlignment, from which products can read
// units too.
constexpr int64_t kElementsOfNumber =
    kBufferAlignment / static_cast<int64_t>(sizeof(float));
// Both products of both blocks.
constexpr int64_t kMatricesOfLayer = 4;

}  // namespace

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
  const int64_t num_norms =
      norms.num_elements /
      (layout_.shards_parameters() ? layout_.group_data() : 1);
  persistent.parameters =
      add("parameters",
          (layout_.shards_parameters() ? num_moments : num_elements) -
              (has_masters ? num_norms : 0),
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
                            kind != ProgramKind::kValidation);
    persistent.norms = add("norms", num_norms, DType::kFloat32, true);
    persistent.scratch =
        add("scratch", kComputeScratchBytes / DTypeBytes(DType::kInt32),
            DType::kInt32, true);
  }
  if (layout_.gemm_format == GemmFormat::kFloat8 &&
      !layout_.shards_parameters() && NumCopiedLayers() > 0) {
    const bool is_read = kind != ProgramKind::kPublish;
    persistent.float8_weights =
        add("float8_weights", kCopiesOfWeight * NumCopiedElements(),
            DType::kFloat8E4m3, is_read);
    persistent.float8_units = add("float8_units",
                                  kElementsOfNumber * kNumbersOfCopies *
                                      kMatricesOfLayer * NumCopiedLayers(),
                                  DType::kFloat32, is_read);
  }
  if (layout_.trains_preferences() && is_last_stage()) {
    persistent.answers = add("answers", layout_.data * shapes_.num_tokens,
                             DType::kFloat32, kind == ProgramKind::kValidation);
  }
  AddBucketTensors();
}

int64_t GraphBuilder::NumCopiedLayers() const {
  const LayerRange layers = StageLayers(model_, layout_, stage_);
  int64_t num_copied = 0;
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    if (!model_.is_stored_layer(layer)) ++num_copied;
  }
  return num_copied;
}

int64_t GraphBuilder::NumCopiedElements() const {
  const int64_t width =
      shapes_.qkv_width() + shapes_.query_width() +
      (model_.num_inner_projections() + 1) * shapes_.ffn_hidden;
  return NumCopiedLayers() * shapes_.hidden * width;
}

void GraphBuilder::AddBucketTensors() {
  const PersistentLayout& persistent = graph_.persistent;
  const int64_t num_slices =
      layout_.shards_optimizer() ? layout_.group_data() : 1;
  int64_t slice_offset = 0;
  for (const Bucket& bucket : graph_.parameters.buckets) {
    const int64_t slice = bucket.num_elements / num_slices;
    auto view = [&](absl::string_view flat_name, TensorId flat, bool sharded) {
      if (flat < 0) return TensorId{-1};
      const int64_t numbers = DTypeNumbers(graph_.tensors[flat].dtype);
      return AddView(absl::StrCat(flat_name, "/bucket/", bucket.name), flat,
                     (sharded ? slice_offset : bucket.offset) / numbers,
                     {(sharded ? slice : bucket.num_elements) / numbers});
    };
    const bool slices_parameters = layout_.shards_parameters();
    const Place parameters =
        ParametersOf(bucket, slices_parameters ? slice_offset : bucket.offset);
    bucket_tensors_.push_back(
        {.parameters =
             AddView(absl::StrCat("parameters/bucket/", bucket.name),
                     parameters.flat, parameters.element_offset,
                     {slices_parameters ? slice : bucket.num_elements}),
         .gradients = view("gradients", persistent.gradients,
                           layout_.shards_gradients()),
         .exp_avg = view("exp_avg", persistent.exp_avg, true),
         .exp_avg_sq = view("exp_avg_sq", persistent.exp_avg_sq, true),
         .master = view("master", persistent.master, true)});
    slice_offset += slice;
  }
}

GraphBuilder::Place GraphBuilder::ParametersOf(const Bucket& bucket,
                                               int64_t element_offset) const {
  const PersistentLayout& persistent = graph_.persistent;
  if (persistent.norms < 0 || bucket.name != "norms") {
    return {persistent.parameters, element_offset};
  }
  // They begin where the others end.
  return {persistent.norms,
          element_offset - graph_.tensors[persistent.parameters].dims[0]};
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
  const int64_t bucket_offset = held_by.offset;
  const Place place = ParametersOf(held_by, offset);
  const std::vector<int64_t> dims =
      rows == 1 ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols};
  ShardedPasses& sharded = graph_.sharded;
  const auto part = [&](std::vector<TensorId>& by_bucket,
                        absl::string_view kind, DType dtype) {
    return AddPart(absl::StrCat(kind, "/", name),
                   StepBucket(by_bucket, bucket, kind, dtype),
                   offset - bucket_offset, dims);
  };
  Weight weight{.rows = rows, .cols = cols};
  if (layout_.shards_parameters()) {
    const DType dtype = graph_.tensors[place.flat].dtype;
    weight.parameter = part(sharded.forward_parameters, "parameters", dtype);
    weight.backward_parameter =
        part(sharded.backward_parameters, "parameters_again", dtype);
  } else {
    weight.parameter = AddView(absl::StrCat("parameters/", name), place.flat,
                               place.element_offset, dims);
    weight.backward_parameter = weight.parameter;
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
  auto attributes = std::get<QuantizeAttributes>(op.attributes);
  if (kind_ == ProgramKind::kValidation) attributes.keeps_transposed = false;
  const auto output = [&](const char* what, size_t i) {
    return AddOutput(absl::StrCat(name, "/", what), op.kind, attributes, i);
  };
  copies->unit = output("unit", 0);
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
  const std::string name = absl::StrCat(product, "/quantize_weight");
  const bool is_persistent = !layout_.shards_parameters();
  if (is_persistent && weight.copies.unit >= 0) return weight.copies;
  LayerOp op{.kind = OpKind::kQuantizeFloat8,
             .phase = phase,
             .attributes = QuantizeAttributes{
                 .rows = weight.rows,
                 .cols = weight.cols,
                 .keeps_rows = is_persistent || !transposed,
                 .keeps_transposed = is_persistent || transposed}};
  if (!is_persistent) {
    Float8Copies copies;
    EmitQuantize(name, op, ParameterOf(weight, phase), &copies);
    return copies;
  }
  const PersistentLayout& persistent = graph_.persistent;
  const int64_t num_elements = weight.rows * weight.cols;
  const auto view = [&](const char* what, std::vector<int64_t> dims) {
    const TensorId id =
        AddView(absl::StrCat(name, "/", what), persistent.float8_weights,
                num_copied_elements_, std::move(dims));
    num_copied_elements_ += num_elements;
    return id;
  };
  const auto number = [&](const char* what) {
    return AddView(absl::StrCat(name, "/", what), persistent.float8_units,
                   kElementsOfNumber * num_numbers_++, {1});
  };
  weight.copies.unit = number("unit");
  GraphOp quantize{.kind = op.kind,
                   .phase = phase,
                   .name = name,
                   .attributes = op.attributes,
                   .inputs = {weight.parameter},
                   .outputs = {weight.copies.unit, number("amax")},
                   .first_microbatch_only = true};
  weight.copies.rows = view("rows", {weight.rows, weight.cols});
  weight.copies.transposed = view("transposed", {weight.cols, weight.rows});
  quantize.outputs.push_back(weight.copies.rows);
  if (kind_ == ProgramKind::kValidation) {
    std::get<QuantizeAttributes>(quantize.attributes).keeps_transposed = false;
  } else {
    quantize.outputs.push_back(weight.copies.transposed);
  }
  Emit(std::move(quantize));
  return weight.copies;
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
  Emit(name, op, {d_y.rows, copies.transposed, d_y.unit, copies.unit}, {d_x});
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
          .inputs = {d_y.transposed, x.transposed, d_y.unit, x.unit},
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
