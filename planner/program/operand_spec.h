// The statements of an op kind's row about one operand
// (planner/program/op_table.h), and what follows from them for one instruction.

#ifndef MILLRACE_PLANNER_PROGRAM_OPERAND_SPEC_H_
#define MILLRACE_PLANNER_PROGRAM_OPERAND_SPEC_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"

namespace millrace {

// The sizes that shapes are written in. An op's attributes and its layout give
// them their values; a letter that they do not mention is zero.
enum class SizeLetter : uint8_t {
  kSequences,       // B
  kSequenceLength,  // L
  kKeyTokens,       // In a document; with a window its share of them.
  kTokens,          // T
  kHidden,          // H
  kQueryHeads,      // N, on one tensor rank.
  kKeyValueHeads,   // K, on one tensor rank.
  kHeadDim,         // D
  kRows,            // R, in an element-wise op.
  kCols,            // F, in an element-wise op.
  kQueryBlocks,     // Qb: blocks of kFloat8QueryBlock tokens in a sequence.
  kKeyBlocks,       // Kb: the same of kFloat8KeyBlock.
  kPasses,          // W: times that kQuantizeFloat8 reads its input.
  kVocabRows,       // V, on one tensor rank.
  kChunkTokens,     // C: tokens whose logits live at once.
  kHeadProducts,    // J: 2 where the head kept its logits, else 3.
  kGemmRows,        // m
  kGemmCols,        // n
  kGemmInner,       // k
  // Blocks of kFloat8Block numbers in 8-bit copies and products of them.
  kRowBlocks,    // Those in R.
  kColBlocks,    // Those in F.
  kInnerBlocks,  // Those in k.
  // The dims of the units of b. A weight's are those of its copy as rows, which
  // the transposed copy shares.
  kUnitRows,
  kUnitCols,
  kElements,        // E: the full tensor, or the whole bucket.
  kShare,           // S: the part of E that belongs to this rank.
  kParameters,      // P: S where the layout shards parameters, else E.
  kGradients,       // G: S where the layout shards gradients, else E.
  kRounded,         // U: S where the layout rounds slices alone, else G.
  kReduced,         // Z: S of the shard group where `of_slice`, else E.
  kUpdated,         // S where the update writes kernels' weights, else 0.
  kWeights,         // The weights that the optimizer updates: S where they are
                    // master weights, else P.
  kAmaxes,          // Of a bucket, with what lies between them.
  kGatheredAmaxes,  // Of all buckets and all ranks of a shard group.
  kTensorRanks,     // X
  kStepScalars,     // NumStepScalars().
  // Letters of kinds that can only be planned:
  kProducts,      // Q: products of one shape.
  kQueryTokens,   // This rank's.
  kValueHeadDim,  // A value's, which may differ from a key's.
  kBytes,         // Moved or sent, where nothing else is known.
};
inline constexpr size_t kNumLetters =
    static_cast<size_t>(SizeLetter::kBytes) + 1;
using LetterValues = std::array<double, kNumLetters>;
LetterValues LettersOf(const Layout& layout, const OpAttributes& attributes);

// A number of elements or operations: a sum of at most two products of letters.
class SizeExpr {
 public:
  constexpr SizeExpr(int64_t number) : terms_{{{.factor = number}}} {}
  constexpr SizeExpr(SizeLetter letter)
      : terms_{{{.factor = 1, .letters = {letter}, .num_letters = 1}}} {}

  friend constexpr SizeExpr operator+(const SizeExpr& a, const SizeExpr& b) {
    SizeExpr sum = a;
    for (size_t i = 0; i < b.num_terms_; ++i) {
      sum.terms_[sum.num_terms_++] = b.terms_[i];
    }
    return sum;
  }
  friend constexpr SizeExpr operator*(const SizeExpr& a, const SizeExpr& b) {
    SizeExpr product = 0;
    product.num_terms_ = 0;
    for (size_t i = 0; i < a.num_terms_; ++i) {
      for (size_t j = 0; j < b.num_terms_; ++j) {
        product.terms_[product.num_terms_++] = Times(a.terms_[i], b.terms_[j]);
      }
    }
    return product;
  }

  // Exact below 2^53.
  double In(const LetterValues& letters) const {
    double sum = 0;
    for (size_t i = 0; i < num_terms_; ++i) {
      double product = 1;
      for (size_t j = 0; j < terms_[i].num_letters; ++j) {
        product *= letters[static_cast<size_t>(terms_[i].letters[j])];
      }
      sum += product * static_cast<double>(terms_[i].factor);
    }
    return sum;
  }

 private:
  // Constants of the table that need more do not compile.
  static constexpr size_t kMaxTerms = 2;
  static constexpr size_t kMaxLetters = 5;
  struct Term {
    int64_t factor = 0;
    std::array<SizeLetter, kMaxLetters> letters{};
    size_t num_letters = 0;
  };
  static constexpr Term Times(const Term& a, const Term& b) {
    Term product = a;
    product.factor *= b.factor;
    for (size_t i = 0; i < b.num_letters; ++i) {
      product.letters[product.num_letters++] = b.letters[i];
    }
    return product;
  }

  std::array<Term, kMaxTerms> terms_;
  size_t num_terms_ = 1;
};

// How the kind decides the type of the elements.
enum class ElementRole : uint8_t {
  kActivation,  // ActivationType() of the layout's precision.
  kGemmOutput,  // GemmOutputType().
  kFloat32,
  kFloat64,
  kInt32,
  kBfloat16,
  kFloat8,       // e4m3.
  kFirstMoment,  // The layout's MomentFormat says it, as of the next.
  kSecondMoment,
  kOfAttributes,  // The dtype of a collective's or transfer's attributes.
  kAny,           // Any type. Prices and measurements assume fp32.
  // Memory that only the kernel reads. In fp32: floats of the given dims. In
  // bf16: as many i32 as planner/program/workspace.h asks for.
  kWorkspace,
};

// Whether an instruction has the operand.
enum class Presence : uint8_t {
  kAlways,
  kOptional,
  kWithMasterWeights,  // In bf16.
  kWithKeptLogits,     // Where the attributes have keeps_logits.
  kWithBias,           // Where a product's attributes have bias.
  kWithAmax,           // Where FindsAmax().
  kWithAmaxGiven,      // Where QuantizeAttributes have amax_given.
  kWithoutAmaxGiven,   // Where they have not.
  kWithRows,           // Where QuantizeAttributes have keeps_rows.
  kWithTransposed,     // Where they have keeps_transposed.
  kWithPreferences,    // Where the layout trains preferences.
};

// Whether an output is added to instead of being overwritten.
enum class Addition : uint8_t {
  kNever,
  kWhereAttributesSay,  // Where they have `accumulate`.
  kAlways,
};

// How many elements the op's work counts as moved.
enum class Traffic : uint8_t {
  kWhole,             // All of them; twice where the op adds to them.
  kNothing,           // Few beside the other operands, or a workspace.
  kAsGiven,           // OperandSpec::moved.
  kAsGivenInFloat32,  // The same in fp32, nothing in bf16.
};

inline constexpr int kNoInput = -1;

struct OperandSpec {
  static constexpr size_t kMaxDims = 3;

  constexpr OperandSpec() = default;
  constexpr OperandSpec(ElementRole role, const char* name,
                        std::initializer_list<SizeExpr> dims)
      : name(name), role(role), num_dims(dims.size()) {
    size_t i = 0;
    for (const SizeExpr& dim : dims) this->dims[i++] = dim;
  }

  // Setters, for the table.
  constexpr OperandSpec NotCounted() const {
    OperandSpec copy = *this;
    copy.traffic = Traffic::kNothing;
    return copy;
  }
  constexpr OperandSpec Moves(const SizeExpr& size) const {
    OperandSpec copy = *this;
    copy.traffic = Traffic::kAsGiven;
    copy.moved = size;
    return copy;
  }
  constexpr OperandSpec MovesInFloat32(const SizeExpr& size) const {
    OperandSpec copy = Moves(size);
    copy.traffic = Traffic::kAsGivenInFloat32;
    return copy;
  }
  constexpr OperandSpec Added(Addition value) const {
    OperandSpec copy = *this;
    copy.addition = value;
    return copy;
  }
  constexpr OperandSpec If(Presence value) const {
    OperandSpec copy = *this;
    copy.presence = value;
    return copy;
  }
  constexpr OperandSpec SameAs(int input) const {
    OperandSpec copy = *this;
    copy.input = input;
    return copy;
  }
  constexpr OperandSpec MayBe(int input) const {
    OperandSpec copy = *this;
    copy.input = input;
    copy.in_place_is_a_choice = true;
    return copy;
  }
  constexpr OperandSpec ScratchAfterwards() const {
    OperandSpec copy = *this;
    copy.is_scratch_afterwards = true;
    return copy;
  }
  constexpr OperandSpec JustWritten() const {
    OperandSpec copy = *this;
    copy.is_just_written = true;
    return copy;
  }
  constexpr OperandSpec OrFloat32() const {
    OperandSpec copy = *this;
    copy.or_float32 = true;
    return copy;
  }

  const char* name = "";
  ElementRole role = ElementRole::kActivation;
  std::array<SizeExpr, kMaxDims> dims{SizeExpr{0}, SizeExpr{0}, SizeExpr{0}};
  size_t num_dims = 0;
  Presence presence = Presence::kAlways;
  Addition addition = Addition::kNever;
  Traffic traffic = Traffic::kWhole;
  SizeExpr moved = 0;
  // For an output: the input that is the same tensor. Where in place is a
  // choice and taken, both have the elements of the larger one.
  int input = kNoInput;
  bool in_place_is_a_choice = false;
  bool is_scratch_afterwards = false;  // An input that the op may overwrite.
  // An input that the op before it in a step has written, so that it lies in
  // caches if it fits.
  bool is_just_written = false;
  bool or_float32 = false;  // Weights of norms are fp32 in either precision.
};

// A few operands, in order.
template <size_t kCapacity>
class OperandList {
 public:
  constexpr OperandList() = default;
  constexpr OperandList(std::initializer_list<OperandSpec> specs) {
    for (const OperandSpec& spec : specs) specs_[size_++] = spec;
  }
  constexpr const OperandSpec* begin() const { return specs_.data(); }
  constexpr const OperandSpec* end() const { return specs_.data() + size_; }
  constexpr size_t size() const { return size_; }
  constexpr const OperandSpec& operator[](size_t i) const { return specs_[i]; }

 private:
  std::array<OperandSpec, kCapacity> specs_;
  size_t size_ = 0;
};

// Whether an instruction with these attributes has the operand. True for an
// optional one.
bool HasOperand(const OperandSpec& spec, const Layout& layout,
                const OpAttributes& attributes);
// The operand's dims and element type. They depend on the layout's precision,
// moments, sharding and sizes of axes.
std::vector<int64_t> OperandDims(const OperandSpec& spec, const Layout& layout,
                                 const OpAttributes& attributes);
DType OperandType(const OperandSpec& spec, const Layout& layout,
                  const OpAttributes& attributes);

// Whether an op with these attributes adds to the output.
bool IsAddedTo(const OperandSpec& spec, const OpAttributes& attributes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OPERAND_SPEC_H_
