#include "planner/layout/numeric_format.h"

#include "gtest/gtest.h"
#include "planner/layout/layout.h"

namespace millrace {
namespace {

// Goal: the name of a recipe, with a backend that runs it, and the two fields
// of a layout say the same. Method: all recipes, there and back.
TEST(PrecisionRecipeTest, NamesAreReadBack) {
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    SCOPED_TRACE(recipe.name);
    const Backend backend =
        recipe.backends.Has(Backend::kCpu) ? Backend::kCpu : Backend::kCuda;
    EXPECT_EQ(PrecisionOf(recipe.name, backend), recipe.precision);
    EXPECT_EQ(GemmFormatOf(recipe.name), recipe.gemm_format);
    const Layout layout{.precision = recipe.precision,
                        .gemm_format = recipe.gemm_format};
    EXPECT_EQ(&RecipeOf(layout), &recipe);
    EXPECT_STREQ(PrecisionName(layout), recipe.name);
  }
  EXPECT_EQ(FindRecipe("int4"), nullptr);
}

// Goal: a recipe that backends run stores its tensors as Programs can hold
// them. Method: the formats of all roles that tensors have.
TEST(PrecisionRecipeTest, TensorsOfExecutableRecipesHaveAType) {
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    if (recipe.backends.empty()) continue;
    for (const FormatId format :
         {recipe.activation, recipe.weight, recipe.product,
          recipe.weight_gradient, recipe.state}) {
      const NumericFormat& row = Describe(format);
      ASSERT_TRUE(row.storage.has_value()) << recipe.name;
      EXPECT_EQ(row.bytes, static_cast<double>(DTypeBytes(*row.storage)));
    }
  }
}

// Goal: bytes count the scales. Method: formats with and without.
TEST(NumericFormatTest, StoredBytesCountScales) {
  EXPECT_EQ(Describe(FormatId::kBfloat16).stored_bytes(), 2);
  EXPECT_EQ(Describe(FormatId::kFloat8).stored_bytes(), 1 + 1.0 / 32);
  EXPECT_EQ(Describe(FormatId::kFloat8Blocks).stored_bytes(), 1 + 4.0 / 128);
  EXPECT_EQ(Describe(FormatId::kFloat4).stored_bytes(), 0.5 + 1.0 / 16);
}

}  // namespace
}  // namespace millrace
