// The ops of the step as a whole: batches in, scalars, optimizer.

#include <algorithm>
#include <cmath>
#include <variant>

#include "kernels/optimizer/adamw.h"
#include "kernels/pointwise/cast.h"
#include "kernels/pointwise/elementwise.h"
#include "worker/cpu/ops.h"
#include "worker/train/bucket_slice.h"
#include "worker/train/moment_copies.h"

namespace millrace {
namespace {

absl::StatusOr<BoundOp> BindLoadBatch(const OpContext& context,
                                      const Instruction& in) {
  if (context.batches == nullptr) {
    return absl::InvalidArgumentError("no batch source to load from");
  }
  const Layout& layout = context.layout;
  const bool training = context.program->kind == ProgramKind::kTraining;
  const DataSplit split =
      training ? DataSplit::kTraining : DataSplit::kValidation;
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const bool pairs = layout.trains_preferences();
  const BatchPointers out = {
      .tokens = context.Output<int32_t>(in, 0),
      .targets = context.Output<int32_t>(in, 1),
      .document_starts = context.Output<int32_t>(in, 2),
      .pair_starts = pairs ? context.Output<int32_t>(in, 3) : nullptr,
      .references = pairs ? context.Output<float>(in, 4) : nullptr};
  return [layout, split, out, data_idx = context.coordinates.data,
          microbatch_idx = in.microbatch_idx, batches = context.batches,
          inputs = context.inputs,
          num_tokens = attributes.rows * attributes.cols] {
    BatchRequest request =
        RequestOf(layout, split,
                  split == DataSplit::kTraining
                      ? (data_idx + inputs->sample_shift) % layout.data
                      : data_idx,
                  microbatch_idx);
    request.step = inputs->step;
    if (out.pair_starts != nullptr) {
      std::fill_n(out.pair_starts, num_tokens, -1);
      std::fill_n(out.references, num_tokens, 0.0f);
    }
    return batches->Fill(request, out);
  };
}

BoundOp BindZero(const OpContext& context, const Instruction& in) {
  return [x = context.Output<void>(in, 0),
          num_bytes = context.program->buffers[in.outputs.at(0)].bytes,
          num_threads = context.kernels->num_threads()] {
    return Zero(x, num_bytes, num_threads);
  };
}

BucketSlice SliceOfBucket(const OpContext& context, const Instruction& in) {
  return SliceOfBucket(context.layout, context.coordinates,
                       std::get<OptimizerAttributes>(in.attributes));
}

int64_t BeginIn(const OpContext& context, BufferId buffer,
                const BucketSlice& slice) {
  return BeginIn(context.program->buffers[buffer], slice);
}

BoundOp BindAccumulateGradients(const OpContext& context,
                                const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const AddArgs args = {.out = context.Output<float>(in, 0),
                        .a = context.Input<float>(in, 1),
                        .b = context.Input<float>(in, 0),
                        .num_elements = slice.num_elements};
  return [args, num_threads = context.kernels->num_threads()] {
    return Add(args, num_threads);
  };
}

BoundOp BindRoundGradients(const OpContext& context, const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const EncodeBf16Args args = {
      .y = context.Output<uint16_t>(in, 0) +
           BeginIn(context, in.outputs[0], slice),
      .x = context.Input<float>(in, 0) + BeginIn(context, in.inputs[0], slice),
      .num_elements = slice.num_elements};
  return [args, num_threads = context.kernels->num_threads()] {
    return EncodeBf16(args, num_threads);
  };
}

BoundOp BindWidenGradients(const OpContext& context, const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const DecodeBf16Args args = {.y = context.Output<float>(in, 0) +
                                    BeginIn(context, in.outputs[0], slice),
                               .x = context.Input<uint16_t>(in, 0) +
                                    BeginIn(context, in.inputs[0], slice),
                               .num_elements = slice.num_elements};
  return [args, num_threads = context.kernels->num_threads()] {
    return DecodeBf16(args, num_threads);
  };
}

BoundOp BindSquaredNorm(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const BucketSlice slice = SliceOfBucket(context, in);
  const SquaredNormArgs args = {
      .sum = context.Output<double>(in, 0) + kSquaredNormScalar,
      .x = context.Input<float>(in, 0) + BeginIn(context, in.inputs[0], slice),
      .num_elements = slice.num_elements,
      .share = attributes.share};
  return [args, num_threads = context.kernels->num_threads()] {
    return SquaredNorm(args, num_threads);
  };
}

// The gradients are those of a mean over all tokens. The factor takes them to
// the mean over trained tokens, and clips.
//
// A step whose loss or gradient is not a number leaves the weights as they are;
// all ranks see the same scalars, so all do.
BoundOp BindClipFactor(const OpContext& context, const Instruction& in) {
  return [scalars = context.Input<double>(in, 0),
          clip_factor = context.Output<float>(in, 0),
          skip = context.Output<int32_t>(in, 1), inputs = context.inputs,
          clip_norm = context.training->gradient_clip_norm] {
    const double scale = inputs->token_scale;
    const double squared_norm = scalars[kSquaredNormScalar] * scale * scale;
    const bool finite =
        std::isfinite(scalars[kLossScalar]) && std::isfinite(squared_norm);
    *clip_factor =
        finite ? static_cast<float>(ClipScale(squared_norm, clip_norm) * scale)
               : 0;
    *skip = finite ? 0 : 1;
    return absl::OkStatus();
  };
}

BoundOp BindAdamW(const OpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const OptimizerSpec& optimizer = context.training->optimizer;
  const BucketSlice slice = SliceOfBucket(context, in);
  AdamWArgs args = {
      .parameters =
          context.Output<float>(in, 0) + BeginIn(context, in.outputs[0], slice),
      .exp_avg = context.Output<void>(in, 1),
      .exp_avg_sq = context.Output<void>(in, 2),
      .gradients =
          context.Input<float>(in, 1) + BeginIn(context, in.inputs[1], slice),
      .num_elements = slice.num_elements,
      .beta1 = optimizer.beta1,
      .beta2 = optimizer.beta2,
      .epsilon = optimizer.epsilon,
      .weight_decay = attributes.weight_decay ? optimizer.weight_decay : 0,
      .moments = StorageOf(context.layout.moments),
      .seed = RoundingSeed(context.training->seed, in.name),
      .first_index = slice.begin};
  return [args, clip_factor = context.Input<float>(in, 4),
          skip = context.Input<int32_t>(in, 5), inputs = context.inputs,
          num_threads = context.kernels->num_threads()]() mutable {
    if (*skip != 0) return absl::OkStatus();
    args.learning_rate = inputs->learning_rate;
    args.step = inputs->step;
    args.gradient_scale = *clip_factor;
    return AdamW(args, num_threads);
  };
}

absl::StatusOr<BoundOp> BindCastParameters(const OpContext&,
                                           const Instruction&) {
  return absl::InvalidArgumentError(
      "CPUs compute in fp32 and keep no bf16 parameters");
}

}  // namespace

double ClipScale(double squared_norm, double clip_norm) {
  constexpr double kTiny = 1e-6;
  if (clip_norm == 0) return 1;
  return std::min(1.0, clip_norm / (std::sqrt(squared_norm) + kTiny));
}

void RegisterStepOps(CpuBinders& binders) {
  binders.Bind(OpKind::kLoadBatch, BindLoadBatch);
  binders.Bind(OpKind::kZero, BindZero);
  binders.Bind(OpKind::kAccumulateGradients, BindAccumulateGradients);
  binders.Bind(OpKind::kSquaredNorm, BindSquaredNorm);
  binders.Bind(OpKind::kClipFactor, BindClipFactor);
  binders.Bind(OpKind::kAdamW, BindAdamW);
  binders.Bind(OpKind::kRoundGradients, BindRoundGradients);
  binders.Bind(OpKind::kWidenGradients, BindWidenGradients);
  binders.Bind(OpKind::kCastParameters, BindCastParameters);
}

}  // namespace millrace
