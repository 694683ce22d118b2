#include "kernels/autotune/tuning_case_makers.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/autotune/tuning_case_tensors.h"
#include "kernels/norm/layernorm_bf16.h"
#include "kernels/norm/rmsnorm_bf16.h"
#include "kernels/pointwise/rope_bf16.h"
#include "kernels/pointwise/swiglu_bf16.h"
#include "kernels/vocabulary/cross_entropy_bf16_rows.h"

namespace millrace {
namespace {

constexpr float kEpsilon = 1e-5f;

// One launch a set.
template <typename Args>
auto LaunchOfSets(std::vector<Args> sets,
                  absl::Status (*launch)(const Args&, cudaStream_t)) {
  return [sets = std::move(sets), launch](int set, cudaStream_t stream) {
    return launch(sets[set], stream);
  };
}

bool Always(const TuningValues&) { return true; }

}  // namespace

absl::StatusOr<TuningCase> MakeNormForward(const NormCase& c) {
  TuningTensors tensors;
  const int64_t size = c.num_tokens * c.hidden;
  const int num_sets = NumTuningSets(size * (c.has_residual ? 8 : 4));
  ASSIGN_OR_RETURN(const void* weight, tensors.Normals(c.hidden));
  ASSIGN_OR_RETURN(const void* bias, tensors.Normals(c.hidden));
  std::vector<ResidualLayerNormForwardBf16Args> sets(num_sets);
  for (ResidualLayerNormForwardBf16Args& set : sets) {
    set = {.residual = nullptr,
           .weight = weight,
           .bias = bias,
           .num_tokens = c.num_tokens,
           .hidden = c.hidden,
           .epsilon = kEpsilon};
    ASSIGN_OR_RETURN(set.x, tensors.Normals(size));
    ASSIGN_OR_RETURN(set.y, tensors.Bytes(2 * size));
    if (c.has_residual) {
      ASSIGN_OR_RETURN(set.delta, tensors.Normals(size));
      ASSIGN_OR_RETURN(set.residual, tensors.Bytes(2 * size));
    }
    ASSIGN_OR_RETURN(void* rstd, tensors.Bytes(4 * c.num_tokens));
    ASSIGN_OR_RETURN(void* mean, tensors.Bytes(4 * c.num_tokens));
    set.rstd = static_cast<float*>(rstd);
    set.mean = static_cast<float*>(mean);
  }
  TuningCase result = {.kernel = TunedKernel::kNormForward,
                       .num_sets = num_sets};
  result.outputs = {{"y", sets[0].y, size},
                    {"rstd", sets[0].rstd, c.num_tokens, true}};
  if (c.has_residual) {
    result.outputs.push_back({"residual", sets[0].residual, size});
  }
  result.launch = [sets, c](int i, cudaStream_t stream) {
    const ResidualLayerNormForwardBf16Args& set = sets[i];
    if (c.is_layer && c.has_residual) {
      return LaunchResidualLayerNormForwardBf16(set, stream);
    }
    if (c.is_layer) {
      return LaunchLayerNormForwardBf16({.y = set.y,
                                         .mean = set.mean,
                                         .rstd = set.rstd,
                                         .x = set.x,
                                         .weight = set.weight,
                                         .bias = set.bias,
                                         .num_tokens = set.num_tokens,
                                         .hidden = set.hidden,
                                         .epsilon = set.epsilon},
                                        stream);
    }
    if (c.has_residual) {
      return LaunchResidualRmsNormForwardBf16({.residual = set.residual,
                                               .y = set.y,
                                               .rstd = set.rstd,
                                               .x = set.x,
                                               .delta = set.delta,
                                               .weight = set.weight,
                                               .num_tokens = set.num_tokens,
                                               .hidden = set.hidden,
                                               .epsilon = set.epsilon},
                                              stream);
    }
    return LaunchRmsNormForwardBf16({.y = set.y,
                                     .rstd = set.rstd,
                                     .x = set.x,
                                     .weight = set.weight,
                                     .num_tokens = set.num_tokens,
                                     .hidden = set.hidden,
                                     .epsilon = set.epsilon},
                                    stream);
  };
  result.applies = [c](const TuningValues& choice) {
    return c.Applies(choice[0], 8);
  };
  result.memory = tensors.Take();
  return result;
}

absl::StatusOr<TuningCase> MakeNormBackward(const NormCase& c) {
  TuningTensors tensors;
  const int64_t size = c.num_tokens * c.hidden;
  const int num_sets = NumTuningSets(size * 8);
  ASSIGN_OR_RETURN(const void* weight, tensors.Normals(c.hidden));
  const std::vector<float> means(c.num_tokens, 0.1f);
  const std::vector<float> rstds(c.num_tokens, 1.1f);
  ASSIGN_OR_RETURN(const float* mean, tensors.Copy(means));
  ASSIGN_OR_RETURN(const float* rstd, tensors.Copy(rstds));
  ASSIGN_OR_RETURN(void* d_weight, tensors.Bytes(4 * c.hidden));
  ASSIGN_OR_RETURN(void* d_bias, tensors.Bytes(4 * c.hidden));
  ASSIGN_OR_RETURN(
      void* workspace,
      tensors.Bytes(std::max(
          RmsNormBackwardBf16WorkspaceBytes(c.num_tokens, c.hidden),
          LayerNormBackwardBf16WorkspaceBytes(c.num_tokens, c.hidden))));
  std::vector<LayerNormBackwardBf16Args> sets(num_sets);
  for (LayerNormBackwardBf16Args& set : sets) {
    set = {.d_weight = static_cast<float*>(d_weight),
           .d_bias = static_cast<float*>(d_bias),
           .mean = mean,
           .rstd = rstd,
           .weight = weight,
           .workspace = workspace,
           .num_tokens = c.num_tokens,
           .hidden = c.hidden,
           .accumulate = false};
    ASSIGN_OR_RETURN(set.d_x, tensors.Bytes(2 * size));
    ASSIGN_OR_RETURN(set.d_y, tensors.Normals(size));
    ASSIGN_OR_RETURN(set.x, tensors.Normals(size));
    ASSIGN_OR_RETURN(set.d_residual, tensors.Normals(size));
  }
  TuningCase result = {.kernel = TunedKernel::kNormBackward,
                       .num_sets = num_sets};
  result.outputs = {{"d_x", sets[0].d_x, size},
                    {"d_weight", d_weight, c.hidden, true}};
  result.launch = [sets, c](int i, cudaStream_t stream) {
    const LayerNormBackwardBf16Args& set = sets[i];
    if (c.is_layer) return LaunchLayerNormBackwardBf16(set, stream);
    return LaunchRmsNormBackwardBf16({.d_x = set.d_x,
                                      .d_weight = set.d_weight,
                                      .d_y = set.d_y,
                                      .x = set.x,
                                      .rstd = set.rstd,
                                      .weight = set.weight,
                                      .d_residual = set.d_residual,
                                      .workspace = set.workspace,
                                      .num_tokens = set.num_tokens,
                                      .hidden = set.hidden,
                                      .accumulate = set.accumulate},
                                     stream);
  };
  result.applies = [c](const TuningValues& choice) {
    // Rows of 1024 vectors take 512 threads at most with two vectors or more.
    return c.Applies(choice[0], 4) &&
           !(choice[0] == 1024 && c.hidden > 8 * 1024) &&
           !(choice[0] == 8 && c.hidden > 64);
  };
  result.memory = tensors.Take();
  return result;
}

absl::StatusOr<TuningCase> MakeSwiglu(bool is_backward, int64_t num_tokens,
                                      int64_t ffn_hidden) {
  TuningTensors tensors;
  const int64_t size = num_tokens * ffn_hidden;
  const int num_sets = NumTuningSets(size * (is_backward ? 10 : 6));
  auto rows = [&](void* data) { return Bf16Rows{data, ffn_hidden}; };
  TuningCase result = {.num_sets = num_sets, .applies = Always};
  std::vector<SwigluForwardBf16Args> forward(num_sets);
  std::vector<SwigluBackwardBf16Args> backward(num_sets);
  for (int i = 0; i < num_sets; ++i) {
    ASSIGN_OR_RETURN(void* gate, tensors.Normals(size));
    ASSIGN_OR_RETURN(void* up, tensors.Normals(size));
    ASSIGN_OR_RETURN(void* out, tensors.Bytes(2 * size));
    if (!is_backward) {
      forward[i] = {.activation = rows(out),
                    .gate = rows(gate),
                    .up = rows(up),
                    .num_tokens = num_tokens,
                    .ffn_hidden = ffn_hidden};
      if (i == 0) result.outputs = {{"activation", out, size}};
      continue;
    }
    ASSIGN_OR_RETURN(void* d_up, tensors.Bytes(2 * size));
    ASSIGN_OR_RETURN(void* d_activation, tensors.Normals(size));
    backward[i] = {.d_gate = rows(out),
                   .d_up = rows(d_up),
                   .activation = {nullptr, 0},
                   .gate = rows(gate),
                   .up = rows(up),
                   .d_activation = rows(d_activation),
                   .num_tokens = num_tokens,
                   .ffn_hidden = ffn_hidden};
    if (i == 0) result.outputs = {{"d_gate", out, size}, {"d_up", d_up, size}};
  }
  if (is_backward) {
    result.kernel = TunedKernel::kSwigluBackward;
    result.launch = LaunchOfSets(backward, &LaunchSwigluBackwardBf16);
  } else {
    result.kernel = TunedKernel::kSwigluForward;
    result.launch = LaunchOfSets(forward, &LaunchSwigluForwardBf16);
  }
  result.memory = tensors.Take();
  return result;
}

absl::StatusOr<TuningCase> MakeRopeNorm(int64_t num_tokens, int64_t head_dim,
                                        int64_t num_heads,
                                        int64_t num_kv_heads) {
  TuningTensors tensors;
  // Queries and keys alone: all of it is written.
  const int64_t stride = (num_heads + num_kv_heads) * head_dim;
  const int64_t size = num_tokens * stride;
  const int num_sets = NumTuningSets(4 * size);
  ASSIGN_OR_RETURN(const void* weight, tensors.Normals(head_dim));
  const std::vector<float> angles(num_tokens * head_dim, 0.6f);
  ASSIGN_OR_RETURN(const float* table, tensors.Copy(angles));
  ASSIGN_OR_RETURN(void* rstd,
                   tensors.Bytes(4 * num_tokens * (num_heads + num_kv_heads)));
  std::vector<RopeForwardBf16Args> sets(num_sets);
  for (RopeForwardBf16Args& set : sets) {
    set = {.out_token_stride = stride,
           .qkv_token_stride = stride,
           .table = table,
           .position_ids = nullptr,
           .q_weight = weight,
           .k_weight = weight,
           .rstd = static_cast<float*>(rstd),
           .epsilon = kEpsilon,
           .shape = {.num_tokens = num_tokens,
                     .num_heads = num_heads,
                     .num_kv_heads = num_kv_heads,
                     .head_dim = head_dim,
                     .sequence_length = num_tokens,
                     .table_length = num_tokens}};
    ASSIGN_OR_RETURN(set.qkv, tensors.Normals(size));
    ASSIGN_OR_RETURN(set.out, tensors.Bytes(2 * size));
  }
  TuningCase result = {.kernel = TunedKernel::kRopeNormForward,
                       .num_sets = num_sets,
                       .applies = Always};
  result.outputs = {{"out", sets[0].out, size}};
  result.launch = LaunchOfSets(std::move(sets), &LaunchRopeForwardBf16);
  result.memory = tensors.Take();
  return result;
}

absl::StatusOr<TuningCase> MakeAttention(AttentionBf16Shape shape) {
  TuningTensors tensors;
  const int64_t tokens = shape.num_sequences * shape.sequence_length;
  const int64_t size = tokens * shape.num_heads * shape.head_dim;
  const int num_sets = NumTuningSets(8 * size);
  ASSIGN_OR_RETURN(void* counter, tensors.Bytes(8));
  ASSIGN_OR_RETURN(void* lse, tensors.Bytes(4 * tokens * shape.num_heads));
  auto heads = [&](void* data) {
    return Bf16Heads{.data = data,
                     .token_stride = shape.num_heads * shape.head_dim,
                     .head_stride = shape.head_dim,
                     .sequence_stride = shape.sequence_length *
                                        shape.num_heads * shape.head_dim};
  };
  std::vector<AttentionForwardBf16Args> sets(num_sets);
  for (AttentionForwardBf16Args& set : sets) {
    ASSIGN_OR_RETURN(void* q, tensors.Normals(size));
    ASSIGN_OR_RETURN(void* k, tensors.Normals(size));
    ASSIGN_OR_RETURN(void* v, tensors.Normals(size));
    ASSIGN_OR_RETURN(void* o, tensors.Bytes(2 * size));
    set = {.o = heads(o),
           .lse = static_cast<float*>(lse),
           .q = heads(q),
           .k = heads(k),
           .v = heads(v),
           .tile_counter = static_cast<int32_t*>(counter),
           .shape = shape};
  }
  TuningCase result = {.kernel = TunedKernel::kAttentionForward,
                       .num_sets = num_sets};
  result.outputs = {{"o", sets[0].o.data, size},
                    {"lse", lse, tokens * shape.num_heads, true}};
  result.launch = LaunchOfSets(std::move(sets), &LaunchAttentionForwardBf16);
  result.applies = [shape](const TuningValues& choice) {
    const bool is_split = choice[2] == 1;
    const int64_t tiles =
        shape.num_sequences * shape.num_heads * shape.sequence_length / 64;
    if (choice[0] == 3 && shape.head_dim != 64) return false;
    if (is_split && (shape.window != 0 || shape.head_dim % 64 != 0 ||
                     shape.head_dim > 128 || tiles > 1024)) {
      return false;
    }
    return shape.num_sequences * shape.num_heads % choice[1] == 0;
  };
  result.memory = tensors.Take();
  return result;
}

absl::StatusOr<TuningCase> MakeCrossEntropyRows(int64_t num_rows,
                                                int64_t vocabulary) {
  TuningTensors tensors;
  const int64_t stride = (vocabulary + 7) / 8 * 8;
  const int num_sets = NumTuningSets(4 * num_rows * stride);
  std::vector<int32_t> all_targets(num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    all_targets[i] = static_cast<int32_t>(i * 7919 % vocabulary);
  }
  ASSIGN_OR_RETURN(const int32_t* targets, tensors.Copy(all_targets));
  ASSIGN_OR_RETURN(void* losses, tensors.Bytes(8 * num_rows));
  // In place: a set is its own input again, ever nearer to uniform rows, which
  // takes as long. The first result of each is what tests compare.
  std::vector<CrossEntropyFusedRowsArgs> sets(num_sets);
  for (CrossEntropyFusedRowsArgs& set : sets) {
    ASSIGN_OR_RETURN(void* logits, tensors.Normals(num_rows * stride));
    set = {.rows = {.logits = logits,
                    .targets = targets,
                    .num_rows = num_rows,
                    .row_stride = stride,
                    .vocab_rows = vocabulary,
                    .vocab_begin = 0},
           .weights = {.token_scale = 1.0f,
                       .device_token_scale = nullptr,
                       .z_loss = 0.0f},
           .losses = static_cast<double*>(losses)};
  }
  TuningCase result = {.kernel = TunedKernel::kCrossEntropyRows,
                       .num_sets = num_sets};
  result.outputs = {{"logits", sets[0].rows.logits, num_rows * stride}};
  result.launch = LaunchOfSets(std::move(sets), &LaunchCrossEntropyFusedRows);
  result.applies = [vocabulary](const TuningValues& choice) {
    constexpr int64_t kElementsOfBlock = 512 * 8 * 8;
    return choice[0] * kElementsOfBlock >= vocabulary;
  };
  result.memory = tensors.Take();
  return result;
}

}  // namespace millrace
