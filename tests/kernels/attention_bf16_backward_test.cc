#include <cuda_runtime_api.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention_bf16.h"
#include "tests/kernels/attention_bf16_testing.h"

namespace millrace {
namespace {

class AttentionBf16BackwardTest
    : public testing::TestWithParam<AttentionBf16Case> {};

// Goal: the backward pass means what attention.h says, reads and writes packed
// tensors in place, and writes every element. Method: odd and even shapes
// against fp64 on fresh normal inputs, outputs poisoned with NaN. Rounding p
// and ds to bf16 leaves a norm-wise error near 2.5e-3 (cuDNN's is alike); 4e-3
// allows for small shapes. A mask or a tile that is off by one costs far more.
TEST_P(AttentionBf16BackwardTest, MatchesTheReference) {
  const AttentionBf16Case c = GetParam();
  AttentionBf16Operands operands(c);
  const auto d_o = AttentionBf16Operands::Random(
      c.NumTokens() * c.shape.num_heads * c.shape.head_dim);
  const AttentionBf16Reference reference =
      ComputeAttentionBf16Reference(c, operands.qkv_host(), d_o);
  const auto forward = operands.RunForward();

  DeviceBuffer<uint16_t> device_d_o = ToDevice(d_o);
  DeviceBuffer<uint16_t> o = ToDevice(forward.o);
  DeviceBuffer<float> lse = ToDevice(forward.lse);
  DeviceBuffer<uint16_t> d_qkv =
      ToDevice(std::vector<uint16_t>(operands.qkv_host().size(), kBfloat16Nan));
  DeviceBuffer<float> workspace = ToDevice(std::vector<float>(
      AttentionBackwardBf16WorkspaceBytes(operands.shape()) / sizeof(float),
      std::numeric_limits<float>::quiet_NaN()));
  const absl::Status status =
      LaunchAttentionBackwardBf16({.d_q = operands.Queries(d_qkv),
                                   .d_k = operands.Keys(d_qkv),
                                   .d_v = operands.Values(d_qkv),
                                   .q = operands.Queries(operands.qkv()),
                                   .k = operands.Keys(operands.qkv()),
                                   .v = operands.Values(operands.qkv()),
                                   .o = operands.Outputs(o),
                                   .d_o = operands.Outputs(device_d_o),
                                   .lse = lse.data(),
                                   .workspace = workspace.data(),
                                   .shape = operands.shape()},
                                  nullptr);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_LT(RelativeError(ToHost(d_qkv), reference.d_qkv), 4e-3);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionBf16BackwardTest, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 128}) {
        for (const bool causal : {true, false}) {
          cases.push_back({{1, 1, 1, 1, head_dim, causal}});
          cases.push_back({{2, 63, 2, 1, head_dim, causal}});
          cases.push_back({{1, 256, 2, 2, head_dim, causal}});
          cases.push_back({{2, 333, 6, 2, head_dim, causal}});
        }
      }
      return cases;
    }()),
    [](const auto& info) { return info.param.Name(); });

}  // namespace
}  // namespace millrace
