// A job of which one rank never ends one of its instructions, run as far as it
// goes on Programs alone.

#ifndef MILLRACE_TESTS_FAULT_STOPPED_JOB_H_
#define MILLRACE_TESTS_FAULT_STOPPED_JOB_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fault/hang.h"
#include "gtest/gtest.h"
#include "planner/layout/layout.h"
#include "planner/lower/lower.h"
#include "planner/program/membership.h"

namespace millrace {

inline const ModelSpec kStoppedModel = {.vocab_size = 64,
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
    auto programs = BuildProgramsOfRanks(kStoppedModel, layout);
    EXPECT_TRUE(programs.ok()) << programs.status();
    programs_ = *std::move(programs);
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
    return programs_[ProgramIdx(layout_, CoordinatesOf(layout_, Rank{rank}))];
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
        for (const auto& membership : MembershipsOf(layout_, Rank{rank})) {
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

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAULT_STOPPED_JOB_H_
