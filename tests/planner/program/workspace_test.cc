#include "planner/program/workspace.h"

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/attention/attention_bf16.h"

namespace millrace {
namespace {

// Goal: what the plan sets aside is enough for the backward attention kernels,
// and not much more for sequences of full length. Method: compare with what the
// kernels ask for, for sequences of full length and for as many packed
// documents as the plan makes room for, over many shapes.
TEST(AttentionBackwardWorkspaceBytesTest, CoversTheKernels) {
  int num_shapes = 0;
  for (const int64_t head_dim : {64, 96, 128, 256}) {
    for (const int64_t length :
         {1, 63, 64, 100, 127, 128, 2048, 4096, 8191, 32768}) {
      for (const int64_t num_sequences : {1, 2, 3, 16}) {
        for (const int64_t window : {0, 1000}) {
          for (const auto& [num_heads, num_kv_heads] :
               {std::pair<int64_t, int64_t>{1, 1}, {8, 1}, {32, 1}, {24, 8}}) {
            const int64_t bytes =
                AttentionBackwardWorkspaceBytes({.num_sequences = num_sequences,
                                                 .sequence_length = length,
                                                 .num_heads = num_heads,
                                                 .num_kv_heads = num_kv_heads,
                                                 .head_dim = head_dim,
                                                 .window = window});
            AttentionBf16Shape shape{.num_sequences = num_sequences,
                                     .sequence_length = length,
                                     .num_heads = num_heads,
                                     .num_kv_heads = num_kv_heads,
                                     .head_dim = head_dim,
                                     .causal = true,
                                     .window = window};
            SCOPED_TRACE(testing::Message()
                         << num_sequences << " x " << length << ", "
                         << num_heads << " heads of " << head_dim << " on "
                         << num_kv_heads << ", window " << window);
            EXPECT_GE(bytes, AttentionBackwardBf16WorkspaceBytes(shape));
            const int32_t offsets = 0;  // Only whether there are any counts.
            shape.document_offsets = &offsets;
            shape.total_tokens = num_sequences * length;
            shape.num_sequences = num_sequences + shape.total_tokens / 128;
            EXPECT_GE(bytes, AttentionBackwardBf16WorkspaceBytes(shape));
            // Rounded up for alignment alone.
            EXPECT_LT(bytes - AttentionBackwardBf16WorkspaceBytes(shape), 256);
            ++num_shapes;
          }
        }
      }
    }
  }
  EXPECT_EQ(num_shapes, 1280);
}

}  // namespace
}  // namespace millrace
