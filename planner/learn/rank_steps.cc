#include "planner/learn/rank_steps.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "planner/program/collective_matches.h"

namespace millrace {
namespace {

absl::Status NotThisLayout(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the measured timeline ", what));
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
  // Only begins change. Ends stay, so that later instructions of the lane can
  // read them.
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

// In the order of their lanes, which is the same on all members.
std::vector<InstructionId> CollectivesOf(const Program& program, Group group) {
  std::vector<InstructionId> ids;
  for (const std::vector<InstructionId>& lane : program.lanes) {
    for (const InstructionId id : lane) {
      const Instruction& instruction = program.instructions[id];
      if (IsCollective(instruction.kind) &&
          std::get<CollectiveAttributes>(instruction.attributes).group ==
              group) {
        ids.push_back(id);
      }
    }
  }
  return ids;
}

// Returns by how much the clock of `other` is ahead of the clock of `one`, by
// the ends of the group's collectives; 0 if there are none.
double Ahead(const RankStep& one, const RankStep& other, Group group) {
  const std::vector<InstructionId> ids = CollectivesOf(*one.program, group);
  const std::vector<InstructionId> other_ids =
      CollectivesOf(*other.program, group);
  std::vector<double> differences;
  for (size_t i = 0; i < std::min(ids.size(), other_ids.size()); ++i) {
    differences.push_back(other.spans[other_ids[i]].end_s -
                          one.spans[ids[i]].end_s);
  }
  return differences.empty() ? 0 : MedianOf(std::move(differences));
}

// Sets each rank's clock by a neighbour: on the tensor axis if there is one,
// since these share most collectives, else on the data axis, else by the
// world's collectives.
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
    if (CollectivesOf(*one.program, group).empty()) group = Group::kWorld;
    // A rank comes after the rank that sets its clock.
    ahead[rank] = ahead[base_idx] + Ahead(one, other, group);
  }
  for (size_t rank = 0; rank < steps->size(); ++rank) {
    for (TimeSpan& span : (*steps)[rank].spans) {
      span.begin_s -= ahead[rank];
      span.end_s -= ahead[rank];
    }
  }
}

// The members' collectives meet in the order of their lanes.
void AddGroups(std::span<const Program> programs, Group group,
               std::vector<Meeting>* meetings) {
  const Layout& layout = programs.front().layout;
  if (GroupSize(layout, group) < 2) return;
  std::vector<std::vector<InstructionId>> ids;  // By Program.
  for (const Program& program : programs) {
    ids.push_back(CollectivesOf(program, group));
  }
  const auto ids_of = [&](Rank rank) -> const std::vector<InstructionId>& {
    return ids[ProgramIdx(layout, CoordinatesOf(layout, rank))];
  };
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    if (GroupIndex(layout, group, Rank{rank}) != 0) continue;
    const std::vector<Rank> members = GroupMembers(layout, group, Rank{rank});
    for (size_t i = 0; i < ids_of(Rank{rank}).size(); ++i) {
      Meeting meeting;
      for (const Rank member : members) {
        meeting.push_back(
            {static_cast<size_t>(ToInt(member)), ids_of(member).at(i)});
      }
      meetings->push_back(std::move(meeting));
    }
  }
}

// Transfers, of each rank of a stage with its neighbour, and world collectives.
void AddAcrossStages(std::span<const Program> programs,
                     std::vector<Meeting>* meetings) {
  const Layout& layout = programs.front().layout;
  if (layout.num_ranks() < 2) return;
  std::vector<Meeting> worlds;
  // Programs of the longest replicas come first, those of the others follow.
  const auto num_stages = static_cast<size_t>(layout.pipeline);
  for (size_t first = 0; first < programs.size(); first += num_stages) {
    std::vector<const Program*> stages;
    for (const Program& program : programs.subspan(first, num_stages)) {
      stages.push_back(&program);
    }
    const absl::StatusOr<std::vector<StageMeeting>> of_stages =
        StageMeetingsOf(stages);
    CHECK(of_stages.ok()) << of_stages.status();
    size_t num_worlds = 0;
    for (const StageMeeting& members : *of_stages) {
      const auto [first_stage, first_id] = members.front();
      const bool is_world =
          IsCollective(stages[first_stage]->instructions[first_id].kind);
      if (is_world && num_worlds == worlds.size()) worlds.emplace_back();
      for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
        MeshCoordinates at = CoordinatesOf(layout, Rank{rank});
        if (ProgramIdx(layout, at) != first + at.pipeline) continue;
        const auto rank_idx = static_cast<size_t>(rank);
        if (is_world) {
          worlds[num_worlds].push_back({rank_idx, members[at.pipeline].id});
        } else if (at.pipeline == first_stage) {
          ++at.pipeline;
          const auto next_idx = static_cast<size_t>(ToInt(RankOf(layout, at)));
          meetings->push_back(
              {{rank_idx, first_id}, {next_idx, members.back().id}});
        }
      }
      if (is_world) ++num_worlds;
    }
  }
  std::move(worlds.begin(), worlds.end(), std::back_inserter(*meetings));
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
    const MeshCoordinates place = CoordinatesOf(layout, Rank{rank});
    const int32_t stage = place.pipeline;
    if (found->second->stage != stage) {
      return NotThisLayout(absl::StrCat("has rank ", rank, " in stage ",
                                        found->second->stage,
                                        ", the layout in stage ", stage));
    }
    ASSIGN_OR_RETURN(RankStep step,
                     ReadRank(programs[ProgramIdx(layout, place)],
                              *found->second, from_start));
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
  for (const Group group : CollectiveGroups(programs.front().layout)) {
    AddGroups(programs, group, &meetings);
  }
  AddAcrossStages(programs, &meetings);
  return meetings;
}

}  // namespace millrace
