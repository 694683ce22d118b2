#include "coordinator/metrics/mlflow_run.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/job/job_keys.h"
#include "planner/text/yaml_tree.h"
#include "xxhash.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// MLflow's limit of a parameter's text.
constexpr size_t kMaxParameterLength = 6000;

// MLflow's numbers of a run's states.
enum MlflowStatus { kRunning = 1, kFinished = 3, kFailed = 4, kKilled = 5 };

std::string Milliseconds(double unix_s) {
  return absl::StrCat(static_cast<int64_t>(unix_s * 1000));
}

// The id of the experiment `name` in `folder`: that of the one which is there,
// or a new one. MLflow's own ids are 18 digits too.
std::string ExperimentId(const std::string& folder, const std::string& name) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = (entry->path() / "meta.yaml").string();
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (!text.ok()) continue;
    const absl::StatusOr<YamlTree> meta = ParseYaml(*text, path);
    if (!meta.ok()) continue;
    for (const YamlTree& key : meta->children) {
      if (key.key == "name" && key.scalar == name) {
        return entry->path().filename().string();
      }
    }
  }
  constexpr uint64_t kSmallest = 100'000'000'000'000'000;
  return absl::StrCat(kSmallest +
                      XXH3_64bits(name.data(), name.size()) % (8 * kSmallest));
}

std::string RunId(const MlflowOptions& options) {
  const std::string text = absl::StrCat(options.run_directory, "\n",
                                        Milliseconds(options.started_unix_s));
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

std::string Uri(const std::string& path) {
  std::error_code error;
  return absl::StrCat("file://", fs::absolute(path, error).string());
}

}  // namespace

MlflowRun::MlflowRun(MlflowOptions options, std::string experiment_id,
                     std::string run_id)
    : options_(std::move(options)),
      experiment_id_(std::move(experiment_id)),
      run_id_(std::move(run_id)),
      folder_(
          absl::StrCat(options_.folder, "/", experiment_id_, "/", run_id_)) {}

absl::StatusOr<MlflowRun> MlflowRun::Open(const MlflowOptions& options) {
  MlflowRun run(options, ExperimentId(options.folder, options.job.name),
                RunId(options));
  const std::string experiment =
      absl::StrCat(options.folder, "/", run.experiment_id_);
  for (const char* part : {"metrics", "params", "tags", "artifacts"}) {
    RETURN_IF_ERROR(MakeDirectories(absl::StrCat(run.folder_, "/", part)));
  }
  const std::string meta = experiment + "/meta.yaml";
  if (!FileExists(meta)) {
    const std::string now = Milliseconds(options.started_unix_s);
    RETURN_IF_ERROR(WriteFileAtomically(
        meta, absl::StrCat("artifact_location: ", QuoteYaml(Uri(experiment)),
                           "\ncreation_time: ", now, "\nexperiment_id: '",
                           run.experiment_id_, "'\nlast_update_time: ", now,
                           "\nlifecycle_stage: active\nname: ",
                           QuoteYaml(options.job.name), "\n")));
  }
  for (const JobKey& key : JobKeys()) {
    const std::string value = JobValueToYaml(key, options.job);
    if (value.size() > kMaxParameterLength) continue;
    RETURN_IF_ERROR(WriteFileAtomically(
        absl::StrCat(run.folder_, "/params/", key.path), value));
  }
  const std::string name = fs::path(options.run_directory).filename().string();
  const std::pair<const char*, std::string> tags[] = {
      {"mlflow.runName", name},
      {"mlflow.source.name", "millrace"},
      {"mlflow.source.type", "JOB"},
      {"millrace.run_directory", options.run_directory}};
  for (const auto& [tag, value] : tags) {
    RETURN_IF_ERROR(
        WriteFileAtomically(absl::StrCat(run.folder_, "/tags/", tag), value));
  }
  RETURN_IF_ERROR(run.WriteMeta(kRunning, "null"));
  return run;
}

absl::Status MlflowRun::WriteMeta(int status,
                                  const std::string& end_time) const {
  const std::string name = fs::path(options_.run_directory).filename().string();
  return WriteFileAtomically(
      folder_ + "/meta.yaml",
      absl::StrCat("artifact_uri: ", QuoteYaml(Uri(folder_ + "/artifacts")),
                   "\nend_time: ", end_time,
                   "\nentry_point_name: ''\nexperiment_id: '", experiment_id_,
                   "'\nlifecycle_stage: active\nrun_id: '", run_id_,
                   "'\nrun_name: ", QuoteYaml(name), "\nrun_uuid: '", run_id_,
                   "'\nsource_name: ''\nsource_type: 4\nsource_version: ''\n"
                   "start_time: ",
                   Milliseconds(options_.started_unix_s), "\nstatus: ", status,
                   "\ntags: []\nuser_id: ''\n"));
}

absl::Status MlflowRun::Add(const StepRecord& record, double unix_s) {
  for (const auto& [tag, value] : TaggedValues(record)) {
    auto file = metrics_.find(tag);
    if (file == metrics_.end()) {
      ASSIGN_OR_RETURN(AppendFile opened, AppendFile::Open(absl::StrCat(
                                              folder_, "/metrics/", tag)));
      file = metrics_.emplace(tag, std::move(opened)).first;
    }
    RETURN_IF_ERROR(file->second.Append(
        absl::StrCat(Milliseconds(unix_s), " ", absl::StrFormat("%.17g", value),
                     " ", record.step, "\n")));
  }
  return absl::OkStatus();
}

absl::Status MlflowRun::End(const std::string& status, double unix_s) {
  const int number = status == "finished"  ? kFinished
                     : status == "stopped" ? kKilled
                                           : kFailed;
  return WriteMeta(number, Milliseconds(unix_s));
}

}  // namespace millrace
