#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "kernels/cuda/device_buffer.h"
#include "tests/kernels/attention/attention_bf16_testing.h"

namespace millrace {
namespace {

AttentionBf16Operands::Forward RunPortableForward(
    AttentionBf16Operands& operands, const AttentionBf16Case& c,
    int max_shared_bytes) {
  const int64_t rows = c.NumTokens() * c.shape.num_heads;
  DeviceBuffer<uint16_t> o =
      ToDevice(std::vector<uint16_t>(rows * c.shape.head_dim, kNanBf16));
  DeviceBuffer<float> lse = ToDevice(
      std::vector<float>(rows, std::numeric_limits<float>::quiet_NaN()));
  const absl::Status status =
      LaunchAttentionForwardBf16Portable({.o = operands.Outputs(o),
                                          .lse = lse.data(),
                                          .q = operands.Queries(operands.qkv()),
                                          .k = operands.Keys(operands.qkv()),
                                          .v = operands.Values(operands.qkv()),
                                          .shape = operands.shape()},
                                         nullptr, max_shared_bytes);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return {ToHost(o), ToHost(lse)};
}

std::vector<uint16_t> RunPortableBackward(
    AttentionBf16Operands& operands, const std::vector<uint16_t>& d_o_host,
    const AttentionBf16Operands::Forward& forward, bool deterministic,
    int max_shared_bytes) {
  DeviceBuffer<uint16_t> d_o = ToDevice(d_o_host);
  DeviceBuffer<uint16_t> o = ToDevice(forward.o);
  DeviceBuffer<float> lse = ToDevice(forward.lse);
  DeviceBuffer<uint16_t> d_qkv =
      ToDevice(std::vector<uint16_t>(operands.qkv_host().size(), kNanBf16));
  DeviceBuffer<float> workspace = ToDevice(std::vector<float>(
      AttentionBackwardBf16PortableWorkspaceBytes(operands.shape()) /
          sizeof(float),
      std::numeric_limits<float>::quiet_NaN()));
  const absl::Status status = LaunchAttentionBackwardBf16Portable(
      {.d_q = operands.Queries(d_qkv),
       .d_k = operands.Keys(d_qkv),
       .d_v = operands.Values(d_qkv),
       .q = operands.Queries(operands.qkv()),
       .k = operands.Keys(operands.qkv()),
       .v = operands.Values(operands.qkv()),
       .o = operands.Outputs(o),
       .d_o = operands.Outputs(d_o),
       .lse = lse.data(),
       .workspace = workspace.data(),
       .shape = operands.shape(),
       .deterministic = deterministic},
      nullptr, max_shared_bytes);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return ToHost(d_qkv);
}

class AttentionBf16PortableTest
    : public testing::TestWithParam<AttentionBf16Case> {};

// Goal: the portable way means what attention.h says, reads and writes packed
// tensors in place, writes every element, and gives equal bits for equal inputs
// where attention_bf16.h promises it. Method: odd and even shapes against fp64
// on fresh normal inputs, outputs and workspace poisoned with NaN, with the
// tiles of this device and of those with less shared memory. Rounding p and ds
// to bf16 leaves a norm-wise error near 2.5e-3; 4e-3 allows for small shapes. A
// mask or a tile that is off by one costs far more.
TEST_P(AttentionBf16PortableTest, MatchesTheReference) {
  const AttentionBf16Case c = GetParam();
  AttentionBf16Operands operands(c);
  const auto d_o = AttentionBf16Operands::Random(
      c.NumTokens() * c.shape.num_heads * c.shape.head_dim);
  const AttentionBf16Reference reference =
      ComputeAttentionBf16Reference(c, operands.qkv_host(), d_o);

  constexpr int kAmpereSharedBytes = 163 << 10;
  for (const int max_shared_bytes :
       {kAllSharedBytes, kAmpereSharedBytes, kLeastSharedBytes}) {
    SCOPED_TRACE(max_shared_bytes);
    const auto forward = RunPortableForward(operands, c, max_shared_bytes);
    EXPECT_LT(RelativeError(forward.o, reference.o), 4e-3);
    for (size_t i = 0; i < forward.lse.size(); ++i) {
      ASSERT_NEAR(forward.lse[i], reference.lse[i], 1e-4) << i;
    }
    const auto again = RunPortableForward(operands, c, max_shared_bytes);
    EXPECT_EQ(again.o, forward.o) << "the second run differs";
    EXPECT_EQ(again.lse, forward.lse);

    auto run_backward = [&](bool deterministic) {
      return RunPortableBackward(operands, d_o, forward, deterministic,
                                 max_shared_bytes);
    };
    EXPECT_LT(RelativeError(run_backward(false), reference.d_qkv), 4e-3);
    const auto d_qkv = run_backward(true);
    EXPECT_LT(RelativeError(d_qkv, reference.d_qkv), 4e-3);
    EXPECT_EQ(run_backward(true), d_qkv) << "the second run differs";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionBf16PortableTest, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          cases.push_back({{1, 1, 1, 1, head_dim, causal}});
          cases.push_back({{2, 63, 2, 1, head_dim, causal}});
          cases.push_back({{1, 256, 2, 2, head_dim, causal}});
          cases.push_back({{2, 333, 6, 2, head_dim, causal}});
          cases.push_back({{2, 333, 2, 1, head_dim, causal, 1}});
          cases.push_back({{1, 517, 2, 2, head_dim, causal, 100}});
          cases.push_back({{1, 256, 2, 1, head_dim, causal, 128}});
          cases.push_back({{1, 130, 1, 1, head_dim, causal, 1000}});
          cases.push_back(PackedDocuments({0, 0, 4, 2, head_dim, causal},
                                          {1, 64, 0, 200, 129, 3}));
          cases.push_back(PackedDocuments({0, 0, 2, 1, head_dim, causal, 70},
                                          {190, 17, 256}));
        }
      }
      // Scores that a softcap bends little and much.
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const float softcap : {50.0f, 2.0f}) {
          AttentionBf16Shape shape = {1, 333, 2, 1, head_dim, true, 100};
          shape.softcap = softcap;
          cases.push_back({shape});
        }
      }
      return cases;
    }()),
    [](const auto& info) { return info.param.Name(); });

}  // namespace
}  // namespace millrace
