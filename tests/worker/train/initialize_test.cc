#include "worker/train/initialize.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"

namespace millrace {
namespace {

using Tensors = std::map<std::string, std::vector<float>>;

// Whole tensors, put together from what every rank of `layout` initializes.
// Checks that ranks that hold the same element agree on it.
Tensors InitializeAll(const ModelSpec& model, const Layout& layout,
                      uint64_t seed) {
  Tensors tensors;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
    const StageParameters parameters =
        BuildStageParameters(model, layout, at.pipeline);
    std::vector<float> flat(parameters.num_elements, -7.0f);
    InitializeParameters(model, layout, at, parameters, seed, flat.data());
    double sum = 0;
    for (const ParameterSlot& slot : parameters.slots) {
      const Parameter& parameter = slot.parameter;
      const ParameterBox box = TensorBox(parameter, layout.tensor, at.tensor);
      std::vector<float>& whole = tensors[parameter.name];
      whole.resize(parameter.rows * parameter.cols, NAN);
      int64_t i = slot.offset;
      for (int64_t row = box.row_begin; row < box.row_end; ++row) {
        for (int64_t col = box.col_begin; col < box.col_end; ++col, ++i) {
          float& element = whole[row * parameter.cols + col];
          EXPECT_TRUE(std::isnan(element) || element == flat[i])
              << parameter.name;
          element = flat[i];
          sum += std::abs(flat[i]);
        }
      }
    }
    // Values that belong to no parameter are zero.
    double sum_of_all = 0;
    for (const float value : flat) sum_of_all += std::abs(value);
    EXPECT_NEAR(sum_of_all, sum, 1e-6 * sum);
  }
  return tensors;
}

// Goal: initial weights are the same under every layout, to the bit, and cover
// the model. Method: every layout of up to four ranks against one rank.
TEST(InitializeParametersTest, DoesNotDependOnLayout) {
  const ModelSpec model = SmallJob().model;
  const Tensors expected = InitializeAll(model, {.micro_batch = 8}, 1);
  EXPECT_EQ(expected.size(), ModelParameters(model).size());
  for (const Layout& layout : SmallLayouts()) {
    EXPECT_EQ(InitializeAll(model, layout, 1), expected)
        << LayoutToString(layout);
  }
}

// Goal: matrices are normal with the model's deviation, norms are one, and
// seeds and names give different numbers. Method: moments over thousands of
// elements, whose error is below one over the root of their number times four.
TEST(InitializeParametersTest, FollowsTheDistribution) {
  const ModelSpec model = SmallJob().model;
  const Tensors tensors = InitializeAll(model, {.micro_batch = 8}, 1);
  for (const Parameter& parameter : ModelParameters(model)) {
    const std::vector<float>& values = tensors.at(parameter.name);
    if (parameter.is_vector) {
      EXPECT_THAT(values, testing::Each(1.0f));
      continue;
    }
    double sum = 0, sum_of_squares = 0;
    for (const float value : values) {
      sum += value;
      sum_of_squares += value * value;
    }
    const auto count = static_cast<double>(values.size());
    const double bound = 4 / std::sqrt(count);
    EXPECT_LE(std::abs(sum / count), bound * model.init_std);
    EXPECT_NEAR(std::sqrt(sum_of_squares / count) / model.init_std, 1, bound);
  }
  EXPECT_NE(tensors.at("lm_head.weight"),
            tensors.at("model.embed_tokens.weight"));
  EXPECT_NE(tensors.at("lm_head.weight"),
            InitializeAll(model, {.micro_batch = 8}, 2).at("lm_head.weight"));
}

}  // namespace
}  // namespace millrace
