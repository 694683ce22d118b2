// The plain kernels that work element by element: RoPE, SwiGLU, add, embedding.

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/add_plain.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/rope.h"
#include "kernels/pointwise/rope_plain.h"
#include "kernels/pointwise/swiglu.h"
#include "kernels/pointwise/swiglu_plain.h"
#include "kernels/vocabulary/embedding.h"
#include "kernels/vocabulary/embedding_plain.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

// A few operations in fp32, exp among them.
constexpr double kRelative = 2e-6;
constexpr double kAbsolute = 1e-6;

// Goal: queries and keys turn as rope.h says and back, values stay. Method:
// against the fp64 reference, odd numbers of everything but head_dim.
TEST(PlainRopeTest, MatchesTheReferenceBothWays) {
  struct Shape {
    int64_t num_tokens, sequence_length, num_heads, num_kv_heads, head_dim;
  };
  RandomNormals random;
  for (const ElementType type : kElementTypes) {
    for (const Shape shape :
         {Shape{13, 5, 3, 1, 2}, {100, 100, 6, 2, 34}, {64, 32, 8, 8, 256}}) {
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(absl::StrCat("head_dim ", shape.head_dim));
        std::vector<float> table(
            RopeTableBytes(shape.sequence_length, shape.head_dim) /
            sizeof(float));
        ASSERT_TRUE(FillRopeTable(table.data(), shape.sequence_length,
                                  shape.head_dim, 10000.0)
                        .ok());
        std::vector<float> qkv = Rounded(
            type, random.Floats(shape.num_tokens *
                                (shape.num_heads + 2 * shape.num_kv_heads) *
                                shape.head_dim));
        PlainTensor device_qkv(type, qkv);
        DeviceBuffer<float> device_table = ToDevice(table);
        RopeReference({qkv.data(), table.data(), shape.num_tokens,
                       shape.sequence_length, shape.num_heads,
                       shape.num_kv_heads, shape.head_dim, inverse});
        const absl::Status status = LaunchPlainRope(
            {device_qkv.data(), device_table.data(), shape.num_tokens,
             shape.sequence_length, shape.num_heads, shape.num_kv_heads,
             shape.head_dim, inverse},
            type, nullptr);
        ASSERT_TRUE(status.ok()) << status;
        ExpectPlain(type, device_qkv.Host(), qkv, kRelative, kAbsolute, "qkv");
      }
    }
    for (const Shape bad : {Shape{8, 4, 2, 1, 3},
                            {8, 0, 2, 1, 4},
                            {-1, 4, 2, 1, 4},
                            {8, 4, 0, 1, 4},
                            {8, 4, 2, 0, 4}}) {
      EXPECT_EQ(LaunchPlainRope({.num_tokens = bad.num_tokens,
                                 .sequence_length = bad.sequence_length,
                                 .num_heads = bad.num_heads,
                                 .num_kv_heads = bad.num_kv_heads,
                                 .head_dim = bad.head_dim},
                                type, nullptr)
                    .code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
}

// Goal: SwiGLU means what swiglu.h says, forward, backward and backward over
// its input, also where the exponential overflows. Method: against the fp64
// reference on inputs from about -120 to 120.
TEST(PlainSwigluTest, MatchesTheReference) {
  struct Size {
    int64_t num_tokens, ffn_hidden;
  };
  RandomNormals random;
  for (const ElementType type : kElementTypes) {
    for (const auto [num_tokens, ffn_hidden] :
         {Size{1, 1}, {3, 255}, {7, 256}, {130, 1001}}) {
      SCOPED_TRACE(absl::StrCat(num_tokens, " x ", ffn_hidden));
      const int64_t size = num_tokens * ffn_hidden;
      std::vector<float> gate_up = random.Floats(2 * size);
      for (size_t i = 0; i < gate_up.size(); i += 3) gate_up[i] *= 30.0f;
      gate_up = Rounded(type, gate_up);
      const std::vector<float> d = Rounded(type, random.Floats(size));
      std::vector<float> activation(size), d_gate_up(2 * size);
      SwigluForwardReference(
          {activation.data(), gate_up.data(), num_tokens, ffn_hidden});
      SwigluBackwardReference(
          {d_gate_up.data(), gate_up.data(), d.data(), num_tokens, ffn_hidden});
      PlainTensor device_gate_up(type, gate_up), device_d(type, d);
      PlainTensor device_activation(type, size),
          device_d_gate_up(type, 2 * size);
      absl::Status status = LaunchPlainSwigluForward(
          {device_activation.data(), device_gate_up.data(), num_tokens,
           ffn_hidden},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ExpectPlain(type, device_activation.Host(), activation, kRelative,
                  kAbsolute, "activation");
      status = LaunchPlainSwigluBackward(
          {device_d_gate_up.data(), device_gate_up.data(), device_d.data(),
           num_tokens, ffn_hidden},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ExpectPlain(type, device_d_gate_up.Host(), d_gate_up, kRelative,
                  kAbsolute, "d_gate_up");
      status = LaunchPlainSwigluBackward(
          {device_gate_up.data(), device_gate_up.data(), device_d.data(),
           num_tokens, ffn_hidden},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      ExpectEqualBits(device_gate_up.Host(), device_d_gate_up.Host(),
                      "d_gate_up in place");
    }
    EXPECT_EQ(LaunchPlainSwigluForward({.num_tokens = -1, .ffn_hidden = 4},
                                       type, nullptr)
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(LaunchPlainSwigluBackward({.num_tokens = 4, .ffn_hidden = 0},
                                        type, nullptr)
                  .code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Goal: sums are rounded once, apart and in place. Method: exact.
TEST(PlainAddTest, RoundsTheSumOnce) {
  RandomNormals random;
  for (const ElementType type : kElementTypes) {
    for (const int64_t size : {0, 1, 255, 256, 100003}) {
      const std::vector<float> a = Rounded(type, random.Floats(size));
      const std::vector<float> b = Rounded(type, random.Floats(size));
      std::vector<float> sum(size);
      AddReference({sum.data(), a.data(), b.data(), size});
      PlainTensor device_a(type, a), device_b(type, b), out(type, size);
      for (void* to : {out.data(), device_a.data()}) {
        const absl::Status status = LaunchPlainAdd(
            {to, device_a.data(), device_b.data(), size}, type, nullptr);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(out.Host(), Rounded(type, sum));
      EXPECT_EQ(device_a.Host(), Rounded(type, sum)) << "in place";
    }
    EXPECT_EQ(LaunchPlainAdd({.num_elements = -1}, type, nullptr).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// Goal: rows are gathered, gradients added by row, for a shard of the
// vocabulary and tokens of all shards, negative ones among them; a token that
// is nearly everywhere and rows that nobody names. Equal runs give equal bits.
// Method: against the reference, outputs poisoned.
TEST(PlainEmbeddingTest, MatchesTheReferenceAndRepeats) {
  struct Shape {
    int64_t num_tokens, hidden, vocab_begin, vocab_rows;
  };
  RandomNormals random;
  std::mt19937 generator{std::random_device{}()};
  for (const ElementType type : kElementTypes) {
    for (const Shape shape : {Shape{1, 1, 0, 1},
                              {100, 33, 0, 17},
                              {1000, 300, 40, 50},
                              {3001, 8, 5, 5000}}) {
      SCOPED_TRACE(absl::StrCat(shape.num_tokens, " x ", shape.hidden));
      const auto [num_tokens, hidden, vocab_begin, vocab_rows] = shape;
      std::vector<int32_t> tokens(num_tokens);
      std::uniform_int_distribution<int32_t> uniform(
          -1, static_cast<int32_t>(vocab_begin + vocab_rows + 3));
      for (size_t i = 0; i < tokens.size(); ++i) {
        tokens[i] =
            i % 3 == 0 ? static_cast<int32_t>(vocab_begin) : uniform(generator);
      }
      const std::vector<float> weight =
          Rounded(type, random.Floats(vocab_rows * hidden));
      const std::vector<float> d_x =
          Rounded(type, random.Floats(num_tokens * hidden));
      std::vector<float> x(num_tokens * hidden);
      EmbeddingForwardReference({x.data(), tokens.data(), weight.data(),
                                 num_tokens, hidden, vocab_begin, vocab_rows});
      DeviceBuffer<int32_t> device_tokens = ToDevice(tokens);
      PlainTensor device_weight(type, weight), device_d_x(type, d_x);
      PlainTensor device_x(type, num_tokens * hidden);
      const absl::Status status = LaunchPlainEmbeddingForward(
          {device_x.data(), device_tokens.data(), device_weight.data(),
           num_tokens, hidden, vocab_begin, vocab_rows},
          type, nullptr);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(device_x.Host(), x);

      for (const bool accumulate : {false, true}) {
        const std::vector<float> before = random.Floats(vocab_rows * hidden);
        std::vector<float> d_weight = before;
        EmbeddingBackwardReference({d_weight.data(), tokens.data(), d_x.data(),
                                    num_tokens, hidden, vocab_begin, vocab_rows,
                                    accumulate});
        std::vector<float> first;
        for (int run = 0; run < 2; ++run) {
          DeviceBuffer<float> device_d_weight =
              accumulate ? ToDevice(before)
                         : PoisonedFloats(vocab_rows * hidden);
          DeviceBuffer<uint8_t> workspace = ToDevice(std::vector<uint8_t>(
              PlainEmbeddingBackwardWorkspaceBytes(num_tokens), 0xFF));
          const absl::Status backward = LaunchPlainEmbeddingBackward(
              {device_d_weight.data(), device_tokens.data(), device_d_x.data(),
               workspace.data(), num_tokens, hidden, vocab_begin, vocab_rows,
               accumulate},
              type, nullptr);
          ASSERT_TRUE(backward.ok()) << backward;
          const std::vector<float> gradient = ToHost(device_d_weight);
          if (run == 0) first = gradient;
          ExpectEqualBits(gradient, first, "d_weight");
        }
        ExpectPlain(ElementType::kFloat32, first, d_weight, kRelative, 1e-6,
                    "d_weight");
      }
    }
    EXPECT_EQ(
        LaunchPlainEmbeddingForward(
            {.num_tokens = 1, .hidden = 0, .vocab_rows = 1}, type, nullptr)
            .code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        LaunchPlainEmbeddingForward(
            {.num_tokens = 1, .hidden = 1, .vocab_begin = -1, .vocab_rows = 1},
            type, nullptr)
            .code(),
        absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(
        LaunchPlainEmbeddingBackward(
            {.num_tokens = 1, .hidden = 1, .vocab_rows = 0}, type, nullptr)
            .code(),
        absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace millrace
