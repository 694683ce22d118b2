#include "coordinator/cli/score_command.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/objects/stored_files.h"
#include "fault/checkpoint.h"
#include "planner/frameworks/model_folder.h"
#include "worker/backend/cuda_backend.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/communicate/memory_rendezvous_store.h"
#include "worker/cpu/trainer.h"
#include "worker/data/choice_records.h"
#include "worker/data/evaluation_batches.h"
#include "worker/data/prepare.h"
#include "worker/measure/machine.h"
#include "worker/train/evaluate.h"
#include "worker/train/starting_weights.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int32_t kSequencesOfPass = 4;

struct ScoreOptions {
  std::string job_path;
  std::string checkpoint;  // Empty: the weights that training starts from.
  std::vector<std::string> choices;
  int32_t device = 0;
  bool json = false;
};

// Shares of right answers over all records of a file.
struct ChoiceScore {
  int64_t num_records = 0;
  double by_sum = 0;    // The choice of the largest log-probability.
  double by_token = 0;  // The same, divided by the choice's tokens.
  double by_chance = 0;
};

// The standard error of a share of right answers among `count` records.
double StandardError(double share, int64_t count) {
  return std::sqrt(share * (1 - share) / static_cast<double>(count));
}

// One rank on this machine, holding the job's model.
class Scorer {
 public:
  static absl::StatusOr<std::unique_ptr<Scorer>> Create(
      const ScoreOptions& options) {
    std::unique_ptr<Scorer> scorer(new Scorer);
    ASSIGN_OR_RETURN(scorer->job_, LoadJobWithFolder(options.job_path));
    for (const auto& [name, set] : scorer->job_.evaluation.sets) {
      if (!set.is_preference()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          options.job_path, ": evaluation.sets.", name,
          ": pairs have a loss only beside the references that `millrace run` "
          "computes; leave the set out, or read its loss in the run's "
          "metrics.jsonl"));
    }
    RETURN_IF_ERROR(scorer->OpenData(options));
    RETURN_IF_ERROR(scorer->MakeTrainer(options));
    RETURN_IF_ERROR(scorer->LoadState(options));
    return scorer;
  }

  const JobSpec& job() const { return job_; }
  EvaluationBatches& batches() { return *batches_; }

  absl::StatusOr<double> LossOf(size_t set_idx) {
    return EvaluateSet(*trainer_, layout_, *batches_, set_idx);
  }

  absl::StatusOr<ChoiceScore> ScoreChoices(const std::string& path) {
    std::unique_ptr<Tokenizer> tokenizer;
    ASSIGN_OR_RETURN(
        const TokenizerFiles files,
        ReadTokenizerFiles(tokenizer_path_, job_.data.end_of_document));
    ASSIGN_OR_RETURN(tokenizer,
                     Tokenizer::FromFiles(files, job_.model.vocab_size));
    ASSIGN_OR_RETURN(
        const std::vector<ChoiceRecord> records,
        ReadChoiceRecords(path, *tokenizer, job_.model.sequence_length));
    ChoiceScore score;
    for (const ChoiceRecord& record : records) {
      RETURN_IF_ERROR(AddRecord(record, &score));
    }
    score.num_records = static_cast<int64_t>(records.size());
    for (double* share : {&score.by_sum, &score.by_token, &score.by_chance}) {
      *share /= static_cast<double>(records.size());
    }
    return score;
  }

 private:
  Scorer() = default;

  // The training data is prepared only where its tokenizer is trained on it.
  absl::Status OpenData(const ScoreOptions& options) {
    ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
    num_threads_ = machine.num_cores;
    PreparedData training = {.tokenizer_path = job_.data.tokenizer};
    if (job_.data.tokenizer == "auto") {
      ASSIGN_OR_RETURN(training,
                       PrepareData({.data = job_.data,
                                    .vocab_size = job_.model.vocab_size,
                                    .num_threads = num_threads_}));
    }
    tokenizer_path_ = training.tokenizer_path;
    if (!options.choices.empty() && tokenizer_path_.empty()) {
      return absl::InvalidArgumentError(
          "--choices: the job has no tokenizer; name it in data.tokenizer");
    }
    ASSIGN_OR_RETURN(const std::vector<EvaluationSet> sets,
                     PrepareEvaluation(job_, training, num_threads_));
    ASSIGN_OR_RETURN(batches_, EvaluationBatches::Open(job_, nullptr, sets));
    return absl::OkStatus();
  }

  absl::Status MakeTrainer(const ScoreOptions& options) {
    // A choice is scored in a pass of its own.
    layout_.micro_batch = options.choices.empty() ? kSequencesOfPass : 1;
    layout_.precision = job_.precision();
    layout_.moments = MomentFormatOf(job_.training.optimizer.moments);
    layout_.gemm_format = GemmFormatOf(job_.training.precision);
    job_.training.global_batch = layout_.global_batch();
    RETURN_IF_ERROR(
        ValidateLayout(job_.model, layout_, job_.training.global_batch));
    factory_ = hub_.NewFactory();
    const TrainerOptions trainer = {.job = job_,
                                    .layout = layout_,
                                    .rank = Rank{0},
                                    .num_threads = num_threads_,
                                    .communicators = factory_.get(),
                                    .batches = batches_.get()};
    if (!job_.resources.uses_cuda()) {
      ASSIGN_OR_RETURN(trainer_, CreateCpuTrainer(trainer));
      return absl::OkStatus();
    }
    CudaBackend* gpus = nullptr;
    ASSIGN_OR_RETURN(gpus, LoadCudaBackend());
    ASSIGN_OR_RETURN(trainer_,
                     gpus->CreateTrainer(trainer, options.device, &store_));
    return absl::OkStatus();
  }

  absl::Status LoadState(const ScoreOptions& options) {
    if (options.checkpoint.empty()) {
      // The weights of model.from; without it the seed's, which are there
      // already.
      RETURN_IF_ERROR(CheckStartingWeights(job_));
      return LoadStartingWeights(job_, trainer_.get());
    }
    std::vector<StatePiece> state;
    ASSIGN_OR_RETURN(state, trainer_->StateToFill());
    ASSIGN_OR_RETURN(
        const CheckpointInfo info,
        LoadCheckpoint(*StoredFilesOf({}), options.checkpoint, state));
    return trainer_->FinishFilling(info.step);
  }

  absl::Status AddRecord(const ChoiceRecord& record, ChoiceScore* score) {
    std::vector<double> sums;
    std::vector<double> means;
    for (const TokenSequence& choice : record.choices) {
      ASSIGN_OR_RETURN(const double sum,
                       LogProbability(*trainer_, *batches_, choice));
      sums.push_back(sum);
      means.push_back(sum / static_cast<double>(choice.num_scored()));
    }
    const auto is_right = [&](const std::vector<double>& values) {
      const auto best = std::max_element(values.begin(), values.end());
      return best - values.begin() == static_cast<int64_t>(record.answer);
    };
    score->by_sum += is_right(sums) ? 1 : 0;
    score->by_token += is_right(means) ? 1 : 0;
    score->by_chance += 1.0 / static_cast<double>(sums.size());
    return absl::OkStatus();
  }

  JobSpec job_;
  Layout layout_;
  int32_t num_threads_ = 1;
  std::string tokenizer_path_;
  InProcessHub hub_;
  MemoryRendezvousStore store_;
  std::unique_ptr<CommunicatorFactory> factory_;
  std::unique_ptr<EvaluationBatches> batches_;
  std::unique_ptr<Trainer> trainer_;
};

absl::Status RunScore(const ScoreOptions& options) {
  std::unique_ptr<Scorer> scorer;
  ASSIGN_OR_RETURN(scorer, Scorer::Create(options));
  if (options.choices.empty() && scorer->batches().num_sets() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.job_path,
                     ": there is nothing to score; name sets in "
                     "evaluation.sets, or questions with --choices"));
  }
  OrderedJson sets = OrderedJson::object();
  OrderedJson choices = OrderedJson::object();
  for (size_t i = 0; i < scorer->batches().num_sets(); ++i) {
    const std::string& name = scorer->batches().name(i);
    const int64_t num_sequences = scorer->batches().num_sequences(i);
    ASSIGN_OR_RETURN(const double loss, scorer->LossOf(i));
    sets[name] = {{"loss", loss},
                  {"perplexity", std::exp(loss)},
                  {"sequences", num_sequences}};
    if (options.json) continue;
    std::cout << absl::StreamFormat(
                     "%s: loss %.4f, perplexity %.4g, %d sequences of %d "
                     "tokens",
                     name, loss, std::exp(loss), num_sequences,
                     scorer->job().model.sequence_length)
              << std::endl;
  }
  for (const std::string& path : options.choices) {
    ASSIGN_OR_RETURN(const ChoiceScore score, scorer->ScoreChoices(path));
    choices[path] = {{"records", score.num_records},
                     {"accuracy", score.by_sum},
                     {"accuracy_per_token", score.by_token},
                     {"chance", score.by_chance}};
    if (options.json) continue;
    std::cout << absl::StreamFormat(
                     "%s: %.1f %% right (+- %.1f), by the mean of a token "
                     "%.1f %% (+- %.1f); chance %.1f %%, %d records",
                     path, 100 * score.by_sum,
                     100 * StandardError(score.by_sum, score.num_records),
                     100 * score.by_token,
                     100 * StandardError(score.by_token, score.num_records),
                     100 * score.by_chance, score.num_records)
              << std::endl;
  }
  if (options.json) {
    std::cout << JsonText(OrderedJson{{"sets", sets}, {"choices", choices}}, 2)
              << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace

void AddScoreCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand(
      "score",
      "Measure a model on held-out text and multiple-choice questions");
  command->add_option("JOB", options->job_path, "The job file")->required();
  command->add_option("--checkpoint", options->checkpoint,
                      "The folder of one checkpoint (default: the weights that "
                      "the job starts from)");
  command->add_option("--choices", options->choices,
                      "A JSONL file of questions: context, choices, answer");
  command->add_option("--device", options->device,
                      "The GPU to use, where the job uses GPUs");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "The sets are those of the job's evaluation section.\nExamples:\n"
      "  millrace score job.yaml --checkpoint "
      "runs/small-latest/checkpoints/step-00000100\n"
      "  millrace score job.yaml --choices questions.jsonl");
  command->callback([options, exit_code] {
    const absl::Status status = RunScore(*options);
    if (!status.ok())
      std::cerr << "millrace score: " << status.message() << std::endl;
    const bool bad_input =
        absl::IsNotFound(status) || absl::IsInvalidArgument(status);
    *exit_code = status.ok() ? 0 : bad_input ? 2 : 1;
  });
}

}  // namespace millrace
