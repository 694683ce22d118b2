#include "planner/program/operand_spec.h"

#include <variant>

#include "base/check.h"
#include "planner/program/workspace.h"

namespace millrace {
namespace {

class LetterWriter {
 public:
  explicit LetterWriter(const Layout& layout) : layout_(layout) {
    Set(SizeLetter::kTensorRanks, layout.tensor);
    Set(SizeLetter::kStepScalars, NumStepScalars(layout));
  }
  LetterValues values() const { return values_; }

  void operator()(const NoAttributes&) {}
  void operator()(const VocabAttributes& a) {
    Set(SizeLetter::kTokens, a.num_tokens);
    Set(SizeLetter::kHidden, a.hidden);
    Set(SizeLetter::kVocabRows, a.vocab_rows);
    Set(SizeLetter::kChunkTokens, a.chunk_tokens);
    // Logits, hidden gradient and weight gradient.
    Set(SizeLetter::kHeadProducts, a.keeps_logits ? 2 : 3);
  }
  void operator()(const NormAttributes& a) {
    Set(SizeLetter::kTokens, a.num_tokens);
    Set(SizeLetter::kHidden, a.hidden);
  }
  void operator()(const GemmAttributes& a) {
    Set(SizeLetter::kGemmRows, a.m);
    Set(SizeLetter::kGemmCols, a.n);
    Set(SizeLetter::kGemmInner, a.k);
    const int64_t inner = Blocks(a.k);
    Set(SizeLetter::kInnerBlocks, inner);
    Set(SizeLetter::kUnitRows, a.trans_b ? Blocks(a.n) : inner);
    Set(SizeLetter::kUnitCols, a.trans_a   ? a.n
                               : a.trans_b ? inner
                                           : Blocks(a.n));
  }
  void operator()(const AttentionAttributes& a) {
    Set(SizeLetter::kSequences, a.num_sequences);
    Set(SizeLetter::kSequenceLength, a.sequence_length);
    Set(SizeLetter::kKeyTokens, KeysSeen(a.sequence_length, a));
    Set(SizeLetter::kTokens, a.num_sequences * a.sequence_length);
    Set(SizeLetter::kQueryHeads, a.num_heads);
    Set(SizeLetter::kKeyValueHeads, a.num_kv_heads);
    Set(SizeLetter::kHeadDim, a.head_dim);
    Set(SizeLetter::kQueryBlocks, Blocks(a.sequence_length, kFloat8QueryBlock));
    Set(SizeLetter::kKeyBlocks, Blocks(a.sequence_length, kFloat8KeyBlock));
  }
  void operator()(const ElementwiseAttributes& a) {
    Set(SizeLetter::kTokens, a.rows * a.cols);
    Set(SizeLetter::kRows, a.rows);
    Set(SizeLetter::kCols, a.cols);
  }
  void operator()(const QuantizeAttributes& a) {
    Set(SizeLetter::kPasses, a.amax_given ? 1 : 2);
    Set(SizeLetter::kRows, a.rows);
    Set(SizeLetter::kCols, a.cols);
    Set(SizeLetter::kRowBlocks, Blocks(a.rows));
    Set(SizeLetter::kColBlocks, Blocks(a.cols));
  }
  void operator()(const CollectiveAttributes& a) {
    Set(SizeLetter::kElements, a.num_elements);
    Set(SizeLetter::kShare, Share(a.num_elements, GroupSize(layout_, a.group)));
    Set(SizeLetter::kReduced,
        Share(a.num_elements, a.of_slice ? layout_.group_data() : 1));
  }
  void operator()(const TransferAttributes& a) {
    Set(SizeLetter::kElements, a.num_elements);
  }
  void operator()(const OptimizerAttributes& a) {
    const auto whole = static_cast<double>(a.num_elements);
    const double share =
        Share(a.num_elements, a.data_sharded ? layout_.group_data() : 1);
    Set(SizeLetter::kElements, whole);
    Set(SizeLetter::kShare, share);
    // Master weights alone are updated, and stand for the parameters.
    const bool is_master = a.in_float8 && RecipeOf(layout_).has_masters();
    Set(SizeLetter::kParameters,
        layout_.shards_parameters() || is_master ? share : whole);
    Set(SizeLetter::kUpdated, is_master ? 0 : share);
    const double gradients = layout_.shards_gradients() ? share : whole;
    Set(SizeLetter::kGradients, gradients);
    Set(SizeLetter::kRounded, layout_.rounds_across() ? share : gradients);
  }

  void operator()(const WeightBucketAttributes& a) {
    const auto whole = static_cast<double>(a.num_elements);
    const int32_t ranks = a.data_sharded ? layout_.group_data() : 1;
    const double share = Share(a.num_elements, ranks);
    const double parameters = layout_.shards_parameters() ? share : whole;
    Set(SizeLetter::kElements, whole);
    Set(SizeLetter::kShare, share);
    Set(SizeLetter::kParameters, parameters);
    Set(SizeLetter::kWeights,
        RecipeOf(layout_).has_masters() ? share : parameters);
    Set(SizeLetter::kAmaxes, kNumberStride);
    Set(SizeLetter::kGatheredAmaxes, kNumberStride * a.num_buckets * ranks);
  }

  void operator()(const GroupedGemmAttributes& a) {
    Set(SizeLetter::kGemmRows, a.m);
    Set(SizeLetter::kGemmCols, a.n);
    Set(SizeLetter::kGemmInner, a.k);
    Set(SizeLetter::kProducts, a.count);
  }
  void operator()(const GeneralAttentionAttributes& a) {
    Set(SizeLetter::kSequences, a.num_sequences);
    Set(SizeLetter::kQueryHeads, a.num_heads);
    Set(SizeLetter::kKeyValueHeads, a.num_kv_heads);
    Set(SizeLetter::kQueryTokens, a.query_tokens);
    Set(SizeLetter::kKeyTokens, KeysSeen(a.key_tokens, a));
    Set(SizeLetter::kHeadDim, a.head_dim);
    Set(SizeLetter::kValueHeadDim, a.value_head_dim);
  }
  void operator()(const TrafficAttributes& a) {
    Set(SizeLetter::kBytes, a.bytes);
  }
  void operator()(const ExchangeAttributes& a) {
    Set(SizeLetter::kBytes, a.bytes);
  }

 private:
  template <typename Attention>
  static double KeysSeen(int64_t key_tokens, const Attention& a) {
    const int64_t length =
        a.document_length > 0 ? a.document_length : key_tokens;
    return static_cast<double>(length) * WindowShare(a.window, length);
  }
  static int64_t Blocks(int64_t size, int64_t block = kFloat8Block) {
    return (size + block - 1) / block;
  }
  static double Share(int64_t num_elements, int32_t num_ranks) {
    return static_cast<double>(num_elements) / num_ranks;
  }
  template <typename T>
  void Set(SizeLetter letter, T value) {
    values_[static_cast<size_t>(letter)] = static_cast<double>(value);
  }

  const Layout& layout_;
  LetterValues values_{};
};

int64_t WorkspaceBytes(const OpAttributes& attributes) {
  if (const auto* attention = std::get_if<AttentionAttributes>(&attributes)) {
    return AttentionBackwardWorkspaceBytes(*attention);
  }
  return CrossEntropyWorkspaceBytes(std::get<VocabAttributes>(attributes));
}

DType OfAttributes(const OpAttributes& attributes) {
  if (const auto* a = std::get_if<TransferAttributes>(&attributes)) {
    return a->dtype;
  }
  return std::get<CollectiveAttributes>(attributes).dtype;
}

}  // namespace

LetterValues LettersOf(const Layout& layout, const OpAttributes& attributes) {
  LetterWriter writer(layout);
  std::visit(writer, attributes);
  return writer.values();
}

bool HasOperand(const OperandSpec& spec, const Layout& layout,
                const OpAttributes& attributes) {
  switch (spec.presence) {
    case Presence::kAlways:
    case Presence::kOptional:
      return true;
    case Presence::kWithMasterWeights:
      return RecipeOf(layout).has_masters();
    case Presence::kWithKeptLogits:
      return std::get<VocabAttributes>(attributes).keeps_logits;
    case Presence::kWithBias:
      return std::get<GemmAttributes>(attributes).bias;
    case Presence::kWithAmax:
      return FindsAmax(attributes);
    case Presence::kWithAmaxGiven:
      return std::get<QuantizeAttributes>(attributes).amax_given;
    case Presence::kWithoutAmaxGiven:
      return !std::get<QuantizeAttributes>(attributes).amax_given;
    case Presence::kWithRows:
      return std::get<QuantizeAttributes>(attributes).keeps_rows;
    case Presence::kWithTransposed:
      return std::get<QuantizeAttributes>(attributes).keeps_transposed;
    case Presence::kWithPreferences:
      return layout.trains_preferences();
  }
  CHECK(false) << "unknown presence of " << spec.name;
  return false;
}

std::vector<int64_t> OperandDims(const OperandSpec& spec, const Layout& layout,
                                 const OpAttributes& attributes) {
  if (spec.role == ElementRole::kWorkspace &&
      layout.precision == Precision::kBfloat16) {
    return {WorkspaceBytes(attributes) / DTypeBytes(DType::kInt32)};
  }
  const LetterValues letters = LettersOf(layout, attributes);
  std::vector<int64_t> dims;
  for (size_t i = 0; i < spec.num_dims; ++i) {
    dims.push_back(static_cast<int64_t>(spec.dims[i].In(letters)));
  }
  // Rows count numbers; an element of a block type holds several.
  const int64_t numbers = DTypeNumbers(OperandType(spec, layout, attributes));
  if (numbers > 1) dims.back() = (dims.back() + numbers - 1) / numbers;
  return dims;
}

DType OperandType(const OperandSpec& spec, const Layout& layout,
                  const OpAttributes& attributes) {
  switch (spec.role) {
    case ElementRole::kActivation:
      return ActivationType(layout.precision);
    case ElementRole::kGemmOutput:
      return GemmOutputType(layout.precision,
                            std::get<GemmAttributes>(attributes));
    case ElementRole::kFloat32:
    case ElementRole::kAny:
      return DType::kFloat32;
    case ElementRole::kFloat64:
      return DType::kFloat64;
    case ElementRole::kInt32:
      return DType::kInt32;
    case ElementRole::kBfloat16:
      return DType::kBfloat16;
    case ElementRole::kFloat8:
      return DType::kFloat8E4m3;
    case ElementRole::kFirstMoment:
      return Describe(layout.moments).exp_avg;
    case ElementRole::kSecondMoment:
      return Describe(layout.moments).exp_avg_sq;
    case ElementRole::kOfAttributes:
      return OfAttributes(attributes);
    case ElementRole::kWorkspace:
      return layout.precision == Precision::kBfloat16 ? DType::kInt32
                                                      : DType::kFloat32;
  }
  CHECK(false) << "unknown role of " << spec.name;
  return DType::kFloat32;
}

bool IsAddedTo(const OperandSpec& spec, const OpAttributes& attributes) {
  if (spec.addition != Addition::kWhereAttributesSay) {
    return spec.addition == Addition::kAlways;
  }
  return std::visit(
      [](const auto& a) {
        if constexpr (requires { a.accumulate; }) return a.accumulate;
        return false;
      },
      attributes);
}

}  // namespace millrace
