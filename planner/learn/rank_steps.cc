#include "planner/learn/rank_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/statistics.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status NotThisLayout(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the measured timeline ", what));
}

bool IsOfGroup(const Instruction& instruction, Group group) {
  return IsCollective(instruction.kind) &&
         std::get<CollectiveAttributes>(instruction.attributes).group == group;
}

absl::StatusOr<RankStep> ReadRank(const Program& program,
                                  const RankTimeline& timeline,
                                  bool from_start) {
  const size_t num_instructions = program.instructions.size();
  const auto where = [&](const TimelineEvent& event) {
    return absl::StrCat(" of instruction ", event.instruction, " on rank ",
                        ToInt(timeline.rank));
  };
  RankStep step{.program = &program,
                .spans = std::vector<TimeSpan>(num_instructions, {-1, -1}),
                .gaps_s = {}};
  for (const TimelineEvent& event : timeline.events) {
    if (event.instruction < 0 ||
        static_cast<size_t>(event.instruction) >= num_instructions) {
      return NotThisLayout(absl::StrCat(
          "has times", where(event), ", whose Program has ", num_instructions));
    }
    TimeSpan& span = step.spans[event.instruction];
    if (span.end_s >= 0) {
      return NotThisLayout(absl::StrCat("has two times", where(event)));
    }
    if (!(event.start_s >= 0 && event.end_s >= event.start_s &&
          std::isfinite(event.end_s))) {
      return NotThisLayout(absl::StrCat("has the impossible times ",
                                        event.start_s, " to ", event.end_s,
                                        " s", where(event)));
    }
    span = {event.start_s, event.end_s};
  }
  if (timeline.events.size() != num_instructions) {
    return NotThisLayout(absl::StrCat(
        "has ", timeline.events.size(), " of the ", num_instructions,
        " instructions on rank ", ToInt(timeline.rank)));
  }
  if (from_start) return step;
  // Ends stay, so what comes later on the lane can be read off them.
  for (const std::vector<InstructionId>& lane : program.lanes) {
    double lane_end_s = 0;
    for (const InstructionId id : lane) {
      TimeSpan& span = step.spans[id];
      double ready_s = lane_end_s;
      for (const InstructionId wait : program.instructions[id].waits) {
        ready_s = std::max(ready_s, step.spans[wait].end_s);
      }
      ready_s = std::min(ready_s, span.begin_s);
      if (program.instructions[id].lane == Lane::kCompute) {
        step.gaps_s.push_back(span.begin_s - ready_s);
      }
      span.begin_s = ready_s;
      lane_end_s = span.end_s;
    }
  }
  return step;
}

std::vector<InstructionId> WorldCollectives(const Program& program) {
  std::vector<InstructionId> ids;
  for (const InstructionId id :
       program.lanes[static_cast<int>(Lane::kDataComm)]) {
    if (IsOfGroup(program.instructions[id], Group::kWorld)) {
      ids.push_back(id);
    }
  }
  return ids;
}

// By how much the clock of `other` is ahead of `one`'s, by the ends of what
// both take part in; 0 where that is nothing.
double Ahead(const RankStep& one, const std::vector<InstructionId>& ids_of_one,
             const RankStep& other,
             const std::vector<InstructionId>& ids_of_other) {
  std::vector<double> differences;
  for (size_t i = 0; i < std::min(ids_of_one.size(), ids_of_other.size());
       ++i) {
    differences.push_back(other.spans[ids_of_other[i]].end_s -
                          one.spans[ids_of_one[i]].end_s);
  }
  return differences.empty() ? 0 : MedianOf(std::move(differences));
}

std::vector<InstructionId> CollectivesOf(const Program& program, Group group) {
  std::vector<InstructionId> ids;
  for (size_t id = 0; id < program.instructions.size(); ++id) {
    if (IsOfGroup(program.instructions[id], group)) {
      ids.push_back(static_cast<InstructionId>(id));
    }
  }
  return ids;
}

// Neighbours on the tensor axis share most collectives, then those on the data
// axis; all meet in the world's.
void SetClocks(std::vector<RankStep>* steps) {
  const Layout& layout = steps->front().program->layout;
  std::vector<double> ahead(steps->size(), 0);
  for (size_t rank = 1; rank < steps->size(); ++rank) {
    const MeshCoordinates here =
        CoordinatesOf(layout, Rank{static_cast<int32_t>(rank)});
    MeshCoordinates base = here;
    Group group = Group::kWorld;
    if (here.tensor > 0) {
      base.tensor = 0;
      group = Group::kTensor;
    } else if (here.data > 0) {
      base.data = 0;
      group = Group::kData;
    } else {
      base.pipeline = 0;
    }
    const auto base_idx = static_cast<size_t>(ToInt(RankOf(layout, base)));
    const RankStep& one = (*steps)[base_idx];
    const RankStep& other = (*steps)[rank];
    std::vector<InstructionId> shared =
        group == Group::kWorld ? std::vector<InstructionId>{}
                               : CollectivesOf(*one.program, group);
    // Ranks come after what their clocks are set by.
    ahead[rank] =
        ahead[base_idx] + (shared.empty()
                               ? Ahead(one, WorldCollectives(*one.program),
                                       other, WorldCollectives(*other.program))
                               : Ahead(one, shared, other, shared));
  }
  for (size_t rank = 0; rank < steps->size(); ++rank) {
    for (TimeSpan& span : (*steps)[rank].spans) {
      span.begin_s -= ahead[rank];
      span.end_s -= ahead[rank];
    }
  }
}

void AddGroups(const Program& program, Group group,
               std::vector<Meeting>* meetings) {
  const Layout& layout = program.layout;
  const std::vector<InstructionId> ids = CollectivesOf(program, group);
  if (ids.empty() || GroupSize(layout, group) < 2) return;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    if (CoordinatesOf(layout, Rank{rank}).pipeline != program.stage) continue;
    if (GroupIndex(layout, group, Rank{rank}) != 0) continue;
    const std::vector<Rank> members = GroupMembers(layout, group, Rank{rank});
    for (const InstructionId id : ids) {
      Meeting meeting;
      for (const Rank member : members) {
        meeting.push_back({static_cast<size_t>(ToInt(member)), id});
      }
      meetings->push_back(std::move(meeting));
    }
  }
}

void AddWorld(std::span<const Program> programs,
              std::vector<Meeting>* meetings) {
  const Layout& layout = programs.front().layout;
  if (layout.num_ranks() < 2) return;
  std::vector<std::vector<InstructionId>> by_stage;
  for (const Program& program : programs) {
    by_stage.push_back(WorldCollectives(program));
  }
  for (size_t i = 0; i < by_stage.front().size(); ++i) {
    Meeting meeting;
    for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
      const auto& ids = by_stage[CoordinatesOf(layout, Rank{rank}).pipeline];
      if (i < ids.size()) {
        meeting.push_back({static_cast<size_t>(rank), ids[i]});
      }
    }
    meetings->push_back(std::move(meeting));
  }
}

// Lanes of transfers keep one order at both ends: equal positions meet.
void AddTransfers(std::span<const Program> programs,
                  std::vector<Meeting>* meetings) {
  const Layout& layout = programs.front().layout;
  const std::pair<Lane, Lane> ends[] = {
      {Lane::kSendNext, Lane::kReceivePrevious},
      {Lane::kReceiveNext, Lane::kSendPrevious}};
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    MeshCoordinates next = CoordinatesOf(layout, Rank{rank});
    const auto stage = static_cast<size_t>(next.pipeline);
    if (++next.pipeline == layout.pipeline) continue;
    const auto next_idx = static_cast<size_t>(ToInt(RankOf(layout, next)));
    for (const auto& [lane, next_lane] : ends) {
      const auto& here = programs[stage].lanes[static_cast<int>(lane)];
      const auto& there =
          programs[stage + 1].lanes[static_cast<int>(next_lane)];
      for (size_t i = 0; i < std::min(here.size(), there.size()); ++i) {
        meetings->push_back(
            {{static_cast<size_t>(rank), here[i]}, {next_idx, there[i]}});
      }
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<RankStep>> AlignRanks(
    std::span<const Program> programs, const Timeline& timeline,
    bool from_start) {
  const Layout& layout = programs.front().layout;
  std::map<int32_t, const RankTimeline*> by_rank;
  for (const RankTimeline& rank : timeline.ranks) {
    if (!by_rank.emplace(ToInt(rank.rank), &rank).second) {
      return NotThisLayout(
          absl::StrCat("has rank ", ToInt(rank.rank), " twice"));
    }
  }
  std::vector<RankStep> steps;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    const auto found = by_rank.find(rank);
    if (found == by_rank.end()) {
      return NotThisLayout(
          absl::StrCat("lacks rank ", rank, " of ", layout.num_ranks()));
    }
    const int32_t stage = CoordinatesOf(layout, Rank{rank}).pipeline;
    if (found->second->stage != stage) {
      return NotThisLayout(absl::StrCat("has rank ", rank, " in stage ",
                                        found->second->stage,
                                        ", the layout in stage ", stage));
    }
    ASSIGN_OR_RETURN(RankStep step,
                     ReadRank(programs[stage], *found->second, from_start));
    steps.push_back(std::move(step));
  }
  if (by_rank.size() != steps.size()) {
    return NotThisLayout(absl::StrCat("has ", by_rank.size(),
                                      " ranks, the layout ", steps.size()));
  }
  SetClocks(&steps);
  return steps;
}

std::vector<Meeting> MeetingsOf(std::span<const Program> programs) {
  std::vector<Meeting> meetings;
  for (const Program& program : programs) {
    AddGroups(program, Group::kTensor, &meetings);
    AddGroups(program, Group::kData, &meetings);
  }
  AddWorld(programs, &meetings);
  AddTransfers(programs, &meetings);
  return meetings;
}

}  // namespace millrace
