#include "coordinator/watch/run_follower.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/report/report_summary.h"
#include "planner/job/job_file.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kEventsKept = 5;
constexpr size_t kReadBytes = 1 << 20;

std::optional<double> NumberIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

int64_t IntegerIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_number_integer()
             ? 0
             : found->get<int64_t>();
}

std::string TextIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || !found->is_string()
             ? ""
             : found->get<std::string>();
}

}  // namespace

RunFollower::RunFollower(const std::string& directory)
    : directory_(directory),
      steps_{.path = directory + "/metrics.jsonl"},
      events_{.path = directory + "/events.jsonl"} {
  run_.name = std::filesystem::path(directory).filename().string();
}

absl::StatusOr<RunFollower> RunFollower::Open(
    const std::string& run_directory) {
  std::error_code error;
  const std::filesystem::path directory =
      std::filesystem::canonical(run_directory, error);
  if (error || !std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(run_directory,
                     " is not a folder; name the run directory that the "
                     "training printed, for example runs/quickstart-latest"));
  }
  if (!FileExists(directory / "job.yaml") &&
      !FileExists(directory / "events.jsonl")) {
    return absl::InvalidArgumentError(
        absl::StrCat(run_directory,
                     " is not a run directory: it holds neither job.yaml nor "
                     "events.jsonl"));
  }
  return RunFollower(directory.string());
}

absl::StatusOr<std::vector<Json>> RunFollower::NewLines(Tail& tail) {
  std::vector<Json> lines;
  if (!FileExists(tail.path)) return lines;
  int fd = -1;
  ASSIGN_OR_RETURN(fd, OpenRegularFile(tail.path));
  std::string text;
  std::string bytes(kReadBytes, '\0');
  ssize_t count = 0;
  while ((count = pread(fd, bytes.data(), bytes.size(),
                        tail.offset + static_cast<int64_t>(text.size()))) > 0) {
    text.append(bytes, 0, static_cast<size_t>(count));
  }
  const int read_errno = errno;
  close(fd);
  if (count < 0) {
    return absl::InternalError(absl::StrCat("cannot read ", tail.path, ": ",
                                            std::strerror(read_errno)));
  }
  text.resize(text.rfind('\n') + 1);  // Nothing without a whole line.
  tail.offset += static_cast<int64_t>(text.size());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::StatusOr<Json> json = ParseJson(line);
    // A line that a killed coordinator left torn is nobody's loss here.
    if (json.ok() && json->is_object()) lines.push_back(*std::move(json));
  }
  return lines;
}

absl::Status RunFollower::Refresh() {
  ASSIGN_OR_RETURN(const std::vector<Json> steps, NewLines(steps_));
  ASSIGN_OR_RETURN(const std::vector<Json> events, NewLines(events_));
  for (const Json& step : steps) AddStep(step);
  for (const Json& event : events) AddEvent(event);
  ReadJobAndResult();
  ReadRanks();
  for (const std::string& path : {steps_.path, events_.path}) {
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) continue;
    run_.newest_unix_s =
        std::max(run_.newest_unix_s,
                 static_cast<double>(found.st_mtim.tv_sec) +
                     1e-9 * static_cast<double>(found.st_mtim.tv_nsec));
  }
  return absl::OkStatus();
}

void RunFollower::AddStep(const Json& line) {
  WatchedStep step = {
      .step = IntegerIn(line, "step"),
      .generation = IntegerIn(line, "generation"),
      .loss = NumberIn(line, "loss"),
      .step_time_s = NumberIn(line, "step_time_s").value_or(0),
      .predicted_step_time_s =
          NumberIn(line, "predicted_step_time_s").value_or(0),
      .tokens_per_s = NumberIn(line, "tokens_per_s").value_or(0)};
  run_.mean_step_time_s =
      run_.mean_step_time_s == 0
          ? step.step_time_s
          : 0.9 * run_.mean_step_time_s + 0.1 * step.step_time_s;
  if (const auto loss = NumberIn(line, "validation_loss"); loss.has_value()) {
    run_.validation_loss = loss;
  }
  const auto evaluation = line.find("evaluation");
  if (evaluation != line.end() && evaluation->is_object()) {
    for (const auto& [set, loss] : evaluation->items()) {
      if (loss.is_number()) run_.evaluation[set] = loss.get<double>();
    }
  }
  if (step.loss.has_value()) {
    if (!run_.first_loss.has_value()) run_.first_loss = step.loss;
    if (num_curve_steps_++ % curve_stride_ == 0) {
      run_.curve.push_back(*step.loss);
    }
    if (run_.curve.size() > kMaxCurve) {
      for (size_t i = 0; 2 * i < run_.curve.size(); ++i) {
        run_.curve[i] = run_.curve[2 * i];
      }
      run_.curve.resize((run_.curve.size() + 1) / 2);
      curve_stride_ *= 2;
    }
  }
  run_.step = step;
}

void RunFollower::AddEvent(const Json& line) {
  const std::string event = TextIn(line, "event");
  const std::string detail = TextIn(line, "detail");
  if (event == "planned") {
    run_.plan = detail;
    run_.status = "planned";
  } else if (event == "training") {
    run_.status = "training";
  } else if (event == "worker_died") {
    ++run_.num_deaths;
    run_.status = "recovering";
  } else if (event == "generation_failed") {
    run_.status = "recovering";
  } else if (event == "checkpoint_committed") {
    ++run_.num_checkpoints;
    run_.checkpoint_step = IntegerIn(line, "step");
  } else if (event == "slow_rank") {
    run_.slow_ranks[IntegerIn(line, "rank")] = detail;
  } else if (event == "rank_recovered") {
    run_.slow_ranks.erase(IntegerIn(line, "rank"));
  } else if (event == "generation_started") {
    run_.slow_ranks.clear();  // Each is judged anew.
  }
  std::string text = absl::StrCat(
      FormatSeconds(NumberIn(line, "time_s").value_or(0)), "  ", event);
  for (const char* key : {"step", "rank"}) {
    if (line.contains(key)) {
      absl::StrAppend(&text, ", ", key, " ", IntegerIn(line, key));
    }
  }
  if (const std::string host = TextIn(line, "host"); !host.empty()) {
    absl::StrAppend(&text, " (", host, ")");
  }
  if (!detail.empty()) absl::StrAppend(&text, ": ", detail);
  run_.events.push_back(std::move(text));
  if (run_.events.size() > kEventsKept) run_.events.pop_front();
}

void RunFollower::ReadJobAndResult() {
  if (!knows_job_) {
    const absl::StatusOr<JobSpec> job = LoadJob(directory_ + "/job.yaml");
    knows_job_ = job.ok();
    if (job.ok()) run_.num_steps = job->training.num_steps;
  }
  const absl::StatusOr<std::string> text =
      ReadFile(directory_ + "/result.json");
  if (!text.ok()) return;
  const absl::StatusOr<Json> result = ParseJson(*text);
  if (!result.ok() || !result->is_object()) return;
  run_.over = true;
  run_.status = TextIn(*result, "status");
  run_.reason = TextIn(*result, "reason");
}

void RunFollower::ReadRanks() {
  const absl::StatusOr<std::string> text =
      ReadFile(directory_ + "/time.json", kMaxRecordBytes);
  if (!text.ok()) return;
  const absl::StatusOr<Json> time = ParseJson(*text);
  if (!time.ok() || !time->is_object()) return;
  const auto ranks = time->find("ranks");
  if (ranks == time->end() || !ranks->is_array()) return;
  run_.ranks.clear();
  for (const Json& entry : *ranks) {
    if (!entry.is_object()) continue;
    WatchedRank rank = {.rank = IntegerIn(entry, "rank"),
                        .stage = IntegerIn(entry, "stage"),
                        .host = TextIn(entry, "host")};
    for (const TimeCategory& category : kTimeCategories) {
      rank.seconds.push_back(NumberIn(entry, category.key).value_or(0));
    }
    run_.ranks.push_back(std::move(rank));
  }
}

}  // namespace millrace
