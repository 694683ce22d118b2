// The op table: one row for each op kind, with everything that follows from the
// kind alone. Lowering, Program checks, prices, profiles, op comparison and
// tests read it. Backends bind their kernels to its kinds
// (worker/train/op_binders.h).

#ifndef MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_
#define MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/recompute.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

// The sizes that shapes are written in. An op's attributes and its layout give
// them their values; a letter that they do not mention is zero.
enum class SizeLetter : uint8_t {
  kSequences,       // B
  kSequenceLength,  // L
  kTokens,          // T
  kHidden,          // H
  kQueryHeads,      // N, of one tensor rank.
  kKeyValueHeads,   // K, of one tensor rank.
  kHeadDim,         // D
  kRows,            // R, of an element-wise op.
  kCols,            // F, of an element-wise op.
  kVocabRows,       // V, of one tensor rank.
  kChunkTokens,     // C, whose logits live at once.
  kHeadProducts,    // J, of the head's gradient: 2 if logits were kept, else 3.
  kGemmRows,        // m
  kGemmCols,        // n
  kGemmInner,       // k
  kElements,        // E, of the full tensor or the whole bucket.
  kShare,           // S, of E, what this rank has.
  kParameters,      // P: S where the layout shards parameters, else E.
  kGradients,       // G: S where the layout shards gradients, else E.
  kTensorRanks,     // X
};
inline constexpr size_t kNumLetters =
    static_cast<size_t>(SizeLetter::kTensorRanks) + 1;
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

// The elements' type, as far as the kind decides it.
enum class ElementRole : uint8_t {
  kActivation,  // ActivationType() of the layout's precision.
  kGemmOutput,  // GemmOutputType().
  kFloat32,
  kFloat64,
  kInt32,
  kBfloat16,
  kOfAttributes,  // The dtype of a collective's or transfer's attributes.
  kAny,           // Priced and measured as fp32.
  // Memory that only the kernel reads. In fp32 of the dims in fp32, in bf16 as
  // many i32 as planner/program/workspace.h asks for.
  kWorkspace,
};

// Whether an instruction has the operand.
enum class Presence : uint8_t {
  kAlways,
  kOptional,
  kWithMasterWeights,  // In bf16.
  kWithKeptLogits,     // Where the attributes have keeps_logits.
};

// Whether an output is added to instead of being overwritten.
enum class Addition : uint8_t {
  kNever,
  kWhereAttributesSay,  // Where they have `accumulate`.
  kAlways,
};

// How many elements the op's work counts as moved.
enum class Traffic : uint8_t {
  kWhole,             // All; where it is added to, all twice.
  kNothing,           // Too few beside the other operands, or a workspace.
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
  // Outputs: the input that is the same tensor. Where that is a choice, the
  // input of an instruction that makes it has the size of the larger of both.
  int input = kNoInput;
  bool in_place_is_a_choice = false;
  bool is_scratch_afterwards = false;  // An input that the op may overwrite.
  bool or_float32 = false;  // fp32 in either precision for weights of norms.
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

// What decides the lane; LaneOf() (program.h) finds it.
enum class LaneRule : uint8_t {
  kCompute,
  kHost,
  kOfGroup,  // Collectives.
  kToPeer,   // Sends and receives, by direction.
  kFromPeer,
};

// The table of a hardware profile whose rows price the op, and with it the
// figures that one row is known by (planner/profile/op_shape.h).
enum class ProfileTable : uint8_t {
  kGemms,
  kAttention,
  kCrossEntropy,
  kBandwidth,  // By the bytes moved alone.
  kCommunication,
};

class PhaseSet {
 public:
  constexpr PhaseSet(std::initializer_list<Phase> phases) {
    for (const Phase phase : phases) bits_ |= 1u << static_cast<int>(phase);
  }
  constexpr bool Has(Phase phase) const {
    return (bits_ >> static_cast<int>(phase) & 1u) != 0;
  }

 private:
  unsigned bits_ = 0;
};

// The index of attributes A among the alternatives of OpAttributes.
template <typename A>
inline constexpr size_t kAttributesIndex = OpAttributes(A{}).index();

struct OpDescriptor {
  OpKind kind;
  const char* name;   // "rms_norm_forward": in Programs and profiles.
  size_t attributes;  // kAttributesIndex of the type that the kind takes.
  PhaseSet phases;    // The phases of a step that have the kind.
  LaneRule lane = LaneRule::kCompute;
  // What the backward pass may recompute with it (planner/layout/recompute.h).
  Recompute recompute = Recompute::kNone;
  ProfileTable profile = ProfileTable::kBandwidth;
  // Its kernel uses the whole device, so that communication beside it is
  // slower: products and attention.
  bool fills_device = false;
  OperandList<7> inputs = {};
  OperandList<4> outputs = {};
  SizeExpr flops = 0;
};
const OpDescriptor& Describe(OpKind kind);

// Of one instruction: whether it has an operand that is not optional, and the
// operand's dims and type. Layouts count by precision, sharding and group
// sizes.
bool HasOperand(const OperandSpec& spec, const Layout& layout,
                const OpAttributes& attributes);
std::vector<int64_t> OperandDims(const OperandSpec& spec, const Layout& layout,
                                 const OpAttributes& attributes);
DType OperandType(const OperandSpec& spec, const Layout& layout,
                  const OpAttributes& attributes);

// Whether the op, with these attributes, adds to the output.
bool IsAddedTo(const OperandSpec& spec, const OpAttributes& attributes);

// How many outputs come before the first workspace: the op's results.
size_t NumResults(OpKind kind);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_OP_TABLE_H_
