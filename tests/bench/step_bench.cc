// Times training steps of a job's model on random tokens, driven line by line
// so that scripts/bench_step can alternate it with its peer:
//
//   step_bench JOB.yaml [pipeline=1 data=1 tensor=1 micro_batch=1 zero=0
//   threads=1]
//
// `micro_batch` counts sequences, `threads` those of each rank. Ranks are
// threads of this process; more than one talk through Gloo over TCP, as worker
// processes do.
//
//   stdout: {"tokens_per_step": N, "layout": "...", "job": {...}}   once ready
//   stdin:  STEPS                                                   each round
//   stdout: {"seconds": S, "cpu_seconds": C, "loss": L,
//            "exposed_communication": E, "bubble": B}
//
// C is the processor time of all threads: what a busy machine distorts least.
// E and B are the shares of the last step in which ranks waited for collectives
// and for their pipeline neighbours, the mean over the ranks.

#include <cstdint>
#include <ctime>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "planner/job/job_file.h"
#include "planner/simulate/timeline.h"
#include "tests/oracle/describe_job.h"
#include "worker/communicate/gloo_communicator.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/communicate/memory_rendezvous_store.h"
#include "worker/cpu/trainer.h"
#include "worker/data/random_batches.h"

namespace millrace {
namespace {

struct Settings {
  JobSpec job;
  Layout layout;
  int32_t threads = 1;
};

absl::StatusOr<Settings> ParseArguments(int argc, char** argv) {
  if (argc < 2) {
    return absl::InvalidArgumentError(
        "usage: step_bench JOB.yaml [pipeline=1 data=1 tensor=1 micro_batch=1 "
        "zero=0 threads=1]");
  }
  Settings settings;
  ASSIGN_OR_RETURN(settings.job, LoadJob(argv[1]));
  Layout& layout = settings.layout;
  const std::map<std::string, int32_t*> fields = {
      {"pipeline", &layout.pipeline},       {"data", &layout.data},
      {"tensor", &layout.tensor},           {"zero", &layout.zero},
      {"micro_batch", &layout.micro_batch}, {"threads", &settings.threads}};
  for (int i = 2; i < argc; ++i) {
    const std::pair<std::string, std::string> argument =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto field = fields.find(argument.first);
    if (field == fields.end() ||
        !absl::SimpleAtoi(argument.second, field->second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(argv[i], ": expected NAME=NUMBER"));
    }
  }
  layout.num_microbatches =
      static_cast<int32_t>(settings.job.training.global_batch) /
      (layout.data * layout.micro_batch);
  RETURN_IF_ERROR(ValidateLayout(settings.job.model, layout,
                                 settings.job.training.global_batch));
  return settings;
}

// A whole job in one process.
class Job {
 public:
  explicit Job(Settings settings)
      : settings_(std::move(settings)),
        batches_({.vocab_size = settings_.job.model.vocab_size,
                  .sequence_length = settings_.job.model.sequence_length,
                  .seed = settings_.job.training.seed}) {}

  absl::Status Start() {
    ranks_.resize(static_cast<size_t>(settings_.layout.num_ranks()));
    return OnEveryRank([this](size_t rank) { return StartRank(rank); });
  }

  absl::StatusOr<nlohmann::json> RunSteps(int64_t num_steps) {
    const double start_s = MonotonicSeconds();
    const std::clock_t start_clock = std::clock();
    RETURN_IF_ERROR(OnEveryRank([&](size_t rank) -> absl::Status {
      for (int64_t i = 0; i < num_steps; ++i) {
        ASSIGN_OR_RETURN(ranks_[rank].last, ranks_[rank].trainer->RunStep({}));
      }
      return absl::OkStatus();
    }));
    const double seconds = MonotonicSeconds() - start_s;
    const double cpu_seconds =
        static_cast<double>(std::clock() - start_clock) / CLOCKS_PER_SEC;
    double exposed = 0, bubble = 0;  // Shares of the mean rank's step.
    for (const RankState& rank : ranks_) {
      const double step_s = rank.last->step_time_s;
      const TimeBreakdown parts =
          BreakDown(rank.trainer->program(), *rank.last->timeline, step_s);
      const double share = 1 / step_s / static_cast<double>(ranks_.size());
      exposed +=
          (parts.exposed_tensor_comm_s + parts.exposed_data_comm_s) * share;
      bubble += parts.bubble_s * share;
    }
    return nlohmann::json{{"seconds", seconds},
                          {"cpu_seconds", cpu_seconds},
                          {"loss", ranks_[0].last->loss},
                          {"exposed_communication", exposed},
                          {"bubble", bubble}};
  }

 private:
  struct RankState {
    std::unique_ptr<CommunicatorFactory> communicators;
    std::unique_ptr<Trainer> trainer;
    std::optional<StepResult> last;
  };

  absl::Status StartRank(size_t rank) {
    RankState& state = ranks_[rank];
    if (ranks_.size() == 1) {
      state.communicators = hub_.NewFactory();
    } else {
      ASSIGN_OR_RETURN(
          state.communicators,
          CreateGlooFactory({.store = &store_, .host_address = "127.0.0.1"}));
    }
    ASSIGN_OR_RETURN(
        state.trainer,
        CreateCpuTrainer({.job = settings_.job,
                          .layout = settings_.layout,
                          .rank = static_cast<Rank>(rank),
                          .num_threads = settings_.threads,
                          .communicators = state.communicators.get(),
                          .batches = &batches_}));
    return absl::OkStatus();
  }

  template <typename Call>
  absl::Status OnEveryRank(const Call& call) {
    std::vector<absl::Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = call(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
    return absl::OkStatus();
  }

  const Settings settings_;
  RandomBatches batches_;
  InProcessHub hub_;
  MemoryRendezvousStore store_;
  std::vector<RankState> ranks_;
};

absl::Status Run(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Settings settings, ParseArguments(argc, argv));
  Job job(settings);
  RETURN_IF_ERROR(job.Start());
  const nlohmann::json ready = {
      {"tokens_per_step",
       settings.job.training.global_batch * settings.job.model.sequence_length},
      {"layout", LayoutToString(settings.layout)},
      {"job", DescribeJob(settings.job)}};
  std::cout << ready.dump() << std::endl;
  for (int64_t num_steps = 0; std::cin >> num_steps;) {
    ASSIGN_OR_RETURN(const nlohmann::json result, job.RunSteps(num_steps));
    std::cout << result.dump() << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const absl::Status status = millrace::Run(argc, argv);
  if (!status.ok()) std::cerr << "step_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
