#include "planner/lower/graph_chunks.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// "down" a product, "R" its reduce-scatter, "norm", "G" a gather and "qkv"
// another product, of each chunk.
std::vector<std::vector<GraphOp>> Chains(int num_chunks,
                                         const std::string& ops) {
  const std::map<std::string, OpKind> kinds = {
      {"down", OpKind::kGemm},
      {"R", OpKind::kReduceScatter},
      {"norm", OpKind::kResidualRmsNormForward},
      {"G", OpKind::kAllGather},
      {"qkv", OpKind::kGemm}};
  std::vector<std::vector<GraphOp>> chains(num_chunks);
  for (int c = 0; c < num_chunks; ++c) {
    for (const auto op : absl::StrSplit(ops, ' ')) {
      chains[c].push_back(
          {.kind = kinds.at(std::string(op)), .name = absl::StrCat(op, c)});
    }
  }
  return chains;
}

std::string Order(const std::vector<GraphOp>& ops) {
  return absl::StrJoin(ops, " ", [](std::string* out, const GraphOp& op) {
    out->append(op.name);
  });
}

// Goal: with enough chunks nothing waits for communication but what is under
// products; a norm comes as soon as it may. Method: the orders by hand.
TEST(InterleaveChunksTest, HidesEachChunkUnderOthers) {
  EXPECT_EQ(Order(InterleaveChunks(Chains(3, "down R norm G qkv"), 1)),
            "down0 R0 down1 R1 norm0 G0 down2 R2 norm1 G1 qkv0 norm2 G2 qkv1 "
            "qkv2");
  EXPECT_EQ(Order(InterleaveChunks(Chains(4, "down R norm G qkv"), 2)),
            "down0 R0 down1 R1 down2 R2 norm0 G0 down3 R3 norm1 G1 norm2 G2 "
            "qkv0 norm3 G3 qkv1 qkv2 qkv3");
  EXPECT_EQ(Order(InterleaveChunks(Chains(2, "R norm G qkv"), 1)),
            "R0 R1 norm0 G0 norm1 G1 qkv0 qkv1");
  EXPECT_EQ(Order(InterleaveChunks(Chains(1, "G qkv"), 1)), "G0 qkv0");
}

// Goal: each op is there once, after those of its chunk before it, and chunks
// keep their order on each op, so that all ranks and lanes agree. Method: sweep
// runs of ops, chunks and products.
TEST(InterleaveChunksTest, KeepsEveryChain) {
  for (const std::string ops : {"down", "down R", "G qkv", "R norm G qkv",
                                "down R norm G", "down R norm G qkv"}) {
    for (int chunks = 1; chunks <= 8; ++chunks) {
      for (int products = 0; products <= 4; ++products) {
        SCOPED_TRACE(absl::StrCat(ops, " ", chunks, " ", products));
        const std::vector<std::vector<GraphOp>> chains = Chains(chunks, ops);
        const std::vector<GraphOp> order = InterleaveChunks(chains, products);
        std::map<std::string, size_t> place;
        for (size_t i = 0; i < order.size(); ++i) {
          EXPECT_TRUE(place.emplace(order[i].name, i).second);
        }
        ASSERT_EQ(place.size(), chunks * chains[0].size());
        for (int c = 0; c < chunks; ++c) {
          for (size_t i = 0; i < chains[c].size(); ++i) {
            const size_t here = place.at(chains[c][i].name);
            if (i > 0) {
              EXPECT_GT(here, place.at(chains[c][i - 1].name));
            }
            if (c > 0) {
              EXPECT_GT(here, place.at(chains[c - 1][i].name));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
