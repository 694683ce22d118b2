#include "kernels/vocabulary/embedding.h"

#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace millrace {
namespace {

using Outputs = std::vector<std::vector<float>>;

struct Shape {
  int64_t num_tokens, hidden, vocab_begin, vocab_rows;
};

// Shards at the start, in the middle and at the end of 50 tokens; the last is
// large enough to be spread over threads.
const std::vector<Shape> kShapes = {
    {1, 1, 0, 1}, {9, 5, 0, 50}, {20, 33, 10, 15}, {400, 130, 25, 25}};

// Goal: both directions mean what their references say; tokens of other shards
// read as zero and add nothing; repeated tokens add up. Tolerance: some sixteen
// additions of values up to one.
TEST(EmbeddingTest, MatchesReference) {
  RandomFloats random(1);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden));
    const std::vector<int32_t> tokens =
        random.Integers(shape.num_tokens, 0, 49);
    const std::vector<float> weight = random(shape.vocab_rows * shape.hidden);
    const std::vector<float> d_x = random(shape.num_tokens * shape.hidden);
    for (const float scale : {1.0f, 5.5f}) {
      const auto forward = [&](int num_threads) -> Outputs {
        std::vector<float> x = Poisoned(d_x.size());
        const EmbeddingForwardArgs args = {
            x.data(),     tokens.data(),     weight.data(),    shape.num_tokens,
            shape.hidden, shape.vocab_begin, shape.vocab_rows, scale};
        if (num_threads == 0) {
          EmbeddingForwardReference(args);
        } else {
          EXPECT_TRUE(EmbeddingForward(args, num_threads).ok());
        }
        return {x};
      };
      ExpectKernelMatches(forward(0), 0.0, forward);
      for (bool accumulate : {false, true}) {
        const std::vector<float> before =
            accumulate ? random(weight.size()) : Poisoned(weight.size());
        const auto backward = [&](int num_threads) -> Outputs {
          std::vector<float> d_weight = before;
          const EmbeddingBackwardArgs args = {
              d_weight.data(),  tokens.data(), d_x.data(),
              shape.num_tokens, shape.hidden,  shape.vocab_begin,
              shape.vocab_rows, accumulate,    scale};
          if (num_threads == 0) {
            EmbeddingBackwardReference(args);
          } else {
            EXPECT_TRUE(EmbeddingBackward(args, num_threads).ok());
          }
          return {d_weight};
        };
        ExpectKernelMatches(backward(0), 1e-6, backward);
      }
    }
  }
}

TEST(EmbeddingTest, RefusesBadShapes) {
  const int32_t token = 0;
  EXPECT_EQ(EmbeddingForward({nullptr, &token, nullptr, 1, 4, -1, 4}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(EmbeddingForward({nullptr, &token, nullptr, 1, 4, 0, 0}, 1).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      EmbeddingBackward({nullptr, &token, nullptr, 1, 0, 0, 4, true}, 1).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      EmbeddingForward({nullptr, nullptr, nullptr, 0, 4, 0, 4}, 1).ok());
}

}  // namespace
}  // namespace millrace
