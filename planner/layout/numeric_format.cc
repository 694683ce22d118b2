#include "planner/layout/numeric_format.h"

#include <iterator>

#include "base/check.h"

namespace millrace {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
  int64_t bytes;
  int64_t numbers = 1;
};
constexpr int64_t kBlockBytes = kMomentBlock + 4;
constexpr DTypeRow kDTypes[] = {
    {DType::kFloat32, "f32", 4},
    {DType::kFloat64, "f64", 8},
    {DType::kInt32, "i32", 4},
    {DType::kBfloat16, "bf16", 2},
    {DType::kFloat8E4m3, "f8e4m3", 1},
    {DType::kSignedBlock8, "signed_block8", kBlockBytes, kMomentBlock},
    {DType::kUnsignedBlock8, "unsigned_block8", kBlockBytes, kMomentBlock},
};

constexpr MomentDescriptor kMomentFormats[] = {
    {MomentFormat::kFloat32, "fp32", DType::kFloat32, DType::kFloat32},
    {MomentFormat::kBfloat16, "bf16", DType::kBfloat16, DType::kBfloat16},
    {MomentFormat::kBlocks8, "8bit", DType::kSignedBlock8,
     DType::kUnsignedBlock8},
};

using enum FormatId;

// Scales of kFloat8 are those of MXFP8, of 4 bits those of NVFP4. Our workers'
// copies in kFloat8 have one scale a tensor.
constexpr NumericFormat kFormats[] = {
    {kFloat32, 4, DType::kFloat32, kFloat32},
    {kBfloat16, 2, DType::kBfloat16, kFloat32},
    {kFloat8,
     1,
     DType::kFloat8E4m3,
     kFloat32,
     {.rows = 1, .cols = 32, .bytes = 1}},
    {kFloat4, 0.5, std::nullopt, kFloat32, {.rows = 1, .cols = 16, .bytes = 1}},
    {kFloat8Blocks,
     1,
     DType::kFloat8E4m3,
     kFloat32,
     {.rows = 1, .cols = kFloat8Block, .bytes = 4}},
};

constexpr PrecisionRecipe kRecipes[] = {
    {.name = "fp32",
     .precision = Precision::kFloat32,
     .gemm_format = GemmFormat::kAsStored,
     .activation = kFloat32,
     .weight = kFloat32,
     .product = kFloat32,
     .backends = kAllBackends},
    {.name = "bf16",
     .precision = Precision::kBfloat16,
     .gemm_format = GemmFormat::kAsStored,
     .activation = kBfloat16,
     .weight = kBfloat16,
     .product = kBfloat16,
     .backends = {Backend::kCuda}},
    {.name = "fp8",
     .precision = Precision::kBfloat16,
     .gemm_format = GemmFormat::kFloat8,
     .activation = kBfloat16,
     .weight = kBfloat16,
     .product = kFloat8,
     .backends = {Backend::kCuda}},
    {.name = "fp8",
     .precision = Precision::kFloat32,
     .gemm_format = GemmFormat::kFloat8,
     .activation = kFloat32,
     .weight = kFloat32,
     .product = kFloat8,
     .backends = {Backend::kCpu}},
    {.name = "fp8_blockwise",
     .precision = Precision::kBfloat16,
     .gemm_format = GemmFormat::kFloat8Blocks,
     .activation = kBfloat16,
     .weight = kBfloat16,
     .product = kFloat8Blocks,
     .backends = {Backend::kCuda}},
    {.name = "fp8_blockwise",
     .precision = Precision::kFloat32,
     .gemm_format = GemmFormat::kFloat8Blocks,
     .activation = kFloat32,
     .weight = kFloat32,
     .product = kFloat8Blocks,
     .backends = {Backend::kCpu}},
    {.name = "fp4",
     .precision = Precision::kBfloat16,
     .gemm_format = GemmFormat::kFloat4,
     .activation = kBfloat16,
     .weight = kBfloat16,
     .product = kFloat4},
};

template <typename Id, typename Row, size_t kSize>
constexpr bool AreInOrder(const Row (&rows)[kSize], Id Row::*id) {
  for (size_t i = 0; i < kSize; ++i) {
    if (static_cast<size_t>(rows[i].*id) != i) return false;
  }
  return true;
}
static_assert(AreInOrder(kDTypes, &DTypeRow::dtype));
static_assert(AreInOrder(kFormats, &NumericFormat::id));
static_assert(AreInOrder(kMomentFormats, &MomentDescriptor::format));

const DTypeRow& RowOf(DType dtype) {
  const auto index = static_cast<size_t>(dtype);
  CHECK(index < std::size(kDTypes)) << "unknown dtype " << index;
  return kDTypes[index];
}

}  // namespace

int64_t DTypeBytes(DType dtype) { return RowOf(dtype).bytes; }

int64_t DTypeNumbers(DType dtype) { return RowOf(dtype).numbers; }

const char* DTypeName(DType dtype) { return RowOf(dtype).name; }

const NumericFormat& Describe(FormatId id) {
  return kFormats[static_cast<size_t>(id)];
}

std::span<const PrecisionRecipe> PrecisionRecipes() { return kRecipes; }

const PrecisionRecipe& RecipeOf(Precision precision, GemmFormat format) {
  for (const PrecisionRecipe& recipe : kRecipes) {
    if (recipe.gemm_format == format &&
        (recipe.precision == precision || recipe.backends.empty())) {
      return recipe;
    }
  }
  CHECK(false) << "unknown precision " << static_cast<int>(precision)
               << " or format " << static_cast<int>(format);
  return kRecipes[0];
}

const PrecisionRecipe* FindRecipe(absl::string_view name,
                                  std::optional<Backend> backend) {
  const PrecisionRecipe* first = nullptr;
  for (const PrecisionRecipe& recipe : kRecipes) {
    if (name != recipe.name) continue;
    if (backend.has_value() && recipe.backends.Has(*backend)) return &recipe;
    if (first == nullptr) first = &recipe;
  }
  return first;
}

std::span<const MomentDescriptor> MomentFormats() { return kMomentFormats; }

const MomentDescriptor& Describe(MomentFormat format) {
  return kMomentFormats[static_cast<size_t>(format)];
}

MomentFormat MomentFormatOf(absl::string_view name) {
  for (const MomentDescriptor& row : kMomentFormats) {
    if (name == row.name) return row.format;
  }
  CHECK(false) << "unknown format of moments " << name;
  return MomentFormat::kFloat32;
}

double MomentBytes(MomentFormat format) {
  const DType dtype = Describe(format).exp_avg;
  return static_cast<double>(DTypeBytes(dtype)) /
         static_cast<double>(DTypeNumbers(dtype));
}

const char* PrecisionName(Precision precision) {
  return RecipeOf(precision).name;
}

Precision PrecisionOf(absl::string_view name, std::optional<Backend> backend) {
  const PrecisionRecipe* recipe = FindRecipe(name, backend);
  CHECK(recipe != nullptr) << "unknown precision " << name;
  return recipe->precision;
}

GemmFormat GemmFormatOf(absl::string_view name) {
  const PrecisionRecipe* recipe = FindRecipe(name);
  CHECK(recipe != nullptr) << "unknown precision " << name;
  return recipe->gemm_format;
}

}  // namespace millrace
