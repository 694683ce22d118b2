// Layouts over all axes: which can be, and which layers their chunks hold.

#include <algorithm>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/cost/layer_work.h"
#include "tests/planner/known_models.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Goal: chunks tile the layers; embedding and head never have more beside them
// than other chunks hold. Method: the split of Llama 3.1 405B that its paper
// gives (126 layers so that first and last of 8 x 8 chunks have one less), and
// a sweep.
TEST(ChunkLayersTest, TilesTheLayers) {
  const auto chunks = ChunkLayers(
      Llama3_405B(), {.pipeline = 8, .interleave = 8}, Implementation{});
  ASSERT_EQ(chunks.size(), 64u);
  for (size_t chunk = 0; chunk < 64; ++chunk) {
    EXPECT_EQ(chunks[chunk].end - chunks[chunk].begin,
              chunk == 0 || chunk == 63 ? 1 : 2);
  }
  Implementation even;
  even.balances_stages = false;
  for (int64_t layers = 1; layers <= 24; ++layers) {
    ModelSpec model = TestModel();
    model.num_layers = layers;
    for (int32_t pipeline = 1; pipeline <= layers; ++pipeline) {
      for (int32_t interleave = 1; interleave * pipeline <= layers;
           ++interleave) {
        int64_t begin = 0;
        int64_t least = layers;
        int64_t most = 0;
        for (const LayerRange& chunk : ChunkLayers(
                 model, {.pipeline = pipeline, .interleave = interleave},
                 even)) {
          EXPECT_EQ(chunk.begin, begin);
          begin = chunk.end;
          least = std::min(least, chunk.end - chunk.begin);
          most = std::max(most, chunk.end - chunk.begin);
        }
        EXPECT_EQ(begin, layers);
        EXPECT_GE(least, 1);
        EXPECT_LE(most, least + 1);
      }
    }
  }
}

// Goal: each impossible layout is refused with the change that helps. Method:
// one broken rule at a time, and what the message suggests passes.
TEST(ValidatePlannedLayoutTest, SaysWhatHelps) {
  const Layout good{.pipeline = 4,
                    .data = 16,
                    .tensor = 2,
                    .context = 2,
                    .expert = 64,
                    .interleave = 3,
                    .num_microbatches = 8,
                    .precision = Precision::kBfloat16,
                    .schedule = Schedule::kInterleaved};
  const auto check = [](ModelSpec model, const Layout& layout) {
    return std::string(
        ValidatePlannedLayout(model, layout, layout.global_batch()).message());
  };
  EXPECT_EQ(check(DeepSeekV3(), good), "");
  Layout layout = good;
  layout.expert = 0;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.expert is 0"));
  layout = good;
  layout.expert = 48;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.expert to 32"));
  layout.expert = 128;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.expert to 64"));
  layout.expert = 64;
  layout.expert_tensor = 2;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.expert to 32"));
  layout.expert = 32;
  EXPECT_EQ(check(DeepSeekV3(), layout), "");
  layout.expert_tensor = 4;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("expert_tensor"));
  EXPECT_THAT(check(Llama3_405B(), good), HasSubstr("has no experts"));
  layout = good;
  layout.context = 3;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.context to 2"));
  layout = good;
  layout.schedule = Schedule::kOneForwardOneBackward;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.schedule"));
  layout = good;
  layout.interleave = 16;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("interleave to 15"));
  layout = good;
  layout.pipeline = 1;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.interleave to 1"));
  layout = good;
  layout.tensor = 3;
  EXPECT_THAT(check(DeepSeekV3(), layout), HasSubstr("layout.tensor to 2"));
}

}  // namespace
}  // namespace millrace
