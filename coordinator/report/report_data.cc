#include "coordinator/report/report_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/report/report_program.h"
#include "coordinator/report/report_summary.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxSteps = 2000;
constexpr size_t kMaxTimelineRanks = 16;
constexpr size_t kMaxEvents = 500;

// The columns of metrics.jsonl that the page draws.
constexpr std::array<const char*, 9> kColumns = {
    "step",          "loss",        "grad_norm",
    "learning_rate", "step_time_s", "predicted_step_time_s",
    "tokens_per_s",  "generation",  "validation_loss"};

// A value for the page, or why there is none.
using Section = absl::StatusOr<Json>;

absl::StatusOr<Json> ReadJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  absl::StatusOr<Json> value = ParseJson(text);
  if (!value.ok()) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", value.status().message()));
  }
  return value;
}

absl::StatusOr<Json> ReadJsonObject(const std::string& path) {
  ASSIGN_OR_RETURN(Json value, ReadJson(path));
  if (!value.is_object()) {
    return absl::DataLossError(
        absl::StrCat(path, " should hold one JSON object"));
  }
  return value;
}

// One JSON object a line. The last line may be torn, since the run may have
// been killed while writing it; any other bad line is an error.
absl::StatusOr<std::vector<Json>> ReadJsonLines(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  std::vector<Json> objects;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    absl::StatusOr<Json> value = ParseJson(lines[i]);
    if (!value.ok() || !value->is_object()) {
      if (i + 1 == lines.size()) break;
      return absl::DataLossError(
          absl::StrCat(path, ":", i + 1, ": not a JSON object"));
    }
    objects.push_back(*std::move(value));
  }
  if (objects.empty()) {
    return absl::DataLossError(absl::StrCat(path, " holds no whole line"));
  }
  return objects;
}

Json NumberOrNull(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return nullptr;
  return *found;
}

// A point is [step, loss]; sets that a step did not evaluate have none of it.
void AppendEvaluation(int64_t step, const Json& line, Json& points_by_set) {
  const auto losses = line.find("evaluation");
  if (losses == line.end() || !losses->is_object()) return;
  for (const auto& [set, loss] : losses->items()) {
    if (loss.is_number()) points_by_set[set].push_back({step, loss});
  }
}

Section ReadSteps(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadJsonLines(path));
  std::map<int64_t, const Json*> by_step;
  for (const Json& line : lines) {
    const Json step = NumberOrNull(line, "step");
    if (!step.is_number_integer()) {
      return absl::DataLossError(
          absl::StrCat(path, ": a line lacks an integer \"step\""));
    }
    by_step[step.get<int64_t>()] = &line;
  }
  const size_t stride = (by_step.size() + kMaxSteps - 1) / kMaxSteps;
  Json columns = Json::object();
  for (const char* column : kColumns) columns[column] = Json::array();
  Json points_by_set = Json::object();
  size_t step_idx = 0;
  for (const auto& [step, line] : by_step) {
    AppendEvaluation(step, *line, points_by_set);
    const bool is_last = step_idx + 1 == by_step.size();
    const bool keep = step_idx++ % stride == 0 || is_last ||
                      line->contains("validation_loss");
    if (!keep) continue;
    for (const char* column : kColumns) {
      columns[column].push_back(NumberOrNull(*line, column));
    }
  }
  columns["evaluation"] = std::move(points_by_set);
  columns["num_steps"] = by_step.size();
  columns["num_repeated"] = lines.size() - by_step.size();
  return columns;
}

Section ReadTime(const std::string& path) {
  ASSIGN_OR_RETURN(const Json time, ReadJsonObject(path));
  const auto ranks = time.find("ranks");
  if (ranks == time.end() || !ranks->is_array() || ranks->empty()) {
    return absl::DataLossError(absl::StrCat(path, " names no ranks"));
  }
  Json checked = {{"wall_s", NumberOrNull(time, "wall_s")},
                  {"ranks", Json::array()}};
  for (const Json& rank : *ranks) {
    Json row = Json::object();
    for (const char* key : {"rank", "stage"})
      row[key] = NumberOrNull(rank, key);
    for (const TimeCategory& category : kTimeCategories) {
      const Json seconds = NumberOrNull(rank, category.key);
      row[category.key] = seconds.is_null() ? Json(0.0) : seconds;
    }
    checked["ranks"].push_back(std::move(row));
  }
  return checked;
}

// To a tenth of a microsecond: finer than any clock here, and short to print.
double Rounded(double seconds) { return std::round(seconds * 1e7) / 1e7; }

Section ReadTimeline(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  ASSIGN_OR_RETURN(const Timeline timeline, TimelineFromJson(text));
  return TimelineData(timeline);
}

Section ReadPrograms(const std::string& directory) {
  std::error_code error;
  Json programs = Json::object();
  for (int stage = 0;; ++stage) {
    const std::string path = absl::StrCat(directory, "/stage-", stage, ".txt");
    if (!std::filesystem::exists(path, error)) break;
    ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
    ASSIGN_OR_RETURN(programs[absl::StrCat(stage)],
                     ParseProgramText(text, path));
  }
  if (programs.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no file ", directory, "/stage-0.txt"));
  }
  return programs;
}

Section ReadEvents(const std::string& path) {
  ASSIGN_OR_RETURN(std::vector<Json> lines, ReadJsonLines(path));
  const size_t num_events = lines.size();
  int64_t num_deaths = 0;
  for (const Json& event : lines) {
    const auto name = event.find("event");
    if (name != event.end() && *name == "worker_died") ++num_deaths;
  }
  // The end of a run explains more than its middle; its start is kept too.
  if (num_events > kMaxEvents) {
    lines.erase(lines.begin() + kMaxEvents / 2,
                lines.end() - (kMaxEvents - kMaxEvents / 2));
  }
  return Json{
      {"num_events", num_events}, {"num_deaths", num_deaths}, {"list", lines}};
}

Section ReadJob(const std::string& path) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(path));
  return JobData(job);
}

Section ReadMachine(const std::string& path) {
  ASSIGN_OR_RETURN(const HardwareProfile profile, LoadProfile(path));
  return MachineData(profile);
}

Section ReadText(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  return Json(std::move(text));
}

struct Source {
  const char* key;
  const char* file;
  Section (*read)(const std::string& path);
};
constexpr std::array<Source, 11> kSources = {{
    {"job", "job.yaml", ReadJob},
    {"job_yaml", "job.yaml", ReadText},
    {"machine", "profile.yaml", ReadMachine},
    {"plan", "plan.json", ReadJsonObject},
    {"steps", "metrics.jsonl", ReadSteps},
    {"time", "time.json", ReadTime},
    {"predicted", "timelines/predicted.json", ReadTimeline},
    {"measured", "timelines/measured.json", ReadTimeline},
    {"programs", "programs", ReadPrograms},
    {"events", "events.jsonl", ReadEvents},
    {"result", "result.json", ReadJsonObject},
}};

}  // namespace

absl::StatusOr<Json> CollectReportData(const std::string& run_directory) {
  std::error_code error;
  std::filesystem::path directory =
      std::filesystem::canonical(run_directory, error);
  if (error || !std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(run_directory,
                     " is not a folder; name the run directory that the "
                     "training printed, for example runs/quickstart-latest"));
  }
  Json data = {{"run", directory.filename().string()},
               {"missing", Json::array()}};
  size_t num_read = 0;
  for (const Source& source : kSources) {
    Section section = source.read((directory / source.file).string());
    if (section.ok()) {
      data[source.key] = *std::move(section);
      ++num_read;
    } else {
      data["missing"].push_back(
          {{"key", source.key},
           {"file", source.file},
           {"reason", std::string(section.status().message())}});
    }
  }
  if (num_read == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(run_directory,
                     " is not a run directory: it holds no job.yaml, "
                     "metrics.jsonl or any other file of a run"));
  }
  data["summary"] = SummarizeData(data);
  return data;
}

Json JobData(const JobSpec& job) {
  const ParameterCounts parameters = CountParameters(job.model);
  return {{"name", job.name},
          {"vocab_size", job.model.vocab_size},
          {"hidden", job.model.hidden},
          {"num_layers", job.model.num_layers},
          {"num_heads", job.model.num_heads},
          {"num_kv_heads", job.model.num_kv_heads},
          {"ffn_hidden", job.model.ffn_hidden},
          {"sequence_length", job.model.sequence_length},
          {"num_parameters", parameters.total},
          {"num_steps", job.training.num_steps},
          {"global_batch", job.training.global_batch},
          {"precision", job.training.precision},
          {"backend", job.resources.backend}};
}

Json MachineData(const HardwareProfile& profile) {
  return {{"name", profile.name},
          {"description", profile.provenance.description},
          {"date", profile.provenance.date},
          {"is_measured", !profile.gemms.empty()},
          {"num_ranks", profile.provenance.num_ranks},
          {"threads_per_device", profile.provenance.threads_per_device}};
}

Json TimelineData(const Timeline& timeline) {
  Json ranks = Json::array();
  for (const RankTimeline& rank : timeline.ranks) {
    if (ranks.size() == kMaxTimelineRanks) break;
    Json events = Json::array();
    for (const TimelineEvent& event : rank.events) {
      events.push_back(
          {event.instruction, Rounded(event.start_s), Rounded(event.end_s)});
    }
    ranks.push_back({{"rank", ToInt(rank.rank)},
                     {"stage", rank.stage},
                     {"events", std::move(events)}});
  }
  return {{"step_time_s", timeline.step_time_s},
          {"num_ranks", timeline.ranks.size()},
          {"ranks", std::move(ranks)}};
}

}  // namespace millrace
