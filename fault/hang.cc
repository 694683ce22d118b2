#include "fault/hang.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "planner/layout/layout.h"
#include "planner/program/membership.h"

namespace millrace {
namespace {

bool Communicates(const Instruction& instruction) {
  return IsCollective(instruction.kind) || IsTransfer(instruction.kind);
}

std::string Describe(const Instruction& instruction) {
  std::string text =
      absl::StrCat(OpKindName(instruction.kind), " '", instruction.name, "'");
  if (instruction.microbatch_idx >= 0) {
    absl::StrAppend(&text, " of micro-batch ", instruction.microbatch_idx);
  }
  return text;
}

// Identifies a call in the same way on every member: the n-th of a step on one
// communicator.
struct CallId {
  int64_t step;
  std::string communicator;  // Membership::Key().
  int32_t ordinal;
  friend auto operator<=>(const CallId&, const CallId&) = default;
};

// Facts that follow from the Program alone: the position of each instruction on
// its lane, and its number on its communicator.
struct Places {
  explicit Places(const Program& program)
      : position(program.instructions.size()),
        ordinal(program.instructions.size(), -1) {
    for (const std::vector<InstructionId>& lane : program.lanes) {
      std::map<Group, int32_t> num_calls;
      for (size_t i = 0; i < lane.size(); ++i) {
        position[lane[i]] = static_cast<int32_t>(i);
        const Instruction& instruction = program.instructions[lane[i]];
        if (Communicates(instruction)) {
          ordinal[lane[i]] = num_calls[GroupOf(program.layout, instruction)]++;
        }
      }
    }
  }

  // Returns the group whose communicator the instruction runs on.
  static Group GroupOf(const Layout& layout, const Instruction& instruction) {
    if (IsTransfer(instruction.kind)) return Group::kPipeline;
    return ServingGroup(
        layout, std::get<CollectiveAttributes>(instruction.attributes).group);
  }

  std::vector<int32_t> position;  // By instruction.
  std::vector<int32_t> ordinal;   // By instruction; -1: no communication.
};

// One rank as it told of itself, or silent.
class RankView {
 public:
  RankView(const Program& program, const Places& places, Rank rank,
           const std::optional<RankProgress>& progress)
      : program_(program),
        places_(places),
        rank_(rank),
        progress_(progress),
        memberships_(MembershipsOf(program.layout, rank)) {}

  bool silent() const { return !progress_.has_value(); }
  int64_t step() const { return progress_->step; }
  Rank rank() const { return rank_; }

  bool Completed(InstructionId id) const {
    const int lane = static_cast<int>(program_.instructions[id].lane);
    return places_.position[id] < progress_->completed[lane];
  }

  // Started, as far as anyone can say: nothing before it is left to do.
  bool Standing(InstructionId id) const {
    const Instruction& instruction = program_.instructions[id];
    const int lane = static_cast<int>(instruction.lane);
    return places_.position[id] == progress_->completed[lane] &&
           std::all_of(instruction.waits.begin(), instruction.waits.end(),
                       [this](InstructionId wait) { return Completed(wait); });
  }

  std::vector<InstructionId> StandingInstructions() const {
    std::vector<InstructionId> standing;
    for (int lane = 0; lane < kNumLanes; ++lane) {
      const size_t next = progress_->completed[lane];
      if (next >= program_.lanes[lane].size()) continue;
      const InstructionId id = program_.lanes[lane][next];
      if (Standing(id)) standing.push_back(id);
    }
    return standing;
  }

  // Returns the standing instructions that keep `id` from starting.
  std::vector<InstructionId> StandingBefore(InstructionId id) const {
    std::set<InstructionId> seen = {id};
    std::vector<InstructionId> open = {id};
    std::vector<InstructionId> standing;
    while (!open.empty()) {
      const InstructionId at = open.back();
      open.pop_back();
      if (Standing(at)) {
        standing.push_back(at);
        continue;
      }
      const Instruction& instruction = program_.instructions[at];
      Waits before = instruction.waits;
      if (places_.position[at] > 0) {
        before.push_back(program_.lanes[static_cast<int>(instruction.lane)]
                                       [places_.position[at] - 1]);
      }
      for (const InstructionId earlier : before) {
        if (!Completed(earlier) && seen.insert(earlier).second) {
          open.push_back(earlier);
        }
      }
    }
    std::sort(standing.begin(), standing.end());
    return standing;
  }

  const Membership& MembershipOf(const Instruction& instruction) const {
    const Group group = Places::GroupOf(program_.layout, instruction);
    const auto found =
        std::find_if(memberships_.begin(), memberships_.end(),
                     [&](const Membership& membership) {
                       return membership.group == group &&
                              (group != Group::kPipeline ||
                               membership.transfer_lane == instruction.lane);
                     });
    CHECK(found != memberships_.end()) << instruction.name;
    return *found;
  }

  CallId CallOf(InstructionId id) const {
    return {.step = step(),
            .communicator = MembershipOf(program_.instructions[id]).Key(),
            .ordinal = places_.ordinal[id]};
  }

  // This rank's own instruction for a call of its step.
  std::optional<InstructionId> InstructionOf(const CallId& call) const {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const InstructionId id = static_cast<InstructionId>(i);
      if (places_.ordinal[i] == call.ordinal && CallOf(id) == call) return id;
    }
    return std::nullopt;
  }

  const Instruction& instruction(InstructionId id) const {
    return program_.instructions[id];
  }

 private:
  const Program& program_;
  const Places& places_;
  const Rank rank_;
  const std::optional<RankProgress>& progress_;
  const std::vector<Membership> memberships_;
};

// Whether a rank has come to a call, and if not, what it does instead.
struct Arrival {
  bool arrived = false;
  std::string whereabouts;
  // Calls of its own that the rank stands in; none: it is silent or busy.
  std::vector<CallId> stands_behind;
};

Arrival ArrivalAt(const CallId& call, const RankView& rank) {
  if (rank.silent()) return {.whereabouts = "it gave no sign of life"};
  if (rank.step() > call.step) return {.arrived = true};
  std::vector<InstructionId> instead;
  std::string prefix;
  if (rank.step() < call.step) {
    prefix = absl::StrCat("it is still in step ", rank.step());
    instead = rank.StandingInstructions();
  } else {
    const std::optional<InstructionId> own = rank.InstructionOf(call);
    if (!own.has_value()) {
      return {.whereabouts = "its Program has no such call"};
    }
    if (rank.Completed(*own) || rank.Standing(*own)) return {.arrived = true};
    prefix = "it has not come so far";
    instead = rank.StandingBefore(*own);
  }
  Arrival arrival;
  bool busy = instead.empty();
  std::vector<std::string> names;
  for (const InstructionId id : instead) {
    const Instruction& instruction = rank.instruction(id);
    names.push_back(absl::StrCat(Describe(instruction), " on lane ",
                                 LaneName(instruction.lane)));
    if (Communicates(instruction)) {
      arrival.stands_behind.push_back(rank.CallOf(id));
    } else {
      busy = true;
    }
  }
  if (busy) arrival.stands_behind.clear();
  arrival.whereabouts =
      names.empty() ? absl::StrCat(prefix, ", between two instructions")
                    : absl::StrCat(prefix, ", at ", absl::StrJoin(names, ", "));
  return arrival;
}

// Where a rank is in its step; empty if it is at the step's end.
std::string WhereIs(const Program& program, Rank rank,
                    const std::optional<RankProgress>& progress) {
  if (!progress.has_value()) return "it gave no sign of life";
  const Places places(program);
  std::vector<std::string> names;
  for (const InstructionId id :
       RankView(program, places, rank, progress).StandingInstructions()) {
    names.push_back(Describe(program.instructions[id]));
  }
  return names.empty() ? ""
                       : absl::StrCat("step ", progress->step, ", at ",
                                      absl::StrJoin(names, ", "));
}

std::string RankList(const std::vector<Rank>& ranks) {
  return absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ",
      absl::StrJoin(ranks, ", ", [](std::string* out, Rank rank) {
        absl::StrAppend(out, ToInt(rank));
      }));
}

}  // namespace

std::string StuckCall::ToString() const {
  std::string text =
      absl::StrCat("step ", step, ": ", communicator, " hangs in ", call, ": ");
  if (missing.empty()) {
    return absl::StrCat(text, RankList(arrived),
                        " all came, so the link between them or the call "
                        "itself is stuck");
  }
  absl::StrAppend(&text, RankList(missing),
                  missing.size() == 1 ? " is" : " are", " missing");
  for (size_t i = 0; i < missing.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? " (" : "; ", "rank ", ToInt(missing[i]),
                    ": ", whereabouts[i]);
  }
  return absl::StrCat(text, "), ", RankList(arrived),
                      arrived.size() == 1 ? " waits" : " wait");
}

std::vector<StuckCall> FindStuckCalls(
    absl::Span<const Program* const> programs,
    absl::Span<const std::optional<RankProgress>> progress) {
  CHECK(!programs.empty());
  const Layout& layout = programs[0]->layout;
  CHECK(programs.size() == NumPrograms(layout));
  CHECK(static_cast<int32_t>(progress.size()) == layout.num_ranks());
  std::vector<Places> places;
  for (const Program* program : programs) places.emplace_back(*program);
  std::vector<RankView> ranks;
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    const size_t idx = ProgramIdx(layout, CoordinatesOf(layout, Rank{i}));
    ranks.emplace_back(*programs[idx], places[idx], Rank{i}, progress[i]);
  }

  // Every call that some rank stands in, and whether others stand behind it.
  std::map<CallId, StuckCall> calls;
  std::set<CallId> behind_others;
  for (const RankView& rank : ranks) {
    if (rank.silent()) continue;
    for (const InstructionId id : rank.StandingInstructions()) {
      const Instruction& instruction = rank.instruction(id);
      if (!Communicates(instruction)) continue;
      const CallId call_id = rank.CallOf(id);
      const auto [place, is_new] = calls.try_emplace(call_id);
      if (!is_new) continue;
      const Membership& membership = rank.MembershipOf(instruction);
      StuckCall& call = place->second;
      call.step = rank.step();
      call.communicator = membership.Name();
      call.call = Describe(instruction);
      for (const Rank member : membership.members) {
        const Arrival arrival = ArrivalAt(call_id, ranks[ToInt(member)]);
        if (arrival.arrived) {
          call.arrived.push_back(member);
          continue;
        }
        call.missing.push_back(member);
        call.whereabouts.push_back(arrival.whereabouts);
        if (!arrival.stands_behind.empty()) behind_others.insert(call_id);
      }
    }
  }
  // Should all of them wait for one another, all are named.
  const bool circle = behind_others.size() == calls.size();
  std::vector<StuckCall> stuck;
  for (auto& [id, call] : calls) {
    if (circle || !behind_others.contains(id)) stuck.push_back(std::move(call));
  }
  return stuck;
}

Hang ExplainStandstill(absl::Span<const Program* const> programs,
                       absl::Span<const std::optional<RankProgress>> progress) {
  Hang hang;
  std::map<Rank, std::string> culprits;
  const std::vector<StuckCall> stuck = FindStuckCalls(programs, progress);
  for (const StuckCall& call : stuck) {
    for (size_t i = 0; i < call.missing.size(); ++i) {
      culprits.emplace(call.missing[i], call.whereabouts[i]);
    }
  }
  hang.explanation =
      absl::StrJoin(stuck, ". ", [](std::string* out, const StuckCall& call) {
        absl::StrAppend(out, call.ToString());
      });
  if (stuck.empty()) {
    hang.explanation = "no rank waits for another";
    const Layout& layout = programs[0]->layout;
    for (size_t i = 0; i < progress.size(); ++i) {
      const Rank rank{static_cast<int32_t>(i)};
      const Program& program =
          *programs[ProgramIdx(layout, CoordinatesOf(layout, rank))];
      std::string place = WhereIs(program, rank, progress[i]);
      if (!place.empty()) culprits.emplace(rank, std::move(place));
    }
  }
  for (auto& [rank, place] : culprits) {
    hang.culprits.push_back(rank);
    hang.whereabouts.push_back(std::move(place));
  }
  return hang;
}

}  // namespace millrace
