#include "kernels/attention/attention_plain.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention.h"
#include "tests/kernels/plain_testing.h"

namespace millrace {
namespace {

// Scores and sums in fp32: a score of a few units is off by 1e-6 of itself, its
// exponential by as much, and sums of a few hundred terms average.
constexpr double kRelative = 1e-5;
constexpr double kAbsolute = 3e-6;

// Head dims below, at and beyond each tiling's; lengths around its tiles;
// windows within a tile, across tiles and longer than the sequence; softcaps
// that few or many scores come near.
constexpr AttentionShape kShapes[] = {
    {1, 1, 1, 1, 1},
    {2, 65, 2, 1, 16},
    {1, 200, 4, 2, 32},
    {3, 64, 3, 3, 33},
    {1, 300, 2, 1, 64},
    {2, 97, 5, 1, 80},
    {1, 129, 6, 2, 128},
    {1, 70, 2, 1, 129},
    {2, 50, 4, 4, 256},
    {40, 3, 2, 2, 24},
    {1, 300, 2, 1, 16, 65},
    {2, 200, 2, 1, 64, 50},
    {2, 97, 5, 1, 80, 1},
    {1, 129, 6, 2, 128, 64},
    {1, 170, 2, 1, 129, 16},
    {2, 50, 4, 4, 256, 1000},
    {1, 150, 2, 1, 40, 0, 2.0f},
    {2, 97, 4, 2, 128, 30, 50.0f},
};

std::string ShapeName(const AttentionShape& shape) {
  return absl::StrCat(shape.num_sequences, " x ", shape.sequence_length,
                      " heads ", shape.num_heads, "/", shape.num_kv_heads,
                      " of ", shape.head_dim, " window ", shape.window,
                      " softcap ", shape.softcap);
}

int64_t NumTokens(const AttentionShape& shape) {
  return shape.num_sequences * shape.sequence_length;
}
int64_t QkvSize(const AttentionShape& shape) {
  return NumTokens(shape) * (shape.num_heads + 2 * shape.num_kv_heads) *
         shape.head_dim;
}
int64_t OutputSize(const AttentionShape& shape) {
  return NumTokens(shape) * shape.num_heads * shape.head_dim;
}

// Documents of random lengths, or every sequence one document.
std::vector<int32_t> DocumentStarts(const AttentionShape& shape,
                                    bool has_documents) {
  std::mt19937 generator{std::random_device{}()};
  std::vector<int32_t> starts(NumTokens(shape));
  int32_t start = 0;
  for (int64_t t = 0; t < NumTokens(shape); ++t) {
    const auto position = static_cast<int32_t>(t % shape.sequence_length);
    if (position == 0) start = 0;
    if (has_documents && generator() % 40 == 0) start = position;
    starts[t] = start;
  }
  return starts;
}

// Goal: outputs and statistics mean what attention.h says, for any head dim,
// grouped queries and documents; equal runs give equal bits. Method: against
// the fp64 reference on fresh normal inputs in both types, outputs poisoned
// with NaN and tensors off alignment.
TEST(PlainAttentionTest, ForwardMatchesTheReferenceAndRepeats) {
  RandomNormals random;
  for (const ElementType type : kElementTypes) {
    for (const AttentionShape& shape : kShapes) {
      for (const bool has_documents : {false, true}) {
        SCOPED_TRACE(ShapeName(shape));
        const std::vector<float> qkv =
            Rounded(type, random.Floats(QkvSize(shape)));
        const std::vector<int32_t> starts =
            DocumentStarts(shape, has_documents);
        std::vector<float> o(OutputSize(shape));
        std::vector<float> lse(shape.num_heads * NumTokens(shape));
        AttentionForwardReference(
            {o.data(), lse.data(), qkv.data(), starts.data(), shape});
        PlainTensor device_qkv(type, qkv);
        DeviceBuffer<int32_t> device_starts = ToDevice(starts);
        std::vector<float> first_o, first_lse;
        for (int run = 0; run < 2; ++run) {
          PlainTensor device_o(type, OutputSize(shape));
          DeviceBuffer<float> device_lse =
              PoisonedFloats(static_cast<int64_t>(lse.size()));
          const absl::Status status = LaunchPlainAttentionForward(
              {device_o.data(), device_lse.data(), device_qkv.data(),
               device_starts.data(), shape},
              type, nullptr);
          ASSERT_TRUE(status.ok()) << status;
          if (run == 0) {
            first_o = device_o.Host();
            first_lse = ToHost(device_lse);
          }
          ExpectEqualBits(device_o.Host(), first_o, "o");
          ExpectEqualBits(ToHost(device_lse), first_lse, "lse");
        }
        ExpectPlain(type, first_o, o, kRelative, kAbsolute, "o");
        ExpectPlain(ElementType::kFloat32, first_lse, lse, kRelative, kAbsolute,
                    "lse");
      }
    }
  }
}

// Goal: the same for all gradients. Method: as above; the reference gets the
// outputs that the forward pass would have left, rounded to the type.
TEST(PlainAttentionTest, BackwardMatchesTheReferenceAndRepeats) {
  RandomNormals random;
  for (const ElementType type : kElementTypes) {
    for (const AttentionShape& shape : kShapes) {
      for (const bool has_documents : {false, true}) {
        SCOPED_TRACE(ShapeName(shape));
        const std::vector<float> qkv =
            Rounded(type, random.Floats(QkvSize(shape)));
        const std::vector<float> d_o =
            Rounded(type, random.Floats(OutputSize(shape)));
        const std::vector<int32_t> starts =
            DocumentStarts(shape, has_documents);
        std::vector<float> o(OutputSize(shape));
        std::vector<float> lse(shape.num_heads * NumTokens(shape));
        AttentionForwardReference(
            {o.data(), lse.data(), qkv.data(), starts.data(), shape});
        o = Rounded(type, o);
        std::vector<float> d_qkv(qkv.size()), delta(lse.size());
        AttentionBackwardReference({d_qkv.data(), delta.data(), qkv.data(),
                                    starts.data(), o.data(), lse.data(),
                                    d_o.data(), shape});
        PlainTensor device_qkv(type, qkv), device_o(type, o);
        PlainTensor device_d_o(type, d_o);
        DeviceBuffer<int32_t> device_starts = ToDevice(starts);
        DeviceBuffer<float> device_lse = ToDevice(lse);
        std::vector<float> first_d_qkv, first_delta;
        for (int run = 0; run < 2; ++run) {
          PlainTensor device_d_qkv(type, QkvSize(shape));
          DeviceBuffer<float> device_delta =
              PoisonedFloats(static_cast<int64_t>(delta.size()));
          const absl::Status status = LaunchPlainAttentionBackward(
              {device_d_qkv.data(), device_delta.data(), device_qkv.data(),
               device_starts.data(), device_o.data(), device_lse.data(),
               device_d_o.data(), shape},
              type, nullptr);
          ASSERT_TRUE(status.ok()) << status;
          if (run == 0) {
            first_d_qkv = device_d_qkv.Host();
            first_delta = ToHost(device_delta);
          }
          ExpectEqualBits(device_d_qkv.Host(), first_d_qkv, "d_qkv");
          ExpectEqualBits(ToHost(device_delta), first_delta, "delta");
        }
        ExpectPlain(type, first_d_qkv, d_qkv, kRelative, kAbsolute, "d_qkv");
        ExpectPlain(ElementType::kFloat32, first_delta, delta, kRelative,
                    kAbsolute, "delta");
      }
    }
  }
}

// Goal: scores far beyond what exp() of a float holds stay finite and right.
// Method: queries and keys a hundredfold, so that a row is nearly one of its
// values; against the reference.
TEST(PlainAttentionTest, KeepsLargeScoresFinite) {
  RandomNormals random;
  const AttentionShape shape = {1, 130, 2, 1, 40};
  std::vector<float> qkv = random.Floats(QkvSize(shape));
  for (float& value : qkv) value *= 100.0f;
  const std::vector<int32_t> starts = DocumentStarts(shape, false);
  std::vector<float> o(OutputSize(shape));
  std::vector<float> lse(shape.num_heads * NumTokens(shape));
  AttentionForwardReference(
      {o.data(), lse.data(), qkv.data(), starts.data(), shape});
  PlainTensor device_qkv(ElementType::kFloat32, qkv);
  PlainTensor device_o(ElementType::kFloat32, OutputSize(shape));
  DeviceBuffer<float> device_lse =
      PoisonedFloats(static_cast<int64_t>(lse.size()));
  DeviceBuffer<int32_t> device_starts = ToDevice(starts);
  const absl::Status status = LaunchPlainAttentionForward(
      {device_o.data(), device_lse.data(), device_qkv.data(),
       device_starts.data(), shape},
      ElementType::kFloat32, nullptr);
  ASSERT_TRUE(status.ok()) << status;
  // A score of 1e5 is off by 2e-2 in fp32, and a value's share by as much.
  ExpectNear(device_o.Host(), o, 0.0, 0.05 * 400.0, "o");
  ExpectNear(ToHost(device_lse), lse, 1e-6, 0.0, "lse");
}

TEST(PlainAttentionTest, RefusesWhatCannotBe) {
  for (const ElementType type : kElementTypes) {
    for (const AttentionShape& shape : {AttentionShape{-1, 8, 2, 1, 8},
                                        {1, 0, 2, 1, 8},
                                        {1, 8, 3, 2, 8},
                                        {1, 8, 0, 1, 8},
                                        {1, 8, 2, 0, 8},
                                        {1, 8, 2, 1, 0},
                                        {1, 8, 2, 1, 257},
                                        {1, 8, 2, 1, 8, -1},
                                        {1, 8, 2, 1, 8, 0, -1.0f},
                                        {1 << 20, 1 << 11, 2, 1, 8}}) {
      EXPECT_EQ(
          LaunchPlainAttentionForward({.shape = shape}, type, nullptr).code(),
          absl::StatusCode::kInvalidArgument)
          << ShapeName(shape);
      EXPECT_EQ(
          LaunchPlainAttentionBackward({.shape = shape}, type, nullptr).code(),
          absl::StatusCode::kInvalidArgument)
          << ShapeName(shape);
    }
    const AttentionShape nothing = {0, 8, 2, 1, 8};
    EXPECT_TRUE(
        LaunchPlainAttentionForward({.shape = nothing}, type, nullptr).ok());
    EXPECT_TRUE(
        LaunchPlainAttentionBackward({.shape = nothing}, type, nullptr).ok());
  }
}

}  // namespace
}  // namespace millrace
