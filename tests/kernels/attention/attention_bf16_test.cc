#include "kernels/attention/attention_bf16.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/kernels/attention/attention_bf16_testing.h"

namespace millrace {
namespace {

class AttentionBf16Test : public testing::TestWithParam<AttentionBf16Case> {};

// Goal: the forward pass means what attention.h says, reads packed tensors in
// place, writes every element, gives equal bits for equal inputs, and finds the
// largest of its outputs if asked. Method:
// odd and even shapes against fp64 on fresh normal inputs, outputs poisoned
// with NaN. Rounding p to bf16 leaves a norm-wise error near 2.5e-3 (cuDNN's is
// alike); 4e-3 allows for small shapes. A mask or a tile that is off by one
// costs far more. LSE is fp32 throughout, of scores that grow as the square of
// the inputs.
TEST_P(AttentionBf16Test, MatchesTheReference) {
  const AttentionBf16Case c = GetParam();
  AttentionBf16Operands operands(c);
  const AttentionBf16Reference reference =
      ComputeAttentionBf16Reference(c, operands.qkv_host(), {});
  const auto forward = operands.RunForward();
  EXPECT_LT(RelativeError(forward.o, reference.o), 4e-3);
  for (size_t i = 0; i < forward.lse.size(); ++i) {
    ASSERT_NEAR(forward.lse[i], reference.lse[i],
                1e-4 * c.input_scale * c.input_scale)
        << i;
  }
  const auto again = operands.RunForward(/*with_amax=*/true);
  EXPECT_EQ(again.o, forward.o) << "the second run differs";
  EXPECT_EQ(forward.amax, 0.0f);
  EXPECT_EQ(again.amax, LargestMagnitude(again.o));
  EXPECT_EQ(again.lse, forward.lse);
}

std::string CaseName(const testing::TestParamInfo<AttentionBf16Case>& info) {
  return info.param.Name();
}

INSTANTIATE_TEST_SUITE_P(
    Sequences, AttentionBf16Test, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          for (const int64_t length : {1, 3, 65, 129}) {
            cases.push_back({{3, length, 2, 1, head_dim, causal}});
          }
          cases.push_back({{1, 256, 2, 2, head_dim, causal}});
          cases.push_back({{2, 333, 6, 2, head_dim, causal}});
          cases.push_back({{1, 777, 4, 1, head_dim, causal}});
        }
      }
      // So many tiles that keys are not shared out, at odd lengths; then so
      // many that each block crosses from tile to tile.
      for (const int64_t head_dim : {64, 128}) {
        for (const bool causal : {true, false}) {
          cases.push_back({{70, 1, 2, 1, head_dim, causal}});
          cases.push_back({{70, 65, 2, 1, head_dim, causal}});
          cases.push_back({{20, 129, 4, 2, head_dim, causal}});
          cases.push_back({{2, 777, 12, 3, head_dim, causal}});
        }
      }
      cases.push_back({{40, 200, 8, 8, 64, true}});
      cases.push_back({{40, 200, 8, 8, 128, false}});
      cases.push_back({{20, 320, 8, 4, 128, true}});
      // Hopper's kernels have no softcap: the portable ones take it.
      AttentionBf16Shape capped = {1, 256, 2, 1, 128, true};
      capped.softcap = 2.0f;
      cases.push_back({capped});
      return cases;
    }()),
    CaseName);

// Scores so far apart that a row's maximum grows by much from block to block of
// keys, and what was summed before must shrink.
INSTANTIATE_TEST_SUITE_P(LargeScores, AttentionBf16Test, testing::ValuesIn([] {
                           std::vector<AttentionBf16Case> cases;
                           for (const int64_t head_dim : {64, 96, 128, 256}) {
                             for (const bool causal : {true, false}) {
                               // Few tiles, then so many that keys are not
                               // shared out.
                               for (const int64_t num_sequences : {1, 6}) {
                                 cases.push_back(
                                     {.shape = {num_sequences, 777, 2, 1,
                                                head_dim, causal},
                                      .input_scale = 3.0f});
                               }
                             }
                           }
                           return cases;
                         }()),
                         CaseName);

// Windows smaller and larger than a tile, and one that ends at a tile's edge.
INSTANTIATE_TEST_SUITE_P(
    Windows, AttentionBf16Test, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          for (const int64_t window : {1, 7, 128, 300, 5000}) {
            AttentionBf16Shape shape = {1, 777, 2, 1, head_dim, causal};
            shape.window = window;
            cases.push_back({shape});
          }
        }
      }
      return cases;
    }()),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Documents, AttentionBf16Test, testing::ValuesIn([] {
      std::vector<AttentionBf16Case> cases;
      for (const int64_t head_dim : {64, 96, 128, 256}) {
        for (const bool causal : {true, false}) {
          for (const int64_t window : {0, 50}) {
            AttentionBf16Shape shape = {
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
      std::vector<int32_t> few(100, 0);
      few[0] = 300;
      few[1] = 77;
      for (const int64_t head_dim : {64, 128}) {
        cases.push_back(PackedDocuments({.num_heads = 2,
                                         .num_kv_heads = 1,
                                         .head_dim = head_dim,
                                         .causal = true},
                                        few));
      }
      // More documents than a warp searches at once.
      std::vector<int32_t> many(150);
      for (int i = 0; i < 150; ++i) many[i] = i * 37 % 97;
      cases.push_back(PackedDocuments(
          {.num_heads = 2, .num_kv_heads = 2, .head_dim = 128, .causal = true},
          many));
      return cases;
    }()),
    [](const testing::TestParamInfo<AttentionBf16Case>& info) {
      return absl::StrCat("Num", info.param.shape.num_sequences, "D",
                          info.param.shape.head_dim,
                          info.param.shape.causal ? "Causal" : "Full", "Window",
                          info.param.shape.window);
    });

// Goal: shapes the kernels do not have are refused by name, before any launch.
TEST(AttentionBf16ShapeTest, RefusesWhatItCannotDo) {
  const AttentionBf16Shape good = {1, 128, 4, 2, 128, true};
  auto refuse = [](AttentionBf16Shape shape, const char* named) {
    for (const absl::Status& status :
         {LaunchAttentionForwardBf16({.shape = shape}, nullptr),
          LaunchAttentionBackwardBf16({.shape = shape}, nullptr)}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(status.message().find(named) != absl::string_view::npos)
          << status;
    }
  };
  AttentionBf16Shape shape = good;
  shape.head_dim = 80;
  refuse(shape, "80");
  shape = good;
  shape.num_kv_heads = 3;
  refuse(shape, "3 key-value heads");
  shape = good;
  shape.sequence_length = 0;
  refuse(shape, "0 tokens");
  shape = good;
  shape.window = -1;
  refuse(shape, "window of -1");
  shape = good;
  shape.softcap = -1;
  refuse(shape, "softcap of -1");
  shape = good;
  shape.total_tokens = -1;
  const int32_t offsets[2] = {0, 128};
  shape.document_offsets = offsets;
  refuse(shape, "-1 packed tokens");
}

}  // namespace
}  // namespace millrace
