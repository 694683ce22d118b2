// The ops of the step as a whole: batches in, scalars, optimizer.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <limits>
#include <variant>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/adamw_bf16.h"
#include "kernels/optimizer/adamw_plain.h"
#include "kernels/optimizer/gradient_norm_bf16.h"
#include "kernels/pointwise/add_plain.h"
#include "kernels/pointwise/cast_bf16.h"
#include "worker/cuda/ops/kernel_cache.h"
#include "worker/cuda/ops/ops.h"
#include "worker/train/bucket_slice.h"
#include "worker/train/moment_copies.h"

namespace millrace {
namespace {

// The host has put all micro-batches of the step in their places; this copies
// one to where the plan wants it.
CudaOp BindLoadBatch(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<ElementwiseAttributes>(in.attributes);
  const int64_t num_tokens = attributes.rows * attributes.cols;
  const int64_t first = in.microbatch_idx * num_tokens;
  static_assert(sizeof(float) == sizeof(int32_t));
  struct Copy {
    void* to;
    const void* from;
  };
  std::vector<Copy> copies = {
      {context.Output<void>(in, 0), context.inputs->tokens + first},
      {context.Output<void>(in, 1), context.inputs->targets + first},
      {context.Output<void>(in, 2), context.inputs->document_starts + first}};
  if (context.layout.trains_preferences()) {
    copies.push_back(
        {context.Output<void>(in, 3), context.inputs->pair_starts + first});
    copies.push_back(
        {context.Output<void>(in, 4), context.inputs->references + first});
  }
  return [copies, num_bytes = static_cast<size_t>(num_tokens) *
                              sizeof(int32_t)](cudaStream_t stream) {
    for (const Copy& copy : copies) {
      RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(copy.to, copy.from, num_bytes,
                                     cudaMemcpyDeviceToDevice, stream),
                     "copy a micro-batch into the step"));
    }
    return absl::OkStatus();
  };
}

CudaOp BindZero(const CudaOpContext& context, const Instruction& in) {
  return [x = context.Output<void>(in, 0),
          num_bytes = static_cast<size_t>(
              context.program->buffers[in.outputs.at(0)].bytes)](
             cudaStream_t stream) {
    return CudaStatus(cudaMemsetAsync(x, 0, num_bytes, stream),
                      "zero a buffer");
  };
}

BucketSlice SliceOfBucket(const CudaOpContext& context, const Instruction& in) {
  return SliceOfBucket(context.layout, context.coordinates,
                       std::get<OptimizerAttributes>(in.attributes));
}

// The rank's slice in operand `buffer`.
void* SliceIn(const CudaOpContext& context, BufferId buffer,
              const BucketSlice& slice) {
  const Buffer& operand = context.program->buffers[buffer];
  return context.arenas->At(operand) +
         BeginIn(operand, slice) * DTypeBytes(operand.dtype);
}
float* FloatsIn(const CudaOpContext& context, BufferId buffer,
                const BucketSlice& slice) {
  return static_cast<float*>(SliceIn(context, buffer, slice));
}

CudaOp BindAccumulateGradients(const CudaOpContext& context,
                               const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const PlainAddArgs args = {.out = context.Output<float>(in, 0),
                             .a = context.Input<float>(in, 1),
                             .b = context.Input<float>(in, 0),
                             .num_elements = slice.num_elements};
  return [args](cudaStream_t stream) {
    return LaunchPlainAdd(args, ElementType::kFloat32, stream);
  };
}

// Gradients are fp32 in either precision.
CudaOp BindSquaredNorm(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const BucketSlice slice = SliceOfBucket(context, in);
  const SquaredNormBf16Args args = {
      .sum = context.Output<double>(in, 0) + kSquaredNormScalar,
      .x = FloatsIn(context, in.inputs[0], slice),
      .num_elements = slice.num_elements,
      .is_bf16 = false,
      .overwrite = false,
      .share = attributes.share,
      .workspace = context.kernels->squared_norm_workspace()};
  return [args](cudaStream_t stream) {
    return LaunchSquaredNormBf16(args, stream);
  };
}

CudaOp BindClipFactor(const CudaOpContext& context, const Instruction& in) {
  const double* scalars = context.Input<double>(in, 0);
  const double clip_norm = context.training->gradient_clip_norm;
  const GradientNormBf16Args args = {
      .norm = nullptr,
      .clip_factor = context.Output<float>(in, 0),
      .skip = context.Output<int32_t>(in, 1),
      .sum = scalars + kSquaredNormScalar,
      .max_norm =
          clip_norm == 0 ? std::numeric_limits<double>::infinity() : clip_norm,
      .loss = scalars + kLossScalar,
      .scale = context.inputs->token_scale,
      .hold = context.inputs->updates_held};
  return [args](cudaStream_t stream) {
    return LaunchGradientNormBf16(args, stream);
  };
}

// Norms' parameters are fp32, and their master weights' plain copy.
absl::Status CopyFloats(float* to, const float* from, int64_t num_elements,
                        cudaStream_t stream) {
  return CudaStatus(
      cudaMemcpyAsync(to, from,
                      static_cast<size_t>(num_elements) * sizeof(float),
                      cudaMemcpyDeviceToDevice, stream),
      "copy master weights to parameters");
}

// Where an update writes weights.
struct UpdatedWeights {
  float* master;  // Or the parameters, if they are fp32 and have no master.
  void* rounded;  // The parameters in bf16; or null.
  float* copied;  // The parameters as a plain copy of the master; or null.
};
UpdatedWeights WeightsOf(const CudaOpContext& context, const Instruction& in,
                         const BucketSlice& slice) {
  void* const parameters = SliceIn(context, in.outputs[0], slice);
  if (!IsBf16(context)) return {static_cast<float*>(parameters)};
  auto* const master = context.Output<float>(in, 3);
  // kQuantizeWeights makes parameters of these.
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  if (attributes.in_float8) return {master, nullptr, nullptr};
  if (IsFp32(context, in.outputs[0])) {
    return {master, nullptr, static_cast<float*>(parameters)};
  }
  return {master, parameters, nullptr};
}

// The update, and the copy of the master weights where there is one.
template <typename Args>
CudaOp UpdateAndCopy(const Args& args, const UpdatedWeights& weights,
                     int64_t num_elements,
                     absl::Status (*launch)(const Args&, cudaStream_t)) {
  return [=](cudaStream_t stream) {
    RETURN_IF_ERROR(launch(args, stream));
    if (weights.copied == nullptr) return absl::OkStatus();
    return CopyFloats(weights.copied, weights.master, num_elements, stream);
  };
}

// Master weights with a copy in bf16, or moments in bf16, or both.
CudaOp BindBf16AdamW(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const OptimizerSpec& optimizer = context.training->optimizer;
  const BucketSlice slice = SliceOfBucket(context, in);
  const UpdatedWeights weights = WeightsOf(context, in, slice);
  const AdamWBf16Args args = {
      .master = weights.master,
      .weights = weights.rounded,
      .exp_avg = context.Output<void>(in, 1),
      .exp_avg_sq = context.Output<void>(in, 2),
      .gradients = FloatsIn(context, in.inputs[1], slice),
      .bf16_moments = context.layout.moments == MomentFormat::kBfloat16,
      .bf16_gradients = false,
      .begin = 0,
      .end = slice.num_elements,
      .learning_rate = 0,
      .beta1 = optimizer.beta1,
      .beta2 = optimizer.beta2,
      .epsilon = optimizer.epsilon,
      .weight_decay = attributes.weight_decay ? optimizer.weight_decay : 0,
      .step = 0,
      .seed = RoundingSeed(context.training->seed, in.name),
      .first_index = slice.begin,
      .clip_factor = context.Input<float>(in, 4),
      .skip = context.Input<int32_t>(in, 5),
      .device_step = context.inputs->optimizer};
  return UpdateAndCopy(args, weights, slice.num_elements, LaunchAdamWBf16);
}

CudaOp Bind8bitAdamW(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const OptimizerSpec& optimizer = context.training->optimizer;
  const BucketSlice slice = SliceOfBucket(context, in);
  const UpdatedWeights weights = WeightsOf(context, in, slice);
  const AdamW8bitArgs args = {
      .master = weights.master,
      .weights = weights.rounded,
      .exp_avg = context.Output<MomentBlock>(in, 1),
      .exp_avg_sq = context.Output<MomentBlock>(in, 2),
      .gradients = FloatsIn(context, in.inputs[1], slice),
      .num_elements = slice.num_elements,
      .beta1 = optimizer.beta1,
      .beta2 = optimizer.beta2,
      .epsilon = optimizer.epsilon,
      .weight_decay = attributes.weight_decay ? optimizer.weight_decay : 0,
      .device_step = context.inputs->optimizer,
      .clip_factor = context.Input<float>(in, 4),
      .skip = context.Input<int32_t>(in, 5)};
  return UpdateAndCopy(args, weights, slice.num_elements, LaunchAdamW8bit);
}

CudaOp BindPlainAdamW(const CudaOpContext& context, const Instruction& in) {
  const auto& attributes = std::get<OptimizerAttributes>(in.attributes);
  const OptimizerSpec& optimizer = context.training->optimizer;
  const BucketSlice slice = SliceOfBucket(context, in);
  const PlainAdamWArgs args = {
      .parameters = FloatsIn(context, in.outputs[0], slice),
      .bf16_copy = nullptr,
      .exp_avg = context.Output<float>(in, 1),
      .exp_avg_sq = context.Output<float>(in, 2),
      .gradients = FloatsIn(context, in.inputs[1], slice),
      .num_elements = slice.num_elements,
      .learning_rate = &context.inputs->optimizer->learning_rate,
      .step = &context.inputs->optimizer->step,
      .clip_factor = context.Input<float>(in, 4),
      .skip = context.Input<int32_t>(in, 5),
      .beta1 = optimizer.beta1,
      .beta2 = optimizer.beta2,
      .epsilon = optimizer.epsilon,
      .weight_decay = attributes.weight_decay ? optimizer.weight_decay : 0};
  return [args](cudaStream_t stream) { return LaunchPlainAdamW(args, stream); };
}

CudaOp BindAdamW(const CudaOpContext& context, const Instruction& in) {
  switch (context.layout.moments) {
    case MomentFormat::kBlocks8:
      return Bind8bitAdamW(context, in);
    case MomentFormat::kBfloat16:
      return BindBf16AdamW(context, in);
    case MomentFormat::kFloat32:
      break;
  }
  return IsBf16(context) ? BindBf16AdamW(context, in)
                         : BindPlainAdamW(context, in);
}

CudaOp BindRoundGradients(const CudaOpContext& context, const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const CastToBf16Args args = {.y = SliceIn(context, in.outputs[0], slice),
                               .x = FloatsIn(context, in.inputs[0], slice),
                               .num_elements = slice.num_elements,
                               .stochastic = false};
  return [args](cudaStream_t stream) { return LaunchCastToBf16(args, stream); };
}

CudaOp BindWidenGradients(const CudaOpContext& context, const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  const CastToFloatArgs args = {.y = FloatsIn(context, in.outputs[0], slice),
                                .x = SliceIn(context, in.inputs[0], slice),
                                .num_elements = slice.num_elements};
  return
      [args](cudaStream_t stream) { return LaunchCastToFloat(args, stream); };
}

CudaOp BindCastParameters(const CudaOpContext& context, const Instruction& in) {
  const BucketSlice slice = SliceOfBucket(context, in);
  if (IsFp32(context, in.outputs[0])) {
    return [to = FloatsIn(context, in.outputs[0], slice),
            from = context.Input<float>(in, 0),
            num_elements = slice.num_elements](cudaStream_t stream) {
      return CopyFloats(to, from, num_elements, stream);
    };
  }
  const CastToBf16Args args = {.y = SliceIn(context, in.outputs[0], slice),
                               .x = context.Input<float>(in, 0),
                               .num_elements = slice.num_elements,
                               .stochastic = false};
  return [args](cudaStream_t stream) { return LaunchCastToBf16(args, stream); };
}

}  // namespace

void RegisterCudaStepOps(CudaBinders& binders) {
  binders.Bind(OpKind::kLoadBatch, BindLoadBatch);
  binders.Bind(OpKind::kZero, BindZero);
  binders.Bind(OpKind::kAccumulateGradients, BindAccumulateGradients);
  binders.Bind(OpKind::kSquaredNorm, BindSquaredNorm);
  binders.Bind(OpKind::kClipFactor, BindClipFactor);
  binders.Bind(OpKind::kRoundGradients, BindRoundGradients);
  binders.Bind(OpKind::kWidenGradients, BindWidenGradients);
  binders.Bind(OpKind::kCastParameters, BindCastParameters);
  binders.Bind(OpKind::kAdamW, BindAdamW);
}

}  // namespace millrace
