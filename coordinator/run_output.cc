#include "coordinator/run_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kUnreportedSteps = 2;
constexpr char kReserve[] = "/reserve";
constexpr size_t kReserveBytes = 256 << 10;

}  // namespace

RunOutput::RunOutput(std::string run_directory, double started_unix_s)
    : run_directory_(std::move(run_directory)),
      started_unix_s_(started_unix_s),
      events_{.path = run_directory_ + "/events.jsonl"},
      steps_{.path = run_directory_ + "/metrics.jsonl"} {
  for (Lines* lines : {&events_, &steps_}) {
    lines->stream.open(lines->path, std::ios::app);
  }
}

absl::StatusOr<std::unique_ptr<RunOutput>> RunOutput::Open(
    const std::string& run_directory, double started_unix_s) {
  std::unique_ptr<RunOutput> output(
      new RunOutput(run_directory, started_unix_s));
  if (!output->events_.stream || !output->steps_.stream) {
    return absl::InternalError(
        absl::StrCat("cannot write to the run directory ", run_directory));
  }
  RETURN_IF_ERROR(output->ReadMetrics());
  RETURN_IF_ERROR(output->ReadTime());
  output->KeepReserve();
  return output;
}

// Bytes, not a hole: the disk must really have set them aside.
void RunOutput::KeepReserve() const {
  std::ofstream(run_directory_ + kReserve) << std::string(kReserveBytes, '\n');
}

bool RunOutput::FreeReserve() {
  return unlink((run_directory_ + kReserve).c_str()) == 0;
}

void RunOutput::Append(const std::string& line, Lines* lines) {
  lines->stream << (lines->is_torn ? "\n" : "") << line << std::endl;
  lines->is_torn = !lines->stream;
  if (!lines->is_torn) return;
  loss_ = absl::ResourceExhaustedError(absl::StrCat(
      "cannot append to ", lines->path, ": ", std::strerror(errno)));
  lines->stream.close();
  lines->stream.clear();
  lines->stream.open(lines->path, std::ios::app);
}

absl::Status RunOutput::ReadMetrics() {
  std::string content;
  ASSIGN_OR_RETURN(
      content, ReadFile(run_directory_ + "/metrics.jsonl", kMaxRecordBytes));
  std::istringstream lines(content);
  for (std::string line; std::getline(lines, line);) {
    // A torn last line belongs to a step that will be reported again.
    const absl::StatusOr<OrderedJson> json = ParseOrderedJson(line);
    if (!json.ok() || !json->is_object()) continue;
    const auto number = [&](const char* key) {
      const auto found = json->find(key);
      return found == json->end() || !found->is_number() ? OrderedJson()
                                                         : *found;
    };
    const OrderedJson seconds = number("step_time_s");
    const OrderedJson generation = number("generation");
    const OrderedJson step = number("step");
    const OrderedJson loss = number("loss");
    if (seconds.is_null()) continue;
    last_step_ = {generation.is_null() ? 0 : generation.get<int64_t>(),
                  step.is_null() ? 0 : step.get<int64_t>()};
    last_loss_ = loss.is_null() ? 0.0 : loss.get<double>();
    step_times_.push_back(seconds.get<double>());
    if (loss.is_null()) continue;
    losses_read_.push_back({.step = last_step_.second, .loss = last_loss_});
    if (losses_read_.size() > LossWatch::kKept) losses_read_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status RunOutput::ReadTime() {
  const std::string path = run_directory_ + "/time.json";
  if (!FileExists(path)) return absl::OkStatus();
  std::string content;
  ASSIGN_OR_RETURN(content, ReadFile(path, kMaxRecordBytes));
  absl::StatusOr<OrderedJson> parsed = ParseOrderedJson(content);
  if (!parsed.ok()) {
    return absl::DataLossError(
        absl::StrCat(path, ": ", parsed.status().message()));
  }
  const OrderedJson& time_json = *parsed;
  try {
    for (const OrderedJson& entry : time_json.at("ranks")) {
      RankTime& time = ranks_[Rank{entry.at("rank").get<int32_t>()}];
      time.stage = entry.at("stage");
      time.host = entry.value("host", "");
      time.steps = {.compute_s = entry.at("compute_s"),
                    .exposed_tensor_comm_s = entry.at("exposed_tensor_comm_s"),
                    .exposed_data_comm_s = entry.at("exposed_data_comm_s"),
                    .bubble_s = entry.at("bubble_s"),
                    .data_s = entry.at("data_s"),
                    .other_s = entry.at("other_s")};
      time.checkpoint_s = entry.at("checkpoint_s");
      time.validation_s = entry.at("validation_s");
      startup_s_ = entry.at("startup_s");
      recovery_s_ = entry.at("recovery_s");
    }
  } catch (const OrderedJson::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  return absl::OkStatus();
}

void RunOutput::Feed(std::unique_ptr<MetricsFeed> metrics) {
  metrics_ = std::move(metrics);
}

std::vector<std::string> RunOutput::TakeMetricsWarnings() {
  if (metrics_ == nullptr) return {};
  return metrics_->TakeWarnings();
}

void RunOutput::Event(const EventRecord& record) {
  OrderedJson json = {{"time_s", SecondsSinceStart()}, {"event", record.event}};
  if (record.generation >= 0) json["generation"] = record.generation;
  if (record.step >= 0) json["step"] = record.step;
  if (record.rank >= 0) json["rank"] = record.rank;
  if (!record.host.empty()) json["host"] = record.host;
  if (!record.detail.empty()) json["detail"] = record.detail;
  Append(JsonText(json), &events_);
  if (metrics_ != nullptr) metrics_->Event(record.event);
}

bool RunOutput::Step(const StepRecord& record) {
  const std::pair<int64_t, int64_t> key = {record.generation, record.step};
  if (key <= last_step_) return false;
  last_step_ = key;
  last_loss_ = record.loss;
  step_times_.push_back(record.step_time_s);
  OrderedJson json = {{"step", record.step},
                      {"loss", record.loss},  // Not finite: null.
                      {"grad_norm", record.gradient_norm},
                      {"learning_rate", record.learning_rate},
                      {"tokens", record.tokens},
                      {"step_time_s", record.step_time_s},
                      {"tokens_per_s", TokensPerSecond(record)},
                      {"predicted_step_time_s", record.predicted_step_time_s},
                      {"generation", record.generation}};
  if (record.validation_loss.has_value()) {
    json["validation_loss"] = *record.validation_loss;
  }
  if (record.rewards.has_value()) {
    json["rewards"] = {{"chosen", record.rewards->chosen},
                       {"rejected", record.rewards->rejected},
                       {"margin", record.rewards->margin()},
                       {"accuracy", record.rewards->accuracy}};
  }
  if (!record.evaluation.empty()) json["evaluation"] = record.evaluation;
  Append(JsonText(json), &steps_);
  if (metrics_ != nullptr) metrics_->Step(record);
  return true;
}

bool RunOutput::AddRankStep(Rank rank, int64_t generation, int64_t step,
                            int32_t stage, const TimeBreakdown& breakdown,
                            double validation_s) {
  auto& last = last_rank_steps_[rank];
  const std::pair<int64_t, int64_t> key = {generation, step};
  if (key <= last) return false;
  last = key;
  RankTime& time = ranks_[rank];
  time.stage = stage;
  time.steps.compute_s += breakdown.compute_s;
  time.steps.exposed_tensor_comm_s += breakdown.exposed_tensor_comm_s;
  time.steps.exposed_data_comm_s += breakdown.exposed_data_comm_s;
  time.steps.bubble_s += breakdown.bubble_s;
  time.steps.data_s += breakdown.data_s;
  time.steps.other_s += breakdown.other_s;
  time.validation_s += validation_s;
  if (metrics_ != nullptr) metrics_->Ranks(rank, time);
  return true;
}

void RunOutput::SetHost(Rank rank, const std::string& host) {
  ranks_[rank].host = host;
}

void RunOutput::AddCheckpoint(Rank rank, double seconds) {
  ranks_[rank].checkpoint_s += seconds;
}

void RunOutput::AddToLog(WorkerIdx worker, const std::string& text) {
  if (text.empty()) return;
  const std::string path =
      absl::StrFormat("%s/logs/worker-%04d.log", run_directory_, ToInt(worker));
  const std::string lines = text + "\n";
  const absl::StatusOr<std::string> end =
      ReadEndOfFile(path, static_cast<int64_t>(lines.size()));
  if (end.ok() && *end == lines) return;
  std::ofstream(path, std::ios::app) << lines << std::flush;
}

absl::Status RunOutput::WriteTime() {
  OrderedJson entries = OrderedJson::array();
  for (const auto& [rank, time] : ranks_) {
    entries.push_back(
        {{"rank", ToInt(rank)},
         {"stage", time.stage},
         {"host", time.host},
         {"compute_s", time.steps.compute_s},
         {"exposed_tensor_comm_s", time.steps.exposed_tensor_comm_s},
         {"exposed_data_comm_s", time.steps.exposed_data_comm_s},
         {"bubble_s", time.steps.bubble_s},
         {"data_s", time.steps.data_s},
         {"other_s", time.steps.other_s},
         {"checkpoint_s", time.checkpoint_s},
         {"validation_s", time.validation_s},
         {"recovery_s", recovery_s_},
         {"startup_s", startup_s_}});
  }
  const OrderedJson json = {{"wall_s", SecondsSinceStart()},
                            {"ranks", entries}};
  return WriteFile("time.json", JsonText(json, 1) + "\n");
}

absl::Status RunOutput::WriteResult(const ResultRecord& record) {
  if (metrics_ != nullptr) metrics_->End(record.status);
  OrderedJson json = {
      {"status", record.status},
      {"reason", record.reason},
      {"steps", record.steps},
      {"final_loss", record.steps > 0 ? OrderedJson(record.final_loss)
                                      : OrderedJson(nullptr)},
      {"device_bytes", record.device_bytes > 0
                           ? OrderedJson(record.device_bytes)
                           : OrderedJson(nullptr)},
      {"parameter_hash", record.parameter_hash.empty()
                             ? OrderedJson(nullptr)
                             : OrderedJson(record.parameter_hash)}};
  return WriteFile("result.json", JsonText(json, 1) + "\n");
}

absl::Status RunOutput::WriteFile(const std::string& name,
                                  const std::string& content) {
  return WriteFileAtomically(run_directory_ + "/" + name, content);
}

double RunOutput::SecondsSinceStart() const {
  return std::max(0.0, UnixNow() - started_unix_s_);
}

double RunOutput::MedianStepTime() const {
  if (step_times_.size() <= kUnreportedSteps) return 0;
  std::vector<double> times(step_times_.begin() + kUnreportedSteps,
                            step_times_.end());
  const auto middle = times.begin() + times.size() / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

std::string RunOutput::TimeInOneLine() const {
  std::vector<std::pair<std::string, double>> parts = {
      {"compute", 0},
      {"exposed tensor communication", 0},
      {"exposed data communication", 0},
      {"bubble", 0},
      {"data", 0},
      {"other", 0},
      {"checkpoint", 0},
      {"validation", 0},
      {"startup", startup_s_},
      {"recovery", recovery_s_}};
  const double num_ranks = std::max<double>(1, ranks_.size());
  for (const auto& [rank, time] : ranks_) {
    const double seconds[] = {time.steps.compute_s,
                              time.steps.exposed_tensor_comm_s,
                              time.steps.exposed_data_comm_s,
                              time.steps.bubble_s,
                              time.steps.data_s,
                              time.steps.other_s,
                              time.checkpoint_s,
                              time.validation_s};
    for (size_t i = 0; i < std::size(seconds); ++i) {
      parts[i].second += seconds[i] / num_ranks;
    }
  }
  double total = 0;
  for (const auto& [name, seconds] : parts) total += seconds;
  std::vector<std::string> words;
  for (const auto& [name, seconds] : parts) {
    const double percent = 100 * seconds / std::max(total, 1e-9);
    if (percent < 0.5) continue;
    words.push_back(absl::StrFormat("%s %.0f %%", name, percent));
  }
  return absl::StrJoin(words, ", ");
}

}  // namespace millrace
