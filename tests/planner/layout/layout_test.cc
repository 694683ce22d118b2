#include "planner/layout/layout.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ModelSpec SmallModel() {
  return {.vocab_size = 96,
          .hidden = 24,
          .num_layers = 6,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 6,
          .ffn_hidden = 32,
          .sequence_length = 10};
}

// Goal: stages tile the layers; those before the last differ by one at most,
// and the last never has more than another, nor fewer unless the head asks for
// it. Method: sweep small counts, with a head of next to no work.
TEST(StageLayersTest, TilesTheLayersEvenly) {
  for (int64_t num_layers = 1; num_layers <= 13; ++num_layers) {
    for (int32_t stages = 1; stages <= num_layers; ++stages) {
      SCOPED_TRACE(absl::StrCat(num_layers, " layers, ", stages, " stages"));
      ModelSpec model = SmallModel();
      model.num_layers = num_layers;
      model.vocab_size = 2;
      const Layout layout{.pipeline = stages};
      int64_t end = 0, smallest = num_layers, largest = 0;
      for (int32_t stage = 0; stage < stages; ++stage) {
        const LayerRange range = StageLayers(model, layout, stage);
        EXPECT_EQ(range.begin, end);
        end = range.end;
        smallest = std::min(smallest, range.end - range.begin);
        largest = std::max(largest, range.end - range.begin);
      }
      EXPECT_EQ(end, num_layers);
      EXPECT_LE(largest - smallest, 1);
      const LayerRange last = StageLayers(model, layout, stages - 1);
      EXPECT_EQ(last.end - last.begin, smallest);
    }
  }
}

// Goal: the head counts as the layers that cost as much. Method: Llama-3 8B,
// whose head costs a little over two layers, and a head that outweighs all.
TEST(StageLayersTest, LeavesRoomForTheHead) {
  ModelSpec model{.vocab_size = 128256,
                  .hidden = 4096,
                  .num_layers = 32,
                  .num_heads = 32,
                  .num_kv_heads = 8,
                  .head_dim = 128,
                  .ffn_hidden = 14336,
                  .sequence_length = 4096};
  auto layers = [&] {
    std::vector<int64_t> counts;
    for (int32_t stage = 0; stage < 4; ++stage) {
      const LayerRange range = StageLayers(model, {.pipeline = 4}, stage);
      counts.push_back(range.end - range.begin);
    }
    return counts;
  };
  EXPECT_THAT(layers(), ElementsAre(8, 9, 9, 6));
  model.vocab_size *= 100;
  EXPECT_THAT(layers(), ElementsAre(10, 10, 11, 1));
}

// Goal: groups into which the data axis cannot be cut are refused with the
// change that would help. Method: each way not to divide it.
TEST(ValidateLayoutTest, RefusesImpossibleDataGroups) {
  const auto error_of = [](int32_t data, int32_t groups, int32_t zero) {
    const Layout layout{.data = data, .data_groups = groups, .zero = zero};
    return std::string(ValidateLayout(SmallModel(), layout, data).message());
  };
  for (int32_t zero = 0; zero <= kMaximumZero; ++zero) {
    EXPECT_EQ(error_of(8, 1, zero), "");
    EXPECT_EQ(error_of(8, 2, zero), "");
    EXPECT_EQ(error_of(8, 4, zero), "");
  }
  EXPECT_EQ(error_of(8, 3, 1),
            "layout.data (8) cannot be cut into 3 equal groups; set "
            "layout.data_groups to 2");
  EXPECT_EQ(error_of(8, 16, 1),
            "layout.data (8) cannot be cut into 16 equal groups; set "
            "layout.data_groups to 8");
  EXPECT_EQ(error_of(8, 8, 1),
            "layout.data_groups is 8 and layout.data 8, so that each group is "
            "one rank, which shares nothing; set layout.data_groups to 4");
  EXPECT_EQ(error_of(1, 2, 0),
            "layout.data (1) cannot be cut into 2 equal groups; set "
            "layout.data_groups to 1");
  EXPECT_EQ(error_of(8, 0, 1),
            "layout.data_groups is 0; it must be at least 1");
}

// Goal: an impossible layout is refused with the change that would help.
// Method: one violation at a time.
TEST(ValidateLayoutTest, SaysWhatWouldHelp) {
  const ModelSpec model = SmallModel();
  EXPECT_TRUE(ValidateLayout(model,
                             {.pipeline = 2,
                              .data = 2,
                              .tensor = 2,
                              .micro_batch = 1,
                              .num_microbatches = 3,
                              .zero = 1},
                             6)
                  .ok());
  auto message = [&](const Layout& layout, int64_t global_batch) {
    const absl::Status status = ValidateLayout(model, layout, global_batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message({.pipeline = 7}, 1), HasSubstr("set it to 6 or less"));
  EXPECT_THAT(message({.tensor = 3}, 1),
              AllOf(HasSubstr("model.heads"), HasSubstr("tensor to 2")));
  EXPECT_THAT(message({.tensor = 4}, 1), HasSubstr("model.kv_heads"));
  EXPECT_THAT(message({.zero = 4}, 1), HasSubstr("layout.zero"));
  EXPECT_THAT(message({.data = 0}, 1), HasSubstr("layout.data"));
  EXPECT_THAT(message({.data = 2, .micro_batch = 2}, 12),
              HasSubstr("use 3 micro-batches"));
  EXPECT_THAT(message({.data = 4}, 6),
              HasSubstr("use 1 micro-batches, and one more on 2 of the"));
  EXPECT_THAT(message({.data = 4, .zero = 2}, 6),
              AllOf(HasSubstr("global_batch to 4"), HasSubstr("data to 3")));
  EXPECT_THAT(message({.data = 4}, 3),
              AllOf(HasSubstr("global_batch to 4"), HasSubstr("data to 3")));
  EXPECT_THAT(message({.micro_batch = 3}, 8),
              AllOf(HasSubstr("global_batch to 6"),
                    HasSubstr("layout.micro_batch to 2"),
                    Not(HasSubstr("layout.data"))));
  ModelSpec odd = model;
  odd.sequence_length = 9;
  EXPECT_THAT(std::string(ValidateLayout(odd, {.tensor = 2}, 1).message()),
              HasSubstr("layout.micro_batch to 2"));
}

// Goal: replicas share any batch that has a micro-batch for each of them: all
// of it, in one order, none with two more than another, the first with the
// most. Method: sweep.
TEST(LayoutTest, ReplicasShareEveryBatch) {
  for (int32_t data = 1; data <= 7; ++data) {
    for (int32_t micro_batch = 1; micro_batch <= 3; ++micro_batch) {
      for (int32_t count = data; count <= 23; ++count) {
        Layout layout{.data = data, .micro_batch = micro_batch};
        layout.ShareBatch(int64_t{count} * micro_batch);
        SCOPED_TRACE(LayoutToString(layout));
        EXPECT_EQ(layout.global_batch(), count * micro_batch);
        EXPECT_TRUE(
            ValidateLayout(SmallModel(), layout, count * micro_batch).ok());
        int32_t next = 0;
        for (int32_t d = 0; d < data; ++d) {
          EXPECT_EQ(layout.first_microbatch_of(d), next);
          next += layout.num_microbatches_of(d);
          EXPECT_LE(layout.num_microbatches_of(d), layout.most_microbatches());
          EXPECT_GE(layout.num_microbatches_of(d) + 1,
                    layout.most_microbatches());
        }
        EXPECT_EQ(next, count);
        EXPECT_EQ(layout.is_uneven(), count % data != 0);
      }
    }
  }
}

// Goal: a layout is uneven only where data replicas meet once a step; the
// reason and what helps are said. Method: each way to meet more often.
TEST(ValidateLayoutTest, RefusesUnevenReplicasThatMeetInMicrobatches) {
  const auto error_of = [](Layout layout) {
    layout.ShareBatch(8);
    return std::string(ValidateLayout(SmallModel(), layout, 8).message());
  };
  for (int32_t zero = 0; zero <= kMostUnevenZero; ++zero) {
    EXPECT_EQ(error_of({.data = 3, .zero = zero}), "");
    EXPECT_EQ(error_of({.pipeline = 2, .data = 3, .tensor = 2, .zero = zero}),
              "");
    EXPECT_EQ(error_of({.data = 6, .data_groups = 2, .zero = zero}), "");
  }
  for (int32_t zero = kMostUnevenZero + 1; zero <= kMaximumZero; ++zero) {
    EXPECT_THAT(error_of({.data = 3, .zero = zero}),
                AllOf(HasSubstr("8 micro-batches of 1 on 3 data replicas"),
                      HasSubstr("with which replicas meet in every"),
                      HasSubstr("layout.data to 2 or layout.zero to 1")));
    EXPECT_EQ(error_of({.data = 2, .zero = zero}), "");
  }
  EXPECT_THAT(error_of({.data = 3, .expert = 3}),
              HasSubstr("layout.expert is 3"));
  EXPECT_THAT(
      error_of({.pipeline = 2, .data = 3, .copy_engines = {.transfers = true}}),
      HasSubstr("copy engines"));
  for (const int32_t extra : {-1, 3}) {
    EXPECT_THAT(
        std::string(ValidateLayout(SmallModel(),
                                   {.data = 3, .extra_microbatches = extra}, 3)
                        .message()),
        HasSubstr("it must be 0 to 2"));
  }
}

// Goal: the text tells layouts apart in every field, and names are read back.
// Method: change one field at a time.
TEST(LayoutToStringTest, ShowsEveryField) {
  const std::vector<Layout> layouts = {{},
                                       {.pipeline = 2},
                                       {.data = 2},
                                       {.tensor = 2},
                                       {.micro_batch = 2},
                                       {.num_microbatches = 2},
                                       {.data = 2, .extra_microbatches = 1},
                                       {.zero = 2},
                                       {.precision = Precision::kBfloat16},
                                       {.recompute = Recompute::kCheap},
                                       {.recompute = Recompute::kFull},
                                       {.copy_engines = {.transfers = true}}};
  std::set<std::string> texts;
  for (const Layout& layout : layouts) {
    texts.insert(LayoutToString(layout));
    EXPECT_EQ(PrecisionOf(PrecisionName(layout.precision)), layout.precision);
    EXPECT_EQ(ParseRecompute(RecomputeName(layout.recompute)).value(),
              layout.recompute);
  }
  EXPECT_EQ(texts.size(), layouts.size());
  EXPECT_EQ(LayoutToString({.data = 4,
                            .zero = 3,
                            .precision = Precision::kBfloat16,
                            .recompute = Recompute::kFull}),
            "pipeline 1 x data 4 x tensor 1, 1 micro-batch of 1, ZeRO 3, bf16, "
            "recompute full");
  Layout by_stage{.pipeline = 4};
  SetRecompute("full, qkv+norm, norm + qkv,none", &by_stage);
  EXPECT_THAT(LayoutToString(by_stage),
              HasSubstr("recompute full (1 stage), norm+qkv (2), none (1)"));
}

// Goal: what stages recompute is said and read as jobs pin it, and refused
// for another number of stages. Method: there and back.
TEST(SetRecomputeTest, TakesOneForAllOrEveryStages) {
  Layout layout{.pipeline = 3};
  SetRecompute("selective", &layout);
  EXPECT_EQ(layout, (Layout{.pipeline = 3, .recompute = Recompute::kCheap}));
  EXPECT_EQ(RecomputeKey(layout), "norm+activation");
  SetRecompute("none, qkv, selective", &layout);
  EXPECT_EQ(layout.recompute, Recompute::kCheap | Recompute::kQkv);
  SetRecompute("none, full, selective", &layout);
  EXPECT_EQ(layout.recompute, Recompute::kFull);
  EXPECT_EQ(layout.recompute_of(0), Recompute::kNone);
  EXPECT_EQ(layout.recompute_of(2), Recompute::kCheap);
  EXPECT_EQ(RecomputeKey(layout), "none, full, norm+activation");
  EXPECT_TRUE(ValidateLayout(SmallModel(), layout, 1).ok());
  layout.pipeline = 2;
  EXPECT_THAT(std::string(ValidateLayout(SmallModel(), layout, 1).message()),
              AllOf(HasSubstr("layout.recompute names 3 stages (none, full, "
                              "norm+activation), but layout.pipeline is 2"),
                    HasSubstr("name every stage's, or one for all")));
  SetRecompute("none", &layout);
  EXPECT_EQ(layout, Layout{.pipeline = 2});
}

}  // namespace
}  // namespace millrace
