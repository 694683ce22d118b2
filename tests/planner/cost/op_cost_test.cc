#include "planner/cost/op_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "planner/lower/lower.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/shipped_profiles.h"
#include "planner/program/copy_engines.h"
#include "planner/program/op_work.h"
#include "tests/planner/op_samples.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kOverhead = 1e-6;

CostModel MakeCost(const HardwareProfile& profile) {
  absl::StatusOr<CostModel> cost = CostModel::Create(profile);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return *std::move(cost);
}

// Goal: measured shapes come back as measured, others at the speed measured
// near them. Method: a table with two speeds.
TEST(CostTest, GemmsFollowTheNearestShapes) {
  HardwareProfile profile = MakeProfile({});
  for (GemmTime& time : profile.gemms) {
    if (time.m == 32) time.seconds *= 4;  // Small GEMMs at a quarter speed.
  }
  const CostModel cost = MakeCost(profile);
  const auto rate = [&](int64_t m, int64_t n, int64_t k, bool trans) {
    const double flops = 2.0 * static_cast<double>(m * n * k);
    return flops /
           (cost.Seconds(
                {}, OpKind::kGemm,
                GemmAttributes{.m = m, .n = n, .k = k, .trans_b = trans}) -
            kOverhead);
  };
  EXPECT_NEAR(rate(32, 32, 32, false) / 0.25e10, 1, 1e-6);
  EXPECT_NEAR(rate(1024, 1024, 1024, true) / 1e10, 1, 1e-6);
  EXPECT_LT(rate(40, 40, 40, false), 0.3e10);
  EXPECT_GT(rate(900, 300, 700, false), 0.9e10);
  EXPECT_NEAR(cost.PeakFlopsPerSecond() / 1e10, 1, 1e-9);
}

// Goal: a part of the rows of a measured product takes its share of the time
// and what its last wave of tiles leaves empty, whatever smaller products near
// it were measured at. Method: on H200, a product of 8192 rows, in 2 to 8
// parts, beside that of another profile without it; and a measured part.
TEST(CostTest, PartsOfMeasuredGemmsTakeTheirShare) {
  auto shipped = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const auto seconds = [](const HardwareProfile& profile, int64_t m) {
    return MakeCost(profile).Seconds(
        {}, OpKind::kGemm,
        GemmAttributes{.m = m, .n = 8192, .k = 14336, .trans_b = true});
  };
  HardwareProfile profile = *shipped;
  std::erase_if(profile.gemms, [](const GemmTime& time) {
    return time.n == 8192 && time.k == 14336 && time.m < 8192;
  });
  const double whole = seconds(profile, 8192);
  for (const int64_t parts : {2, 4, 8}) {
    const double part = seconds(profile, 8192 / parts);
    EXPECT_GE(static_cast<double>(parts) * part, whole) << parts;
    EXPECT_LT(static_cast<double>(parts) * part, 1.1 * whole) << parts;
  }
  profile.gemms.push_back(
      {.m = 4096, .n = 8192, .k = 14336, .trans_b = true, .seconds = whole});
  EXPECT_DOUBLE_EQ(seconds(profile, 4096), whole + profile.launch_overhead_s);
  EXPECT_GE(2 * seconds(profile, 2048), whole);
}

// Goal: statistics that keep the logits for the gradient cost as much as those
// that do not; the gradient then saves its product. Method: a profile with
// tables and a data sheet, whose closed form scales measured rows.
TEST(CostTest, KeptLogitsSaveTheGradientItsProduct) {
  const auto shipped = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const CostModel cost = MakeCost(*shipped);
  const auto seconds = [&](OpKind kind, bool keeps_logits) {
    return cost.Seconds({}, kind,
                        VocabAttributes{.num_tokens = 8192,
                                        .hidden = 8192,
                                        .vocab_rows = 64128,
                                        .keeps_logits = keeps_logits});
  };
  const double statistics = seconds(OpKind::kCrossEntropyStats, false);
  EXPECT_DOUBLE_EQ(seconds(OpKind::kCrossEntropyStats, true), statistics);
  const double gradient = seconds(OpKind::kCrossEntropyGradient, false);
  EXPECT_LT(seconds(OpKind::kCrossEntropyGradient, true), 0.75 * gradient);
}

// Goal: rows of attention with other numbers of key heads are other shapes.
// Method: two rows that differ in nothing else, one twice as slow.
TEST(CostTest, AttentionFollowsItsKeyHeads) {
  HardwareProfile profile = MakeProfile({});
  const AttentionTime row = {.backward = true,
                             .num_sequences = 1,
                             .sequence_length = 8192,
                             .num_heads = 8,
                             .num_kv_heads = 2,
                             .head_dim = 128,
                             .seconds = 1e-3};
  AttentionTime one_key_head = row;
  one_key_head.num_kv_heads = 1;
  one_key_head.seconds = 2e-3;
  std::erase_if(profile.attention,
                [](const AttentionTime& time) { return time.backward; });
  profile.attention.push_back(row);
  profile.attention.push_back(one_key_head);
  const CostModel cost = MakeCost(profile);
  const auto seconds = [&](int64_t num_kv_heads) {
    return cost.Seconds({}, OpKind::kAttentionBackward,
                        AttentionAttributes{.num_sequences = 1,
                                            .sequence_length = 8192,
                                            .num_heads = 8,
                                            .num_kv_heads = num_kv_heads,
                                            .head_dim = 128}) -
           kOverhead;
  };
  EXPECT_NEAR(seconds(2), 1e-3, 1e-9);
  EXPECT_NEAR(seconds(1), 2e-3, 1e-9);
}

// Goal: a window costs the pairs of tokens within it, alike in Programs and in
// the closed form; a row that was measured with the window counts for more.
// Method: rows without windows, by hand; then one with, at half of their speed.
TEST(CostTest, AttentionFollowsItsWindow) {
  HardwareProfile profile = MakeProfile({});
  AttentionAttributes attention{.num_sequences = 1,
                                .sequence_length = 64,
                                .num_heads = 4,
                                .num_kv_heads = 4,
                                .head_dim = 16};
  const auto seconds = [&](int64_t window) {
    const CostModel cost = MakeCost(profile);
    attention.window = window;
    const double program =
        cost.Seconds({}, OpKind::kAttentionForward, attention);
    EXPECT_DOUBLE_EQ(cost.AttentionSeconds(OpKind::kGeneralAttentionForward,
                                           GeneralOf(attention)),
                     program);
    return program - kOverhead;
  };
  const double whole = seconds(0);
  EXPECT_NEAR(seconds(32), whole * 0.75, 1e-3 * whole);
  EXPECT_NEAR(seconds(16), whole * 7 / 16, 1e-3 * whole);
  AttentionTime windowed = profile.attention[0];
  windowed.window = 16;
  windowed.seconds *= 2 * 7.0 / 16;
  profile.attention.push_back(windowed);
  EXPECT_NEAR(seconds(16), whole * 2 * 7 / 16, 1e-3 * whole);
  EXPECT_NEAR(seconds(0), whole, 1e-3 * whole);
}

// Goal: documents that share sequences cost what as many sequences of their
// own would, alike in Programs, in the closed form, and as a row. Method: four
// documents a sequence; rows, and a device's sheet.
TEST(CostTest, AttentionFollowsDocuments) {
  AttentionAttributes attention{.num_sequences = 2,
                                .sequence_length = 2048,
                                .num_heads = 8,
                                .num_kv_heads = 4,
                                .head_dim = 128};
  AttentionAttributes documents = attention;
  documents.num_sequences = 8;
  documents.sequence_length = 512;
  for (const HardwareProfile& profile :
       {MakeProfile({}), *LoadNamedProfile("h100-sxm")}) {
    const CostModel cost = MakeCost(profile);
    for (const OpKind kind :
         {OpKind::kAttentionForward, OpKind::kAttentionBackward}) {
      const OpKind general = kind == OpKind::kAttentionForward
                                 ? OpKind::kGeneralAttentionForward
                                 : OpKind::kGeneralAttentionBackward;
      attention.document_length = 0;
      const double whole =
          cost.AttentionSeconds(general, GeneralOf(attention)) - kOverhead;
      attention.document_length = 512;
      EXPECT_DOUBLE_EQ(cost.AttentionSeconds(general, GeneralOf(attention)),
                       cost.AttentionSeconds(general, GeneralOf(documents)));
      EXPECT_LT(cost.AttentionSeconds(general, GeneralOf(attention)),
                0.5 * whole);
      EXPECT_EQ(ShapeOf({}, kind, attention, 1),
                ShapeOf({}, kind, documents, 1));
      if (!cost.HasTables()) continue;
      EXPECT_DOUBLE_EQ(cost.Seconds({}, kind, attention),
                       cost.Seconds({}, kind, documents));
    }
  }
}

// Goal: sizes between measured ones are interpolated in log space, sizes beyond
// scale with the bytes, and messages never beat the smallest measured one.
// Method: a table of two points with different speeds.
TEST(CostTest, SizesAreInterpolated) {
  HardwareProfile profile = MakeProfile({});
  profile.bandwidth = {{OpKind::kAdd, 1200, 1e-6},
                       {OpKind::kAdd, 120000, 1e-5}};
  const auto row_of = [](int32_t group_size, int64_t bytes,
                         double seconds) -> CommunicationTime {
    return {.kind = OpKind::kAllReduce,
            .group_size = group_size,
            .bytes = bytes,
            .seconds = seconds};
  };
  profile.communication = {row_of(4, 40000, 1e-3), row_of(4, 400, 1e-4),
                           row_of(2, 400, 5e-5)};
  const CostModel cost = MakeCost(profile);
  const auto add = [&](int64_t rows) {  // 12 bytes an element.
    return cost.Seconds({}, OpKind::kAdd,
                        ElementwiseAttributes{.rows = rows, .cols = 1}) -
           kOverhead;
  };
  EXPECT_NEAR(add(100), 1e-6, 1e-12);
  EXPECT_NEAR(add(1000), std::sqrt(1e-11), 1e-12);
  EXPECT_NEAR(add(100000), 1e-4, 1e-10);
  EXPECT_NEAR(add(10), 1e-7, 1e-12);
  const auto all_reduce = [&](Layout layout, int64_t elements) {
    return cost.Seconds(layout, OpKind::kAllReduce,
                        CollectiveAttributes{.group = Group::kData,
                                             .num_elements = elements,
                                             .dtype = DType::kFloat32}) -
           kOverhead;
  };
  EXPECT_NEAR(all_reduce({.data = 4}, 1), 1e-4, 1e-10);
  EXPECT_NEAR(all_reduce({.data = 4}, 1000), std::sqrt(1e-7), 1e-9);
  EXPECT_NEAR(all_reduce({.data = 4}, 100000), 1e-2, 1e-8);
  EXPECT_NEAR(all_reduce({.data = 2}, 100), 5e-5, 1e-10);
  // Not measured: the nearest group, then the nearest kind.
  EXPECT_NEAR(all_reduce({.data = 8}, 100), 1e-4, 1e-10);
  EXPECT_NEAR(cost.Seconds({.pipeline = 2}, OpKind::kReceive,
                           TransferAttributes{.direction = Direction::kToNext,
                                              .num_elements = 100,
                                              .dtype = DType::kFloat32}),
              5e-5 + kOverhead, 1e-10);
}

// Goal: what copy engines carry is priced by their table, all else as NCCL's.
// Method: a table ten times as quick; with and without use, of a group within
// the host and across, of a kind that it lacks, and without the table.
TEST(CostTest, CopyEnginesHaveTimesOfTheirOwn) {
  HardwareProfile profile = MakeProfile({.ranks_per_host = 2});
  const double nccl_s =
      MakeCost(profile).Seconds(
          {.tensor = 2}, OpKind::kAllGather,
          CollectiveAttributes{Group::kTensor, 1 << 14, DType::kFloat32}) -
      kOverhead;
  for (const OpKind kind : {OpKind::kAllGather, OpKind::kSend}) {
    for (const int64_t bytes : {1 << 16, 1 << 10}) {
      profile.copy_engines.push_back({{.kind = kind,
                                       .group_size = 2,
                                       .bytes = bytes,
                                       .seconds = nccl_s / 10}});
    }
  }
  const CostModel cost = MakeCost(profile);
  const auto share = [&](Layout layout, OpKind kind, Group group) {
    layout.copy_engines = {.transfers = true,
                           .tensor_gathers = true,
                           .tensor_reductions = true,
                           .data_gathers = true};
    const CollectiveAttributes attributes{group, 1 << 14, DType::kFloat32};
    // Rows learnt of it are not NCCL's.
    EXPECT_EQ(cost.IsPricedByRow(layout, kind, attributes),
              !CopyEnginesCarry(layout, kind, attributes));
    EXPECT_EQ(cost.IsByCopyEngines(layout, kind, attributes),
              cost.Seconds(layout, kind, attributes) < nccl_s / 2);
    return (cost.Seconds(layout, kind, attributes) - kOverhead) / nccl_s;
  };
  EXPECT_NEAR(share({.tensor = 2}, OpKind::kAllGather, Group::kTensor), 0.1,
              1e-9);
  EXPECT_NEAR(share({.data = 2, .zero = 1}, OpKind::kAllGather, Group::kData),
              0.1, 1e-9);
  // Across hosts; a kind without rows; a collective that NCCL keeps.
  EXPECT_NEAR(share({.data = 2, .tensor = 2, .zero = 1}, OpKind::kAllGather,
                    Group::kData),
              1, 1e-9);
  EXPECT_NEAR(share({.tensor = 2}, OpKind::kReduceScatter, Group::kTensor), 1,
              1e-9);
  EXPECT_NEAR(share({.data = 2}, OpKind::kAllReduce, Group::kData), 1, 1e-9);
  const TransferAttributes transfer{Direction::kToNext, 1 << 14,
                                    DType::kFloat32};
  Layout pipeline = {.pipeline = 2};
  for (const OpKind kind : {OpKind::kSend, OpKind::kReceive}) {
    pipeline.copy_engines.transfers = false;
    EXPECT_NEAR(cost.Seconds(pipeline, kind, transfer), nccl_s + kOverhead,
                1e-12);
    pipeline.copy_engines.transfers = true;
    EXPECT_NEAR(cost.Seconds(pipeline, kind, transfer), nccl_s / 10 + kOverhead,
                1e-12);
  }
}

// Goal: a kind that was measured at a size of nothing but launching does not
// make each further byte as costly as the launch. Method: eight bytes zeroed in
// the time of a launch; a megabyte moves as fast as other kinds do.
TEST(CostTest, LaunchesTellNothingOfBytes) {
  HardwareProfile profile = MakeProfile({});
  profile.bandwidth = {{OpKind::kZero, 8, 2e-6},
                       {OpKind::kAdd, 1 << 20, 4e-6},
                       {OpKind::kAdd, 1 << 24, 16e-6},
                       {OpKind::kAdd, 1 << 26, 64e-6}};
  const CostModel cost = MakeCost(profile);
  const auto zero = [&](int64_t cols) {  // 4 bytes each.
    return cost.Seconds({}, OpKind::kZero,
                        ElementwiseAttributes{.rows = 1, .cols = cols}) -
           kOverhead;
  };
  EXPECT_NEAR(zero(2), 2e-6, 1e-12);
  EXPECT_NEAR(zero(4), 2e-6, 1e-12);  // Never quicker than what was measured.
  EXPECT_NEAR(zero(1 << 22), 16e-6, 1e-9);
}

// Goal: a group that reaches beyond what was measured is not as quick as if all
// were neighbours. Method: a measured profile of four ranks of one node beside
// a slow fabric; groups inside and outside of it.
TEST(CostTest, GroupsBeyondTheMeasuredRanksCrossTheNetwork) {
  auto shipped = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  ASSERT_EQ(shipped->provenance.num_ranks, 4);
  const CostModel cost = MakeCost(*shipped);
  shipped->network.clear();
  const CostModel neighbours = MakeCost(*shipped);
  const auto gather = [](const CostModel& by, Layout layout, Group group) {
    return by.Seconds(layout, OpKind::kAllGather,
                      CollectiveAttributes{.group = group,
                                           .num_elements = 1 << 26,
                                           .dtype = DType::kBfloat16});
  };
  for (const Layout& inside :
       {Layout{.data = 4}, Layout{.pipeline = 2, .data = 2}}) {
    EXPECT_EQ(gather(cost, inside, Group::kData),
              gather(neighbours, inside, Group::kData));
  }
  EXPECT_EQ(gather(cost, {.data = 16, .tensor = 4}, Group::kTensor),
            gather(neighbours, {.data = 16, .tensor = 4}, Group::kTensor));
  // 128 MiB at the fabric's 50 GB/s take 2.7 ms at least; one of four ranks
  // that share a node's links, a quarter of that.
  EXPECT_GT(gather(cost, {.pipeline = 4, .data = 2}, Group::kData), 1.3e-3);
  EXPECT_GT(gather(cost, {.data = 64}, Group::kData), 0.6e-3);
  EXPECT_GT(gather(cost, {.data = 64}, Group::kData),
            1.3 * gather(neighbours, {.data = 64}, Group::kData));
  const auto send = [](const CostModel& by, Layout layout) {
    return by.Seconds(layout, OpKind::kSend,
                      TransferAttributes{.direction = Direction::kToNext,
                                         .num_elements = 1 << 26,
                                         .dtype = DType::kBfloat16});
  };
  EXPECT_EQ(send(cost, {.pipeline = 4}), send(neighbours, {.pipeline = 4}));
  EXPECT_GT(send(cost, {.pipeline = 2, .tensor = 4}), 2.6e-3);
}

// Goal: groups across hosts are priced by rows that were measured across hosts,
// never by those of neighbours. Method: two hosts of 8 ranks, a link between
// them 40 times as slow; data groups of stride 8, and pipelines that cross at
// one stage, alone or with other ranks of the host at once.
TEST(CostTest, StridedGroupsArePricedByTheirHosts) {
  constexpr double kSlower = 40;
  HardwareProfile profile = MakeProfile({.num_ranks = 16, .ranks_per_host = 8});
  const std::vector<CommunicationTime> inside = profile.communication;
  for (CommunicationTime time : inside) {
    time.hosts = 2;
    time.seconds *= kSlower;
    profile.communication.push_back(time);
    if (time.kind != OpKind::kSend) continue;
    time.pairs = 8;
    time.seconds *= 8;
    profile.communication.push_back(time);
  }
  const CostModel cost = MakeCost(profile);
  const double launch_s = profile.launch_overhead_s;
  const auto reduce = [&](const Layout& layout, Group group) {
    return cost.Seconds(layout, OpKind::kAllReduce,
                        CollectiveAttributes{.group = group,
                                             .num_elements = 1 << 22,
                                             .dtype = DType::kFloat32}) -
           launch_s;
  };
  const double near_s = reduce({.data = 8, .tensor = 2}, Group::kTensor);
  EXPECT_DOUBLE_EQ(reduce({.data = 2, .tensor = 8}, Group::kData),
                   kSlower * near_s);

  const auto send_s = [&](const Layout& layout, int32_t stage) {
    Program program{
        .kind = ProgramKind::kTraining, .layout = layout, .stage = stage};
    program.instructions.push_back(
        {.kind = OpKind::kSend,
         .lane = Lane::kSendNext,
         .attributes = TransferAttributes{.direction = Direction::kToNext,
                                          .num_elements = 1 << 22,
                                          .dtype = DType::kFloat32}});
    return cost.ProgramSeconds(program)[0] - launch_s;
  };
  const double send_near_s = send_s({.pipeline = 16}, 6);
  EXPECT_DOUBLE_EQ(send_s({.pipeline = 16}, 7), kSlower * send_near_s);
  EXPECT_DOUBLE_EQ(send_s({.pipeline = 2, .tensor = 8}, 0),
                   8 * kSlower * send_near_s);
}

// Goal: a plan across hosts says so where all rows were measured on one host.
// Method: how far a row reaches, with rows across hosts and without.
TEST(CostTest, RowsOfOneHostDoNotReachAcrossHosts) {
  HardwareProfile profile = MakeProfile({.num_ranks = 8, .ranks_per_host = 8});
  const OpShape across = {OpKind::kAllReduce, {2, 1 << 16, 2, 1}};
  EXPECT_GT(MakeCost(profile).Reach(across), 2);
  OpShape inside = across;
  inside.figures[2] = 1;
  EXPECT_LE(MakeCost(profile).Reach(inside), 2);
  CommunicationTime measured = profile.communication.front();
  measured.kind = OpKind::kAllReduce;
  measured.bytes = 1 << 16;
  measured.hosts = 2;
  profile.communication.push_back(measured);
  EXPECT_LE(MakeCost(profile).Reach(across), 2);
}

// Goal: a row means what instructions are charged, or none is claimed to.
// Method: collectives and transfers inside and beyond the measured ranks, and
// bytes that only launches were measured of, by the instruction and by its row.
TEST(CostTest, RowsAreWhatInstructionsAreCharged) {
  auto shipped = LoadNamedProfile("h200-sxm");
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  const CostModel cost = MakeCost(*shipped);
  const auto expect_row = [&](const Layout& layout, OpKind kind,
                              const OpAttributes& attributes, bool by_row) {
    const double seconds =
        cost.Seconds(layout, kind, attributes) - shipped->launch_overhead_s;
    const OpShape row =
        ShapeOf(layout, kind, attributes, shipped->ranks_per_host);
    const double row_s = cost.RowSeconds(row);
    EXPECT_EQ(cost.IsPricedByRow(layout, kind, attributes), by_row);
    EXPECT_EQ(std::fabs(row_s / seconds - 1) < 1e-9, by_row)
        << ShapeText(row) << ": " << row_s << " against " << seconds;
  };
  const Layout inside = {
      .pipeline = 2, .data = 2, .precision = Precision::kBfloat16};
  const Layout beyond = {
      .pipeline = 8, .data = 8, .precision = Precision::kBfloat16};
  for (const bool is_inside : {true, false}) {
    const Layout& layout = is_inside ? inside : beyond;
    expect_row(layout, OpKind::kAllGather,
               CollectiveAttributes{.group = Group::kData,
                                    .num_elements = 1 << 26,
                                    .dtype = DType::kBfloat16},
               is_inside);
    expect_row(layout, OpKind::kSend,
               TransferAttributes{.direction = Direction::kToNext,
                                  .num_elements = 1 << 24,
                                  .dtype = DType::kBfloat16},
               is_inside);
    for (const int64_t rows : {1, 1 << 20}) {
      expect_row(layout, OpKind::kZero,
                 ElementwiseAttributes{.rows = rows, .cols = 2}, true);
    }
    expect_row(layout, OpKind::kGemm,
               GemmAttributes{.m = 3000, .n = 5000, .k = 7000}, true);
  }
}

// Goal: every op kind has a time above zero that grows with its size. Method:
// each kind with the attributes lowering gives it, at one and at four sizes.
TEST(CostTest, EveryKindHasATime) {
  HardwareProfile profile = MakeProfile({});
  profile.gemms.push_back(
      {.m = 4096, .n = 64, .k = 32, .is_float8 = true, .seconds = 1e-4});
  profile.gemms.push_back(
      {.m = 4096, .n = 64, .k = 32, .is_float8_blocks = true, .seconds = 2e-4});
  const CostModel cost = MakeCost(profile);
  const Layout layout{.pipeline = 2, .data = 2, .tensor = 2};
  for (const OpKind kind : AllOpKinds()) {
    std::vector<double> seconds;
    for (const int64_t scale : {1, 4}) {
      const OpAttributes attributes = SampleAttributes(kind, scale);
      EXPECT_GT(WorkOf(layout, kind, attributes).bytes, 0) << OpKindName(kind);
      seconds.push_back(cost.Seconds(layout, kind, attributes));
    }
    EXPECT_GT(seconds[0], kOverhead) << OpKindName(kind);
    // One number for the step, whatever the sizes.
    if (kind == OpKind::kClipFactor) continue;
    EXPECT_GT(seconds[1], seconds[0]) << OpKindName(kind);
    EXPECT_LT(seconds[1], 1.0) << OpKindName(kind);
  }
}

// Goal: a rank's share of a bucket costs its share of the time. Method: the
// same bucket sharded over four replicas and not.
TEST(CostTest, ShardedOptimizerMovesLess) {
  const OptimizerAttributes whole{.num_elements = 4096, .data_sharded = false};
  const OptimizerAttributes slice{.num_elements = 4096, .data_sharded = true};
  const Layout layout{.data = 4, .zero = 1};
  EXPECT_EQ(WorkOf(layout, OpKind::kAdamW, whole).bytes,
            4 * WorkOf(layout, OpKind::kAdamW, slice).bytes);
  EXPECT_EQ(WorkOf(layout, OpKind::kAdamW, whole).bytes, 28 * 4096);
  // fp32 on one side, bf16 on the other; and of the sum what the rank keeps.
  EXPECT_EQ(WorkOf(layout, OpKind::kRoundGradients, whole).bytes, 6 * 4096);
  EXPECT_EQ(WorkOf(layout, OpKind::kWidenGradients, slice).bytes, 6 * 1024);
}

// Goal: an update moves the bytes that the moments take. Method: parameters are
// read and written in fp32 and gradients read, beside two moments read and
// written.
TEST(CostTest, SmallMomentsMoveLess) {
  const OptimizerAttributes bucket{.num_elements = 4096, .data_sharded = false};
  const auto bytes_of = [&](MomentFormat moments) {
    return WorkOf({.moments = moments}, OpKind::kAdamW, bucket).bytes;
  };
  EXPECT_EQ(bytes_of(MomentFormat::kBfloat16), (12 + 4 * 2) * 4096);
  EXPECT_EQ(bytes_of(MomentFormat::kBlocks8), 12 * 4096 + 4 * 16 * 260);
}

// Goal: a profile that lacks a table is refused with its name. Method: empty
// one at a time.
TEST(CostTest, RefusesIncompleteProfiles) {
  const auto error_of = [](HardwareProfile profile) {
    return CostModel::Create(std::move(profile)).status().ToString();
  };
  HardwareProfile profile = MakeProfile({});
  profile.gemms.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no gemms table"));
  profile = MakeProfile({});
  profile.attention.pop_back();
  EXPECT_THAT(error_of(profile), HasSubstr("no backward rows in attention"));
  profile = MakeProfile({});
  profile.cross_entropy.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("millrace profile JOB"));
  profile = MakeProfile({});
  profile.bandwidth.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no bandwidth table"));
  profile = MakeProfile({});
  profile.communication.clear();
  EXPECT_THAT(error_of(profile), HasSubstr("no communication table"));
  profile = MakeProfile({.num_ranks = 1});
  EXPECT_FALSE(MakeCost(profile).HasCommunication());
  profile.gemms[0].seconds = 0;
  EXPECT_THAT(error_of(profile), HasSubstr("takes no time"));
}

// Goal: kinds of which a profile has no row are named, no others. Method: a
// pipeline of two replicas, with a table of each kind of op it takes less one.
TEST(CostTest, NamesKindsWithoutRows) {
  const absl::StatusOr<std::vector<Program>> programs = BuildTrainingPrograms(
      TestModel(), {.pipeline = 2, .data = 2, .num_microbatches = 2});
  ASSERT_TRUE(programs.ok()) << programs.status();
  HardwareProfile profile = MakeProfile({});
  for (const std::string& name :
       MakeCost(profile).KindsWithoutRows(*programs)) {
    for (int i = 0; i < kNumExecutedOpKinds; ++i) {
      const auto kind = static_cast<OpKind>(i);
      if (OpKindName(kind) != name) continue;
      profile.bandwidth.push_back({.kind = kind, .bytes = 64, .seconds = 1e-6});
    }
  }
  EXPECT_THAT(MakeCost(profile).KindsWithoutRows(*programs), IsEmpty());
  std::erase_if(profile.communication, [](const CommunicationTime& time) {
    return time.kind == OpKind::kSend;
  });
  std::erase_if(profile.bandwidth, [](const BandwidthTime& time) {
    return time.kind == OpKind::kRope;
  });
  EXPECT_THAT(MakeCost(profile).KindsWithoutRows(*programs),
              ElementsAre("rope", "send"));
}

}  // namespace
}  // namespace millrace
