// Op kinds: the vocabulary of a Program. An op kind is one kernel, collective
// or copy. This header names the kinds and their attributes. The table in
// planner/program/op_table.h says everything else that a kind decides:
// operands, work, lane, phases and what a profile measures for it. worker/ runs
// it on each backend.
//
// Under Precision::kBfloat16 activations, their gradients, logits and
// parameters are bf16; rstd, lse, stats, weights of norms and gradients of
// parameters stay fp32. Under GemmFormat::kFloat8 the products of layers are
// kFloat8Gemm, of copies in 8 bits with one scale a tensor, and the matrices
// of those layers are parameters in 8 bits. Under kFloat8Blocks they are
// kFloat8BlockGemm. Under AttentionFormat::kFloat8 attention's forward pass is
// kFloat8AttentionForward, of copies in 8 bits. All other tensors stay as they
// are. A copy's unit is the value of its stored number one, in a block or a
// tensor.

#ifndef MILLRACE_PLANNER_PROGRAM_OPS_H_
#define MILLRACE_PLANNER_PROGRAM_OPS_H_

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/model.h"

namespace millrace {

// The type of activations and of the parameters that kernels read, but for
// norms.
DType ActivationType(Precision precision);

// The computation of each kind; its operands are in
// planner/program/op_table.cc.
enum class OpKind : uint8_t {
  kLoadBatch,                 // A micro-batch's tokens, targets and documents.
  kEmbeddingForward,          // Tokens -> rows of the embedding.
  kEmbeddingBackward,         // The embedding's gradient.
  kPositionForward,           // Adds learned positions to the embedding's rows.
  kPositionBackward,          // The gradient of learned positions.
  kRmsNormForward,            // The norm of the stream.
  kResidualRmsNormForward,    // The norm of the stream plus a block's output.
  kRmsNormBackward,           // Gradients of the stream and the norm's weight.
  kLayerNormForward,          // LayerNorm of the stream.
  kResidualLayerNormForward,  // The same of the stream plus a block's output.
  kLayerNormBackward,         // Gradients of the stream, weight and bias.
  kAdd,                       // The sum of two tensors.
  kGemm,                      // A matrix product, with a bias if there is one.
  kQuantizeFloat8,            // Copies in 8 bits, and their unit.
  kFloat8Gemm,                // A matrix product of such copies.
  kTransposeFloat8,           // A weight in 8 bits for input gradients.
  kQuantizeFloat8Blocks,      // Copies in 8 bits, and units of blocks in rows.
  kQuantizeFloat8Squares,     // Copies in 8 bits, and units of square blocks.
  kFloat8BlockGemm,           // A matrix product of such copies.
  kBiasGradient,              // The sum of a product's gradient over tokens.
  kRope,                      // Rotary positions, in place.
  kQkNormRopeForward,         // The norm of each head, then rotary positions.
  kQkNormRopeBackward,        // Gradients of the heads and the norms' weights.
  kQuantizeAttention,       // Query, key and value in 8 bits, and their units.
  kFloat8AttentionForward,  // Causal attention within documents, of those.
  kAttentionForward,        // Causal attention within documents.
  kAttentionBackward,       // Gradients of query, key and value.
  kSwigluForward,           // silu(gate) x up.
  kSwigluBackward,          // Gradients of gate and up.
  kGegluForward,            // gelu(gate) x up, in the tanh form.
  kGegluBackward,           // Gradients of gate and up.
  kGeluForward,             // GELU, in its tanh form or by erf.
  kGeluBackward,            // Its gradient.
  kLinearCrossEntropy,      // Head and loss, forward and backward in one.
  kCrossEntropyStats,       // Statistics of one vocabulary shard's logits.
  kCrossEntropyGradient,    // Head and loss backward, from all shards' stats.
  kCrossEntropyLoss,        // The loss alone, from all shards' stats.
  kPreferenceLoss,          // The loss of pairs, and a weight for each token.
  kAllGather,               // Shards -> the full tensor on every rank.
  kReduceScatter,           // Full tensors -> each rank's shard of the sum.
  kAllReduce,               // Full tensors -> the sum on every rank.
  kSend,                    // To a neighbouring stage.
  kReceive,                 // From a neighbouring stage.
  kZero,                    // Fills a tensor with zeros.
  kAccumulateGradients,     // Adds a micro-batch's reduced gradients.
  kRoundGradients,          // A bucket's gradients in bf16, to be reduced.
  kWidenGradients,          // Reduced gradients in fp32 again.
  kSquaredNorm,             // Adds up the squares of a bucket's gradients.
  kClipFactor,              // The factor that clips gradients.
  kAdamW,                   // One bucket's update.
  kCastParameters,          // One bucket's master weights in bf16.
  kWeightAmax,              // Magnitudes of the matrices in a rank's slice.
  kQuantizeWeights,         // One bucket's weights in 8 bits.

  // Kinds that can be planned but not executed. Models, formats and axes that
  // workers do not know have them, and so have other frameworks' ways of
  // computing a layer.
  kGroupedGemm,               // Products of a rank's experts, of one shape.
  kScaledGemm,                // A product of copies in 8 or 4 bits.
  kGeneralAttentionForward,   // Queries of some ranks, values of any width.
  kGeneralAttentionBackward,  // Gradients of query, key and value.
  kUnfusedAttentionForward,   // The same, with the scores in memory.
  kUnfusedAttentionBackward,  // Gradients of query, key and value.
  kElementwise,               // A framework's passes over memory.
  kQuantize,                  // Copies in 8 or 4 bits, with scales.
  kRouter,                    // Scores of experts, and the choice among them.
  kPermuteTokens,             // Rows in the order of experts, or back.
  kExpertExchange,            // Tokens to the ranks of their experts, or back.
  kContextRing,               // Keys and values pass round the context axis.
  kContextGather,             // Keys and values of all context ranks.
  kContextReduceScatter,      // Sums of their gradients, each rank its part.
};
inline constexpr int kNumOpKinds =
    static_cast<int>(OpKind::kContextReduceScatter) + 1;
// The kinds below this number are those that workers execute.
inline constexpr int kNumExecutedOpKinds =
    static_cast<int>(OpKind::kGroupedGemm);
const char* OpKindName(OpKind kind);
bool IsCollective(OpKind kind);  // Over a group of ranks.
bool IsTransfer(OpKind kind);    // Between neighbouring stages.
// Whether a norm of the stream adds a block's output to it first.
bool AddsToStream(OpKind kind);

// The matrices of a layer: both products of both blocks.
inline constexpr int64_t kFloat8Matrices = 4;
// The distance between two numbers that products read, in floats: a product
// asks for an alignment.
inline constexpr int64_t kNumberStride = 64;

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
  // kPosition* and kPreferenceLoss: tokens of a sequence. The vocab_rows of
  // kPosition* are those of positions.
  int64_t sequence_length = 0;
  double embedding_scale = 1;  // kEmbedding*: what rows are multiplied by.
  double softcap = 0;          // Cross entropy: bound of the logits; 0: none.
  friend bool operator==(const VocabAttributes&,
                         const VocabAttributes&) = default;
};
struct NormAttributes {
  int64_t num_tokens, hidden;
  double epsilon;
  bool accumulate = false;
  bool adds_one = false;    // kRmsNorm*: rows are multiplied by 1 + weight.
  bool finds_amax = false;  // See FindsAmax().
  friend bool operator==(const NormAttributes&,
                         const NormAttributes&) = default;
};
// c[m, n] = op(a)[m, k] op(b)[k, n], op(x) = transpose when trans_x: a is then
// stored [k, m], b [n, k]. kFloat8Gemm and kFloat8BlockGemm state the same
// product, but read copies [m, k] and [n, k] in either case: tensor cores take
// 8 bits along k only. The units of a kFloat8BlockGemm are of blocks along k,
// and b's of squares unless trans_a; OperandDims() has their dims.
struct GemmAttributes {
  int64_t m, n, k;
  bool trans_a = false;
  bool trans_b = false;
  bool accumulate = false;
  bool bias = false;  // c = op(a) op(b) + bias[n].
  // Only the first tensor rank adds the bias, since the ranks' c are summed.
  bool bias_once = false;
  friend bool operator==(const GemmAttributes&,
                         const GemmAttributes&) = default;
};
// The type of c: fp32 where weight gradients add up (those alone have trans_a),
// else as activations are.
DType GemmOutputType(Precision precision, const GemmAttributes& gemm);
// The format that a kind of product reads: 8-bit copies, or else kAsStored.
GemmFormat FormatOfProduct(OpKind kind);
inline bool IsFloat8Product(OpKind kind) {
  return IsFloat8(FormatOfProduct(kind));
}
// Whether the kind makes the 8-bit copies that products of Programs read.
bool MakesFloat8Copies(OpKind kind);
// Whether a product is of the forward pass, run there or recomputed. Those
// alone have trans_b.
inline bool IsOfForwardPass(const GemmAttributes& gemm) { return gemm.trans_b; }
struct AttentionAttributes {
  int64_t num_sequences, sequence_length;
  int64_t num_heads, num_kv_heads, head_dim;  // On this tensor rank.
  double rope_theta = 0;                      // Rotary positions only.
  bool inverse = false;                       // kRope only.
  RopeScaling rope_scaling = {};              // Rotary positions only.
  double norm_epsilon = 0;                    // kQkNormRope* only.
  bool accumulate = false;                    // kQkNormRopeBackward only.
  // Attention only: a token sees so many tokens, itself the last of them; 0:
  // all before it. Shorter than a sequence.
  int64_t window = 0;
  // Attention only: as in Layout. It says how much work there is; kernels
  // follow the documents themselves.
  int64_t document_length = 0;
  double softcap = 0;     // Attention only: bound of the scores; 0: none.
  bool adds_one = false;  // kQkNormRope*: as in NormAttributes.
  // Rotary positions only: how many elements of a head are rotated (0: all),
  // what they are multiplied by besides, and FingerprintOf() the model's
  // rope_factors.
  int64_t rotary_dim = 0;
  double rotary_scale = 1;
  uint64_t rope_factors = 0;
  bool finds_amax = false;  // See FindsAmax(). Not kQkNormRope*.
  friend bool operator==(const AttentionAttributes&,
                         const AttentionAttributes&) = default;
};
// A number of its own for each list; 0 for an empty one.
uint64_t FingerprintOf(const std::vector<double>& rope_factors);
// Element-wise ops; for kSwiglu*, kGeglu* and kGelu* cols = F, for kLoadBatch
// [sequences, length], for kZero [1, elements of the tensor's dtype].
struct ElementwiseAttributes {
  int64_t rows, cols;
  bool accumulate = false;  // kBiasGradient only.
  bool erf = false;         // kGelu* only: the exact form.
  bool finds_amax = false;  // See FindsAmax(). kSwiglu* and kGeglu* only.
  friend bool operator==(const ElementwiseAttributes&,
                         const ElementwiseAttributes&) = default;
};
struct CollectiveAttributes {
  Group group;
  int64_t num_elements;  // In the full (gathered or unreduced) tensor.
  DType dtype;
  // kAllReduce: only this rank's slice of the tensor takes part, the one that
  // ZeRO's reduce-scatter over Group::kShards leaves it.
  bool of_slice = false;
  friend bool operator==(const CollectiveAttributes&,
                         const CollectiveAttributes&) = default;
};
// kQuantizeFloat8*.
struct QuantizeAttributes {
  int64_t rows, cols;
  // kQuantizeFloat8 only: whoever wrote x has found its amax.
  bool amax_given = false;
  bool keeps_rows = true;        // Writes the copy [rows, cols].
  bool keeps_transposed = true;  // Writes the copy [cols, rows].
  friend bool operator==(const QuantizeAttributes&,
                         const QuantizeAttributes&) = default;
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
  int64_t num_elements;  // In the whole bucket.
  // The op touches only this rank's slice: its data index of `data` equal ones.
  // Operands may hold the whole bucket or the slice alone.
  bool data_sharded;
  bool weight_decay = false;  // kAdamW.
  double share = 1;  // kSquaredNorm: 1 / ranks that add the same elements.
  // kAdamW: the master weights, if there are any, are all that it writes of the
  // weights, since kernels read them in 8 bits (kQuantizeWeights).
  bool in_float8 = false;
  friend bool operator==(const OptimizerAttributes&,
                         const OptimizerAttributes&) = default;
};

// kWeightAmax and kQuantizeWeights: one bucket's matrices on their way from the
// weights that the optimizer updates to 8 bits, with one scale a matrix. Every
// rank of a shard group finds the magnitudes in its slice, all are gathered,
// and the largest of a matrix is its amax, in whatever order.
struct WeightBucketAttributes {
  int64_t num_elements;  // As in OptimizerAttributes.
  bool data_sharded;
  // Where the matrices begin, as Bucket::float8_matrices says.
  std::array<int64_t, kFloat8Matrices> begins = {};
  // The bucket's place among those of the stage whose magnitudes are gathered
  // together.
  int64_t bucket_idx = 0;
  int64_t num_buckets = 1;
  friend bool operator==(const WeightBucketAttributes&,
                         const WeightBucketAttributes&) = default;
};

// Products of one shape, as GemmAttributes states it, in one launch or several.
struct GroupedGemmAttributes {
  int64_t m, n, k;
  int64_t count = 1;
  GemmFormat format = GemmFormat::kAsStored;  // The format that products read.
  bool trans_a = false;
  bool trans_b = false;
  friend bool operator==(const GroupedGemmAttributes&,
                         const GroupedGemmAttributes&) = default;
};
// Attention of a rank's queries to the keys of whole sequences.
struct GeneralAttentionAttributes {
  int64_t num_sequences;
  int64_t num_heads, num_kv_heads;  // On this tensor rank.
  int64_t query_tokens;  // On this rank; fewer than key_tokens under context.
  int64_t key_tokens;
  int64_t head_dim, value_head_dim;
  int64_t window = 0;           // As in AttentionAttributes.
  int64_t document_length = 0;  // As in AttentionAttributes.
  friend bool operator==(const GeneralAttentionAttributes&,
                         const GeneralAttentionAttributes&) = default;
};
// Attention over whole sequences that is as much work as `attention` is over
// sequences of several documents: as many sequences as documents of the given
// length fill, which leave as many pairs of tokens. The same attributes where a
// sequence is one document.
AttentionAttributes AsWholeSequences(const AttentionAttributes& attention);
GeneralAttentionAttributes AsWholeSequences(
    const GeneralAttentionAttributes& attention);
// An op bound by memory of which only the traffic is known.
struct TrafficAttributes {
  double bytes;  // Read and written.
  friend bool operator==(const TrafficAttributes&,
                         const TrafficAttributes&) = default;
};
// Communication over the context or the expert axis, which the kind names.
struct ExchangeAttributes {
  // Bytes of the full tensor: gathered, unreduced, or passed round by all ranks
  // together. kExpertExchange: the bytes that one rank gives all ranks, itself
  // included, a row for each expert.
  double bytes;
  // kExpertExchange: the experts that a row is for, if it crosses a level of
  // the network once for all of them in a domain. 0: each goes its own way.
  int64_t experts_per_row = 0;
  friend bool operator==(const ExchangeAttributes&,
                         const ExchangeAttributes&) = default;
};

using OpAttributes =
    std::variant<NoAttributes, VocabAttributes, NormAttributes, GemmAttributes,
                 AttentionAttributes, ElementwiseAttributes,
                 CollectiveAttributes, TransferAttributes, OptimizerAttributes,
                 GroupedGemmAttributes, GeneralAttentionAttributes,
                 TrafficAttributes, ExchangeAttributes, QuantizeAttributes,
                 WeightBucketAttributes>;

// Whether the op leaves the largest magnitude of its main output as its last
// one, for the kQuantizeFloat8 that reads the main output next.
bool FindsAmax(const OpAttributes& attributes);
// Whether the attributes of this kind may have finds_amax.
bool CanFindAmax(OpKind kind);
// The place of that main output among the op's outputs.
size_t MainOutput(OpKind kind);

// "m 512 n 768 k 256 trans_b accumulate": for printing and hashing.
std::string AttributesToString(const OpAttributes& attributes);

// The places of a step's scalars tensor ([NumStepScalars()] f64). The tensor is
// summed over the world before the optimizer runs, so that every rank acts
// alike.
enum StepScalar : int {
  kLossScalar = 0,         // Mean loss of the global batch, in nats per token.
  kSquaredNormScalar = 1,  // The gradient's, before clipping.
  kStopVoteScalar = 2,     // Above zero: all stop after this step.
  kSpareScalar = 3,
  kNumStepScalars = 4,
  // Where pairs are trained, their means. A reward is beta times what an
  // answer's log-probability has gained over the reference.
  kChosenRewardScalar = 4,
  kRejectedRewardScalar = 5,
  kAccuracyScalar = 6,  // Pairs whose chosen answer has the larger reward.
  kUnusedScalar = 7,
  kNumPreferenceScalars = 8,
};
// How many of them a layout's Programs have.
int64_t NumStepScalars(const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OPS_H_
