#include "worker/cuda/nccl/nccl_watch.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "planner/lower/lower.h"
#include "worker/communicate/memory_rendezvous_store.h"
#include "worker/cuda/nccl/nccl_rendezvous.h"

namespace millrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

const ModelSpec kModel = {.vocab_size = 64,
                          .hidden = 16,
                          .num_layers = 4,
                          .num_heads = 4,
                          .num_kv_heads = 4,
                          .head_dim = 4,
                          .ffn_hidden = 32,
                          .sequence_length = 16};

// Runs every rank's Program as far as it goes: an instruction ends when
// everything before it has, a call when all its members stand in it. One rank
// never ends one of its instructions.
class StoppedJob {
 public:
  StoppedJob(const Layout& layout, Rank stopped, InstructionId stopped_at)
      : layout_(layout), stopped_(stopped), stopped_at_(stopped_at) {
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      auto program = BuildTrainingProgram(kModel, layout, stage);
      EXPECT_TRUE(program.ok()) << program.status();
      programs_.push_back(*std::move(program));
    }
    progress_.resize(layout.num_ranks());
    ended_.resize(layout.num_ranks());
    for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
      progress_[rank].step = 7;
      ended_[rank].resize(ProgramOf(rank).instructions.size());
    }
    while (Advance()) {
    }
  }

  std::vector<const Program*> programs() const {
    std::vector<const Program*> pointers;
    for (const Program& program : programs_) pointers.push_back(&program);
    return pointers;
  }
  std::vector<std::optional<RankProgress>> progress() const {
    return {progress_.begin(), progress_.end()};
  }
  // Whether some rank other than the stopped one has not come to the end.
  bool OthersWait() const {
    for (int32_t rank = 0; rank < layout_.num_ranks(); ++rank) {
      if (Rank{rank} == stopped_) continue;
      if (!std::all_of(ended_[rank].begin(), ended_[rank].end(),
                       [](bool ended) { return ended; })) {
        return true;
      }
    }
    return false;
  }

 private:
  const Program& ProgramOf(int32_t rank) const {
    return programs_[CoordinatesOf(layout_, Rank{rank}).pipeline];
  }

  // The instruction at the head of a lane, if nothing is left before it.
  std::optional<InstructionId> Head(int32_t rank, int lane) const {
    const Program& program = ProgramOf(rank);
    const size_t next = progress_[rank].completed[lane];
    if (next >= program.lanes[lane].size()) return std::nullopt;
    const InstructionId id = program.lanes[lane][next];
    for (const InstructionId wait : program.instructions[id].waits) {
      if (!ended_[rank][wait]) return std::nullopt;
    }
    return id;
  }

  void End(int32_t rank, InstructionId id) {
    ++progress_[rank]
          .completed[static_cast<int>(ProgramOf(rank).instructions[id].lane)];
    ended_[rank][id] = true;
  }

  bool Advance() {
    bool advanced = false;
    // Who stands in which communicator.
    std::map<std::string, std::vector<std::pair<int32_t, InstructionId>>> calls;
    std::map<std::string, size_t> sizes;
    for (int32_t rank = 0; rank < layout_.num_ranks(); ++rank) {
      for (int lane = 0; lane < kNumLanes; ++lane) {
        const std::optional<InstructionId> id = Head(rank, lane);
        if (!id.has_value()) continue;
        if (Rank{rank} == stopped_ && *id == stopped_at_) continue;
        const Instruction& instruction = ProgramOf(rank).instructions[*id];
        if (!IsCollective(instruction.kind) && !IsTransfer(instruction.kind)) {
          End(rank, *id);
          advanced = true;
          continue;
        }
        const Group group =
            IsTransfer(instruction.kind)
                ? Group::kPipeline
                : ServingGroup(layout_, std::get<CollectiveAttributes>(
                                            instruction.attributes)
                                            .group);
        for (const auto& membership : NcclMembershipsOf(layout_, Rank{rank})) {
          if (membership.group != group) continue;
          if (group == Group::kPipeline &&
              membership.transfer_lane != instruction.lane) {
            continue;
          }
          calls[membership.Key()].emplace_back(rank, *id);
          sizes[membership.Key()] = membership.members.size();
        }
      }
    }
    for (const auto& [key, standing] : calls) {
      if (standing.size() != sizes[key]) continue;
      for (const auto& [rank, id] : standing) End(rank, id);
      advanced = true;
    }
    return advanced;
  }

  const Layout layout_;
  const Rank stopped_;
  const InstructionId stopped_at_;
  std::vector<Program> programs_;
  std::vector<RankProgress> progress_;  // By rank.
  std::vector<std::vector<bool>> ended_;
};

const std::vector<Layout>& WatchedLayouts() {
  static const auto* const kLayouts =
      new std::vector<Layout>{{.data = 4, .num_microbatches = 2, .zero = 1},
                              {.data = 2, .tensor = 2, .num_microbatches = 2},
                              {.pipeline = 4, .num_microbatches = 4},
                              {.pipeline = 2,
                               .data = 2,
                               .tensor = 2,
                               .num_microbatches = 2,
                               .zero = 1}};
  return *kLayouts;
}

// Goal: whichever instruction of whichever rank never ends, that rank alone is
// named as missing, with the instruction it is at; and once it is silent, too.
// Method: computations of every Program of four layouts in turn (every third,
// of the largest every seventh), the last rank of its stage being the one.
TEST(FindStuckCallsTest, NamesTheRankThatComputesForEver) {
  int num_hangs = 0;
  for (const Layout& layout : WatchedLayouts()) {
    SCOPED_TRACE(LayoutToString(layout));
    for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
      const MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
      if (at.data != layout.data - 1 || at.tensor != layout.tensor - 1)
        continue;
      const auto program = BuildTrainingProgram(kModel, layout, at.pipeline);
      ASSERT_TRUE(program.ok());
      const size_t stride = layout.num_ranks() > 4 ? 7 : 3;
      for (size_t i = 0; i < program->instructions.size(); i += stride) {
        const Instruction& instruction = program->instructions[i];
        if (IsCollective(instruction.kind) || IsTransfer(instruction.kind)) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat("rank ", rank, " at ", instruction.name));
        const StoppedJob job(layout, Rank{rank}, static_cast<InstructionId>(i));
        const auto programs = job.programs();
        auto progress = job.progress();
        const std::vector<StuckCall> stuck = FindStuckCalls(programs, progress);
        if (!job.OthersWait()) {
          EXPECT_THAT(stuck, IsEmpty());
          continue;
        }
        ++num_hangs;
        ASSERT_THAT(stuck, Not(IsEmpty()));
        for (const StuckCall& call : stuck) {
          EXPECT_THAT(call.missing, ElementsAre(Rank{rank})) << call.ToString();
          ASSERT_THAT(call.whereabouts, SizeIs(1));
          EXPECT_THAT(call.whereabouts[0], HasSubstr(instruction.name));
          EXPECT_EQ(call.step, 7);
        }
        progress[rank].reset();
        for (const StuckCall& call : FindStuckCalls(programs, progress)) {
          EXPECT_THAT(call.missing, ElementsAre(Rank{rank}));
          EXPECT_THAT(call.whereabouts, ElementsAre("it gave no sign of life"));
        }
      }
    }
  }
  EXPECT_GT(num_hangs, 100);
}

// Goal: when all have come and nothing moves, that is what is said. Method: the
// first collective of the tensor group ends on nobody.
TEST(FindStuckCallsTest, SaysThatAllCame) {
  const Layout layout{.tensor = 2};
  const auto program = BuildTrainingProgram(kModel, layout, 0);
  ASSERT_TRUE(program.ok());
  const InstructionId first =
      program->lanes[static_cast<int>(Lane::kTensorComm)].at(0);
  // Stopping one member of two at the call stops the call.
  const StoppedJob job(layout, Rank{0}, first);
  const auto stuck = FindStuckCalls(job.programs(), job.progress());
  ASSERT_THAT(stuck, SizeIs(1));
  EXPECT_THAT(stuck[0].missing, IsEmpty());
  EXPECT_THAT(stuck[0].arrived, ElementsAre(Rank{0}, Rank{1}));
  EXPECT_THAT(stuck[0].ToString(), AllOf(HasSubstr("tensor group (ranks 0, 1)"),
                                         HasSubstr("ranks 0, 1 all came")));
}

// Goal: a rank that is still in an earlier step is missing from all calls of
// the next.
TEST(FindStuckCallsTest, NamesARankThatIsAStepBehind) {
  const Layout layout{.data = 2};
  const auto program = BuildTrainingProgram(kModel, layout, 0);
  ASSERT_TRUE(program.ok());
  // Rank 1 stops before its first collective, and is a step behind.
  const StoppedJob job(layout, Rank{1}, 0);
  auto progress = job.progress();
  progress[1]->step = 6;
  const auto stuck = FindStuckCalls(job.programs(), progress);
  ASSERT_THAT(stuck, Not(IsEmpty()));
  EXPECT_THAT(stuck[0].missing, ElementsAre(Rank{1}));
  EXPECT_THAT(stuck[0].whereabouts[0], HasSubstr("it is still in step 6"));
}

// Goal: ranks that find out through a store name the one that does not answer;
// texts that are no progress are refused.
TEST(ExplainOverrunTest, CollectsTheProgressOfAll) {
  const Layout layout{.data = 2, .tensor = 2, .num_microbatches = 2};
  const StoppedJob job(layout, Rank{2}, 5);
  const auto programs = job.programs();
  const auto progress = job.progress();
  MemoryRendezvousStore store;
  std::vector<absl::Status> statuses(4);
  std::vector<std::thread> threads;
  for (const int rank : {0, 1, 3}) {
    threads.emplace_back([&, rank] {
      statuses[rank] = ExplainOverrun(programs, Rank{rank}, *progress[rank],
                                      store, absl::Milliseconds(300));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int rank : {0, 1, 3}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(statuses[rank]));
    EXPECT_THAT(std::string(statuses[rank].message()),
                AllOf(HasSubstr("step 7: "), HasSubstr("rank 2 is missing"),
                      HasSubstr("it gave no sign of life"),
                      Not(HasSubstr("rank 3 is missing"))));
    EXPECT_EQ(statuses[rank].message(), statuses[0].message());
  }
}

TEST(RankProgressTest, SurvivesTheStore) {
  RankProgress progress{.step = 12};
  for (int lane = 0; lane < kNumLanes; ++lane) {
    progress.completed[lane] = 100 * lane + 3;
  }
  const auto read = ProgressFromString(ProgressToString(progress));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, progress);
  for (const char* const wrong : {"", "12", "12 1 2 x 4 5 6 7 8", "1 2 3"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ProgressFromString(wrong).status()))
        << wrong;
  }
}

}  // namespace
}  // namespace millrace
