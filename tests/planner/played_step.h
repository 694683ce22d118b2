// Plays a step of all ranks, each with times of its own: what a run measures,
// without the simulator's representatives.

#ifndef MILLRACE_TESTS_PLANNER_PLAYED_STEP_H_
#define MILLRACE_TESTS_PLANNER_PLAYED_STEP_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "base/check.h"
#include "planner/cost/op_cost.h"
#include "planner/learn/rank_steps.h"
#include "planner/lower/lower.h"
#include "planner/simulate/timeline.h"

namespace millrace {

// Seconds of an instruction on a rank; of communication, from when the last
// member is there. Ranks share nothing.
using RankSeconds = std::function<double(size_t rank, InstructionId id)>;

// `launch_s` of it pass before an instruction starts.
inline Timeline PlayStep(const std::vector<Program>& programs,
                         const RankSeconds& seconds, double launch_s = 0) {
  const Layout& layout = programs.front().layout;
  const auto num_ranks = static_cast<size_t>(layout.num_ranks());
  const auto program_of = [&](size_t rank) -> const Program& {
    return programs[ProgramIdx(
        layout, CoordinatesOf(layout, Rank{static_cast<int32_t>(rank)}))];
  };
  // Which meeting an instruction is part of; -1: none.
  const std::vector<Meeting> meetings = MeetingsOf(programs);
  std::vector<std::vector<int>> meeting_of(num_ranks);
  std::vector<std::vector<TimelineEvent>> events(num_ranks);
  std::vector<std::vector<size_t>> next(num_ranks,
                                        std::vector<size_t>(kNumLanes, 0));
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    const size_t size = program_of(rank).instructions.size();
    meeting_of[rank].assign(size, -1);
    events[rank].assign(size, {-1, -1, -1});
  }
  for (size_t i = 0; i < meetings.size(); ++i) {
    for (const Participant& member : meetings[i]) {
      meeting_of[member.rank_idx][static_cast<size_t>(member.id)] =
          static_cast<int>(i);
    }
  }
  // When it can begin; below zero: not known yet.
  const auto ready = [&](size_t rank, InstructionId id) {
    const Program& program = program_of(rank);
    const Instruction& instruction =
        program.instructions[static_cast<size_t>(id)];
    const auto& lane = program.lanes[static_cast<int>(instruction.lane)];
    double ready_s = 0;
    Waits before = instruction.waits;
    const auto place = std::find(lane.begin(), lane.end(), id);
    if (place != lane.begin()) before.push_back(*(place - 1));
    for (const InstructionId earlier : before) {
      const double end_s = events[rank][static_cast<size_t>(earlier)].end_s;
      if (end_s < 0) return -1.0;
      ready_s = std::max(ready_s, end_s);
    }
    return ready_s;
  };
  const auto try_run = [&](size_t rank, InstructionId id) {
    Meeting members = {{rank, id}};
    const int meeting = meeting_of[rank][static_cast<size_t>(id)];
    if (meeting >= 0) members = meetings[static_cast<size_t>(meeting)];
    double last_s = 0, took_s = 0;
    for (const Participant& member : members) {
      const double ready_s = ready(member.rank_idx, member.id);
      if (ready_s < 0) return false;
      last_s = std::max(last_s, ready_s);
      took_s = std::max(took_s, seconds(member.rank_idx, member.id));
    }
    for (const Participant& member : members) {
      const double start_s =
          ready(member.rank_idx, member.id) + std::min(launch_s, took_s);
      events[member.rank_idx][static_cast<size_t>(member.id)] = {
          member.id, start_s, last_s + took_s};
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      for (size_t lane = 0; lane < kNumLanes; ++lane) {
        const auto& ids = program_of(rank).lanes[lane];
        size_t& at = next[rank][lane];
        while (at < ids.size() &&
               (events[rank][static_cast<size_t>(ids[at])].end_s >= 0 ||
                try_run(rank, ids[at]))) {
          ++at;
          moved = true;
        }
      }
    }
  }
  Timeline timeline;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    RankTimeline of_rank{.rank = Rank{static_cast<int32_t>(rank)},
                         .stage = program_of(rank).stage,
                         .events = events[rank]};
    for (const TimelineEvent& event : of_rank.events) {
      CHECK(event.end_s >= 0) << "the step never ends";
      timeline.step_time_s = std::max(timeline.step_time_s, event.end_s);
    }
    timeline.ranks.push_back(std::move(of_rank));
  }
  return timeline;
}

// Each rank's clock counts from its own start of the step.
inline void ShiftClocks(Timeline* timeline, double most_s) {
  for (RankTimeline& rank : timeline->ranks) {
    const double ahead_s = most_s * (ToInt(rank.rank) % 3) / 2;
    for (TimelineEvent& event : rank.events) {
      event.start_s += ahead_s;
      event.end_s += ahead_s;
    }
  }
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_PLAYED_STEP_H_
