#include "planner/program/collective_matches.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

bool IsWorldCollective(const Instruction& instruction) {
  return IsCollective(instruction.kind) &&
         std::get<CollectiveAttributes>(instruction.attributes).group ==
             Group::kWorld;
}

// Lanes of transfers keep one order at both ends: equal positions meet.
absl::Status AddTransfers(std::span<const Program* const> programs,
                          std::vector<StageMeeting>* meetings) {
  const std::pair<Lane, Lane> ends[] = {
      {Lane::kSendNext, Lane::kReceivePrevious},
      {Lane::kReceiveNext, Lane::kSendPrevious}};
  const auto num_stages = static_cast<int32_t>(programs.size());
  for (int32_t stage = 0; stage + 1 < num_stages; ++stage) {
    for (const auto& [lane, next_lane] : ends) {
      const auto& here = programs[stage]->lanes[static_cast<int>(lane)];
      const auto& there =
          programs[stage + 1]->lanes[static_cast<int>(next_lane)];
      if (here.size() != there.size()) {
        return absl::InternalError(absl::StrCat(
            "stage ", stage, " has ", here.size(), " transfers on ",
            LaneName(lane), ", stage ", stage + 1, " has ", there.size(),
            " on ", LaneName(next_lane)));
      }
      for (size_t i = 0; i < here.size(); ++i) {
        meetings->push_back({{stage, here[i]}, {stage + 1, there[i]}});
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AddWorldCollectives(std::span<const Program* const> programs,
                                 std::vector<StageMeeting>* meetings) {
  std::vector<StageMeeting> by_order;
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    const Program& program = *programs[stage];
    size_t count = 0;
    for (InstructionId id : program.lanes[static_cast<int>(Lane::kDataComm)]) {
      if (!IsWorldCollective(program.instructions[id])) continue;
      if (count == by_order.size()) by_order.emplace_back();
      by_order[count++].push_back({static_cast<int32_t>(stage), id});
    }
  }
  for (StageMeeting& members : by_order) {
    if (members.size() != programs.size()) {
      return absl::InternalError(absl::StrCat("a world collective has ",
                                              members.size(), " of ",
                                              programs.size(), " stages"));
    }
    meetings->push_back(std::move(members));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<StageMeeting>> StageMeetingsOf(
    std::span<const Program* const> programs) {
  std::vector<StageMeeting> meetings;
  RETURN_IF_ERROR(AddTransfers(programs, &meetings));
  RETURN_IF_ERROR(AddWorldCollectives(programs, &meetings));
  return meetings;
}

}  // namespace millrace
