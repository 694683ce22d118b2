// Times training steps of a job on GPUs, on random tokens:
//
//   cuda_step_bench JOB.yaml... [pipeline=1 data=1 tensor=1 micro_batch=1
//   zero=0
//        recompute=none zero_bubble=0|1 list_gib=0 | planned=0] [steps=20
//        warmup=4 measured=3 graphs=1 deterministic=0|1 trace=FILE json=FILE
//        copy_engines=SUM notes=1 timed_graphs=0 timelines=FILE]
//       [rank=0 device=RANK store=FOLDER printing=0]
//
// One process a rank, each on its GPU; more than one meet in `store`, a folder
// that they share and that is empty before. Several jobs run one after the
// other, in the order given. Rank `printing` prints, after the warmup: tokens a
// second and utilisation over `steps` steps, memory, and from one of the
// `measured` steps after them where its time went, by op. `trace` is written
// from that step for Perfetto; `json` gets a line a job, as soon as it is done.
//
// `planned`: the layout that the planner chooses for so many devices, within
// the job's section `layout`, by the job's profile; what it predicted is
// printed too.
//
// `list_gib`: the schedule list, by the job's profile, with arenas of so many
// GiB a GPU.
//
// `copy_engines`: what they do in NCCL's place, the sum of 1 transfers, 2
// tensor gathers, 4 tensor reductions, 8 data gathers; nothing, or what the
// plan says, if not given. Set CUDA_DEVICE_MAX_CONNECTIONS=32 with them, as
// agents do. `notes`: whether ranks note how far they are, by which steps that
// hang are named.
//
// `timed_graphs`: measured steps are graphs too. `timelines` gets a line a job
// from every rank: the job, the layout, and of each measured step its time and
// [instruction, start, end], in nanoseconds.
//
// Utilisation is of 989 TFLOP/s, by both conventions: full counts attention as
// if every token saw every other one, causal half of that.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"
#include "planner/program/op_work.h"
#include "planner/search/listed_variant.h"
#include "planner/search/search.h"
#include "planner/simulate/perfetto_trace.h"
#include "planner/simulate/timeline.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/train/trainer.h"
#include "worker/data/random_batches.h"
#include "worker/train/gathered_parameters.h"

namespace millrace {
namespace {

constexpr double kPeakFlops = 989e12;  // Dense bf16 of an H100 or H200 SXM.

struct Settings {
  JobSpec job;
  Layout layout;
  int32_t steps = 20;
  int32_t warmup = 4;
  int32_t measured = 3;
  int32_t graphs = 1;
  int32_t copy_engines = -1;
  int32_t notes = 1;
  int32_t timed_graphs = 0;
  int32_t zero_bubble = 0;
  int32_t list_gib = 0;
  int32_t deterministic = -1;  // As the job says.
  int32_t rank = 0;
  int32_t device = -1;  // As the rank.
  int32_t printing = 0;
  std::string store;
  std::string trace;
  std::string json;
  std::string timelines;
  std::string recompute = "none";
  int32_t planned = 0;
  std::optional<Prediction> prediction;  // The planned layout's.
  int64_t staged_bytes = 0;              // The same plan's.
};

absl::StatusOr<CostModel> LoadCostModel(const JobSpec& job) {
  ASSIGN_OR_RETURN(HardwareProfile profile, LoadProfile(job.profile));
  return CostModel::Create(std::move(profile));
}

absl::Status TakePlan(Settings* s) {
  ASSIGN_OR_RETURN(const CostModel cost, LoadCostModel(s->job));
  ASSIGN_OR_RETURN(Plan plan,
                   FindPlan({.job = s->job, .num_devices = s->planned}, cost));
  s->layout = std::move(plan.layout);
  s->prediction = std::move(plan.prediction);
  s->staged_bytes = s->prediction->staged_bytes;
  return absl::OkStatus();
}

absl::Status ListSchedule(Settings* s) {
  ASSIGN_OR_RETURN(const CostModel cost, LoadCostModel(s->job));
  ASSIGN_OR_RETURN(
      const std::optional<Layout> listed,
      ListScheduledVariant(s->job.model, s->layout, cost,
                           int64_t{s->list_gib} * (int64_t{1} << 30)));
  if (!listed.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("list_gib=", s->list_gib,
                     ": the layout cannot be list-scheduled in that"));
  }
  s->layout = *listed;
  return absl::OkStatus();
}

// Returns all but the job and its layout. An argument that is no setting is a
// job's path.
absl::StatusOr<Settings> ParseArguments(int argc, char** argv,
                                        std::vector<std::string>* jobs) {
  Settings s;
  Layout& layout = s.layout;
  const std::map<std::string, int32_t*> numbers = {
      {"pipeline", &layout.pipeline},
      {"data", &layout.data},
      {"tensor", &layout.tensor},
      {"micro_batch", &layout.micro_batch},
      {"zero", &layout.zero},
      {"zero_bubble", &s.zero_bubble},
      {"list_gib", &s.list_gib},
      {"planned", &s.planned},
      {"steps", &s.steps},
      {"warmup", &s.warmup},
      {"measured", &s.measured},
      {"graphs", &s.graphs},
      {"copy_engines", &s.copy_engines},
      {"notes", &s.notes},
      {"timed_graphs", &s.timed_graphs},
      {"printing", &s.printing},
      {"deterministic", &s.deterministic},
      {"rank", &s.rank},
      {"device", &s.device}};
  const std::map<std::string, std::string*> texts = {
      {"store", &s.store},
      {"trace", &s.trace},
      {"json", &s.json},
      {"timelines", &s.timelines},
      {"recompute", &s.recompute}};
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> argument =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto number = numbers.find(argument.first);
    const auto text = texts.find(argument.first);
    if (!absl::StrContains(argv[i], '=')) {
      jobs->push_back(argv[i]);
    } else if (text != texts.end()) {
      *text->second = argument.second;
    } else if (number == numbers.end() ||
               !absl::SimpleAtoi(argument.second, number->second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(argv[i], ": expected NAME=VALUE of a known name"));
    }
  }
  if (jobs->empty()) {
    return absl::InvalidArgumentError(
        "usage: cuda_step_bench JOB.yaml... [NAME=VALUE]..., see the top of "
        "its source");
  }
  RETURN_IF_ERROR(CheckRecomputeKey(s.recompute));
  if (s.device < 0) s.device = s.rank;
  if (s.steps < 1 || s.warmup < 0 || s.measured < 0) {
    return absl::InvalidArgumentError("steps must be one at least");
  }
  return s;
}

CopyEngineUse CopyEngines(int32_t sum) {
  return {.transfers = (sum & 1) != 0,
          .tensor_gathers = (sum & 2) != 0,
          .tensor_reductions = (sum & 4) != 0,
          .data_gathers = (sum & 8) != 0};
}

absl::Status TakeJob(const std::string& path, Settings* s) {
  ASSIGN_OR_RETURN(s->job, LoadJob(path));
  Layout& layout = s->layout;
  if (s->deterministic >= 0) {
    s->job.training.deterministic = s->deterministic != 0;
  }
  if (s->planned > 0) {
    RETURN_IF_ERROR(TakePlan(s));
  } else {
    layout.precision = s->job.precision();
    layout.gemm_format = GemmFormatOf(s->job.training.precision);
    layout.moments = MomentFormatOf(s->job.training.optimizer.moments);
    layout.gradient_reduction =
        s->job.training.reduction().value_or(GradientReduction::kFloat32);
    SetRecompute(s->recompute, &layout);
    if (s->zero_bubble != 0) layout.schedule = Schedule::kZeroBubble;
    layout.num_microbatches =
        static_cast<int32_t>(s->job.training.global_batch) /
        (layout.data * layout.micro_batch);
    RETURN_IF_ERROR(
        ValidateLayout(s->job.model, layout, s->job.training.global_batch));
    if (s->list_gib > 0) RETURN_IF_ERROR(ListSchedule(s));
  }
  if (s->copy_engines >= 0) layout.copy_engines = CopyEngines(s->copy_engines);
  if (layout.num_ranks() > 1 && s->store.empty()) {
    return absl::InvalidArgumentError(
        "more than one rank: name a shared, empty folder by store=");
  }
  return absl::OkStatus();
}

// The next steps, and the results of all that were under way.
absl::StatusOr<std::vector<StepResult>> RunSteps(Trainer& trainer,
                                                 int32_t num_steps,
                                                 bool measure) {
  std::vector<StepResult> results;
  for (int32_t i = 0; i < num_steps; ++i) {
    ASSIGN_OR_RETURN(auto result, trainer.RunStep({.measure = measure}));
    if (result.has_value()) results.push_back(*std::move(result));
  }
  ASSIGN_OR_RETURN(auto last, trainer.LastResult());
  if (last.has_value()) results.push_back(*std::move(last));
  return results;
}

double MedianStepTime(const std::vector<StepResult>& results) {
  std::vector<double> times;
  for (const StepResult& result : results) times.push_back(result.step_time_s);
  std::nth_element(times.begin(), times.begin() + times.size() / 2,
                   times.end());
  return times[times.size() / 2];
}

void PrintSpeed(const Settings& s, const std::vector<StepResult>& results,
                double wall_s) {
  const double tokens = static_cast<double>(s.job.training.global_batch *
                                            s.job.model.sequence_length);
  const double ranks = s.layout.num_ranks();
  const double step_s = MedianStepTime(results);
  const TokenFlops flops = CountTokenFlops(s.job.model);
  auto utilisation = [&](double attention) {
    return 100 * (flops.linear + attention) * tokens /
           (step_s * ranks * kPeakFlops);
  };
  std::printf(
      "step %s (median of %zu; by the host's clock %s)  %.0f tokens/s/GPU  MFU "
      "full %.1f %% causal %.1f %%\n",
      FormatSeconds(step_s).c_str(), results.size(),
      FormatSeconds(wall_s / static_cast<double>(results.size())).c_str(),
      tokens / step_s / ranks, utilisation(flops.attention_full),
      utilisation(flops.attention_causal));
  std::printf("loss %.6f -> %.6f, gradient norm %.4f\n", results.front().loss,
              results.back().loss, results.back().gradient_norm);
}

void PrintMemory(const Trainer& trainer) {
  const Program& program = trainer.program();
  std::printf(
      "memory: persistent %s + step %s planned and allocated, %s of the "
      "device at most\n",
      FormatBytes(program.persistent_arena_bytes).c_str(),
      FormatBytes(trainer.planned_bytes() - program.persistent_arena_bytes)
          .c_str(),
      FormatBytes(trainer.device_bytes()).c_str());
}

// The row of an op. Ops of a row have the kind in common, and the shape of a
// product.
std::string RowOf(const Instruction& instruction) {
  std::string row = OpKindName(instruction.kind);
  if (std::holds_alternative<GemmAttributes>(instruction.attributes) ||
      std::holds_alternative<CollectiveAttributes>(instruction.attributes)) {
    absl::StrAppend(&row, " ", AttributesToString(instruction.attributes));
  }
  return row;
}

void PrintTimeByOp(const Program& program, const RankTimeline& timeline,
                   double step_s) {
  struct Sum {
    std::string row;
    int64_t count = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };
  std::map<std::string, Sum> sums;
  for (const TimelineEvent& event : timeline.events) {
    const Instruction& in = program.instructions[event.instruction];
    Sum& sum = sums[RowOf(in)];
    const OpWork work = WorkOf(program.layout, in.kind, in.attributes);
    sum.row = RowOf(in);
    ++sum.count;
    sum.seconds += event.end_s - event.start_s;
    sum.flops += work.flops;
    sum.bytes += work.bytes;
  }
  std::vector<Sum> rows;
  for (auto& [name, sum] : sums) rows.push_back(sum);
  std::sort(rows.begin(), rows.end(),
            [](const Sum& a, const Sum& b) { return a.seconds > b.seconds; });
  std::printf("%9s %6s %5s %8s %8s  op\n", "ms", "%", "times", "TFLOP/s",
              "GB/s");
  for (const Sum& sum : rows) {
    std::printf("%9.3f %6.2f %5lld %8.1f %8.0f  %s\n", 1e3 * sum.seconds,
                100 * sum.seconds / step_s, static_cast<long long>(sum.count),
                1e-12 * sum.flops / sum.seconds, 1e-9 * sum.bytes / sum.seconds,
                sum.row.c_str());
  }
}

void PrintBreakdown(const Program& program, const StepResult& measured,
                    double step_s) {
  const TimeBreakdown parts =
      BreakDown(program, *measured.timeline, measured.step_time_s);
  auto share = [&](double seconds) {
    return 100 * seconds / measured.step_time_s;
  };
  std::printf(
      "measured step %s (%+.2f %% of an unmeasured one): compute %.2f %%, "
      "exposed tensor communication %.2f %%, data communication %.2f %%, "
      "bubble "
      "%.2f %%, waiting for data %.2f %%, other %.2f %%\n",
      FormatSeconds(measured.step_time_s).c_str(),
      100 * (measured.step_time_s / step_s - 1), share(parts.compute_s),
      share(parts.exposed_tensor_comm_s), share(parts.exposed_data_comm_s),
      share(parts.bubble_s), share(parts.data_s), share(parts.other_s));
}

absl::Status WriteTrace(const Settings& s, const Program& program,
                        const StepResult& measured) {
  std::vector<const Program*> programs(s.layout.pipeline, &program);
  std::ofstream file(s.trace);
  file << TimelineToTrace(programs, {.step_time_s = measured.step_time_s,
                                     .ranks = {*measured.timeline}});
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", s.trace));
}

// One line a job. `breakdown` is in seconds, of a measured step of the printing
// rank.
absl::Status WriteJson(const Settings& s, const std::string& path,
                       const Trainer& trainer, double made_s, double first_s,
                       const std::vector<StepResult>& results,
                       const std::vector<StepResult>& measured) {
  nlohmann::json line = {{"job", path},
                         {"layout", LayoutToString(s.layout)},
                         {"ranks", s.layout.num_ranks()},
                         {"made_s", made_s},
                         {"first_step_s", first_s},
                         {"step_time_s", MedianStepTime(results)},
                         {"memory_bytes", trainer.device_bytes()},
                         {"loss", results.back().loss}};
  if (s.prediction.has_value()) {
    line["predicted_step_time_s"] = s.prediction->step_time_s;
    line["predicted_memory_bytes"] = s.prediction->memory_bytes();
  }
  if (!measured.empty()) {
    const TimeBreakdown parts =
        BreakDown(trainer.program(), *measured.back().timeline,
                  measured.back().step_time_s);
    line["measured_step_time_s"] = measured.back().step_time_s;
    line["breakdown"] = {{"compute", parts.compute_s},
                         {"exposed_tensor_comm", parts.exposed_tensor_comm_s},
                         {"exposed_data_comm", parts.exposed_data_comm_s},
                         {"bubble", parts.bubble_s},
                         {"data", parts.data_s},
                         {"other", parts.other_s}};
  }
  std::ofstream file(s.json, std::ios::app);
  file << line.dump() << std::endl;
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", s.json));
}

absl::Status WriteTimelines(const Settings& s, const std::string& path,
                            const std::vector<StepResult>& results,
                            const std::vector<StepResult>& measured) {
  const auto nanoseconds = [](double seconds) {
    return static_cast<int64_t>(std::llround(1e9 * seconds));
  };
  nlohmann::json line = {{"job", path},
                         {"layout", LayoutToString(s.layout)},
                         {"rank", s.rank},
                         {"step_ns", nlohmann::json::array()},
                         {"measured", nlohmann::json::array()}};
  for (const StepResult& result : results) {
    line["step_ns"].push_back(nanoseconds(result.step_time_s));
  }
  for (const StepResult& result : measured) {
    nlohmann::json events = nlohmann::json::array();
    for (const TimelineEvent& event : result.timeline->events) {
      events.push_back({event.instruction, nanoseconds(event.start_s),
                        nanoseconds(event.end_s)});
    }
    line["measured"].push_back({{"step_ns", nanoseconds(result.step_time_s)},
                                {"events", std::move(events)}});
  }
  std::ofstream file(s.timelines, std::ios::app);
  file << line.dump() << std::endl;
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", s.timelines));
}

// Prints how long `hash` takes, the best of five.
absl::Status PrintHashTime(const std::string& what, int64_t num_bytes,
                           const std::function<absl::Status()>& hash) {
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const double began_s = MonotonicSeconds();
    RETURN_IF_ERROR(hash());
    best_s = std::min(best_s, MonotonicSeconds() - began_s);
  }
  std::printf("hash of %s, %s: %s, %.0f GB/s (an H200: 4,800)\n", what.c_str(),
              FormatBytes(num_bytes).c_str(), FormatSeconds(best_s).c_str(),
              1e-9 * static_cast<double>(num_bytes) / best_s);
  return absl::OkStatus();
}

// The times of the hashes by which replicas are compared.
absl::Status PrintHashTimes(const Settings& s, Trainer& trainer) {
  ASSIGN_OR_RETURN(const std::vector<StatePiece> state, trainer.StateInPlace());
  int64_t state_bytes = 0;
  for (const StatePiece& piece : state) {
    state_bytes += 4 * (piece.end - piece.begin);
  }
  RETURN_IF_ERROR(PrintHashTime("the fp32 state", state_bytes, [&] {
    RETURN_IF_ERROR(trainer.BeginReplicaHash().status());
    return trainer.FinishReplicaHash().status();
  }));
  const GatheredParts gathered =
      GatheredPartsOf(trainer.program(), CoordinatesOf(s.layout, Rank{s.rank}));
  int64_t gathered_bytes = 0;
  for (const auto* parts : {&gathered.before_step, &gathered.after_step}) {
    for (const GatheredPart& part : *parts) gathered_bytes += part.num_bytes;
  }
  if (gathered_bytes == 0) return absl::OkStatus();
  return PrintHashTime("gathered parameters", gathered_bytes, [&] {
    RETURN_IF_ERROR(trainer.HashOwnSlice().status());
    RETURN_IF_ERROR(trainer.HashGathered());
    return trainer.SliceHashes().status();
  });
}

// `store_folder` is this job's own.
absl::Status RunJob(const Settings& s, const std::string& path,
                    const std::string& store_folder) {
  RandomBatches batches({.vocab_size = s.job.model.vocab_size,
                         .sequence_length = s.job.model.sequence_length,
                         .seed = s.job.training.seed});
  DirectoryRendezvousStore store(store_folder);
  const double began_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer({.job = s.job,
                         .layout = s.layout,
                         .rank = Rank{s.rank},
                         .batches = &batches,
                         .staged_bytes = s.staged_bytes},
                        s.device, &store,
                        {.use_graphs = s.graphs != 0,
                         .note_progress = s.notes != 0,
                         .measure_in_graphs = s.timed_graphs != 0}));
  const double created_s = MonotonicSeconds();
  RETURN_IF_ERROR(RunSteps(*trainer, 1, false).status());
  const double first_s = MonotonicSeconds();
  RETURN_IF_ERROR(RunSteps(*trainer, s.warmup, false).status());
  const double start_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(const std::vector<StepResult> results,
                   RunSteps(*trainer, s.steps, false));
  const double wall_s = MonotonicSeconds() - start_s;
  ASSIGN_OR_RETURN(const std::vector<StepResult> measured,
                   RunSteps(*trainer, s.measured, true));
  if (!s.timelines.empty()) {
    RETURN_IF_ERROR(WriteTimelines(s, path, results, measured));
  }
  if (s.rank != s.printing) return absl::OkStatus();
  std::printf("%s, %s; %zu instructions; made in %s, first step %s\n",
              s.job.name.c_str(), LayoutToString(s.layout).c_str(),
              trainer->program().instructions.size(),
              FormatSeconds(created_s - began_s).c_str(),
              FormatSeconds(first_s - created_s).c_str());
  PrintSpeed(s, results, wall_s);
  PrintMemory(*trainer);
  RETURN_IF_ERROR(PrintHashTimes(s, *trainer));
  if (s.prediction.has_value()) {
    std::printf("predicted: step %s, memory %s\n",
                FormatSeconds(s.prediction->step_time_s).c_str(),
                FormatBytes(s.prediction->memory_bytes()).c_str());
  }
  if (!s.json.empty()) {
    RETURN_IF_ERROR(WriteJson(s, path, *trainer, created_s - began_s,
                              first_s - created_s, results, measured));
  }
  if (measured.empty()) return absl::OkStatus();
  PrintBreakdown(trainer->program(), measured.back(), MedianStepTime(results));
  PrintTimeByOp(trainer->program(), *measured.back().timeline,
                measured.back().step_time_s);
  if (s.trace.empty()) return absl::OkStatus();
  return WriteTrace(s, trainer->program(), measured.back());
}

absl::Status Run(int argc, char** argv) {
  std::vector<std::string> jobs;
  ASSIGN_OR_RETURN(const Settings common, ParseArguments(argc, argv, &jobs));
  for (size_t i = 0; i < jobs.size(); ++i) {
    Settings s = common;
    RETURN_IF_ERROR(TakeJob(jobs[i], &s));
    RETURN_IF_ERROR(RunJob(s, jobs[i], absl::StrCat(s.store, "/", i)));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const absl::Status status = millrace::Run(argc, argv);
  if (!status.ok()) {
    std::cerr << "cuda_step_bench: " << status.message() << std::endl;
  }
  return status.ok() ? 0 : 1;
}
