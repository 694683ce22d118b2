#include "planner/simulate/perfetto_trace.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

constexpr double kMicroseconds = 1e6;

// Names a process ("process_name") or thread, or gives it its place.
nlohmann::json Metadata(const char* what, int32_t rank, int lane,
                        nlohmann::json arguments) {
  return {{"ph", "M"},
          {"name", what},
          {"pid", rank},
          {"tid", lane},
          {"args", std::move(arguments)}};
}

// Names the threads of those lanes that hold anything.
void AddLanes(int32_t pid, const std::array<bool, kNumLanes>& is_used,
              nlohmann::json& events) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (!is_used[lane]) continue;
    events.push_back(Metadata("thread_name", pid, lane,
                              {{"name", LaneName(static_cast<Lane>(lane))}}));
    events.push_back(
        Metadata("thread_sort_index", pid, lane, {{"sort_index", lane}}));
  }
}

nlohmann::json Slice(const Instruction& instruction, int32_t rank,
                     const TimelineEvent& event) {
  nlohmann::json arguments = {
      {"phase", PhaseName(instruction.phase)},
      {"attributes", AttributesToString(instruction.attributes)}};
  if (instruction.microbatch_idx >= 0) {
    arguments["microbatch"] = instruction.microbatch_idx;
  }
  return {{"ph", "X"},
          {"name", instruction.name},
          {"cat", OpKindName(instruction.kind)},
          {"pid", rank},
          {"tid", static_cast<int>(instruction.lane)},
          {"ts", event.start_s * kMicroseconds},
          {"dur", (event.end_s - event.start_s) * kMicroseconds},
          {"args", std::move(arguments)}};
}

nlohmann::json PassSlice(const PassEvent& event, int32_t pid) {
  nlohmann::json arguments = nlohmann::json::object();
  if (event.chunk_idx >= 0) arguments["chunk"] = event.chunk_idx;
  if (event.microbatch_idx >= 0) arguments["microbatch"] = event.microbatch_idx;
  if (event.bucket_idx >= 0) arguments["bucket"] = event.bucket_idx;
  return {{"ph", "X"},
          {"name", PassEventToString(event)},
          {"cat", PassEventKindName(event.kind)},
          {"pid", pid},
          {"tid", static_cast<int>(event.lane)},
          {"ts", event.start_s * kMicroseconds},
          {"dur", (event.end_s - event.start_s) * kMicroseconds},
          {"args", std::move(arguments)}};
}

std::string TraceOf(nlohmann::json events) {
  return nlohmann::json{{"displayTimeUnit", "ms"},
                        {"traceEvents", std::move(events)}}
      .dump();
}

}  // namespace

std::string TimelineToTrace(const std::vector<const Program*>& programs,
                            const Timeline& timeline) {
  nlohmann::json events = nlohmann::json::array();
  for (const RankTimeline& rank : timeline.ranks) {
    CHECK(rank.stage >= 0 && static_cast<size_t>(rank.stage) < programs.size())
        << "no Program of stage " << rank.stage;
    const Program& program = *programs[rank.stage];
    const int32_t pid = ToInt(rank.rank);
    events.push_back(Metadata(
        "process_name", pid, 0,
        {{"name", absl::StrCat("rank ", pid, ", stage ", rank.stage)}}));
    std::array<bool, kNumLanes> is_used{};
    for (int lane = 0; lane < kNumLanes; ++lane) {
      is_used[lane] = !program.lanes[lane].empty();
    }
    AddLanes(pid, is_used, events);
    for (const TimelineEvent& event : rank.events) {
      events.push_back(
          Slice(program.instructions.at(event.instruction), pid, event));
    }
  }
  return TraceOf(std::move(events));
}

std::string PassTimelineToTrace(const PassTimeline& timeline) {
  nlohmann::json events = nlohmann::json::array();
  int32_t pid = 0;
  for (const RankClass& ranks : timeline.classes) {
    events.push_back(Metadata(
        "process_name", pid, 0,
        {{"name", absl::StrCat("stage ", ranks.stage, ", replica ",
                               ranks.replica, ", for ", ranks.num_ranks,
                               ranks.num_ranks == 1 ? " rank" : " ranks")}}));
    std::array<bool, kNumLanes> is_used{};
    for (const PassEvent& event : ranks.events) {
      is_used[static_cast<int>(event.lane)] = true;
    }
    AddLanes(pid, is_used, events);
    for (const PassEvent& event : ranks.events) {
      events.push_back(PassSlice(event, pid));
    }
    ++pid;
  }
  return TraceOf(std::move(events));
}

}  // namespace millrace
