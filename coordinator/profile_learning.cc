#include "coordinator/profile_learning.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/file_lock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/statistics.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "coordinator/write_ahead_log.h"
#include "planner/job/job_file.h"
#include "planner/learn/profile_request.h"
#include "planner/lower/lower.h"
#include "planner/profile/host_size.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/profile_merge.h"
#include "planner/profile/shipped_profiles.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The first steps of a generation fill caches, set clocks and capture graphs.
constexpr int64_t kWarmUpSteps = 2;
constexpr absl::Duration kLockTimeout = absl::Seconds(10);

std::string ObservedPath(const std::string& run_directory) {
  return run_directory + "/timelines/observed.jsonl";
}

absl::StatusOr<std::vector<StepObservation>> ReadObserved(
    const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxRecordBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        "no ", path,
        ": an older Millrace made the run, its profile was not of this "
        "machine, or it ended before its third step"));
  }
  RETURN_IF_ERROR(text.status());
  const std::vector<absl::string_view> lines = absl::StrSplit(*text, '\n');
  std::vector<StepObservation> observed;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    absl::StatusOr<StepObservation> read = StepObservationFromJson(lines[i]);
    if (!read.ok()) {
      // Without its line end, the coordinator died while it wrote the line.
      if (i + 1 == lines.size() && !observed.empty()) break;
      return absl::DataLossError(
          absl::StrCat(path, ":", i + 1, ": ", read.status().message()));
    }
    observed.push_back(*std::move(read));
  }
  if (observed.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is empty: no step was measured op by op"));
  }
  return observed;
}

// A coordinator that died while it wrote a line leaves a part of it, which the
// next one must not write on.
absl::Status CutTornLine(const std::string& path) {
  if (!FileExists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  const size_t whole = text.rfind('\n') + 1;  // 0 without any.
  if (whole == text.size()) return absl::OkStatus();
  return WriteFileAtomically(path, text.substr(0, whole));
}

// By (generation, step), as metrics.jsonl has them.
using StepTimes = std::map<std::pair<int64_t, int64_t>, double>;
absl::StatusOr<StepTimes> ReadStepTimes(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  StepTimes times;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    // A torn line tells nothing.
    const absl::StatusOr<Json> parsed = ParseJson(line);
    if (!parsed.ok()) continue;
    const Json& json = *parsed;
    if (!json.is_object() || !json.value("step_time_s", Json()).is_number() ||
        !json.value("step", Json()).is_number_integer() ||
        !json.value("generation", Json()).is_number_integer()) {
      continue;
    }
    times[{json["generation"], json["step"]}] = json["step_time_s"];
  }
  return times;
}

// Steps that are neither a generation's first nor the last before a failure
// ended it.
std::set<std::pair<int64_t, int64_t>> SteadySteps(const StepTimes& times) {
  std::map<int64_t, std::pair<int64_t, int64_t>> ends;  // By generation.
  for (const auto& [key, seconds] : times) {
    ends.try_emplace(key.first, key.second, key.second).first->second.second =
        key.second;
  }
  std::set<std::pair<int64_t, int64_t>> steady;
  for (const auto& [key, seconds] : times) {
    const auto& [first, last] = ends.at(key.first);
    const bool was_cut_off =
        key.second == last && key.first != ends.rbegin()->first;
    if (key.second >= first + kWarmUpSteps && !was_cut_off) steady.insert(key);
  }
  return steady;
}

absl::Status ChooseSteps(const std::vector<StepObservation>& observed,
                         const StepTimes& times, bool believes_busy_steps,
                         EndedRun* ended) {
  MeasuredRun* const run = &ended->measured;
  const auto steady = SteadySteps(times);
  std::vector<double> undisturbed_s, others;
  std::set<std::pair<int64_t, int64_t>> measured;
  for (const StepObservation& step : observed) {
    const std::pair<int64_t, int64_t> key = {step.generation, step.step};
    if (!steady.contains(key) || !measured.insert(key).second) continue;
    if (step.others_share > kMostOthersShare && !believes_busy_steps) {
      others.push_back(step.others_share);
      continue;
    }
    run->steps.push_back(step);
    undisturbed_s.push_back(times.at(key));
  }
  ended->num_busy_steps = static_cast<int64_t>(others.size());
  if (run->steps.empty() && !others.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "other processes kept %.0f %% of the processors busy while steps were "
        "measured, at most %.0f %% leave them as they are; train while the "
        "machine is idle, or let a profile learn all the same with millrace "
        "profile --from-run RUN",
        100 * MedianOf(others), 100 * kMostOthersShare));
  }
  std::vector<double> all, unmeasured;
  for (const auto& key : steady) {
    all.push_back(times.at(key));
    if (!measured.contains(key)) unmeasured.push_back(times.at(key));
  }
  // A step that is measured apart takes longer for it.
  run->step_times_s = run->ran_apart && !unmeasured.empty() ? unmeasured : all;
  if (!run->step_times_s.empty()) {
    run->step_time_s = MedianOf(run->step_times_s);
  }
  // How busy others kept the machine between these steps is not known.
  if (!others.empty()) run->step_time_s = MedianOf(undisturbed_s);
  return absl::OkStatus();
}

struct Target {
  std::string path;
  bool is_copy = false;
  // Whether the profile may begin as the run's if the file does not exist.
  bool may_begin = true;
};

absl::StatusOr<Target> FindTarget(const EndedRun& run,
                                  const std::string& run_directory,
                                  const std::string& output) {
  Target target;
  if (!output.empty()) {
    target.path = output;
  } else if (run.job.profile_output == "none") {
    return absl::FailedPreconditionError(
        "the job says profile_output: none; name a profile with --output");
  } else if (run.job.profile_output != "auto") {
    target.path = run.job.profile_output;
  } else if (run.job.profile == "auto") {
    const ProfileProvenance& provenance = run.measured.planned_with.provenance;
    ASSIGN_OR_RETURN(
        target.path,
        DefaultProfilePath(
            {.machine = provenance.machine,
             .shape = ProfileShapeKey(run.job.model, run.job.training),
             .num_ranks = provenance.num_ranks,
             .ranks_per_host = run.measured.planned_with.ranks_per_host,
             .threads_per_device = provenance.threads_per_device}));
  } else {
    target.path = run.job.profile;
    target.may_begin = false;  // In another folder it would be another file.
  }
  std::error_code error;
  const std::filesystem::path real =
      std::filesystem::weakly_canonical(target.path, error);
  // A link goes on leading to the file.
  if (!error) target.path = real.string();
  const bool is_read_only =
      FileExists(target.path) && access(target.path.c_str(), W_OK) != 0;
  if (IsShippedProfile(target.path) || is_read_only) {
    if (!output.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          target.path,
          is_read_only ? " cannot be written"
                       : " comes with Millrace and is never changed",
          "; name another --output"));
    }
    target = {.path = run_directory + "/learnt_profile.yaml", .is_copy = true};
  }
  return target;
}

std::string FormatRatio(const LearntValue& value) {
  return value.before > 0 ? absl::StrFormat("%.2fx", value.after / value.before)
                          : "new";
}

}  // namespace

StepObserver::StepObserver(std::string run_directory, JobSpec job,
                           Layout layout, DeviceFacts devices)
    : run_directory_(std::move(run_directory)),
      job_(std::move(job)),
      layout_(std::move(layout)),
      devices_(std::move(devices)) {}

StepObserver::~StepObserver() {
  if (thread_.joinable()) thread_.join();
}

void StepObserver::Observe(int64_t generation, int64_t step, Timeline timeline,
                           double others_share) {
  if (busy_.load(std::memory_order_acquire)) return;
  if (thread_.joinable()) thread_.join();
  if (!status_.ok()) return;
  busy_.store(true, std::memory_order_release);
  thread_ = std::thread(
      [this, generation, step, others_share, timeline = std::move(timeline)] {
        status_ = Append(generation, step, timeline, others_share);
        busy_.store(false, std::memory_order_release);
      });
}

absl::Status StepObserver::Finish() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

absl::Status StepObserver::Open() {
  ASSIGN_OR_RETURN(HardwareProfile profile,
                   LoadProfile(run_directory_ + "/profile.yaml"));
  const ProfileProvenance& from = profile.provenance;
  if (MachineKind(from.machine) != MachineKind(devices_.machine) ||
      (!job_.resources.uses_cuda() &&
       from.threads_per_device != devices_.threads_per_device)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the profile is of ", from.machine, " with ",
                     from.threads_per_device, " threads a device, this run of ",
                     devices_.machine, " with ", devices_.threads_per_device));
  }
  ASSIGN_OR_RETURN(programs_, BuildProgramsOfRanks(job_.model, layout_));
  ASSIGN_OR_RETURN(cost_, CostModel::Create(std::move(profile)));
  return CutTornLine(ObservedPath(run_directory_));
}

absl::Status StepObserver::Append(int64_t generation, int64_t step,
                                  const Timeline& timeline,
                                  double others_share) {
  if (!cost_.has_value()) RETURN_IF_ERROR(Open());
  ASSIGN_OR_RETURN(StepObservation observation,
                   ObserveStep(programs_, *cost_, timeline,
                               {.ran_apart = job_.resources.uses_cuda()}));
  observation.generation = generation;
  observation.step = step;
  observation.others_share = others_share;
  const std::string path = ObservedPath(run_directory_);
  std::ofstream out(path, std::ios::app);
  out << StepObservationToJson(observation) << std::endl;
  if (out) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("failed to write ", path));
}

absl::StatusOr<EndedRun> ReadEndedRun(const std::string& run_directory,
                                      bool believes_busy_steps) {
  std::error_code error;
  const std::filesystem::path real =
      std::filesystem::canonical(run_directory, error);
  if (error || !FileExists(run_directory + "/job.yaml") ||
      !FileExists(run_directory + "/state.log")) {
    return absl::InvalidArgumentError(absl::StrCat(
        run_directory,
        " is not a run directory; name the one that the training printed, for "
        "example runs/quickstart-latest"));
  }
  if (!FileExists(run_directory + "/result.json")) {
    return absl::FailedPreconditionError(
        absl::StrCat(run_directory,
                     " has no result.json: the run has not ended yet, or was "
                     "killed; start it again and let it end"));
  }
  EndedRun run;
  ASSIGN_OR_RETURN(run.job, LoadJob(run_directory + "/job.yaml"));
  ASSIGN_OR_RETURN(const std::unique_ptr<WriteAheadLog> log,
                   WriteAheadLog::Open(run_directory + "/state.log"));
  if (log->job().plan_json.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(run_directory, ": the run ended before it was planned"));
  }
  ASSIGN_OR_RETURN(const PlanRecord plan,
                   PlanRecordFromJson(log->job().plan_json));
  MeasuredRun& measured = run.measured;
  ASSIGN_OR_RETURN(measured.planned_with,
                   LoadProfile(run_directory + "/profile.yaml"));
  ASSIGN_OR_RETURN(const std::vector<StepObservation> observed,
                   ReadObserved(ObservedPath(run_directory)));
  ASSIGN_OR_RETURN(const StepTimes times,
                   ReadStepTimes(run_directory + "/metrics.jsonl"));
  // Jobs of one name may start in one second, in several folders.
  const double started_s = log->job().started_unix_s;
  measured.name = absl::StrFormat(
      "%s.%03d", real.filename().string(),
      static_cast<int>(1000 * (started_s - std::floor(started_s))));
  measured.date =
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  measured.model = run.job.model;
  measured.layout = plan.layout;
  measured.ran_apart = run.job.resources.uses_cuda();
  RETURN_IF_ERROR(ChooseSteps(observed, times, believes_busy_steps, &run));
  return run;
}

absl::StatusOr<LearntFile> LearnProfile(const std::string& run_directory,
                                        const LearnOptions& options) {
  ASSIGN_OR_RETURN(const EndedRun run,
                   ReadEndedRun(run_directory, options.believes_busy_steps));
  ASSIGN_OR_RETURN(const Target target,
                   FindTarget(run, run_directory, options.output));
  if (const size_t slash = target.path.rfind('/');
      slash != std::string::npos && slash > 0) {
    RETURN_IF_ERROR(MakeDirectories(target.path.substr(0, slash)));
  }
  ASSIGN_OR_RETURN(const FileLock lock,
                   FileLock::Acquire(target.path + ".lock", kLockTimeout));
  HardwareProfile profile = run.measured.planned_with;
  if (FileExists(target.path) || !target.may_begin) {
    ASSIGN_OR_RETURN(profile, LoadProfile(target.path));
    profile = WithHostsOf(run.measured.planned_with.ranks_per_host,
                          std::move(profile));
  }
  LearntFile taught{.path = target.path,
                    .num_busy_steps = run.num_busy_steps,
                    .is_copy = target.is_copy,
                    .result = {}};
  ASSIGN_OR_RETURN(taught.result, LearnFromRun(run.measured, profile));
  RETURN_IF_ERROR(SaveProfile(taught.result.profile, target.path));
  return taught;
}

std::vector<std::string> DescribeLearnt(const LearntFile& taught) {
  const LearntProfile& what = taught.result;
  const auto num_new =
      std::count_if(what.learnt.begin(), what.learnt.end(),
                    [](const LearntValue& value) { return value.is_new; });
  std::vector<std::string> lines = {absl::StrFormat(
      "profile: %s learnt %d values, %d of them new shapes, from %d steps; for "
      "this layout it now predicts %s, measured %s, predicted before %s",
      taught.path, what.learnt.size(), num_new, what.run.num_steps,
      FormatSeconds(what.run.predicted_after_s),
      FormatSeconds(what.run.measured_s), FormatSeconds(what.run.predicted_s))};
  std::vector<std::string> most;
  constexpr size_t kMostShown = 3;
  for (const LearntValue& value : what.learnt) {
    if (most.size() == kMostShown) break;
    most.push_back(absl::StrCat(value.value, " ", FormatRatio(value)));
  }
  if (!most.empty()) {
    lines.push_back(
        absl::StrCat("profile: changed most: ", absl::StrJoin(most, "; ")));
  }
  if (taught.num_busy_steps > 0) {
    lines.push_back(absl::StrFormat(
        "profile: %d more measured steps left out, while other processes kept "
        "over %.0f %% of the processors busy",
        taught.num_busy_steps, 100 * kMostOthersShare));
  }
  constexpr size_t kRefusedShown = 5;
  for (size_t i = 0; i < what.refused.size(); ++i) {
    if (i == kRefusedShown) {
      lines.push_back(absl::StrCat("profile: and ", what.refused.size() - i,
                                   " more were not learnt"));
      break;
    }
    lines.push_back(absl::StrCat("profile: not learnt: ", what.refused[i]));
  }
  if (taught.is_copy) {
    lines.push_back(absl::StrCat(
        "profile: this is a copy, since the one that the job names is not to "
        "be changed; plan with it by profile: ",
        taught.path));
  }
  return lines;
}

}  // namespace millrace
