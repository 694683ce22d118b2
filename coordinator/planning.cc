#include "coordinator/planning.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/op_cost.h"
#include "planner/explain/explain_json.h"
#include "planner/fleet/plan_templates.h"
#include "planner/job/executable.h"
#include "planner/learn/profile_request.h"
#include "planner/lower/lower.h"
#include "planner/profile/host_size.h"
#include "planner/profile/profile_file.h"
#include "planner/profile/profile_merge.h"
#include "planner/program/program.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

ProfileIdentity IdentityOf(const JobSpec& job, const DeviceFacts& devices) {
  return {.machine = devices.machine,
          .shape = ProfileShapeKey(job.model, job.training),
          // Spare devices are measured with the others.
          .num_ranks = devices.num_devices + devices.num_spare_devices,
          .ranks_per_host = devices.ranks_per_host,
          // Threads of the host compute nothing where GPUs do.
          .threads_per_device =
              job.resources.uses_cuda() ? 1 : devices.threads_per_device};
}

absl::Status WritePrograms(const JobSpec& job, const Plan& plan,
                           const std::string& run_directory) {
  const std::string folder = run_directory + "/programs";
  RETURN_IF_ERROR(MakeDirectories(folder));
  std::shared_ptr<const std::vector<Program>> programs = plan.programs;
  if (programs == nullptr) {
    ASSIGN_OR_RETURN(std::vector<Program> built,
                     BuildTrainingPrograms(job.model, plan.layout));
    programs = std::make_shared<const std::vector<Program>>(std::move(built));
  }
  return ParallelFor(static_cast<int64_t>(programs->size()),
                     NumComputeThreads(), [&](int64_t i) {
                       return WriteFileAtomically(
                           absl::StrCat(folder, "/stage-", i, ".txt"),
                           ProgramToString((*programs)[i]));
                     });
}

// DataLoss unless a row of the table has the name that the JSON has at `key`.
template <typename Row>
absl::Status CheckName(const Json& json, const char* key,
                       std::span<const Row> table) {
  const auto name = json.at(key).get<std::string>();
  std::vector<std::string> names;
  for (const Row& row : table) {
    if (name == row.name) return absl::OkStatus();
    names.emplace_back(row.name);
  }
  return absl::DataLossError(
      absl::StrCat("the plan in the log: ", key, ": expected ",
                   absl::StrJoin(names, ", "), ", found '", name, "'"));
}

}  // namespace

bool AreAlike(const DeviceFacts& a, const DeviceFacts& b) {
  return a.num_devices == b.num_devices &&
         a.threads_per_device == b.threads_per_device &&
         a.ranks_per_host == b.ranks_per_host && a.machines == b.machines;
}

absl::Status CheckOneGpuKind(const std::vector<std::string>& machines) {
  for (const std::string& machine : machines) {
    if (MachineKind(machine) == MachineKind(machines[0])) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the hosts' GPUs are not of one kind (", machines[0], " and ", machine,
        "), so the slowest would set the pace of all; start agents on hosts of "
        "one kind"));
  }
  return absl::OkStatus();
}

absl::Status CheckRunnable(const JobSpec& job, const DeviceFacts& devices) {
  if (job.resources.uses_cuda()) {
    RETURN_IF_ERROR(CheckOneGpuKind(devices.machines));
  }
  RETURN_IF_ERROR(CheckExecutable(job));
  if (devices.may_leave_idle) return absl::OkStatus();
  const absl::Status layouts = CheckLayouts(job, devices.num_devices);
  return absl::IsNotFound(layouts)
             ? absl::InvalidArgumentError(layouts.message())
             : layouts;
}

std::vector<std::string> GpuProfileWarnings(const HardwareProfile& profile,
                                            ProfileIdentity identity) {
  const ProfileProvenance& measured = profile.provenance;
  if (MachineKind(measured.machine) == MachineKind(identity.machine)) {
    identity.machine = measured.machine;
  }
  if (!identity.is_on_several_hosts()) {
    identity.ranks_per_host = profile.ranks_per_host;
  }
  if (identity.num_ranks < measured.num_ranks) {
    identity.num_ranks = measured.num_ranks;
  }
  return ProfileWarnings(profile, identity);
}

absl::StatusOr<HardwareProfile> FindProfile(const JobSpec& job,
                                            const DeviceFacts& devices) {
  if (job.profile != "auto") {
    absl::StatusOr<HardwareProfile> named = LoadProfile(job.profile);
    // NotFound would read as a wish to measure; a missing named file is the
    // user's mistake.
    if (absl::IsNotFound(named.status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "profile: ", named.status().message(),
          "; name an existing file, or 'auto' to measure this machine"));
    }
    RETURN_IF_ERROR(named.status());
    if (!job.resources.uses_cuda()) return named;
    return WithHostsOf(devices.ranks_per_host, *std::move(named));
  }
  const ProfileIdentity identity = IdentityOf(job, devices);
  std::string path;
  ASSIGN_OR_RETURN(path, DefaultProfilePath(identity));
  absl::StatusOr<HardwareProfile> cached = LoadProfile(path);
  if (!cached.ok() || !ProfileWarnings(*cached, identity).empty()) {
    // A cache that does not fit or does not read is simply measured anew.
    return absl::NotFoundError(absl::StrCat("no fitting profile at ", path));
  }
  return cached;
}

absl::Status CheckStateFits(const JobSpec& job, const DeviceFacts& devices) {
  // Bytes a parameter: its fp32 value or master copy, and two moments.
  constexpr double kStateBytes = 12;
  const double parameters =
      static_cast<double>(CountParameters(job.model).total);
  const auto device_bytes = static_cast<double>(
      job.resources.memory_per_device_bytes.value_or(devices.memory_bytes));
  const double needed = kStateBytes * parameters;
  if (needed <= device_bytes * devices.num_devices) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parameters and optimizer state of ", FormatCount(parameters),
      " parameters take ", FormatBytes(static_cast<int64_t>(needed)),
      ", more "
      "than ",
      devices.num_devices,
      devices.num_devices == 1 ? " device"
                               : " "
                                 "devices",
      " of ", FormatBytes(static_cast<int64_t>(device_bytes)),
      " can hold; use at least ",
      static_cast<int64_t>(std::ceil(needed / device_bytes)),
      " devices or a smaller model"));
}

absl::StatusOr<std::string> KeepProfile(const JobSpec& job,
                                        const DeviceFacts& devices,
                                        const std::string& output,
                                        const HardwareProfile& profile) {
  std::string path = output;
  if (path.empty()) {
    ASSIGN_OR_RETURN(path, DefaultProfilePath(IdentityOf(job, devices)));
  }
  RETURN_IF_ERROR(SaveProfile(profile, path));
  return path;
}

std::string HowToUseProfile(const JobSpec& job, const std::string& job_file,
                            const std::string& path, bool is_cached) {
  if (is_cached && job.profile == "auto") {
    return absl::StrCat("plan, run and agent use it for ", job_file,
                        " on as many devices of this machine");
  }
  return absl::StrCat(
      "to use it: millrace plan ", job_file, " --profile ", path,
      ", or profile: ", is_cached ? "auto" : path, " in the job",
      job.profile == "auto"
          ? ""
          : absl::StrCat(", which names ", job.profile, " so far"));
}

absl::StatusOr<Plan> PlanForDevices(const JobSpec& job,
                                    const DeviceFacts& devices,
                                    const HardwareProfile& profile,
                                    const std::stop_token& stop) {
  std::optional<CostModel> cost;
  ASSIGN_OR_RETURN(cost, CostModel::Create(profile));
  // A device's memory is what there is now, not what the profile's machine had.
  const int64_t memory_bytes =
      job.resources.memory_per_device_bytes.value_or(devices.memory_bytes);
  const SearchInput input = {.job = job,
                             .num_devices = devices.num_devices,
                             .device_memory_bytes = memory_bytes,
                             .is_urgent = devices.may_leave_idle,
                             .stop = stop};
  Plan plan;
  if (devices.may_leave_idle) {
    // The profile is of the whole job, of which fewer devices are a part.
    return Replan(input, /*num_lost_devices=*/0, *cost);
  }
  ASSIGN_OR_RETURN(plan, FindPlan(input, *cost));
  const ProfileIdentity identity = IdentityOf(job, devices);
  for (std::string& warning : job.resources.uses_cuda()
                                  ? GpuProfileWarnings(profile, identity)
                                  : ProfileWarnings(profile, identity)) {
    plan.warnings.push_back(std::move(warning));
  }
  return plan;
}

absl::Status WritePlan(const Plan& plan, const JobSpec& job,
                       const HardwareProfile& profile,
                       const std::string& run_directory) {
  RETURN_IF_ERROR(WriteFileAtomically(run_directory + "/profile.yaml",
                                      ProfileToYaml(profile)));
  RETURN_IF_ERROR(WriteFileAtomically(
      run_directory + "/plan.json",
      PlanToJson(plan, {.num_learnt_runs = profile.learnt_runs.size()})));
  RETURN_IF_ERROR(WritePrograms(job, plan, run_directory));
  RETURN_IF_ERROR(MakeDirectories(run_directory + "/timelines"));
  return WriteFileAtomically(run_directory + "/timelines/predicted.json",
                             TimelineToJson(plan.timeline));
}

void MadePlans::Add(const DeviceFacts& devices,
                    std::shared_ptr<const Plan> plan) {
  constexpr size_t kMostPlans = 4;
  if (Find(devices) == plan) return;
  if (plans_.size() == kMostPlans) plans_.erase(plans_.begin() + 1);
  plans_.emplace_back(devices, std::move(plan));
}

std::shared_ptr<const Plan> MadePlans::Find(const DeviceFacts& devices) const {
  for (auto made = plans_.rbegin(); made != plans_.rend(); ++made) {
    const auto& [known, plan] = *made;
    if (AreAlike(known, devices) &&
        plan->prediction.memory_bytes() <= devices.memory_bytes) {
      return plan;
    }
  }
  return nullptr;
}

std::vector<double> ComputeSecondsOf(const Plan& plan) {
  if (plan.programs == nullptr) return {};
  const Layout& layout = plan.layout;
  std::vector<double> seconds(NumPrograms(layout), 0);
  for (const RankTimeline& rank : plan.timeline.ranks) {
    const auto stage = static_cast<size_t>(rank.stage);
    if (seconds[stage] > 0) continue;
    const Program& program = (*plan.programs)[stage];
    seconds[stage] = BreakDown(program, rank).compute_s;
    if (!layout.is_uneven()) continue;
    // The other replicas leave out the last micro-batch.
    double& shorter_s = seconds[stage + plan.programs->size()];
    shorter_s = seconds[stage];
    for (const TimelineEvent& event : rank.events) {
      const Instruction& instruction = program.instructions[event.instruction];
      if (instruction.lane == Lane::kCompute &&
          instruction.microbatch_idx == layout.num_microbatches) {
        shorter_s -= event.end_s - event.start_s;
      }
    }
  }
  return seconds;
}

std::string PlanRecordToJson(const PlanRecord& record) {
  const Layout& layout = record.layout;
  Json listed = Json::array();
  for (const ListedStage& stage : layout.listed_stages) {
    listed.push_back({stage.forward_us, stage.input_gradient_us,
                      stage.weight_gradient_us, stage.activation_bytes,
                      stage.weight_gradient_bytes, stage.memory_bytes});
  }
  const CopyEngineUse& use = layout.copy_engines;
  Json members = Json::array();
  for (WorkerIdx worker : record.members) members.push_back(ToInt(worker));
  Json left_out = Json::array();
  for (WorkerIdx worker : record.left_out) left_out.push_back(ToInt(worker));
  Json snapshots = Json::array();  // Empty: none.
  if (record.snapshots.has_value()) {
    snapshots = {record.snapshots->staged_bytes, record.snapshots->stall_s};
  }
  Json sizes;
  for (const LayoutSize& row : LayoutSizes()) {
    sizes[row.name] = layout.*row.size;
  }
  return JsonText(Json{
      {"sizes", sizes},
      {"num_microbatches", layout.num_microbatches},
      {"extra_microbatches", layout.extra_microbatches},
      {"zero", layout.zero},
      {"precision", PrecisionName(layout.precision)},
      {"products", PrecisionName(layout)},
      {"gradient_reduction", GradientReductionName(layout.gradient_reduction)},
      {"moments", Describe(layout.moments).name},
      {"trains_preferences", layout.trains_preferences()},
      {"document_length", layout.document_length},
      {"recompute", RecomputeKey(layout)},
      {"schedule", ScheduleName(layout.schedule)},
      {"listed_stages", listed},
      {"listed_transfer_us", layout.listed_transfer_us},
      {"copy_engines",
       {use.transfers, use.tensor_gathers, use.tensor_reductions,
        use.data_gathers}},
      {"num_devices", record.num_devices},
      {"step_time_s", record.step_time_s},
      {"memory_bytes", record.memory_bytes},
      {"program_hashes", record.program_hashes},
      {"compute_s", record.compute_s},
      {"snapshots", snapshots},
      {"keeps_standbys", record.keeps_standbys},
      {"ranks_per_host", record.ranks_per_host},
      {"resume_path", record.resume_path},
      {"members", members},
      {"devices_by_agent", record.devices_by_agent},
      {"left_out", left_out}});
}

absl::StatusOr<PlanRecord> PlanRecordFromJson(const std::string& json) {
  const absl::StatusOr<Json> read = ParseJson(json);
  if (!read.ok()) {
    return absl::DataLossError(
        absl::StrCat("the plan in the log: ", read.status().message()));
  }
  const Json& parsed = *read;
  PlanRecord record;
  try {
    RETURN_IF_ERROR(CheckName(parsed, "precision", PrecisionRecipes()));
    RETURN_IF_ERROR(CheckName(parsed, "products", PrecisionRecipes()));
    RETURN_IF_ERROR(
        CheckName(parsed, "gradient_reduction", GradientReductions()));
    if (parsed.contains("moments")) {
      RETURN_IF_ERROR(CheckName(parsed, "moments", MomentFormats()));
    }
    RETURN_IF_ERROR(CheckName(parsed, "schedule", Schedules()));
    record.layout = {
        .num_microbatches = parsed.at("num_microbatches"),
        .extra_microbatches = parsed.value("extra_microbatches", 0),
        .zero = parsed.at("zero"),
        .precision = PrecisionOf(parsed.at("precision").get<std::string>()),
        .gradient_reduction = GradientReductionOf(
            parsed.at("gradient_reduction").get<std::string>()),
        .moments = MomentFormatOf(parsed.value("moments", "fp32")),
        .objective = parsed.value("trains_preferences", false)
                         ? Objective::kPreference
                         : Objective::kCrossEntropy,
        .document_length = parsed.value("document_length", 0),
        .gemm_format = GemmFormatOf(parsed.at("products").get<std::string>()),
        .schedule = ScheduleOf(parsed.at("schedule").get<std::string>()),
        .listed_transfer_us = parsed.at("listed_transfer_us")};
    for (const LayoutSize& row : LayoutSizes()) {
      record.layout.*row.size = parsed.at("sizes").at(row.name);
    }
    const auto recompute = parsed.at("recompute").get<std::string>();
    if (const absl::Status status = CheckRecomputeKey(recompute);
        !status.ok()) {
      return absl::DataLossError(
          absl::StrCat("the plan in the log: ", status.message()));
    }
    SetRecompute(recompute, &record.layout);
    const Json& use = parsed.at("copy_engines");
    record.layout.copy_engines = {.transfers = use.at(0),
                                  .tensor_gathers = use.at(1),
                                  .tensor_reductions = use.at(2),
                                  .data_gathers = use.at(3)};
    for (const Json& stage : parsed.at("listed_stages")) {
      record.layout.listed_stages.push_back(
          {.forward_us = stage.at(0),
           .input_gradient_us = stage.at(1),
           .weight_gradient_us = stage.at(2),
           .activation_bytes = stage.at(3),
           .weight_gradient_bytes = stage.at(4),
           .memory_bytes = stage.at(5)});
    }
    record.num_devices = parsed.value("num_devices", 0);
    record.step_time_s = parsed.at("step_time_s");
    record.memory_bytes = parsed.at("memory_bytes");
    record.program_hashes =
        parsed.at("program_hashes").get<std::vector<uint64_t>>();
    record.compute_s = parsed.at("compute_s").get<std::vector<double>>();
    const Json snapshots = parsed.value("snapshots", Json::array());
    if (!snapshots.empty()) {
      record.snapshots = {.staged_bytes = snapshots.at(0),
                          .stall_s = snapshots.at(1)};
    }
    record.keeps_standbys = parsed.value("keeps_standbys", false);
    record.ranks_per_host = parsed.at("ranks_per_host");
    record.resume_path = parsed.at("resume_path");
    for (const Json& worker : parsed.at("members")) {
      record.members.push_back(WorkerIdx{worker.get<int32_t>()});
    }
    record.devices_by_agent =
        parsed.at("devices_by_agent").get<std::vector<int32_t>>();
    for (const Json& worker : parsed.value("left_out", Json::array())) {
      record.left_out.push_back(WorkerIdx{worker.get<int32_t>()});
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(
        absl::StrCat("the plan in the log: ", error.what()));
  }
  return record;
}

}  // namespace millrace
