#include "coordinator/report/report_trace.h"

#include <filesystem>
#include <map>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/report/report_program.h"
#include "planner/simulate/timeline.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr double kMicroseconds = 1e6;

struct Step {
  const char* file;
  const char* name;
  int32_t place;  // Tells two processes of a rank apart.
};
constexpr Step kSteps[] = {{"measured", "measured", 0},
                           {"predicted", "predicted", 1}};

Json Metadata(const char* what, int32_t process, int32_t thread,
              Json arguments) {
  return {{"ph", "M"},
          {"name", what},
          {"pid", process},
          {"tid", thread},
          {"args", std::move(arguments)}};
}

// A stage's Program, as ParseProgramText() reads it; each is read once.
absl::StatusOr<const Json*> ProgramOf(const std::string& run_directory,
                                      int32_t stage,
                                      std::map<int32_t, Json>* programs) {
  const auto found = programs->find(stage);
  if (found != programs->end()) return &found->second;
  const std::string path =
      absl::StrCat(run_directory, "/programs/stage-", stage, ".txt");
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  ASSIGN_OR_RETURN(Json program, ParseProgramText(text, path));
  return &programs->emplace(stage, std::move(program)).first->second;
}

// By rank, as far as time.json names them.
std::map<int32_t, std::string> HostsOfRanks(const std::string& run_directory) {
  std::map<int32_t, std::string> hosts;
  const absl::StatusOr<std::string> text =
      ReadFile(run_directory + "/time.json", kMaxRecordBytes);
  if (!text.ok()) return hosts;
  const absl::StatusOr<Json> time = ParseJson(*text);
  if (!time.ok() || !time->is_object()) return hosts;
  const auto ranks = time->find("ranks");
  if (ranks == time->end() || !ranks->is_array()) return hosts;
  for (const Json& rank : *ranks) {
    if (!rank.is_object()) continue;
    const auto number = rank.find("rank");
    const auto host = rank.find("host");
    if (number != rank.end() && number->is_number_integer() &&
        host != rank.end() && host->is_string()) {
      hosts[number->get<int32_t>()] = host->get<std::string>();
    }
  }
  return hosts;
}

absl::Status AddRank(const Step& step, const RankTimeline& rank,
                     const std::string& host, const Json& program,
                     Json* events) {
  const int32_t process = 2 * ToInt(rank.rank) + step.place;
  events->push_back(Metadata(
      "process_name", process, 0,
      {{"name",
        absl::StrCat("rank ", ToInt(rank.rank), host.empty() ? "" : " on ",
                     host, ", stage ", rank.stage, ", ", step.name)}}));
  if (rank.clock_uncertainty_s > 0) {
    events->push_back(Metadata(
        "process_labels", process, 0,
        {{"labels", absl::StrCat("clock to within ",
                                 FormatSeconds(rank.clock_uncertainty_s))}}));
  }
  std::map<int32_t, bool> named;
  for (const TimelineEvent& event : rank.events) {
    if (event.instruction < 0 || static_cast<size_t>(event.instruction) >=
                                     program.at("instructions").size()) {
      return absl::DataLossError(
          absl::StrCat("timelines/", step.file, ".json has instruction ",
                       event.instruction, ", the Program of stage ", rank.stage,
                       " has ", program.at("instructions").size()));
    }
    const Json& instruction = program.at("instructions").at(event.instruction);
    const int32_t lane = instruction.at(0);
    if (!std::exchange(named[lane], true)) {
      events->push_back(Metadata("thread_name", process, lane,
                                 {{"name", program.at("lanes").at(lane)}}));
      events->push_back(
          Metadata("thread_sort_index", process, lane, {{"sort_index", lane}}));
    }
    events->push_back(
        {{"ph", "X"},
         {"name", instruction.at(3)},
         {"cat", program.at("phases").at(instruction.at(1).get<size_t>())},
         {"pid", process},
         {"tid", lane},
         {"ts", (rank.begin_s + event.start_s) * kMicroseconds},
         {"dur", (event.end_s - event.start_s) * kMicroseconds},
         {"args",
          {{"microbatch", instruction.at(2)},
           {"operation", instruction.at(4)}}}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteRunTrace(const std::string& run_directory,
                           const std::string& path) {
  Json events = Json::array();
  std::map<int32_t, Json> programs;
  const std::map<int32_t, std::string> hosts = HostsOfRanks(run_directory);
  for (const Step& step : kSteps) {
    const std::string file =
        absl::StrCat(run_directory, "/timelines/", step.file, ".json");
    std::error_code error;
    if (!std::filesystem::exists(file, error)) continue;
    ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxRecordBytes));
    ASSIGN_OR_RETURN(const Timeline timeline, TimelineFromJson(text));
    for (const RankTimeline& rank : timeline.ranks) {
      ASSIGN_OR_RETURN(const Json* program,
                       ProgramOf(run_directory, rank.stage, &programs));
      const auto host = hosts.find(ToInt(rank.rank));
      RETURN_IF_ERROR(AddRank(step, rank,
                              host == hosts.end() ? "" : host->second, *program,
                              &events));
    }
  }
  if (events.empty()) {
    return absl::NotFoundError(
        absl::StrCat(run_directory,
                     " has no timelines/measured.json or predicted.json; name "
                     "the run directory that the training printed"));
  }
  return WriteFileAtomically(
      path, JsonText(Json{{"displayTimeUnit", "ms"},
                          {"traceEvents", std::move(events)}}));
}

}  // namespace millrace
