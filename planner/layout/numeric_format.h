// Number formats, and the recipes that say which of them a training uses where,
// as two tables.
//
// To add a format: a name in FormatId and a row in numeric_format.cc; where
// tensors of Programs hold it, also a DType. To add a recipe, such as 8-bit
// products with one scale a tensor or a 128 x 128 block: a row in the same
// file.

#ifndef MILLRACE_PLANNER_LAYOUT_NUMERIC_FORMAT_H_
#define MILLRACE_PLANNER_LAYOUT_NUMERIC_FORMAT_H_

#include <cstdint>
#include <optional>
#include <span>

#include "absl/strings/string_view.h"
#include "planner/layout/backends.h"

namespace millrace {

// The element type of a Program's tensor. kFloat8E4m3 has 4 bits of exponent
// and 3 of mantissa, and goes up to 448 (Micikevicius et al., "FP8 Formats for
// Deep Learning", 2022). An element of the last two is a block: kMomentBlock
// numbers in 8 bits each, and their largest magnitude in fp32
// (kernels/optimizer/moments.h).
enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kInt32,
  kBfloat16,
  kFloat8E4m3,
  kSignedBlock8,
  kUnsignedBlock8,
};
inline constexpr int64_t kMomentBlock = 256;
int64_t DTypeBytes(DType dtype);
int64_t DTypeNumbers(DType dtype);   // In one element: kMomentBlock or one.
const char* DTypeName(DType dtype);  // "f32".

enum class FormatId : uint8_t {
  kFloat32,
  kBfloat16,
  kFloat8,
  kFloat4,
  kFloat8Blocks,
};

// The elements that share a scale: a block of a matrix.
struct ScaleBlock {
  int32_t rows = 0;  // 0 x 0: no scales, or one for the whole tensor.
  int32_t cols = 0;
  double bytes = 0;  // Bytes of one scale.
};

struct NumericFormat {
  FormatId id;
  double bytes;  // Bytes of one element, without its scale.
  // The element type of a Program's tensors. Absent: no Program has such
  // tensors yet.
  std::optional<DType> storage;
  // The format in which products of such numbers are summed.
  FormatId accumulate;
  ScaleBlock scale = {};

  // Bytes of one element with its part of a scale.
  constexpr double stored_bytes() const {
    return scale.rows == 0 ? bytes
                           : bytes + scale.bytes / (scale.rows * scale.cols);
  }
};
const NumericFormat& Describe(FormatId id);

// The storage format of tensors: the first half of a recipe's name in a Layout.
// ops.h says which tensors stay fp32 under kBfloat16.
enum class Precision : uint8_t { kFloat32, kBfloat16 };
// The format that matrix products read: activations and weights as stored, or
// copies of them in 8 or 4 bits with scales. The second half of the name.
// kFloat8 has one scale a tensor. kFloat8Blocks has one for each kFloat8Block
// numbers along the dim that a product sums over; weights have one for a square
// of that side, so that their transposed copies have the same scales.
enum class GemmFormat : uint8_t { kAsStored, kFloat8, kFloat4, kFloat8Blocks };
inline constexpr int64_t kFloat8Block = 128;
// Tokens of a head that share a scale in copies that attention reads.
inline constexpr int64_t kFloat8QueryBlock = 128;
inline constexpr int64_t kFloat8KeyBlock = 192;  // Of keys, and of values.
constexpr bool IsFloat8(GemmFormat format) {
  return format == GemmFormat::kFloat8 || format == GemmFormat::kFloat8Blocks;
}

// The number format of each role.
struct PrecisionRecipe {
  const char* name;  // The value of training.precision: "fp8".
  Precision precision;
  GemmFormat gemm_format;
  FormatId activation;  // Activations and their gradients, sent ones as well.
  FormatId weight;      // The weights that kernels read. Norms' are fp32.
  FormatId product;     // The format that matrix products read.
  // Moments and the weights that the optimizer updates.
  FormatId state = FormatId::kFloat32;
  FormatId weight_gradient = FormatId::kFloat32;
  BackendSet backends = kNoBackend;  // Those with kernels. None: plan only.

  // Whether the optimizer updates master weights, of which kernels read copies.
  constexpr bool has_masters() const { return weight != state; }
};
// Several may have one name: backends store what 8-bit products do not read in
// different formats.
std::span<const PrecisionRecipe> PrecisionRecipes();
// A format that is planned only has one recipe, whatever `precision` is.
const PrecisionRecipe& RecipeOf(Precision precision,
                                GemmFormat format = GemmFormat::kAsStored);
// Null if no recipe has the name. With a backend, the recipe of that name that
// the backend runs, or else the first of that name.
const PrecisionRecipe* FindRecipe(
    absl::string_view name, std::optional<Backend> backend = std::nullopt);

// How the optimizer keeps its two moments between steps
// (training.optimizer.moments).
enum class MomentFormat : uint8_t { kFloat32, kBfloat16, kBlocks8 };
struct MomentDescriptor {
  MomentFormat format;
  const char* name;  // "bf16": the value of the key.
  DType exp_avg;
  DType exp_avg_sq;  // As many bytes as exp_avg.
};
std::span<const MomentDescriptor> MomentFormats();
const MomentDescriptor& Describe(MomentFormat format);
MomentFormat MomentFormatOf(absl::string_view name);  // Must be one of these.
// Bytes of one number of one moment: 4, 2, or 260 / 256 in blocks.
double MomentBytes(MomentFormat format);

const char* PrecisionName(Precision precision);  // "fp32", "bf16".
// The two halves of the recipe that FindRecipe() gives. There must be one.
Precision PrecisionOf(absl::string_view name,
                      std::optional<Backend> backend = std::nullopt);
GemmFormat GemmFormatOf(absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_NUMERIC_FORMAT_H_
