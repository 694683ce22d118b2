#include "tests/coordinator/synthetic_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/files.h"
#include "planner/explain/explain_json.h"
#include "planner/job/job_file.h"
#include "planner/lower/lower.h"
#include "planner/profile/profile_file.h"
#include "planner/program/program.h"
#include "planner/search/plan.h"
#include "planner/simulate/timeline.h"

namespace millrace {
namespace {

constexpr int kNumSteps = 60;
constexpr int kStepOfDeath = 35;
constexpr int kCheckpointStep = 30;

JobSpec SyntheticJob() {
  JobSpec job;
  job.name = "synthetic";
  job.model = {.vocab_size = 512,
               .hidden = 64,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 2,
               .head_dim = 16,
               .ffn_hidden = 96,
               .sequence_length = 32};
  job.data.text = {"/usr/include/c++/**"};
  job.training.num_steps = kNumSteps;
  job.training.global_batch = 8;
  job.training.optimizer.learning_rate = 1e-3;
  return job;
}

Layout SyntheticLayout() {
  return {.pipeline = 2,
          .data = 1,
          .tensor = 2,
          .micro_batch = 2,
          .num_microbatches = 4,
          .zero = 0};
}

// Runs the Program's lanes by its waits, each instruction taking a time that
// only depends on its kind and `slowdown`.
RankTimeline InventTimeline(const Program& program, int rank, double start_s,
                            double slowdown) {
  RankTimeline timeline{Rank{rank}, program.stage, {}};
  std::array<double, kNumLanes> lane_free_s;
  lane_free_s.fill(start_s);
  std::vector<double> end_s(program.instructions.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    double& free_s = lane_free_s[static_cast<size_t>(instruction.lane)];
    double begin_s = free_s;
    for (InstructionId wait : instruction.waits) {
      begin_s = std::max(begin_s, end_s[wait]);
    }
    const double seconds =
        1e-4 * (1 + static_cast<int>(instruction.kind) % 7) * slowdown;
    free_s = end_s[i] = begin_s + seconds;
    timeline.events.push_back(
        {static_cast<InstructionId>(i), begin_s, end_s[i]});
  }
  std::stable_sort(timeline.events.begin(), timeline.events.end(),
                   [](const TimelineEvent& a, const TimelineEvent& b) {
                     return a.start_s < b.start_s;
                   });
  return timeline;
}

double EndOf(const Timeline& timeline) {
  double end_s = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    for (const TimelineEvent& event : rank.events) {
      end_s = std::max(end_s, event.end_s);
    }
  }
  return end_s;
}

void Write(const std::string& path, const std::string& content) {
  const absl::Status status = WriteFileAtomically(path, content);
  CHECK(status.ok()) << status;
}

void WriteProgramsAndTimelines(const std::string& directory) {
  Timeline predicted, measured;
  for (int stage = 0; stage < 2; ++stage) {
    const absl::StatusOr<Program> program =
        BuildTrainingProgram(SyntheticJob().model, SyntheticLayout(), stage);
    CHECK(program.ok()) << program.status();
    Write(absl::StrCat(directory, "/programs/stage-", stage, ".txt"),
          ProgramToString(*program));
    const double start_s = 2e-3 * stage;
    predicted.ranks.push_back(InventTimeline(*program, 2 * stage, start_s, 1));
    for (int tensor = 0; tensor < 2; ++tensor) {
      measured.ranks.push_back(InventTimeline(*program, 2 * stage + tensor,
                                              start_s, 1.08 + 0.04 * tensor));
    }
  }
  predicted.step_time_s = EndOf(predicted);
  measured.step_time_s = EndOf(measured);
  Write(absl::StrCat(directory, "/timelines/predicted.json"),
        TimelineToJson(predicted));
  Write(absl::StrCat(directory, "/timelines/measured.json"),
        TimelineToJson(measured));
}

std::string MetricsLine(int step, int generation) {
  const double step_time_s = 0.05 + 0.002 * std::sin(step);
  std::string line = absl::StrFormat(
      R"({"step":%d,"loss":%.4f,"grad_norm":%.3f,"learning_rate":0.001,)"
      R"("tokens":256,"step_time_s":%.5f,"tokens_per_s":%.1f,)"
      R"("predicted_step_time_s":0.046,"generation":%d)",
      step, 3 + 3.2 * std::exp(-step / 20.0), 1 + std::exp(-step / 9.0),
      step_time_s, 256 / step_time_s, generation);
  if (step % 20 == 0) {
    absl::StrAppendFormat(&line, R"(,"validation_loss":%.4f)",
                          3.1 + 3.2 * std::exp(-step / 20.0));
  }
  if (step % 25 == 0) {
    absl::StrAppendFormat(
        &line, R"(,"evaluation":{"headers":%.4f,"prose":%.4f})",
        3.4 + 3.2 * std::exp(-step / 20.0), 3.2 + 3.2 * std::exp(-step / 20.0));
  }
  return line + "}\n";
}

void WriteMetrics(const std::string& directory) {
  std::string metrics;
  for (int step = 1; step <= kStepOfDeath; ++step) {
    metrics += MetricsLine(step, 1);
  }
  for (int step = kCheckpointStep + 1; step <= kNumSteps; ++step) {
    metrics += MetricsLine(step, 2);
  }
  Write(directory + "/metrics.jsonl", metrics);
}

void WriteTimeAndEvents(const std::string& directory) {
  std::string ranks;
  for (int rank = 0; rank < 4; ++rank) {
    absl::StrAppendFormat(
        &ranks,
        R"(%s{"rank":%d,"stage":%d,"compute_s":%.2f,"exposed_tensor_comm_s":0.42,)"
        R"("exposed_data_comm_s":0.2,"bubble_s":0.5,"data_s":0.02,"other_s":0.1,)"
        R"("checkpoint_s":0.12,"validation_s":0.2,"recovery_s":0.4,)"
        R"("startup_s":0.3})",
        rank == 0 ? "" : ",", rank, rank / 2, 2 + 0.05 * rank);
  }
  Write(directory + "/time.json",
        absl::StrCat(R"({"wall_s":4.4,"ranks":[)", ranks, "]}"));
  // The detail tries to break out of the page's script.
  Write(directory + "/events.jsonl",
        R"({"time_s":0.0,"event":"started","detail":"</script><b>&amp;"}
{"time_s":0.3,"event":"generation_started","generation":1}
{"time_s":2.1,"event":"checkpoint_committed","generation":1,"step":30}
{"time_s":2.4,"event":"worker_died","generation":1,"step":35,"rank":2,"detail":"signal 9"}
{"time_s":2.8,"event":"generation_started","generation":2}
{"time_s":4.4,"event":"finished","step":60}
)");
  Write(directory + "/result.json",
        R"({"status":"finished","reason":"","steps":60,"final_loss":3.1593,)"
        R"("parameter_hash":"0123456789abcdef"})");
}

Plan InventPlan() {
  Plan plan;
  plan.layout = SyntheticLayout();
  plan.prediction = {.step_time_s = 0.046,
                     .tokens_per_s = 5565,
                     .persistent_bytes = 2000000,
                     .step_bytes = 500000,
                     .bubble_fraction = 0.2,
                     .exposed_communication_fraction = 0.1};
  plan.layouts_considered = 17;
  plan.search_seconds = 0.2;
  Alternative slower;
  slower.layout = {.data = 4, .micro_batch = 2, .zero = 1};
  slower.prediction = plan.prediction;
  slower.prediction.step_time_s = 0.05;
  slower.reason = "1.09x slower: exposed data communication 22 %";
  Alternative too_large;
  too_large.layout = {.tensor = 4, .micro_batch = 8};
  too_large.fits = false;
  too_large.reason = "needs 9.0 GiB, 1.0 GiB more than the device has";
  plan.alternatives = {slower, too_large};
  return plan;
}

HardwareProfile SyntheticProfile() {
  HardwareProfile profile;
  profile.name = "invented";
  profile.provenance = {.machine = "none",
                        .description = "a machine that does not exist",
                        .version = "0.1.0",
                        .date = "2026-01-01T00:00:00Z",
                        .num_ranks = 4,
                        .threads_per_device = 1};
  profile.ranks_per_host = 4;
  profile.device_memory_bytes = 8000000000;
  profile.launch_overhead_s = 1e-6;
  profile.compute_contention = {1, 1, 1.5, 2};
  return profile;
}

}  // namespace

void WriteSyntheticRun(const std::string& directory) {
  for (const char* folder : {"/programs", "/timelines"}) {
    const absl::Status status = MakeDirectories(directory + folder);
    CHECK(status.ok()) << status;
  }
  Write(directory + "/job.yaml", JobToYaml(SyntheticJob()));
  Write(directory + "/profile.yaml", ProfileToYaml(SyntheticProfile()));
  Write(directory + "/plan.json", PlanToJson(InventPlan()));
  WriteProgramsAndTimelines(directory);
  WriteMetrics(directory);
  WriteTimeAndEvents(directory);
}

SyntheticPlan MakeSyntheticPlan() {
  SyntheticPlan made{.job = SyntheticJob(),
                     .profile = SyntheticProfile(),
                     .plan = InventPlan()};
  for (int32_t stage = 0; stage < SyntheticLayout().pipeline; ++stage) {
    const absl::StatusOr<Program> program =
        BuildTrainingProgram(SyntheticJob().model, SyntheticLayout(), stage);
    CHECK(program.ok()) << program.status();
    made.timeline.ranks.push_back(
        InventTimeline(*program, stage * 2, 0.001 * stage, 1));
    made.program_texts.push_back(ProgramToString(*program));
  }
  made.timeline.step_time_s = 0.046;
  return made;
}

}  // namespace millrace
