#include "kernels/vocabulary/embedding_bf16.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/vocabulary/embedding.h"
#include "tests/kernels/gpu_testing.h"

namespace millrace {
namespace {

struct Shape {
  int64_t num_tokens, hidden;
  int32_t first_token, last_token;  // Drawn from these, evenly.
  int64_t vocab_begin, vocab_rows;
  int64_t offset = 0;  // Every tensor's, in elements.
};

std::vector<int32_t> DrawTokens(const Shape& shape) {
  std::mt19937 generator(std::random_device{}());
  std::uniform_int_distribution<int32_t> uniform(shape.first_token,
                                                 shape.last_token);
  std::vector<int32_t> tokens(shape.num_tokens);
  for (int32_t& token : tokens) token = uniform(generator);
  return tokens;
}

class EmbeddingBf16Test : public testing::TestWithParam<Shape> {};

// Goal: rows are gathered bit for bit; those outside the shard are zero.
TEST_P(EmbeddingBf16Test, GathersRows) {
  const Shape& shape = GetParam();
  RandomNormals random;
  const std::vector<int32_t> tokens = DrawTokens(shape);
  const Bf16s weight =
      random.Bits(shape.offset + shape.vocab_rows * shape.hidden);
  DeviceBuffer<uint16_t> device_weight = ToDevice(weight);
  DeviceBuffer<int32_t> device_tokens = ToDevice(tokens);
  DeviceBuffer<uint16_t> x =
      PoisonedBf16(shape.offset + shape.num_tokens * shape.hidden);
  const absl::Status status =
      LaunchEmbeddingForwardBf16({.x = x.data() + shape.offset,
                                  .tokens = device_tokens.data(),
                                  .weight = device_weight.data() + shape.offset,
                                  .num_tokens = shape.num_tokens,
                                  .hidden = shape.hidden,
                                  .vocab_begin = shape.vocab_begin,
                                  .vocab_rows = shape.vocab_rows},
                                 nullptr);
  ASSERT_TRUE(status.ok()) << status;
  Bf16s expected(shape.offset, kNanBf16);
  for (const int32_t token : tokens) {
    const int64_t row = token - shape.vocab_begin;
    for (int64_t h = 0; h < shape.hidden; ++h) {
      const bool is_mine = row >= 0 && row < shape.vocab_rows;
      expected.push_back(is_mine ? weight[shape.offset + row * shape.hidden + h]
                                 : 0);
    }
  }
  EXPECT_EQ(ToHost(x), expected);
}

// Goal: gradients are summed by row as embedding.h says, in both ways, over
// what was there or from zero, and the deterministic way gives equal bits.
// Method: against the reference; fp32 sums of up to thousands of terms near 1
// are good to some 1e-6 of their length times their size.
TEST_P(EmbeddingBf16Test, AddsGradientsByRow) {
  const Shape& shape = GetParam();
  RandomNormals random;
  const std::vector<int32_t> tokens = DrawTokens(shape);
  const Bf16s d_x = random.Bits(shape.num_tokens * shape.hidden);
  const std::vector<float> wide_d_x = FromBf16(d_x);
  const int64_t size = shape.vocab_rows * shape.hidden;
  const std::vector<float> before = random.Floats(shape.offset + size);
  Bf16s shifted(shape.offset, kNanBf16);
  shifted.insert(shifted.end(), d_x.begin(), d_x.end());
  DeviceBuffer<uint16_t> device_d_x = ToDevice(shifted);
  DeviceBuffer<int32_t> device_tokens = ToDevice(tokens);
  DeviceBuffer<uint8_t> workspace = ToDevice(std::vector<uint8_t>(
      EmbeddingBackwardBf16WorkspaceBytes(shape.num_tokens, shape.hidden),
      0xFF));
  for (const bool accumulate : {false, true}) {
    std::vector<float> expected = before;
    EmbeddingBackwardReference({.d_weight = expected.data() + shape.offset,
                                .tokens = tokens.data(),
                                .d_x = wide_d_x.data(),
                                .num_tokens = shape.num_tokens,
                                .hidden = shape.hidden,
                                .vocab_begin = shape.vocab_begin,
                                .vocab_rows = shape.vocab_rows,
                                .accumulate = accumulate});
    auto run = [&](bool deterministic) {
      DeviceBuffer<float> d_weight = ToDevice(before);
      const absl::Status status = LaunchEmbeddingBackwardBf16(
          {.d_weight = d_weight.data() + shape.offset,
           .tokens = device_tokens.data(),
           .d_x = device_d_x.data() + shape.offset,
           .num_tokens = shape.num_tokens,
           .hidden = shape.hidden,
           .vocab_begin = shape.vocab_begin,
           .vocab_rows = shape.vocab_rows,
           .accumulate = accumulate,
           .deterministic = deterministic,
           .workspace = workspace.data()},
          nullptr);
      EXPECT_TRUE(status.ok()) << status;
      return ToHost(d_weight);
    };
    const std::vector<float> sorted = run(true);
    ExpectNear(sorted, expected, 1e-5, 1e-4, "sorted");
    ExpectNear(run(false), expected, 1e-5, 1e-4, "as they come");
    EXPECT_EQ(run(true), sorted) << "the second run differs";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, EmbeddingBf16Test,
    testing::Values(
        Shape{1, 1, 0, 0, 0, 1}, Shape{33, 7, -2, 9, 0, 8},
        Shape{500, 24, 0, 19, 5, 10}, Shape{4133, 72, 0, 199, 0, 200},
        // One token everywhere, and a run through many pieces among others.
        Shape{3000, 40, 3, 3, 0, 5}, Shape{5000, 16, 0, 3, 1, 2},
        // More columns than a block takes, more rows than one digit sorts.
        Shape{301, 2056, 0, 99, 0, 100}, Shape{2500, 8, 0, 1999, 0, 2000},
        Shape{200, 1030, 0, 99, 20, 60}, Shape{100, 64, 0, 49, 0, 50, 1},
        // None in the shard.
        Shape{100, 64, 0, 49, 50, 50}),
    [](const testing::TestParamInfo<Shape>& info) {
      const Shape& shape = info.param;
      return absl::StrCat("T", shape.num_tokens, "H", shape.hidden, "R",
                          shape.vocab_rows, "O", shape.offset, "I", info.index);
    });

TEST(EmbeddingBf16ShapeTest, RefusesWhatCannotBe) {
  auto forward = [](int64_t tokens, int64_t hidden, int64_t begin,
                    int64_t rows) {
    return LaunchEmbeddingForwardBf16({.num_tokens = tokens,
                                       .hidden = hidden,
                                       .vocab_begin = begin,
                                       .vocab_rows = rows},
                                      nullptr)
        .code();
  };
  EXPECT_EQ(forward(-1, 8, 0, 8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(1, 0, 0, 8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(1, 8, -1, 8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(1, 8, 0, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(forward(0, 8, 0, 8), absl::StatusCode::kOk);
  EXPECT_EQ(LaunchEmbeddingBackwardBf16({.num_tokens = 1,
                                         .hidden = 8,
                                         .vocab_rows = 8,
                                         .accumulate = true,
                                         .deterministic = true,
                                         .workspace = nullptr},
                                        nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
