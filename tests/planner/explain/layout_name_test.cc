#include "planner/explain/layout_name.h"

#include <gtest/gtest.h>

#include <string>

#include "planner/text/page.h"

namespace millrace {
namespace {

// Goal: a name says each choice in its place and nothing that is one or none.
// Method: layouts by hand, from the simplest to one that uses every word.
TEST(LayoutNameTest, SaysWhatDiffersFromOne) {
  Layout layout = {.micro_batch = 4, .num_microbatches = 8};
  EXPECT_EQ(LayoutName(layout), "mb4");
  layout = {.pipeline = 16,
            .data = 4,
            .tensor = 8,
            .micro_batch = 1,
            .zero = 1,
            .schedule = Schedule::kZeroBubble};
  EXPECT_EQ(LayoutName(layout), "pp16 dp4 tp8 mb1 zero1 zb");
  EXPECT_EQ(LayoutName(layout, /*passes_listed=*/true),
            "pp16 dp4 tp8 mb1 zero1 list");
  layout.data_groups = 2;
  EXPECT_EQ(LayoutName(layout), "pp16 dp4 dg2 tp8 mb1 zero1 zb");
  layout.gradient_reduction = GradientReduction::kBfloat16Across;
  EXPECT_EQ(LayoutName(layout), "pp16 dp4 dg2 tp8 mb1 zero1 gr-across zb");
  layout.gradient_reduction = GradientReduction::kBfloat16;
  EXPECT_EQ(LayoutName(layout), "pp16 dp4 dg2 tp8 mb1 zero1 gr-bf16 zb");
  layout.gradient_reduction = GradientReduction::kFloat32;
  layout.data_groups = 1;
  layout.context = 2;
  layout.expert = 8;
  layout.expert_tensor = 2;
  layout.interleave = 3;
  layout.zero = 3;
  layout.recompute = Recompute::kNorm | Recompute::kActivation;
  layout.gemm_format = GemmFormat::kFloat8;
  layout.precision = Precision::kBfloat16;
  layout.schedule = Schedule::kListScheduled;
  layout.copy_engines.transfers = true;
  EXPECT_EQ(LayoutName(layout),
            "pp16 vp3 dp4 tp8 cp2 ep8 etp2 mb1 zero3 rc-norm+act fp8 list ce");
}

// Goal: recompute is told whole, op by op, and by how many stages. Method: one
// name of each.
TEST(LayoutNameTest, SaysWhatIsRecomputed) {
  Layout layout = {.pipeline = 4};
  layout.recompute = Recompute::kFull;
  EXPECT_EQ(LayoutName(layout), "pp4 mb1 rc-full");
  SetRecompute("norm+gate_up+qkv+output+attention+dispatch", &layout);
  EXPECT_EQ(LayoutName(layout), "pp4 mb1 rc-norm+qkv+up+out+attn+disp");
  SetRecompute("norm+activation, norm, none, none", &layout);
  EXPECT_EQ(LayoutName(layout), "pp4 mb1 rc-norm+act@2");
}

// Goal: a name that does not fit its row has a line of its own. Method: the
// last column where it fits, and the next.
TEST(LayoutNameTest, LeavesRowsThatAreTooNarrow) {
  const std::string name = "pp16 dp4 mb1";
  const std::string cells(kPageColumns - name.size() - 2, 'c');
  EXPECT_EQ(RowWithName(cells + "  ", name), cells + "  " + name);
  EXPECT_EQ(RowWithName(cells + "   ", name), cells + "\n      " + name);
}

}  // namespace
}  // namespace millrace
