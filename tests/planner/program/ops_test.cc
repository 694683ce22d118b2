#include "planner/program/ops.h"

#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "planner/program/op_work.h"

namespace millrace {
namespace {

// Goal: every op kind has a name of its own. Method: all kinds.
TEST(OpKindNameTest, IsDistinct) {
  std::set<std::string> names;
  for (int i = 0; i < kNumOpKinds; ++i) {
    names.insert(OpKindName(static_cast<OpKind>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumOpKinds));
  EXPECT_STREQ(OpKindName(OpKind::kLoadBatch), "load_batch");
  EXPECT_STREQ(OpKindName(OpKind::kReceive), "receive");
  EXPECT_STREQ(OpKindName(OpKind::kAdamW), "adamw");
}

// Goal: unequal attributes print unequally, since Programs are compared by
// their text. Method: change each field of each kind of attributes.
TEST(AttributesToStringTest, ShowsEveryField) {
  const std::vector<OpAttributes> all = {
      NoAttributes{},
      VocabAttributes{.num_tokens = 1, .hidden = 2, .vocab_rows = 3},
      VocabAttributes{.num_tokens = 4, .hidden = 2, .vocab_rows = 3},
      VocabAttributes{.num_tokens = 1, .hidden = 4, .vocab_rows = 3},
      VocabAttributes{.num_tokens = 1, .hidden = 2, .vocab_rows = 4},
      VocabAttributes{
          .num_tokens = 1, .hidden = 2, .vocab_rows = 3, .accumulate = true},
      VocabAttributes{.num_tokens = 1,
                      .hidden = 2,
                      .vocab_rows = 3,
                      .chunk_tokens = 5,
                      .token_scale = 1e-5},
      VocabAttributes{.num_tokens = 1,
                      .hidden = 2,
                      .vocab_rows = 3,
                      .chunk_tokens = 5,
                      .token_scale = 1.0000001e-5},
      VocabAttributes{.num_tokens = 1,
                      .hidden = 2,
                      .vocab_rows = 3,
                      .chunk_tokens = 5,
                      .token_scale = 1e-5,
                      .loss_share = 0.5},
      NormAttributes{.num_tokens = 1, .hidden = 2, .epsilon = 1e-5},
      NormAttributes{.num_tokens = 1, .hidden = 2, .epsilon = 1e-6},
      NormAttributes{
          .num_tokens = 1, .hidden = 2, .epsilon = 1e-6, .accumulate = true},
      GemmAttributes{.m = 1, .n = 2, .k = 3},
      GemmAttributes{.m = 2, .n = 1, .k = 3},
      GemmAttributes{.m = 1, .n = 2, .k = 3, .trans_a = true},
      GemmAttributes{.m = 1, .n = 2, .k = 3, .trans_b = true},
      GemmAttributes{.m = 1, .n = 2, .k = 3, .accumulate = true},
      AttentionAttributes{1, 2, 3, 4, 5},
      AttentionAttributes{1, 2, 4, 3, 5},
      AttentionAttributes{1, 2, 3, 4, 5, 10000.0},
      AttentionAttributes{1, 2, 3, 4, 5, 10000.0, true},
      AttentionAttributes{.num_sequences = 1,
                          .sequence_length = 2,
                          .num_heads = 3,
                          .num_kv_heads = 4,
                          .head_dim = 5,
                          .window = 1},
      AttentionAttributes{.num_sequences = 1,
                          .sequence_length = 2,
                          .num_heads = 3,
                          .num_kv_heads = 4,
                          .head_dim = 5,
                          .document_length = 1},
      GeneralAttentionAttributes{.num_sequences = 1, .key_tokens = 2},
      GeneralAttentionAttributes{
          .num_sequences = 1, .key_tokens = 2, .document_length = 1},
      ElementwiseAttributes{.rows = 1, .cols = 2},
      ElementwiseAttributes{.rows = 2, .cols = 1},
      CollectiveAttributes{Group::kTensor, 8, DType::kFloat32},
      CollectiveAttributes{Group::kData, 8, DType::kFloat32},
      CollectiveAttributes{Group::kData, 8, DType::kFloat64},
      TransferAttributes{Direction::kToNext, 8, DType::kFloat32},
      TransferAttributes{Direction::kToPrevious, 8, DType::kFloat32},
      OptimizerAttributes{.num_elements = 8, .data_sharded = false},
      OptimizerAttributes{.num_elements = 8, .data_sharded = true},
      OptimizerAttributes{
          .num_elements = 8, .data_sharded = true, .weight_decay = true},
      OptimizerAttributes{
          .num_elements = 8, .data_sharded = true, .share = 0.25},
  };
  std::set<std::string> texts;
  for (const OpAttributes& attributes : all) {
    texts.insert(AttributesToString(attributes));
  }
  EXPECT_EQ(texts.size(), all.size());
  EXPECT_EQ(AttributesToString(
                GemmAttributes{.m = 512, .n = 768, .k = 256, .trans_b = true}),
            "m 512 n 768 k 256 trans_b");
}

// Goal: documents are as much work as the whole sequences that stand for them.
// Method: pairs of a query and a key, of a rank's share of the queries too, for
// documents from a token to nearly a sequence; both as an op's FLOPs say.
TEST(AttentionAttributesTest, DocumentsBecomeSequencesOfAsMuchWork) {
  for (const int64_t num_sequences : {1, 3, 64}) {
    for (const int64_t length : {1, 37, 600, 5000, 8191}) {
      AttentionAttributes packed{.num_sequences = num_sequences,
                                 .sequence_length = 8192,
                                 .num_heads = 8,
                                 .num_kv_heads = 2,
                                 .head_dim = 64};
      EXPECT_EQ(AsWholeSequences(packed), packed);
      packed.document_length = length;
      const AttentionAttributes whole = AsWholeSequences(packed);
      EXPECT_EQ(whole.document_length, 0);
      EXPECT_EQ(whole.num_heads, 8);
      const OpKind kind = OpKind::kAttentionBackward;
      const double rounding = 1.1 / static_cast<double>(whole.sequence_length);
      EXPECT_NEAR(
          WorkOf({}, kind, whole).flops / WorkOf({}, kind, packed).flops, 1,
          rounding)
          << num_sequences << " sequences, documents of " << length;
      GeneralAttentionAttributes share{.num_sequences = num_sequences,
                                       .num_heads = 8,
                                       .num_kv_heads = 2,
                                       .query_tokens = 2048,
                                       .key_tokens = 8192,
                                       .head_dim = 64,
                                       .value_head_dim = 64,
                                       .document_length = length};
      const OpKind general = OpKind::kGeneralAttentionForward;
      const double quarter = WorkOf({}, general, share).flops;
      EXPECT_NEAR(quarter, WorkOf({}, kind, packed).flops / 2.5 / 4,
                  1e-9 * quarter);
      if (length < 37) continue;  // A quarter of a token is a whole one.
      EXPECT_NEAR(WorkOf({}, general, AsWholeSequences(share)).flops / quarter,
                  1, 5 * rounding);
    }
  }
}

// Goal: a window longer than documents hides nothing.
TEST(AttentionAttributesTest, WindowsEndWithDocuments) {
  AttentionAttributes packed{.num_sequences = 2,
                             .sequence_length = 8192,
                             .num_heads = 8,
                             .num_kv_heads = 2,
                             .head_dim = 64,
                             .window = 1024,
                             .document_length = 512};
  EXPECT_EQ(AsWholeSequences(packed).window, 0);
  packed.document_length = 2048;
  EXPECT_EQ(AsWholeSequences(packed).window, 1024);
}

}  // namespace
}  // namespace millrace
