#include "planner/search/layout_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/cost/layer_work.h"
#include "tests/planner/planning_fixture.h"
#include "tests/planner/search/tree_layouts.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

LayoutSpace ExpertSpace(int32_t num_devices, int64_t global_batch) {
  LayoutSpace space = SmallSpace(num_devices, global_batch);
  space.model.moe = {.num_experts = 4,
                     .experts_per_token = 2,
                     .expert_hidden = 32,
                     .num_dense_layers = 1};
  return space;
}

std::string Text(const Layout& layout) {
  return absl::StrCat(LayoutToString(layout), ", ", layout.expert, "x",
                      layout.expert_tensor, " ", ScheduleName(layout.schedule));
}

std::string ErrorOf(const LayoutSpace& space) {
  const LayoutTree planned(space);
  EXPECT_FALSE(HasLayout(planned));
  EXPECT_TRUE(LayoutsOf(planned).empty());
  const absl::Status status = ExplainEmptyTree(planned);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

// Whether no replicas that share the batch evenly, and no fewer uneven ones,
// would have a longest share as short.
bool IsWorthIt(const Layout& uneven, int32_t num_devices) {
  const int32_t room =
      num_devices / (uneven.pipeline * uneven.tensor * uneven.context);
  if (uneven.global_batch() % uneven.data == 0) return false;
  for (int32_t data = 1; data <= room; ++data) {
    Layout other = uneven;
    other.data = data;
    other.ShareBatch(uneven.global_batch());
    if (other.global_batch() != uneven.global_batch()) continue;
    const bool is_better = other.is_uneven() ? data < uneven.data : true;
    if (is_better && other.most_microbatches() <= uneven.most_microbatches()) {
      return false;
    }
  }
  return true;
}

// Every combination of sizes that ValidatePlannedLayout lets pass.
std::set<std::string> ByBruteForce(const LayoutSpace& space) {
  const auto n = space.num_devices;
  const auto batch = static_cast<int32_t>(space.global_batch);
  const bool has_experts = space.model.moe.num_experts > 0;
  std::set<std::string> layouts;
  for (int32_t ranks = 1; ranks <= n; ++ranks)
    for (int32_t tensor = 1; tensor <= ranks; ++tensor)
      for (int32_t context = 1; context * tensor <= ranks; ++context)
        for (int32_t pipeline = 1; pipeline * context * tensor <= ranks;
             ++pipeline) {
          if (ranks % (pipeline * context * tensor) != 0) continue;
          const int32_t data = ranks / (pipeline * context * tensor);
          for (int32_t micro = 1; micro <= batch; ++micro)
            for (int32_t expert = 1; expert <= (has_experts ? 4 : 1); ++expert)
              for (int32_t expert_tensor = 1; expert_tensor <= tensor;
                   ++expert_tensor)
                for (int32_t interleave = 1; interleave <= 4; ++interleave)
                  for (const Schedule schedule :
                       {Schedule::kOneForwardOneBackward, Schedule::kZeroBubble,
                        Schedule::kInterleaved})
                    for (int32_t zero = 0; zero <= (data * context > 1 ? 3 : 0);
                         ++zero)
                      for (const Recompute recompute : UnpricedRecomputes()) {
                        Layout layout{.pipeline = pipeline,
                                      .data = data,
                                      .tensor = tensor,
                                      .context = context,
                                      .expert = expert,
                                      .expert_tensor = expert_tensor,
                                      .interleave = interleave,
                                      .micro_batch = micro,
                                      .zero = zero,
                                      .recompute = recompute,
                                      .schedule = schedule};
                        layout.ShareBatch(batch);
                        if (layout.is_uneven() && !IsWorthIt(layout, n)) {
                          continue;
                        }
                        if (ValidatePlannedLayout(space.model, layout, batch)
                                .ok()) {
                          layouts.insert(Text(layout));
                        }
                      }
        }
  return layouts;
}

// Goal: every layout once, none missing. Method: nested loops over all sizes,
// for dense models and mixtures of experts.
TEST(LayoutTreeTest, HasEveryLayoutOnce) {
  for (const LayoutSpace& space :
       {SmallSpace(1, 6), SmallSpace(6, 6), SmallSpace(8, 8), SmallSpace(7, 16),
        ExpertSpace(1, 4), ExpertSpace(4, 4), ExpertSpace(8, 6)}) {
    std::set<std::string> found;
    for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
      EXPECT_TRUE(found.insert(Text(layout)).second) << Text(layout);
    }
    EXPECT_EQ(found, ByBruteForce(space));
  }
}

// Goal: where devices do not divide the batch, the replicas are those whose
// longest share is shorter than of fewer; a job gets the number that it asks
// for; and replicas that meet in every micro-batch share evenly. Method: 7
// devices and a batch of 16.
TEST(LayoutTreeTest, SharesUnevenlyWhereThatIsShorter) {
  LayoutSpace space = SmallSpace(7, 16);
  const Layout sharding{.micro_batch = 1};
  const auto replicas = [&] {
    return LayoutTree(space).Replicas(sharding, /*pipeline=*/1);
  };
  // Shares of 3; of 4, 8 and 16.
  EXPECT_THAT(replicas(), ElementsAre(6, 4, 2, 1));
  space.constraints.devices = 7;
  EXPECT_THAT(replicas(), ElementsAre(7));
  space.constraints = {.data = 5};
  EXPECT_THAT(replicas(), ElementsAre(5));
  space.constraints = {.zero = 2};
  EXPECT_THAT(replicas(), ElementsAre(4, 2, 1));
  space.constraints = {};
  space.least_devices = 7;
  EXPECT_THAT(replicas(), ElementsAre(7));
  for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
    if (layout.is_uneven()) {
      EXPECT_LE(layout.zero, kMostUnevenZero);
    }
    EXPECT_EQ(layout.global_batch(), 16);
  }
  // Experts meet in every micro-batch.
  space = ExpertSpace(7, 16);
  EXPECT_THAT(LayoutTree(space).Replicas({.expert = 2, .micro_batch = 1}, 1),
              ElementsAre(4, 2));
}

// Goal: each key pins its axis. Method: pin one after the other and look.
TEST(LayoutTreeTest, RespectsConstraints) {
  const struct {
    std::optional<int32_t> LayoutConstraints::*pinned;
    int32_t Layout::*chosen;
    int32_t value;
  } keys[] = {{&LayoutConstraints::pipeline, &Layout::pipeline, 2},
              {&LayoutConstraints::data, &Layout::data, 2},
              {&LayoutConstraints::tensor, &Layout::tensor, 2},
              {&LayoutConstraints::context, &Layout::context, 2},
              {&LayoutConstraints::expert, &Layout::expert, 2},
              {&LayoutConstraints::expert_tensor, &Layout::expert_tensor, 2},
              {&LayoutConstraints::interleave, &Layout::interleave, 2},
              {&LayoutConstraints::micro_batch, &Layout::micro_batch, 2},
              {&LayoutConstraints::zero, &Layout::zero, 1}};
  for (const auto& [pinned, chosen, value] : keys) {
    LayoutSpace space = ExpertSpace(8, 8);
    size_t expected = 0;
    for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
      if (layout.*chosen == value) ++expected;
    }
    space.constraints.*pinned = value;
    const auto layouts = LayoutsOf(LayoutTree(space));
    EXPECT_GT(layouts.size(), 0u);
    size_t counted = 0;
    for (const Layout& layout : layouts) {
      EXPECT_EQ(layout.*chosen, value) << Text(layout);
      if (layout.data * layout.context > 1 || value != 1) ++counted;
    }
    EXPECT_EQ(counted, expected);
  }
  LayoutSpace space = SmallSpace(8, 8);
  space.constraints = {
      .zero = 2, .devices = 6, .recompute = "full", .schedule = "interleaved"};
  for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
    ADD_FAILURE() << "batch 8 has no even layout of 6: " << Text(layout);
  }
  space.constraints.zero.reset();
  space.constraints.devices = 4;
  const auto layouts = LayoutsOf(LayoutTree(space));
  EXPECT_FALSE(layouts.empty());
  for (const Layout& layout : layouts) {
    EXPECT_EQ(layout.num_ranks(), 4);
    EXPECT_EQ(layout.recompute, Recompute::kFull);
    EXPECT_EQ(layout.schedule, Schedule::kInterleaved);
  }
}

// Goal: a refusal names the keys that contradict each other and what helps.
// Method: one contradiction at a time.
TEST(LayoutTreeTest, ExplainsContradictions) {
  LayoutSpace space = SmallSpace(4, 8);
  space.constraints = {.tensor = 2, .context = 4};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.tensor 2 x layout.context 4 takes 8 "
                              "devices, but there are 4"),
                    HasSubstr("set layout.tensor to 1 instead of 2"),
                    HasSubstr("set layout.context to 2 instead of 4"),
                    HasSubstr("use 8 devices instead of 4")));
  space.constraints = {.pipeline = 3, .devices = 4};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.pipeline 3 = 3 devices, of which "
                              "layout.devices, 4, is no multiple"),
                    HasSubstr("set layout.devices to 3 instead of 4")));
  // Two stages at least have chunks.
  space.constraints = {.interleave = 2, .devices = 1};
  EXPECT_THAT(ErrorOf(space),
              HasSubstr("layout.pipeline at least 2 = 2 devices, of which "
                        "layout.devices, 1, is no multiple"));
  space.constraints = {.data = 2, .micro_batch = 3};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("training.global_batch is 8"),
                    HasSubstr("set training.global_batch to 9 instead of 8")));
  space.constraints = {.expert = 2};
  EXPECT_THAT(ErrorOf(space), HasSubstr("the model has no experts"));
  space.constraints = {.interleave = 2, .schedule = "1f1b"};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.interleave is 2 and layout.schedule "
                              "1f1b"),
                    HasSubstr("set layout.schedule to auto")));
  space.constraints = {.pipeline = 1, .schedule = "interleaved"};
  EXPECT_THAT(ErrorOf(space), AllOf(HasSubstr("layout.schedule interleaved"),
                                    HasSubstr("layout.pipeline is 1"),
                                    HasSubstr("set layout.pipeline to 2")));
  space.constraints = {.pipeline = 4, .recompute = "full, none"};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("layout.recompute names 2 stages (full, none), "
                              "but layout.pipeline is 4"),
                    HasSubstr("set layout.pipeline to 2 instead of 4"),
                    HasSubstr("set layout.recompute to auto")));
  space.constraints = {.devices = 5};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.devices asks for 5"));
  // Sizes as large as keys may be.
  space.constraints = {
      .pipeline = 2147483647, .data = 2147483647, .tensor = 2147483647};
  EXPECT_THAT(ErrorOf(space), HasSubstr("takes 9903520300447984"));
  space = ExpertSpace(4, 8);
  space.constraints = {.expert = 3};
  EXPECT_THAT(ErrorOf(space),
              AllOf(HasSubstr("cannot be spread equally over 3 ranks"),
                    HasSubstr("set layout.expert to 2")));
  space.constraints = {.expert = 2147483647, .expert_tensor = 2147483647};
  EXPECT_THAT(ErrorOf(space), HasSubstr("layout.expert_tensor is 2147483647"));
}

// Goal: groups of the data axis are offered where it spans nodes, one a node,
// and else where the job asks for them. Method: eight replicas on nodes of
// several sizes, alone and beside tensor ranks.
TEST(LayoutTreeTest, CutsTheDataAxisAtNodes) {
  const auto groups_of = [](int32_t tensor, int32_t devices_per_node,
                            std::optional<int32_t> pinned = std::nullopt) {
    LayoutSpace space = SmallSpace(16, 8);
    space.devices_per_node = devices_per_node;
    space.constraints.data = 8;
    space.constraints.pipeline = space.constraints.context = 1;
    space.constraints.tensor = tensor;
    space.constraints.data_groups = pinned;
    std::set<int32_t> groups;
    for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
      groups.insert(layout.data_groups);
    }
    return groups;
  };
  using Groups = std::set<int32_t>;
  EXPECT_EQ(groups_of(1, 0), Groups({1}));  // Nothing known of nodes.
  EXPECT_EQ(groups_of(1, 8), Groups({1}));  // One node.
  EXPECT_EQ(groups_of(1, 4), Groups({1, 2}));
  EXPECT_EQ(groups_of(1, 2), Groups({1, 4}));
  EXPECT_EQ(groups_of(1, 1), Groups({1}));  // One replica a node.
  EXPECT_EQ(groups_of(2, 4), Groups({1, 4}));
  EXPECT_EQ(groups_of(2, 2), Groups({1}));
  EXPECT_EQ(groups_of(1, 6), Groups({1, 4}));  // Groups that lie on a node.
  EXPECT_EQ(groups_of(1, 4, 4), Groups({4}));
  EXPECT_EQ(groups_of(1, 8, 2), Groups({2}));
  EXPECT_EQ(groups_of(1, 8, 3), Groups({}));
  EXPECT_EQ(groups_of(1, 4, 1), Groups({1}));

  LayoutSpace space = SmallSpace(16, 8);
  space.constraints.data = 8;
  space.constraints.data_groups = 3;
  EXPECT_THAT(ErrorOf(space),
              HasSubstr("layout.data (8) cannot be cut into 3 equal groups"));
}

// Goal: where the job leaves the choice, gradients are in fp32 or, for what
// hosts send each other alone, in bf16; where it names one, that one. Method:
// eight replicas on nodes of several sizes, alone and beside tensor ranks.
TEST(LayoutTreeTest, OffersBf16ForWhatCrossesHosts) {
  using Reduction = GradientReduction;
  using Choices = std::set<std::pair<int32_t, Reduction>>;
  const auto choices_of = [](int32_t tensor, int32_t devices_per_node,
                             std::optional<Reduction> asked) {
    LayoutSpace space = SmallSpace(16, 8);
    space.devices_per_node = devices_per_node;
    space.gradient_reduction = asked;
    space.constraints.data = 8;
    space.constraints.pipeline = space.constraints.context = 1;
    space.constraints.tensor = tensor;
    Choices choices;
    for (const Layout& layout : LayoutsOf(LayoutTree(space))) {
      choices.emplace(layout.data_groups, layout.gradient_reduction);
    }
    return choices;
  };
  constexpr Reduction kPlain = Reduction::kFloat32;
  constexpr Reduction kAll = Reduction::kBfloat16;
  constexpr Reduction kAcross = Reduction::kBfloat16Across;
  EXPECT_EQ(choices_of(1, 4, std::nullopt),
            Choices({{1, kPlain}, {2, kPlain}, {2, kAcross}}));
  EXPECT_EQ(choices_of(2, 4, std::nullopt),
            Choices({{1, kPlain}, {4, kPlain}, {4, kAcross}}));
  // One replica a host: all that replicas send crosses.
  EXPECT_EQ(choices_of(2, 2, std::nullopt), Choices({{1, kPlain}, {1, kAll}}));
  EXPECT_EQ(choices_of(1, 8, std::nullopt), Choices({{1, kPlain}}));
  EXPECT_EQ(choices_of(1, 0, std::nullopt), Choices({{1, kPlain}}));
  EXPECT_EQ(choices_of(1, 4, kPlain), Choices({{1, kPlain}, {2, kPlain}}));
  EXPECT_EQ(choices_of(1, 4, kAll), Choices({{1, kAll}, {2, kAll}}));
  // One group has nothing that goes across.
  EXPECT_EQ(choices_of(1, 4, kAcross), Choices({{1, kPlain}, {2, kAcross}}));
}

}  // namespace
}  // namespace millrace
