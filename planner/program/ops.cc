#include "planner/program/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/program/op_table.h"

namespace millrace {
namespace {

std::string Flag(bool set, absl::string_view name) {
  return set ? absl::StrCat(" ", name) : "";
}

// Enough digits to tell unequal values apart, few enough to read 1e-05.
std::string Number(double value) { return absl::StrFormat("%.15g", value); }

struct DocumentsAsSequences {
  int64_t count;
  int64_t length;
};

// As many pairs of tokens as sequences of documents have: a token meets
// document_length others, so that count x length^2 equals
// num_sequences x sequence_length x document_length.
DocumentsAsSequences CountDocuments(int64_t num_sequences,
                                    int64_t sequence_length,
                                    int64_t document_length) {
  const double tokens =
      static_cast<double>(num_sequences) * static_cast<double>(sequence_length);
  const auto length = static_cast<double>(document_length);
  const double count = std::max(1.0, std::round(tokens / length));
  return {.count = static_cast<int64_t>(count),
          .length = std::llround(std::sqrt(tokens * length / count))};
}

std::string ToString(const NoAttributes&) { return ""; }

std::string ToString(const VocabAttributes& a) {
  std::string text = absl::StrCat("tokens ", a.num_tokens, " hidden ", a.hidden,
                                  " vocab_rows ", a.vocab_rows);
  if (a.chunk_tokens != 0) absl::StrAppend(&text, " chunk ", a.chunk_tokens);
  if (a.token_scale != 0) {
    absl::StrAppend(&text, " token_scale ", Number(a.token_scale),
                    " loss_share ", Number(a.loss_share));
  }
  if (a.sequence_length != 0) {
    absl::StrAppend(&text, " length ", a.sequence_length);
  }
  if (a.embedding_scale != 1) {
    absl::StrAppend(&text, " scale ", Number(a.embedding_scale));
  }
  if (a.softcap != 0) absl::StrAppend(&text, " softcap ", Number(a.softcap));
  return text + Flag(a.keeps_logits, "keeps_logits") +
         Flag(a.accumulate, "accumulate");
}

std::string ToString(const NormAttributes& a) {
  return absl::StrCat(
      "tokens ", a.num_tokens, " hidden ", a.hidden, " epsilon ",
      Number(a.epsilon), Flag(a.adds_one, "adds_one"),
      Flag(a.accumulate, "accumulate"), Flag(a.finds_amax, "finds_amax"));
}

std::string ToString(const GemmAttributes& a) {
  return absl::StrCat("m ", a.m, " n ", a.n, " k ", a.k,
                      Flag(a.trans_a, "trans_a"), Flag(a.trans_b, "trans_b"),
                      Flag(a.accumulate, "accumulate"), Flag(a.bias, "bias"),
                      Flag(a.bias_once, "once"));
}

std::string ToString(const RopeScaling& a) {
  if (a.kind == RopeScalingKind::kNone) return "";
  return absl::StrCat(" scaling ", RopeScalingName(a.kind), " ",
                      Number(a.factor), " ", Number(a.low_freq_factor), " ",
                      Number(a.high_freq_factor), " ",
                      a.original_max_position_embeddings);
}

std::string ToString(const AttentionAttributes& a) {
  std::string text = absl::StrCat(
      "sequences ", a.num_sequences, " length ", a.sequence_length, " heads ",
      a.num_heads, " kv_heads ", a.num_kv_heads, " head_dim ", a.head_dim);
  if (a.rope_theta != 0)
    absl::StrAppend(&text, " theta ", Number(a.rope_theta));
  absl::StrAppend(&text, ToString(a.rope_scaling));
  if (a.norm_epsilon != 0)
    absl::StrAppend(&text, " epsilon ", Number(a.norm_epsilon));
  if (a.window != 0) absl::StrAppend(&text, " window ", a.window);
  if (a.document_length != 0)
    absl::StrAppend(&text, " document_length ", a.document_length);
  if (a.softcap != 0) absl::StrAppend(&text, " softcap ", Number(a.softcap));
  if (a.rotary_dim != 0) absl::StrAppend(&text, " rotary_dim ", a.rotary_dim);
  if (a.rotary_scale != 1) {
    absl::StrAppend(&text, " rotary_scale ", Number(a.rotary_scale));
  }
  if (a.rope_factors != 0) {
    absl::StrAppend(&text, " rope_factors ", absl::Hex(a.rope_factors));
  }
  text += Flag(a.adds_one, "adds_one");
  return text + Flag(a.inverse, "inverse") + Flag(a.accumulate, "accumulate") +
         Flag(a.finds_amax, "finds_amax");
}

std::string ToString(const ElementwiseAttributes& a) {
  return absl::StrCat("rows ", a.rows, " cols ", a.cols, Flag(a.erf, "erf"),
                      Flag(a.accumulate, "accumulate"),
                      Flag(a.finds_amax, "finds_amax"));
}

std::string ToString(const CollectiveAttributes& a) {
  return absl::StrCat("group ", GroupName(a.group), " elements ",
                      a.num_elements, " ", DTypeName(a.dtype),
                      a.of_slice ? " of_slice" : "");
}

std::string ToString(const QuantizeAttributes& a) {
  return absl::StrCat("rows ", a.rows, " cols ", a.cols,
                      Flag(a.amax_given, "amax_given"),
                      Flag(a.keeps_rows, "keeps_rows"),
                      Flag(a.keeps_transposed, "keeps_transposed"));
}

std::string ToString(const TransferAttributes& a) {
  return absl::StrCat(
      a.direction == Direction::kToNext ? "to_next" : "to_previous",
      " elements ", a.num_elements, " ", DTypeName(a.dtype));
}

std::string ToString(const OptimizerAttributes& a) {
  return absl::StrCat("elements ", a.num_elements,
                      Flag(a.data_sharded, "data_sharded"),
                      Flag(a.weight_decay, "weight_decay"), " share ",
                      Number(a.share), Flag(a.in_float8, "in_float8"));
}

std::string ToString(const WeightBucketAttributes& a) {
  return absl::StrCat("elements ", a.num_elements,
                      Flag(a.data_sharded, "data_sharded"), " matrices ",
                      absl::StrJoin(a.begins, ","), " bucket ", a.bucket_idx,
                      " of ", a.num_buckets);
}

std::string ToString(const GroupedGemmAttributes& a) {
  static constexpr const char* kFormats[] = {"", " fp8", " fp4",
                                             " fp8_blockwise"};
  return absl::StrCat("m ", a.m, " n ", a.n, " k ", a.k, " count ", a.count,
                      kFormats[static_cast<int>(a.format)],
                      Flag(a.trans_a, "trans_a"), Flag(a.trans_b, "trans_b"));
}

std::string ToString(const GeneralAttentionAttributes& a) {
  return absl::StrCat("sequences ", a.num_sequences, " queries ",
                      a.query_tokens, " keys ", a.key_tokens, " heads ",
                      a.num_heads, " kv_heads ", a.num_kv_heads, " head_dim ",
                      a.head_dim, " value_head_dim ", a.value_head_dim,
                      a.window != 0 ? absl::StrCat(" window ", a.window) : "",
                      a.document_length != 0
                          ? absl::StrCat(" document_length ", a.document_length)
                          : "");
}

std::string ToString(const TrafficAttributes& a) {
  return absl::StrCat("bytes ", Number(a.bytes));
}

std::string ToString(const ExchangeAttributes& a) {
  return absl::StrCat("bytes ", Number(a.bytes),
                      a.experts_per_row > 0
                          ? absl::StrCat(" experts_per_row ", a.experts_per_row)
                          : "");
}

}  // namespace

DType ActivationType(Precision precision) {
  return *Describe(RecipeOf(precision).activation).storage;
}

DType GemmOutputType(Precision precision, const GemmAttributes& gemm) {
  const PrecisionRecipe& recipe = RecipeOf(precision);
  return *Describe(gemm.trans_a ? recipe.weight_gradient : recipe.activation)
              .storage;
}

int64_t NumStepScalars(const Layout& layout) {
  return layout.trains_preferences() ? kNumPreferenceScalars : kNumStepScalars;
}

const char* OpKindName(OpKind kind) { return Describe(kind).name; }

bool IsCollective(OpKind kind) {
  return Describe(kind).lane == LaneRule::kOfGroup;
}

uint64_t FingerprintOf(const std::vector<double>& rope_factors) {
  if (rope_factors.empty()) return 0;
  // FNV-1a, byte by byte of each number's bits.
  uint64_t hash = 0xcbf29ce484222325;
  for (const double factor : rope_factors) {
    const auto bits = std::bit_cast<uint64_t>(factor);
    for (int shift = 0; shift < 64; shift += 8) {
      hash = (hash ^ (bits >> shift & 0xff)) * 0x100000001b3;
    }
  }
  return hash;
}

AttentionAttributes AsWholeSequences(const AttentionAttributes& attention) {
  AttentionAttributes whole = attention;
  whole.document_length = 0;
  if (attention.document_length == 0) return whole;
  const DocumentsAsSequences documents =
      CountDocuments(attention.num_sequences, attention.sequence_length,
                     attention.document_length);
  whole.num_sequences = documents.count;
  whole.sequence_length = documents.length;
  if (whole.window >= documents.length) whole.window = 0;
  return whole;
}

GeneralAttentionAttributes AsWholeSequences(
    const GeneralAttentionAttributes& attention) {
  GeneralAttentionAttributes whole = attention;
  whole.document_length = 0;
  if (attention.document_length == 0) return whole;
  const DocumentsAsSequences documents = CountDocuments(
      attention.num_sequences, attention.key_tokens, attention.document_length);
  whole.num_sequences = documents.count;
  whole.key_tokens = documents.length;
  // A rank's share of each.
  whole.query_tokens = std::max<int64_t>(
      1, documents.length * attention.query_tokens / attention.key_tokens);
  if (whole.window >= documents.length) whole.window = 0;
  return whole;
}

bool AddsToStream(OpKind kind) {
  return kind == OpKind::kResidualRmsNormForward ||
         kind == OpKind::kResidualLayerNormForward;
}

bool CanFindAmax(OpKind kind) {
  const auto& outputs = Describe(kind).outputs;
  return std::any_of(outputs.begin(), outputs.end(),
                     [](const OperandSpec& output) {
                       return output.presence == Presence::kWithAmax;
                     });
}

size_t MainOutput(OpKind kind) { return AddsToStream(kind) ? 1 : 0; }

GemmFormat FormatOfProduct(OpKind kind) {
  switch (kind) {
    case OpKind::kFloat8Gemm:
      return GemmFormat::kFloat8;
    case OpKind::kFloat8BlockGemm:
      return GemmFormat::kFloat8Blocks;
    default:
      return GemmFormat::kAsStored;
  }
}

bool MakesFloat8Copies(OpKind kind) {
  return kind == OpKind::kQuantizeFloat8 ||
         kind == OpKind::kQuantizeFloat8Blocks ||
         kind == OpKind::kQuantizeFloat8Squares;
}

bool FindsAmax(const OpAttributes& attributes) {
  return std::visit(
      [](const auto& a) {
        if constexpr (requires { a.finds_amax; }) return a.finds_amax;
        return false;
      },
      attributes);
}

bool IsTransfer(OpKind kind) {
  const LaneRule lane = Describe(kind).lane;
  return lane == LaneRule::kToPeer || lane == LaneRule::kFromPeer;
}

std::string AttributesToString(const OpAttributes& attributes) {
  return std::visit([](const auto& a) { return ToString(a); }, attributes);
}

}  // namespace millrace
