#include "planner/model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

ModelSpec Llama7B() {
  return {.vocab_size = 32000,
          .hidden = 4096,
          .num_layers = 32,
          .num_heads = 32,
          .num_kv_heads = 32,
          .head_dim = 128,
          .ffn_hidden = 11008,
          .sequence_length = 4096};
}

// Goal: the counts are those of a model everyone can look up. Method: Llama 2
// 7B, whose published checkpoint holds 6,738,415,616 parameters.
TEST(CountParametersTest, AgreesWithAPublishedModel) {
  const ParameterCounts counts = CountParameters(Llama7B());
  EXPECT_EQ(counts.total, 6738415616);
  EXPECT_EQ(counts.embedding, int64_t{32000} * 4096);
  EXPECT_EQ(counts.head, counts.embedding);
  EXPECT_EQ(counts.embedding + 32 * counts.per_layer + counts.final_norm +
                counts.head,
            counts.total);
}

// Goal: FLOPs follow from the counts and the attention shape. Method: by hand.
TEST(CountTokenFlopsTest, CountsLinearAndAttention) {
  const TokenFlops flops = CountTokenFlops(Llama7B());
  EXPECT_DOUBLE_EQ(flops.linear, 6.0 * (6738415616.0 - 32000.0 * 4096.0));
  EXPECT_DOUBLE_EQ(flops.attention_full, 12.0 * 32 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(flops.attention_causal, flops.attention_full / 2);
}

// Goal: each impossible field is refused by name. Method: break one at a time.
TEST(ValidateModelTest, NamesTheFirstImpossibleField) {
  EXPECT_TRUE(ValidateModel(Llama7B()).ok());
  ModelSpec model = Llama7B();
  model.hidden = 0;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("model.hidden"));
  model = Llama7B();
  model.num_kv_heads = 5;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("num_kv_heads"));
  model = Llama7B();
  model.head_dim = 127;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("head_dim"));
  model = Llama7B();
  model.rope_theta = -1;
  EXPECT_THAT(ValidateModel(model).message(), HasSubstr("rope_theta"));
}

}  // namespace
}  // namespace millrace
