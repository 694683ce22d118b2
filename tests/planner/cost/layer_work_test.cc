#include "planner/cost/layer_work.h"

#include "gtest/gtest.h"
#include "tests/planner/known_models.h"

namespace millrace {
namespace {

double ElementsOf(const RankParameters& parameters, const Layout& layout) {
  // Copies of experts are fewer than copies of the rest.
  return parameters.dense + parameters.experts * layout.expert *
                                layout.expert_tensor / layout.tensor;
}

// Goal: the shares of all ranks make the model. Method: one rank holds
// CountParameters' totals; then every rank's share, times the ranks that have
// different ones, differs by what is said to be whole on every tensor rank.
TEST(ParametersOfLayerTest, SharesMakeTheModel) {
  for (const ModelSpec& model :
       {Llama3_8B(), Gpt3_175B(), Nemotron4_15B(), Qwen3_30B_A3B(),
        DeepSeekV3(), Moonlight16B()}) {
    const auto total_of = [&](const Layout& layout) {
      double total = ElementsOf(ParametersOfEmbedding(model, layout), layout) +
                     ElementsOf(ParametersOfHead(model, layout), layout);
      for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        total += ElementsOf(
            ParametersOfLayer(model, layout, KindOfLayer(model, layer)),
            layout);
      }
      return total * layout.tensor;
    };
    const auto expected = static_cast<double>(CountParameters(model).total);
    EXPECT_DOUBLE_EQ(total_of({}), expected);

    const LatentAttention& mla = model.mla;
    const int64_t latent =
        mla.kv_rank > 0 ? (mla.query_rank + mla.kv_rank) * (model.hidden + 1) +
                              mla.rope_head_dim * model.hidden
                        : 0;
    const auto whole = static_cast<double>(
        model.num_layers * (2 * model.hidden + latent) + model.hidden +
        model.num_expert_layers() * model.moe.num_experts * model.hidden);
    Layout cut{.data = 8, .tensor = 4};
    if (model.moe.num_experts > 0) cut.expert = 16;
    EXPECT_NEAR(total_of(cut) / (expected + 3 * whole), 1, 1e-12);
    if (model.moe.num_experts > 0) cut.expert_tensor = 4;
    EXPECT_NEAR(total_of(cut) / (expected + 3 * whole), 1, 1e-12);
  }
}

}  // namespace
}  // namespace millrace
