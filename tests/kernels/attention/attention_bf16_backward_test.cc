#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/attention/attention_bf16_paths.h"
#include "tests/kernels/attention/attention_bf16_testing.h"

namespace millrace {
namespace {

// The inputs of the backward pass beside the packed projection, and its
// results. LSE and the output come from the reference, so that these tests do
// not depend on the forward kernel.
class BackwardRun {
 public:
  BackwardRun(AttentionBf16Operands& operands, const std::vector<uint16_t>& d_o,
              const AttentionBf16Reference& reference)
      : operands_(operands),
        d_o_(ToDevice(d_o)),
        o_(ToDevice(Rounded(reference.o))),
        lse_(ToDevice(
            std::vector<float>(reference.lse.begin(), reference.lse.end()))) {}

  // Into poisoned memory, the workspace too.
  std::vector<uint16_t> Run(bool deterministic) {
    DeviceBuffer<uint16_t> d_qkv =
        ToDevice(std::vector<uint16_t>(operands_.qkv_host().size(), kNanBf16));
    DeviceBuffer<float> workspace = ToDevice(std::vector<float>(
        AttentionBackwardBf16WorkspaceBytes(operands_.shape()) / sizeof(float),
        std::numeric_limits<float>::quiet_NaN()));
    const absl::Status status =
        LaunchAttentionBackwardBf16({.d_q = operands_.Queries(d_qkv),
                                     .d_k = operands_.Keys(d_qkv),
                                     .d_v = operands_.Values(d_qkv),
                                     .q = operands_.Queries(operands_.qkv()),
                                     .k = operands_.Keys(operands_.qkv()),
                                     .v = operands_.Values(operands_.qkv()),
                                     .o = operands_.Outputs(o_),
                                     .d_o = operands_.Outputs(d_o_),
                                     .lse = lse_.data(),
                                     .workspace = workspace.data(),
                                     .shape = operands_.shape(),
                                     .deterministic = deterministic},
                                    nullptr);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return ToHost(d_qkv);
  }

 private:
  static std::vector<uint16_t> Rounded(const std::vector<double>& values) {
    std::vector<uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(),
                   [](double x) { return ToBf16(static_cast<float>(x)); });
    return bits;
  }

  AttentionBf16Operands& operands_;
  DeviceBuffer<uint16_t> d_o_, o_;
  DeviceBuffer<float> lse_;
};

class AttentionBf16BackwardTest
    : public testing::TestWithParam<AttentionBf16Case> {};

// Goal: the backward pass means what attention.h says, reads and writes packed
// tensors in place, writes every element, and no other document's; in the
// deterministic mode equal bits over runs. Method: odd and even shapes against
// fp64 on fresh normal inputs, outputs poisoned with NaN. Rounding p and ds to
// bf16 leaves a norm-wise error near 2.5e-3 (cuDNN's is alike); 4e-3 allows for
// small shapes. A mask or a tile that is off by one costs far more.
TEST_P(AttentionBf16BackwardTest, MatchesTheReference) {
  const AttentionBf16Case c = GetParam();
  AttentionBf16Operands operands(c);
  const auto d_o = AttentionBf16Operands::Random(
      c.NumTokens() * c.shape.num_heads * c.shape.head_dim);
  const AttentionBf16Reference reference =
      ComputeAttentionBf16Reference(c, operands.qkv_host(), d_o);
  BackwardRun backward(operands, d_o, reference);
  EXPECT_LT(RelativeError(backward.Run(false), reference.d_qkv), 4e-3);
  const std::vector<uint16_t> ordered = backward.Run(true);
  EXPECT_LT(RelativeError(ordered, reference.d_qkv), 4e-3);
  EXPECT_TRUE(backward.Run(true) == ordered) << "the second run differs";
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionBf16BackwardTest, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          // One query, below and above a tile, grouped and shared heads.
          cases.push_back({{1, 1, 1, 1, head_dim, causal}});
          cases.push_back({{2, 3, 2, 1, head_dim, causal}});
          cases.push_back({{2, 65, 4, 1, head_dim, causal}});
          cases.push_back({{1, 129, 2, 2, head_dim, causal}});
          cases.push_back({{1, 256, 2, 2, head_dim, causal}});
          cases.push_back({{2, 333, 4, 2, head_dim, causal}});
          cases.push_back({{1, 777, 1, 1, head_dim, causal}});
          // Windows of one key, within and across tiles, and one short of none.
          for (const int64_t window : {1, 50, 200, 332}) {
            cases.push_back({{1, 333, 1, 1, head_dim, causal, window}});
          }
        }
      }
      // More heads than share the cache (attention_work_order.cuh).
      cases.push_back({{26, 333, 8, 4, 128, true}});
      // Hopper's kernels have no softcap: the portable ones take it.
      AttentionBf16Shape capped = {1, 256, 2, 1, 128, true};
      capped.softcap = 2.0f;
      cases.push_back({capped});
      return cases;
    }()),
    [](const auto& info) { return info.param.Name(); });

INSTANTIATE_TEST_SUITE_P(
    Documents, AttentionBf16BackwardTest, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          for (const int64_t window : {0, 50}) {
            const AttentionBf16Shape shape = {
                .num_heads = 4,
                .num_kv_heads = 2,
                .head_dim = head_dim,
                .causal = causal,
                .window = window,
            };
            cases.push_back(PackedDocuments(shape, {1}));
            cases.push_back(
                PackedDocuments(shape, {65, 0, 1, 300, 0, 0, 128, 64, 3, 0}));
          }
        }
      }
      // Room for more documents than there are, as a step leaves it.
      std::vector<int32_t> few(150, 0);
      few[0] = 300;
      few[1] = 77;
      for (const int64_t head_dim : {64, 128}) {
        cases.push_back(PackedDocuments({.num_heads = 2,
                                         .num_kv_heads = 1,
                                         .head_dim = head_dim,
                                         .causal = true},
                                        few));
      }
      return cases;
    }()),
    [](const testing::TestParamInfo<AttentionBf16Case>& info) {
      return absl::StrCat("Num", info.param.shape.num_sequences, "D",
                          info.param.shape.head_dim,
                          info.param.shape.causal ? "Causal" : "Full", "Window",
                          info.param.shape.window);
    });

// Goal: equal bits where the contract promises them, with so many blocks of
// keys that their order varies: of d_k and d_v always, of d_q in the
// deterministic mode, which must not wait for itself either. Method: four runs
// each on more blocks than the device has multiprocessors, compared bit by bit;
// the values are the smaller shapes' concern.
TEST(AttentionBf16BackwardOrderTest, RepeatsBits) {
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const bool causal : {true, false}) {
      for (const int64_t window : {0, 700}) {
        const AttentionBf16Case c = {{.num_sequences = 2,
                                      .sequence_length = 2100,
                                      .num_heads = 8,
                                      .num_kv_heads = 4,
                                      .head_dim = head_dim,
                                      .causal = causal,
                                      .window = window}};
        SCOPED_TRACE(c.Name());
        AttentionBf16Operands operands(c);
        const int64_t rows = c.NumTokens() * c.shape.num_heads;
        const auto d_o = AttentionBf16Operands::Random(rows * head_dim);
        // Any output and LSE give finite gradients.
        AttentionBf16Reference any;
        any.o.assign(rows * head_dim, 0.25);
        any.lse.assign(rows, 9.0);
        BackwardRun backward(operands, d_o, any);
        const std::vector<uint16_t> fast = backward.Run(false);
        const std::vector<uint16_t> ordered = backward.Run(true);
        const int64_t query_columns = c.shape.num_heads * head_dim;
        const int64_t all_columns = c.AllHeads() * head_dim;
        auto same_keys = [&](const std::vector<uint16_t>& a,
                             const std::vector<uint16_t>& b) {
          for (int64_t token = 0; token < c.NumTokens(); ++token) {
            const auto row = a.begin() + token * all_columns;
            if (!std::equal(row + query_columns, row + all_columns,
                            b.begin() + token * all_columns + query_columns)) {
              return false;
            }
          }
          return true;
        };
        EXPECT_TRUE(std::none_of(fast.begin(), fast.end(), [](uint16_t bits) {
          return (bits & 0x7F80) == 0x7F80;
        }));
        EXPECT_TRUE(same_keys(fast, ordered));
        for (int run = 0; run < 2; ++run) {
          EXPECT_TRUE(same_keys(backward.Run(false), fast));
          EXPECT_TRUE(backward.Run(true) == ordered) << "run " << run;
        }
      }
    }
  }
}

// Goal: nothing to do is no error; more blocks than a grid has, and a softcap
// on Hopper's own way, are refused by name, before any launch.
TEST(AttentionBf16BackwardShapeTest, KnowsItsLimits) {
  const int32_t offsets[2] = {0, 0};  // Not read.
  // Every document may begin a block.
  const AttentionBf16Shape large = {.num_sequences = 1 << 28,
                                    .sequence_length = 1,
                                    .num_heads = 2,
                                    .num_kv_heads = 1,
                                    .head_dim = 128,
                                    .causal = true,
                                    .document_offsets = offsets,
                                    .total_tokens = 1 << 28};
  const absl::Status status =
      LaunchAttentionBackwardBf16Sm90({.shape = large}, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "268435456 sequences of up to 1 tokens"))
      << status;

  AttentionBf16Shape capped = {1, 128, 2, 1, 128, true};
  capped.softcap = 30;
  for (const absl::Status& refused :
       {LaunchAttentionForwardBf16Sm90({.shape = capped}, nullptr),
        LaunchAttentionBackwardBf16Sm90({.shape = capped}, nullptr)}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(refused.message(), "no softcap")) << refused;
  }

  AttentionBf16Shape nothing = {0, 128, 2, 1, 128, true};
  EXPECT_TRUE(LaunchAttentionBackwardBf16({.shape = nothing}, nullptr).ok());
  nothing.num_sequences = 1;
  nothing.document_offsets = offsets;
  EXPECT_TRUE(LaunchAttentionBackwardBf16({.shape = nothing}, nullptr).ok());
}

}  // namespace
}  // namespace millrace
