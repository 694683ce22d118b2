// Op kinds: the vocabulary of a Program. An op kind is one kernel, collective
// or copy; this header fixes its operands and attributes,
// planner/cost/op_cost.h its time, and worker/ how each backend runs it.
//
// Letters in shapes: T tokens of a micro-batch (micro_batch x sequence), S = T
// / tensor (a rank's share under sequence parallelism), H hidden, V vocabulary,
// Vt = V / tensor, N and K query and key-value heads of one tensor rank, D head
// dim, F = ffn_hidden / tensor. Row-major; fp32 unless said otherwise. Under
// Precision::kBfloat16 activations, their gradients, logits and parameters are
// bf16; rstd, lse, stats, weights of norms and gradients of parameters stay
// fp32; and the last output of kAttentionBackward and of the cross entropies is
// a workspace of planner/program/workspace.h's bytes.

#ifndef MILLRACE_PLANNER_PROGRAM_OPS_H_
#define MILLRACE_PLANNER_PROGRAM_OPS_H_

#include <cstdint>
#include <string>
#include <variant>

#include "planner/layout/layout.h"

namespace millrace {

enum class DType : uint8_t { kFloat32, kFloat64, kInt32, kBfloat16 };
int64_t DTypeBytes(DType dtype);
// Of activations and of the parameters that kernels read, but for norms.
DType ActivationType(Precision precision);
const char* DTypeName(DType dtype);

// in -> out. An operand marked += is accumulated into when the op's
// `accumulate` attribute is set, overwritten otherwise.
enum class OpKind : uint8_t {
  // -> tokens [T] i32, targets [T] i32, document_starts [T] i32. The
  // micro-batch of the executing instruction, from the host's data loader.
  // document_starts[t]: index within its sequence of the first token of the
  // document that token t belongs to; attention looks back no further.
  kLoadBatch,
  // tokens, weight [Vt, H] -> x [T, H]. Rows of other tensor ranks are zero.
  kEmbeddingForward,
  // tokens, d_x [T, H] -> d_weight [Vt, H] +=.
  kEmbeddingBackward,
  // x [S, H], weight [H] -> y [S, H], rstd [S].
  kRmsNormForward,
  // x [S, H], delta [S, H], weight -> residual [S, H] = x + delta, y, rstd.
  kResidualRmsNormForward,
  // d_y [S, H], residual, rstd, weight [, d_residual [S, H]]
  //   -> d_x [S, H] (= norm gradient + d_residual), d_weight [H] +=.
  kRmsNormBackward,
  // x, delta -> x + delta.
  kAdd,
  // a, b -> c [m, n] += : c = op(a) op(b).
  kGemm,
  // qkv [T, (N + 2K) D] -> the same tensor, query and key rotated in place
  // (backwards when `inverse`). Columns: N query heads, K key, K value heads.
  kRope,
  // qkv, document_starts -> o [T, N D], lse [N, T].
  kAttentionForward,
  // qkv, document_starts, o, lse, d_o -> d_qkv [T, (N + 2K) D], delta [N, T].
  kAttentionBackward,
  // gate_up [T, 2F] (gate columns first) -> activation [T, F].
  kSwigluForward,
  // gate_up, d_activation [T, F] -> d_gate_up [T, 2F].
  kSwigluBackward,
  // hidden [T, H], weight [V, H], targets -> d_hidden [T, H], d_weight +=,
  // scalars (loss), workspace [chunk_tokens, V]. Forward and backward of the
  // head and the loss in one pass over chunks of tokens. tensor == 1.
  kLinearCrossEntropy,
  // hidden, weight [Vt, H], targets -> stats [T, 3] (maximum, sum of
  // exponentials, target logit or 0), workspace [chunk_tokens, Vt].
  kCrossEntropyStats,
  // hidden, weight, targets, all_stats [tensor, T, 3] -> d_hidden [T, H]
  // (this rank's part), d_weight +=, scalars (loss), workspace.
  kCrossEntropyGradient,
  // targets, all_stats -> scalars (loss). Forward only, for validation.
  kCrossEntropyLoss,
  // shard [n / size] -> full [n]; in place when both are one tensor: the
  // rank's slice is the one at its index in the group.
  kAllGather,
  // full [n] -> shard [n / size], the sum; in place when both are one tensor.
  // `full` is scratch from then on. Both by blocks where the attributes say so:
  // full and shard are then as many blocks, one after the other, and what is
  // said holds of each block of the one with that of the other.
  kReduceScatter,
  // x -> x, the sum.
  kAllReduce,
  // x -> ; and -> x. Between neighbouring stages; see TransferAttributes.
  kSend,
  kReceive,
  // -> x, all zero.
  kZero,
  // sum, gradients -> gradients, both of one bucket's slice: gradients += sum.
  // fp32 in either precision. ZeRO-2 and 3.
  kAccumulateGradients,
  // gradients (a bucket) -> the same in bf16, to be reduced.
  kRoundGradients,
  // bf16 (a bucket, or the rank's slice) -> gradients, in fp32 again: all of
  // them, or where data_sharded the rank's slice.
  kWidenGradients,
  // gradients (a bucket) -> scalars (squared norm).
  kSquaredNorm,
  // scalars -> clip_factor [1], skip [1] i32: what gradients are multiplied by,
  // and one if the step must change nothing since loss or norm is not a number.
  // The clip norm comes from the job.
  kClipFactor,
  // parameters, gradients, exp_avg, exp_avg_sq, clip_factor, skip [, master]
  //   -> parameters, exp_avg, exp_avg_sq [, master]. One bucket: parameters and
  // gradients all of it, or the rank's slice alone where the layout shards them
  // (the operand's size tells), the others what the rank keeps (its slice when
  // data_sharded). With master weights the update is theirs, and the parameters
  // are their copy, in bf16 but for norms. Learning rate, betas and step number
  // come from the worker's step inputs.
  kAdamW,
  // master -> parameters, of one bucket as kAdamW: the copy alone.
  kCastParameters,
};
inline constexpr int kNumOpKinds =
    static_cast<int>(OpKind::kCastParameters) + 1;
const char* OpKindName(OpKind kind);
bool IsCollective(OpKind kind);  // kAllGather, kReduceScatter, kAllReduce.
bool IsTransfer(OpKind kind);    // kSend, kReceive.

struct NoAttributes {
  friend bool operator==(const NoAttributes&, const NoAttributes&) = default;
};
// The embedding, and every op with vocabulary shards: the rank's first row is
// its tensor index x vocab_rows.
struct VocabAttributes {
  int64_t num_tokens, hidden, vocab_rows;
  int64_t chunk_tokens = 0;  // Cross entropy: tokens whose logits live at once.
  // Cross entropy: each token's loss and gradient are multiplied by this (one
  // over the tokens of the global batch), the loss scalar also by loss_share.
  double token_scale = 0;
  double loss_share = 1;  // 1 / ranks that add the same loss.
  // Cross entropy in bf16: the workspace of kCrossEntropyStats has the logits
  // of all tokens, and kCrossEntropyGradient takes it, as its last input and
  // output, instead of computing them again.
  bool keeps_logits = false;
  bool accumulate = false;
  friend bool operator==(const VocabAttributes&,
                         const VocabAttributes&) = default;
};
struct NormAttributes {
  int64_t num_tokens, hidden;
  double epsilon;
  bool accumulate = false;
  friend bool operator==(const NormAttributes&,
                         const NormAttributes&) = default;
};
// c[m, n] = op(a)[m, k] op(b)[k, n], op(x) = transpose when trans_x: a is then
// stored [k, m], b [n, k].
struct GemmAttributes {
  int64_t m, n, k;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  friend bool operator==(const GemmAttributes&,
                         const GemmAttributes&) = default;
};
// Of c: fp32 where weight gradients add up (those alone have trans_a), else as
// activations are.
DType GemmOutputType(Precision precision, const GemmAttributes& gemm);
struct AttentionAttributes {
  int64_t num_sequences, sequence_length;
  int64_t num_heads, num_kv_heads, head_dim;  // Of this tensor rank.
  double rope_theta = 0;                      // kRope only.
  bool inverse = false;                       // kRope only.
  friend bool operator==(const AttentionAttributes&,
                         const AttentionAttributes&) = default;
};
// Element-wise ops; for kSwiglu* cols = F, for kLoadBatch [sequences, length],
// for kZero [1, elements of the tensor's dtype].
struct ElementwiseAttributes {
  int64_t rows, cols;
  friend bool operator==(const ElementwiseAttributes&,
                         const ElementwiseAttributes&) = default;
};
struct CollectiveAttributes {
  Group group;
  int64_t num_elements;  // Of the full (gathered or unreduced) tensor.
  DType dtype;
  // Not in place where there are several. No kAllReduce.
  int32_t num_blocks = 1;
  friend bool operator==(const CollectiveAttributes&,
                         const CollectiveAttributes&) = default;
};
enum class Direction : uint8_t { kToNext, kToPrevious };  // Stage.
struct TransferAttributes {
  // kSend: where the data goes. kReceive: where the data is going too, so a
  // kToNext receive comes from the previous stage.
  Direction direction;
  int64_t num_elements;
  DType dtype;
  friend bool operator==(const TransferAttributes&,
                         const TransferAttributes&) = default;
};
struct OptimizerAttributes {
  int64_t num_elements;  // Of the whole bucket.
  // The op touches only this rank's slice: its data index of `data` equal ones.
  // Operands may hold the whole bucket or the slice alone.
  bool data_sharded;
  bool weight_decay = false;  // kAdamW.
  double share = 1;  // kSquaredNorm: 1 / ranks that add the same elements.
  friend bool operator==(const OptimizerAttributes&,
                         const OptimizerAttributes&) = default;
};

using OpAttributes =
    std::variant<NoAttributes, VocabAttributes, NormAttributes, GemmAttributes,
                 AttentionAttributes, ElementwiseAttributes,
                 CollectiveAttributes, TransferAttributes, OptimizerAttributes>;

// "m 512 n 768 k 256 trans_b accumulate": for printing and hashing.
std::string AttributesToString(const OpAttributes& attributes);

// What a step's scalars tensor holds ([kNumStepScalars] f64). Summed over the
// world before the optimizer runs, so that every rank acts alike.
enum StepScalar : int {
  kLossScalar = 0,         // Mean loss of the global batch, in nats per token.
  kSquaredNormScalar = 1,  // Of the gradient, before clipping.
  kStopVoteScalar = 2,     // Above zero: all stop after this step.
  kSpareScalar = 3,
  kNumStepScalars = 4,
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OPS_H_
