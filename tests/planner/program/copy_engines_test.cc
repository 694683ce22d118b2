#include "planner/program/copy_engines.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <variant>

#include "planner/lower/lower.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

Layout WithAll(Layout layout) {
  layout.copy_engines = CopyEngineUseOf(layout);
  return layout;
}

OpAttributes Collective(Group group, DType dtype = DType::kBfloat16) {
  return CollectiveAttributes{group, 64, dtype};
}
const OpAttributes kTransfer = TransferAttributes{.num_elements = 64};

// Goal: each use lets through what it names and nothing else. Method: one use
// at a time on a mesh of all axes, every kind of communication.
TEST(CopyEnginesTest, EachUseCarriesItsOwn) {
  const Layout mesh = {.pipeline = 2, .data = 2, .tensor = 2, .zero = 1};
  for (int use = 0; use < 4; ++use) {
    SCOPED_TRACE(use);
    Layout layout = mesh;
    layout.copy_engines = {.transfers = use == 0,
                           .tensor_gathers = use == 1,
                           .tensor_reductions = use == 2,
                           .data_gathers = use == 3};
    for (const OpKind kind : {OpKind::kSend, OpKind::kReceive}) {
      EXPECT_EQ(CopyEnginesCarry(layout, kind, kTransfer), use == 0);
    }
    const auto carries = [&](OpKind kind, Group group) {
      return CopyEnginesCarry(layout, kind, Collective(group));
    };
    EXPECT_EQ(carries(OpKind::kAllGather, Group::kTensor), use == 1);
    EXPECT_EQ(carries(OpKind::kReduceScatter, Group::kTensor), use == 2);
    EXPECT_EQ(carries(OpKind::kAllGather, Group::kData), use == 3);
    EXPECT_FALSE(carries(OpKind::kReduceScatter, Group::kData));
    EXPECT_FALSE(carries(OpKind::kAllReduce, Group::kTensor));
    EXPECT_FALSE(carries(OpKind::kAllGather, Group::kWorld));
    EXPECT_FALSE(
        CopyEnginesCarry(layout, OpKind::kGemm, GemmAttributes{1, 1, 1}));
  }
}

// Goal: what copy engines may do of a layout is what there is to do in its
// Programs. Method: every layout of the sweep; a use without an instruction, or
// the other way round, shows.
TEST(CopyEnginesTest, UsesAreWhatProgramsHave) {
  for (const Layout& plain : TestLayouts(Precision::kBfloat16)) {
    const Layout layout = WithAll(plain);
    SCOPED_TRACE(LayoutToString(layout));
    CopyEngineUse found;
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      const auto program = BuildTrainingProgram(TestModel(), layout, stage);
      ASSERT_TRUE(program.ok()) << program.status();
      for (const Instruction& in : program->instructions) {
        if (!CopyEnginesCarry(layout, in.kind, in.attributes)) continue;
        if (IsTransfer(in.kind)) {
          found.transfers = true;
          continue;
        }
        const Group group = std::get<CollectiveAttributes>(in.attributes).group;
        if (group == ShardGroup(layout)) {
          found.data_gathers = true;
        } else if (in.kind == OpKind::kAllGather) {
          found.tensor_gathers = true;
        } else {
          found.tensor_reductions = true;
        }
      }
    }
    EXPECT_EQ(found, layout.copy_engines);
  }
}

// Goal: no more members than one kernel sums, no wider type than it knows, and
// nothing where a group has one member.
TEST(CopyEnginesTest, KeepsWithinWhatKernelsSum) {
  const OpAttributes bf16 = Collective(Group::kTensor);
  for (const int32_t tensor :
       {1, 2, kMaxCopyEngineSum, 2 * kMaxCopyEngineSum}) {
    Layout layout = {.tensor = tensor};
    layout.copy_engines = {.tensor_gathers = true, .tensor_reductions = true};
    EXPECT_EQ(CopyEnginesCarry(layout, OpKind::kReduceScatter, bf16),
              tensor > 1 && tensor <= kMaxCopyEngineSum);
    EXPECT_EQ(CopyEnginesCarry(layout, OpKind::kAllGather, bf16), tensor > 1);
    EXPECT_FALSE(CopyEnginesCarry(layout, OpKind::kReduceScatter,
                                  Collective(Group::kTensor, DType::kFloat64)));
  }
}

// Goal: "within hosts" is what the mesh says. Method: every group of every rank
// of all small meshes on hosts of several sizes, against the hosts of its
// members.
TEST(CopyEnginesTest, FindsGroupsThatCrossHosts) {
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t data : {1, 2, 3}) {
      for (const int32_t tensor : {1, 2, 4}) {
        const Layout layout = {
            .pipeline = pipeline, .data = data, .tensor = tensor};
        for (const int32_t per_host : {1, 2, 3, 4, 8, 16}) {
          for (const Group group :
               {Group::kTensor, Group::kData, Group::kPipeline}) {
            SCOPED_TRACE(LayoutToString(layout) + " " + GroupName(group) +
                         " on hosts of " + std::to_string(per_host));
            bool within = true;
            for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
              std::set<int32_t> hosts;
              for (const Rank member :
                   GroupMembers(layout, group, Rank{rank})) {
                hosts.insert(ToInt(member) / per_host);
              }
              within = within && hosts.size() == 1;
            }
            const bool said =
                group == Group::kPipeline
                    ? LiesWithinHosts(layout, OpKind::kSend, kTransfer,
                                      per_host)
                    : LiesWithinHosts(layout, OpKind::kAllGather,
                                      Collective(group), per_host);
            EXPECT_EQ(said, within);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace
