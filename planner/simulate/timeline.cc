#include "planner/simulate/timeline.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/json.h"

namespace millrace {
namespace {

// Index into RankTimeline::events by instruction; -1: no event.
std::vector<int32_t> EventByInstruction(const Program& program,
                                        const RankTimeline& timeline) {
  std::vector<int32_t> index(program.instructions.size(), -1);
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const InstructionId id = timeline.events[i].instruction;
    CHECK(id >= 0 && static_cast<size_t>(id) < index.size())
        << "event of instruction " << id << " of " << index.size();
    index[id] = static_cast<int32_t>(i);
  }
  return index;
}

// Explains the idle times of one rank's compute lane.
class IdleTime {
 public:
  IdleTime(const Program& program, const RankTimeline& timeline,
           TimeBreakdown* breakdown)
      : program_(program),
        timeline_(timeline),
        event_index_(EventByInstruction(program, timeline)),
        predecessor_(program.instructions.size(), -1),
        breakdown_(*breakdown) {
    for (const std::vector<InstructionId>& lane : program.lanes) {
      for (size_t i = 1; i < lane.size(); ++i) {
        predecessor_[lane[i]] = lane[i - 1];
      }
    }
  }

  // Between `begin` and the start of `id` nothing was computed.
  void ExplainBefore(InstructionId id, double begin) {
    Explain(begin, EventOf(id)->start_s, BlockersOf(id));
  }

  // Between `begin` and `end` nothing was computed any more.
  void ExplainTail(double begin, double end) {
    std::vector<InstructionId> last;
    for (const std::vector<InstructionId>& lane : program_.lanes) {
      if (!lane.empty()) last.push_back(lane.back());
    }
    Explain(begin, end, last);
  }

  const TimelineEvent* EventOf(InstructionId id) const {
    const int32_t index = event_index_[id];
    return index < 0 ? nullptr : &timeline_.events[index];
  }

 private:
  std::vector<InstructionId> BlockersOf(InstructionId id) const {
    const Waits& waits = program_.instructions[id].waits;
    std::vector<InstructionId> blockers(waits.begin(), waits.end());
    if (predecessor_[id] >= 0) blockers.push_back(predecessor_[id]);
    return blockers;
  }

  // Walks the chain of what blocked what, backward in time from `end`.
  void Explain(double begin, double end, std::vector<InstructionId> blockers) {
    while (end > begin) {
      const TimelineEvent* latest = nullptr;
      for (InstructionId id : blockers) {
        const TimelineEvent* event = EventOf(id);
        if (event == nullptr ||
            program_.instructions[id].lane == Lane::kCompute) {
          continue;
        }
        if (latest == nullptr || event->end_s > latest->end_s) latest = event;
      }
      if (latest == nullptr || latest->end_s <= begin) break;
      const double waited_until = std::min(end, latest->end_s);
      const double waited_from =
          std::clamp(latest->start_s, begin, waited_until);
      breakdown_.other_s += end - waited_until;
      PartFor(latest->instruction) += waited_until - waited_from;
      end = waited_from;
      blockers = BlockersOf(latest->instruction);
    }
    breakdown_.other_s += std::max(0.0, end - begin);
  }

  double& PartFor(InstructionId id) {
    const Instruction& instruction = program_.instructions[id];
    switch (instruction.lane) {
      case Lane::kCompute:
        return breakdown_.compute_s;
      case Lane::kTensorComm:
        return breakdown_.exposed_tensor_comm_s;
      case Lane::kDataComm:
        // The world meets for a few scalars only; who waits there waits for
        // stages that still compute.
        if (program_.layout.pipeline > 1 &&
            std::get<CollectiveAttributes>(instruction.attributes).group ==
                Group::kWorld) {
          return breakdown_.bubble_s;
        }
        return breakdown_.exposed_data_comm_s;
      case Lane::kSendNext:
      case Lane::kReceivePrevious:
      case Lane::kSendPrevious:
      case Lane::kReceiveNext:
        return breakdown_.bubble_s;
      case Lane::kHost:
        return breakdown_.data_s;
    }
    CHECK(false) << "unknown lane " << static_cast<int>(instruction.lane);
    return breakdown_.other_s;
  }

  const Program& program_;
  const RankTimeline& timeline_;
  const std::vector<int32_t> event_index_;
  std::vector<InstructionId> predecessor_;  // On the same lane; -1: first.
  TimeBreakdown& breakdown_;
};

RankTimeline RankFromJson(const nlohmann::json& json) {
  RankTimeline timeline{
      .rank = Rank{json.at("rank").get<int32_t>()},
      .stage = json.at("stage").get<int32_t>(),
      .events = {},
      .begin_s = json.value("begin_s", 0.0),
      .clock_uncertainty_s = json.value("clock_uncertainty_s", 0.0)};
  for (const nlohmann::json& event : json.at("events")) {
    timeline.events.push_back({.instruction = event.at(0).get<InstructionId>(),
                               .start_s = event.at(1).get<double>(),
                               .end_s = event.at(2).get<double>()});
  }
  return timeline;
}

}  // namespace

TimeBreakdown BreakDown(const Program& program, const RankTimeline& timeline,
                        double step_time_s) {
  TimeBreakdown breakdown;
  IdleTime idle(program, timeline, &breakdown);
  double now = 0;
  for (InstructionId id : program.lanes[static_cast<int>(Lane::kCompute)]) {
    const TimelineEvent* event = idle.EventOf(id);
    if (event == nullptr) continue;
    idle.ExplainBefore(id, now);
    // Clocks are read apart on a real lane; never count an instant twice.
    breakdown.compute_s +=
        std::max(0.0, event->end_s - std::max(now, event->start_s));
    now = std::max(now, event->end_s);
  }
  double end = now;
  for (const TimelineEvent& event : timeline.events) {
    end = std::max(end, event.end_s);
  }
  idle.ExplainTail(now, std::max(end, step_time_s));
  return breakdown;
}

void AlignBegins(Timeline* timeline) {
  double first = std::numeric_limits<double>::infinity();
  bool all_known = true;
  for (const RankTimeline& rank : timeline->ranks) {
    first = std::min(first, rank.begin_s);
    all_known = all_known && rank.begin_s != 0;
  }
  for (RankTimeline& rank : timeline->ranks) {
    rank.begin_s = all_known ? rank.begin_s - first : 0;
    if (!all_known) rank.clock_uncertainty_s = 0;
  }
}

std::string TimelineToJson(const Timeline& timeline) {
  const bool has_begins =
      std::any_of(timeline.ranks.begin(), timeline.ranks.end(),
                  [](const RankTimeline& rank) { return rank.begin_s != 0; });
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankTimeline& rank : timeline.ranks) {
    nlohmann::json events = nlohmann::json::array();
    for (const TimelineEvent& event : rank.events) {
      events.push_back({event.instruction, event.start_s, event.end_s});
    }
    ranks.push_back({{"rank", ToInt(rank.rank)},
                     {"stage", rank.stage},
                     {"events", std::move(events)}});
    if (!has_begins) continue;
    ranks.back()["begin_s"] = rank.begin_s;
    ranks.back()["clock_uncertainty_s"] = rank.clock_uncertainty_s;
  }
  return nlohmann::json{{"step_time_s", timeline.step_time_s},
                        {"ranks", std::move(ranks)}}
      .dump();
}

absl::StatusOr<Timeline> TimelineFromJson(absl::string_view json) {
  const absl::StatusOr<nlohmann::json> parsed = ParseJson(json);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a timeline: ", parsed.status().message()));
  }
  try {
    Timeline timeline;
    timeline.step_time_s = parsed->at("step_time_s").get<double>();
    for (const nlohmann::json& rank : parsed->at("ranks")) {
      timeline.ranks.push_back(RankFromJson(rank));
    }
    return timeline;
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a timeline: ", error.what()));
  }
}

}  // namespace millrace
