#include "tests/worker/cuda/ops/op_operands.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/units.h"
#include "kernels/attention/attention.h"
#include "kernels/vocabulary/cross_entropy.h"
#include "planner/program/op_table.h"
#include "tests/worker/cuda/ops/op_comparison.h"
#include "worker/measure/single_op.h"

namespace millrace {
namespace {

using Values = std::vector<double>;

std::vector<float> Floats(const Values& values) {
  return {values.begin(), values.end()};
}

class OperandMaker {
 public:
  OperandMaker(const OpCase& op, const Program& program)
      : op_(op),
        program_(program),
        in_(program.instructions.back()),
        result_{.inputs = std::vector<Values>(in_.inputs.size()),
                .outputs = std::vector<Values>(in_.outputs.size())} {}

  OpOperands Make() && {
    MakeInputs();
    for (size_t i = 0; i < in_.outputs.size(); ++i) MakeOutput(i);
    return std::move(result_);
  }

 private:
  int64_t Size(BufferId id) const { return program_.buffers[id].dims.front(); }
  DType TypeOfInput(size_t i) const {
    return program_.buffers[in_.inputs[i]].dtype;
  }

  // As the GPU's type holds them.
  Values Rounded(Values values, DType dtype) const {
    std::vector<std::byte> bytes(values.size() * DTypeBytes(dtype));
    NarrowElements(values, dtype, bytes.data());
    return WidenElements(dtype, bytes.data(),
                         static_cast<int64_t>(values.size()));
  }
  Values Normals(int64_t size, DType dtype, double scale = 1, double mean = 0) {
    std::normal_distribution<double> normal(mean, scale);
    Values values(static_cast<size_t>(size));
    for (double& value : values) value = normal(generator_);
    return Rounded(std::move(values), dtype);
  }
  Values& SetNormals(size_t i, double scale = 1, double mean = 0) {
    result_.inputs[i] =
        Normals(Size(in_.inputs[i]), TypeOfInput(i), scale, mean);
    return result_.inputs[i];
  }
  Values Integers(int64_t size, int64_t low, int64_t high) {
    std::uniform_int_distribution<int64_t> uniform(low, high);
    Values values(static_cast<size_t>(size));
    for (double& value : values)
      value = static_cast<double>(uniform(generator_));
    return values;
  }

  void MakeInputs() {
    if (const auto* a = std::get_if<NormAttributes>(&in_.attributes)) {
      return MakeNorm(*a);
    }
    if (const auto* a = std::get_if<AttentionAttributes>(&in_.attributes)) {
      return MakeAttention(*a);
    }
    if (const auto* a = std::get_if<VocabAttributes>(&in_.attributes)) {
      return MakeVocabulary(*a);
    }
    if (in_.kind == OpKind::kAdamW) return MakeAdamW();
    if (in_.kind == OpKind::kClipFactor) {
      result_.inputs[0] = {op_.loss, op_.squared_norm, 0, 0};
      return;
    }
    for (size_t i = 0; i < in_.inputs.size(); ++i) SetNormals(i);
  }

  void MakeNorm(const NormAttributes& a) {
    for (size_t i = 0; i < in_.inputs.size(); ++i) SetNormals(i);
    const bool is_layer = in_.kind == OpKind::kLayerNormBackward;
    if (in_.kind != OpKind::kRmsNormBackward && !is_layer) return;
    for (int64_t t = 0; t < a.num_tokens; ++t) {
      double mean = 0;
      for (int64_t h = 0; is_layer && h < a.hidden; ++h) {
        mean +=
            result_.inputs[1][t * a.hidden + h] / static_cast<double>(a.hidden);
      }
      double sum = 0;
      for (int64_t h = 0; h < a.hidden; ++h) {
        const double x = result_.inputs[1][t * a.hidden + h] - mean;
        sum += x * x;
      }
      if (is_layer) result_.inputs[3][t] = static_cast<float>(mean);
      result_.inputs[2][t] = static_cast<float>(
          1 / std::sqrt(sum / static_cast<double>(a.hidden) + a.epsilon));
    }
  }

  // Starts of documents, within their sequences, at random places: mostly fewer
  // than there is room for, as a step leaves it.
  void MakeDocuments(const AttentionAttributes& a) {
    const int64_t length = a.sequence_length;
    int64_t left = op_.num_documents < 0 ? a.num_sequences * length
                                         : op_.num_documents - a.num_sequences;
    std::bernoulli_distribution begins(op_.num_documents < 0 ? 0.1 : 0.006);
    Values& starts = result_.inputs[1];
    for (int64_t sequence = 0; sequence < a.num_sequences; ++sequence) {
      int64_t start = 0;
      for (int64_t t = 0; t < length; ++t) {
        if (t > 0 && op_.num_documents != 0 && left > 0 && begins(generator_)) {
          start = t;
          --left;
        }
        if (t == start) {
          result_.document_offsets.push_back(
              static_cast<int32_t>(sequence * length + t));
        }
        starts.push_back(static_cast<double>(start));
      }
    }
    if (op_.num_documents > 0) {
      result_.document_offsets.resize(
          static_cast<size_t>(op_.num_documents) + 1,
          static_cast<int32_t>(a.num_sequences * length));
    }
  }

  // The scales are those of the heads as they were.
  void MakeQkNormRope(const AttentionAttributes& a) {
    for (size_t i = 0; i < in_.inputs.size(); ++i) SetNormals(i);
    if (in_.kind == OpKind::kQkNormRopeForward) return;
    const Values& raw = result_.inputs[1];
    for (size_t head = 0; head < result_.inputs[2].size(); ++head) {
      double sum = 0;
      for (int64_t i = 0; i < a.head_dim; ++i) {
        const double x = raw[head * static_cast<size_t>(a.head_dim) +
                             static_cast<size_t>(i)];
        sum += x * x;
      }
      result_.inputs[2][head] = static_cast<float>(
          1 /
          std::sqrt(sum / static_cast<double>(a.head_dim) + a.norm_epsilon));
    }
  }

  void MakeAttention(const AttentionAttributes& a) {
    if (in_.kind == OpKind::kQkNormRopeForward ||
        in_.kind == OpKind::kQkNormRopeBackward) {
      return MakeQkNormRope(a);
    }
    const Values& qkv = SetNormals(0);
    if (in_.kind == OpKind::kRope) return;
    MakeDocuments(a);
    if (in_.kind == OpKind::kAttentionForward) return;
    SetNormals(4);
    const std::vector<float> qkv_floats = Floats(qkv);
    std::vector<float> o(Size(in_.inputs[2])), lse(Size(in_.inputs[3]));
    const Values& starts = result_.inputs[1];
    const std::vector<int32_t> document_starts(starts.begin(), starts.end());
    const absl::Status status =
        AttentionForward({.o = o.data(),
                          .lse = lse.data(),
                          .qkv = qkv_floats.data(),
                          .document_starts = document_starts.data(),
                          .shape = {.num_sequences = a.num_sequences,
                                    .sequence_length = a.sequence_length,
                                    .num_heads = a.num_heads,
                                    .num_kv_heads = a.num_kv_heads,
                                    .head_dim = a.head_dim,
                                    .window = a.window,
                                    .softcap = static_cast<float>(a.softcap)}},
                         1);
    CHECK(status.ok()) << status;
    result_.inputs[2] = Rounded({o.begin(), o.end()}, TypeOfInput(2));
    result_.inputs[3] = {lse.begin(), lse.end()};
  }

  // Appends the statistics that a shard of the vocabulary has of each token.
  void AppendStats(const VocabAttributes& a, const Values& hidden,
                   const Values& weight, const Values& targets,
                   int64_t vocab_begin, Values& stats) {
    for (int64_t t = 0; t < a.num_tokens; ++t) {
      Values logits(static_cast<size_t>(a.vocab_rows), 0);
      for (int64_t v = 0; v < a.vocab_rows; ++v) {
        for (int64_t h = 0; h < a.hidden; ++h) {
          logits[v] += hidden[t * a.hidden + h] * weight[v * a.hidden + h];
        }
        if (a.softcap > 0) {
          logits[v] = a.softcap * std::tanh(logits[v] / a.softcap);
        }
      }
      const double maximum = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - maximum);
      const double row = targets[t] - static_cast<double>(vocab_begin);
      const bool is_here = row >= 0 && row < static_cast<double>(a.vocab_rows);
      stats.push_back(static_cast<float>(maximum));
      stats.push_back(static_cast<float>(sum));
      stats.push_back(
          is_here ? static_cast<float>(logits[static_cast<size_t>(row)]) : 0);
    }
  }

  // In each sequence two pairs of answers, then tokens of none.
  void MakePairs(const VocabAttributes& a, const Values& targets) {
    const int64_t part = a.sequence_length / 5;
    for (size_t t = 0; t < targets.size(); ++t) {
      const int64_t place = static_cast<int64_t>(t) % a.sequence_length;
      const int64_t answer = place / part;
      const bool is_of_pair = answer < 4;
      result_.inputs[1].push_back(
          static_cast<double>(part * std::min<int64_t>(answer, 4)));
      result_.inputs[2].push_back(
          is_of_pair ? static_cast<double>(part * (answer / 2 * 2)) : -1);
      result_.inputs[3].push_back(
          is_of_pair ? -static_cast<double>(10 + 3 * answer) : 0);
    }
  }

  void MakeVocabulary(const VocabAttributes& a) {
    if (in_.kind == OpKind::kPositionForward ||
        in_.kind == OpKind::kPositionBackward) {
      for (size_t i = 0; i < in_.inputs.size(); ++i) SetNormals(i);
      return;
    }
    const int64_t vocabulary = op_.layout.tensor * a.vocab_rows;
    if (in_.kind == OpKind::kEmbeddingForward ||
        in_.kind == OpKind::kEmbeddingBackward) {
      result_.inputs[0] = Integers(a.num_tokens, 0, vocabulary - 1);
      SetNormals(1);
      return;
    }
    // Some tokens have no loss.
    Values targets = Integers(a.num_tokens, 0, vocabulary - 1);
    for (size_t t = 2; t < targets.size(); t += 5) targets[t] = -1;
    const double scale = 2 / std::sqrt(static_cast<double>(a.hidden));
    if (in_.kind == OpKind::kCrossEntropyLoss) {
      const Values hidden = Normals(a.num_tokens * a.hidden, DType::kFloat32);
      for (int32_t shard = 0; shard < op_.layout.tensor; ++shard) {
        AppendStats(a, hidden,
                    Normals(a.vocab_rows * a.hidden, DType::kFloat32, scale),
                    targets, shard * a.vocab_rows, result_.inputs[1]);
      }
      result_.inputs[0] = std::move(targets);
      return;
    }
    if (in_.kind == OpKind::kPreferenceLoss) {
      MakePairs(a, targets);
      const Values hidden = Normals(a.num_tokens * a.hidden, DType::kFloat32);
      for (int32_t shard = 0; shard < op_.layout.tensor; ++shard) {
        AppendStats(a, hidden,
                    Normals(a.vocab_rows * a.hidden, DType::kFloat32, scale),
                    targets, shard * a.vocab_rows, result_.inputs[4]);
      }
      result_.inputs[0] = std::move(targets);
      return;
    }
    const Values& hidden = SetNormals(0);
    const Values& weight = SetNormals(1, scale);
    if (op_.layout.trains_preferences()) SetNormals(in_.inputs.size() - 1);
    if (in_.kind == OpKind::kCrossEntropyGradient) {
      for (int32_t shard = 0; shard < op_.layout.tensor; ++shard) {
        AppendStats(
            a, hidden,
            shard == op_.coordinates.tensor
                ? weight
                : Normals(a.vocab_rows * a.hidden, DType::kFloat32, scale),
            targets, shard * a.vocab_rows, result_.inputs[3]);
      }
    }
    result_.inputs[2] = std::move(targets);
  }

  // In bf16 the parameters are what the master weights were before; the CPU's
  // are the master weights themselves.
  void MakeAdamW() {
    const auto& a = std::get<OptimizerAttributes>(in_.attributes);
    result_.inputs[0] = Normals(a.num_elements, DType::kFloat32);
    SetNormals(1);
    SetNormals(2, 0.1);
    for (double& value : SetNormals(3, 0.1)) {
      value = static_cast<float>(value * value);
    }
    result_.inputs[4] = {0.75};
    result_.inputs[5] = {op_.skip ? 1.0 : 0.0};
    if (in_.inputs.size() == 6) return;
    // The rank's slice comes first in what it keeps.
    result_.inputs[6] = Normals(a.num_elements, DType::kFloat32);
    const int64_t share =
        a.data_sharded ? a.num_elements / op_.layout.data : a.num_elements;
    std::copy_n(result_.inputs[0].begin() +
                    (a.data_sharded ? op_.coordinates.data * share : 0),
                share, result_.inputs[6].begin());
  }

  void MakeOutput(size_t i) {
    const BufferId id = in_.outputs[i];
    if (std::find(in_.inputs.begin(), in_.inputs.end(), id) !=
        in_.inputs.end()) {
      return;
    }
    const DType dtype = program_.buffers[id].dtype;
    if (IsAddedTo(Describe(in_.kind).outputs[i], in_.attributes)) {
      result_.outputs[i] = Normals(Size(id), dtype);
      return;
    }
    result_.outputs[i].assign(
        static_cast<size_t>(Size(id)),
        dtype == DType::kInt32 ? -1 : std::numeric_limits<double>::quiet_NaN());
  }

  const OpCase& op_;
  const Program& program_;
  const Instruction& in_;
  OpOperands result_;
  std::mt19937_64 generator_{7};
};

// A buffer for the statistics of `num_shards`, like that of one.
BufferId AddStats(Program& program, Buffer stats, int64_t num_shards) {
  stats.dims = {stats.dims.front() * num_shards};
  stats.bytes *= num_shards;
  stats.offset_bytes = program.step_arena_bytes;
  program.step_arena_bytes =
      RoundUp(program.step_arena_bytes + stats.bytes, kBufferAlignment);
  program.buffers.push_back(std::move(stats));
  return static_cast<BufferId>(program.buffers.size()) - 1;
}

// Statistics of all shards, where the Program has room for those of one.
void MakeRoomForShards(const OpCase& op, Program& program) {
  Instruction& in = program.instructions.back();
  const size_t i = in.kind == OpKind::kCrossEntropyGradient ? 3
                   : in.kind == OpKind::kCrossEntropyLoss   ? 1
                   : in.kind == OpKind::kPreferenceLoss     ? 4
                                                            : in.inputs.size();
  if (i == in.inputs.size()) return;
  in.inputs[i] =
      AddStats(program, program.buffers[in.inputs[i]], op.layout.tensor);
}

// The parameters that an optimizer's op leaves, in fp32 beside master weights.
void WidenParameters(Program& program) {
  Instruction& in = program.instructions.back();
  Buffer wide = program.buffers[in.outputs[0]];
  wide.dtype = DType::kFloat32;
  wide.bytes = wide.dims.front() * DTypeBytes(wide.dtype);
  wide.offset_bytes = program.step_arena_bytes;
  program.step_arena_bytes =
      RoundUp(program.step_arena_bytes + wide.bytes, kBufferAlignment);
  const auto id = static_cast<BufferId>(program.buffers.size());
  program.buffers.push_back(std::move(wide));
  std::replace(in.inputs.begin(), in.inputs.end(), in.outputs[0], id);
  in.outputs[0] = id;
}

// Has the statistics computed first, in the workspace of the gradient, which
// keeps their logits.
void KeepLogits(Program& program) {
  Instruction gradient = std::move(program.instructions.back());
  program.instructions = {
      {.kind = OpKind::kCrossEntropyStats,
       .lane = Lane::kCompute,
       .name = "statistics",
       .attributes = gradient.attributes,
       .inputs = {gradient.inputs[0], gradient.inputs[1], gradient.inputs[2]},
       .outputs = {AddStats(program, program.buffers[gradient.inputs[3]], 1),
                   gradient.outputs[3]}}};
  gradient.inputs.push_back(gradient.outputs[3]);
  program.instructions.push_back(std::move(gradient));
}

// The weights of tokens, as the last input.
void AddWeights(int64_t num_tokens, Program& program) {
  Instruction& gradient = program.instructions.back();
  Buffer weights = program.buffers[gradient.inputs[3]];
  weights.dims = {num_tokens};
  weights.bytes = num_tokens * DTypeBytes(weights.dtype);
  gradient.inputs.push_back(AddStats(program, std::move(weights), 1));
}

}  // namespace

Program MakeOpProgram(const OpCase& op, Precision precision) {
  Program program = SingleOpProgram(precision, op.kind, op.attributes,
                                    /*num_repetitions=*/1, /*arena_bytes=*/0);
  program.layout = op.layout;
  program.layout.precision = precision;
  Instruction& in = program.instructions.back();
  if (!op.has_d_residual) in.inputs.pop_back();
  if (in.kind == OpKind::kLoadBatch) in.microbatch_idx = 1;
  MakeRoomForShards(op, program);
  if (op.fp32_parameters && precision == Precision::kBfloat16) {
    WidenParameters(program);
  }
  auto* vocabulary = std::get_if<VocabAttributes>(&in.attributes);
  if (vocabulary != nullptr && vocabulary->keeps_logits) {
    vocabulary->keeps_logits = precision == Precision::kBfloat16;
    if (vocabulary->keeps_logits) KeepLogits(program);
  }
  if (op.kind == OpKind::kCrossEntropyGradient &&
      op.layout.trains_preferences()) {
    AddWeights(std::get<VocabAttributes>(op.attributes).num_tokens, program);
  }
  return program;
}

OpOperands MakeOperands(const OpCase& op, const Program& on_gpu) {
  return OperandMaker(op, on_gpu).Make();
}

}  // namespace millrace
