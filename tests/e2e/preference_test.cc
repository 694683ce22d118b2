// Goal of this file: preference training minimizes the loss of pairs against
// the weights that it starts from, and no layout, packing or restart changes
// its numbers.

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/planner/planner_testing.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/data/evaluation_batches.h"
#include "worker/train/references.h"

namespace millrace {
namespace {

constexpr int64_t kPairSteps = 6;
// As in equivalence_test.cc.
constexpr double kPairTolerance = 2e-5;

struct TokenPair {
  std::vector<int32_t> prompt, chosen, rejected;

  int64_t chosen_places() const { return Places(chosen); }
  int64_t num_places() const { return Places(chosen) + Places(rejected); }

 private:
  int64_t Places(const std::vector<int32_t>& answer) const {
    return static_cast<int64_t>(prompt.size() + answer.size()) - 1;
  }
};

// Eight pairs of different lengths, of which two fill a sequence of 32.
std::vector<TokenPair> MadePairs() {
  std::vector<TokenPair> pairs;
  int32_t next = 3;
  const auto tokens = [&](int64_t count) {
    std::vector<int32_t> made;
    for (int64_t i = 0; i < count; ++i) {
      made.push_back(next = (next * 5 + 7) % 128);
    }
    return made;
  };
  for (const auto& [prompt, chosen, rejected] :
       std::vector<std::array<int64_t, 3>>{{2, 4, 3},
                                           {3, 5, 5},
                                           {2, 9, 3},
                                           {4, 2, 1},
                                           {1, 7, 8},
                                           {5, 3, 3},
                                           {2, 2, 9},
                                           {3, 6, 4}}) {
    pairs.push_back({tokens(prompt), tokens(chosen), tokens(rejected)});
  }
  return pairs;
}

// Steps and validation read all rows, in order.
class PairBatches : public BatchSource, public PairSource {
 public:
  // `rows`: the pairs of each sequence.
  PairBatches(int64_t sequence_length, std::string prefix,
              std::vector<std::vector<int64_t>> rows)
      : sequence_length_(sequence_length),
        prefixes_({std::move(prefix)}),
        rows_(std::move(rows)),
        references_(2 * pairs_.size()) {}

  absl::Status Fill(const BatchRequest& request,
                    const BatchPointers& out) override {
    for (int64_t i = 0; i < request.num_sequences; ++i) {
      const int64_t number = (request.step - 1) * request.global_batch +
                             request.first_sequence_idx + i;
      RETURN_IF_ERROR(ReadPairs(number % num_pair_sequences(),
                                OneSequence(out, i, sequence_length_)));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<double> TrainedShare(DataSplit, int64_t step,
                                      int64_t global_batch) override {
    size_t count = 0;
    for (int64_t i = 0; i < global_batch; ++i) {
      count += rows_[static_cast<size_t>(((step - 1) * global_batch + i) %
                                         num_pair_sequences())]
                   .size();
    }
    return static_cast<double>(count) /
           static_cast<double>(global_batch * sequence_length_);
  }
  std::vector<PairSource*> PairSources() override { return {this}; }

  const std::vector<std::string>& pair_prefixes() const override {
    return prefixes_;
  }
  int64_t num_pairs() const override {
    return static_cast<int64_t>(pairs_.size());
  }
  int64_t num_pair_sequences() const override {
    return static_cast<int64_t>(rows_.size());
  }
  absl::Status ReadPairs(int64_t number, const BatchPointers& out) override {
    std::fill_n(out.tokens, sequence_length_, 0);
    std::fill_n(out.targets, sequence_length_, -1);
    int64_t at = 0;
    for (const int64_t idx : rows_.at(static_cast<size_t>(number))) {
      const TokenPair& pair = pairs_[static_cast<size_t>(idx)];
      const int64_t begin = at;
      for (const bool chosen : {true, false}) {
        const int64_t document = at;
        std::vector<int32_t> tokens = pair.prompt;
        const std::vector<int32_t>& answer =
            chosen ? pair.chosen : pair.rejected;
        tokens.insert(tokens.end(), answer.begin(), answer.end());
        for (size_t t = 0; t + 1 < tokens.size(); ++t, ++at) {
          out.tokens[at] = tokens[t];
          out.targets[at] = t + 1 >= pair.prompt.size() ? tokens[t + 1] : -1;
          out.document_starts[at] = static_cast<int32_t>(document);
          out.pair_starts[at] = static_cast<int32_t>(begin);
          out.references[at] =
              references_[static_cast<size_t>(2 * idx + (chosen ? 0 : 1))];
        }
      }
    }
    std::fill(out.document_starts + at, out.document_starts + sequence_length_,
              static_cast<int32_t>(at));
    return absl::OkStatus();
  }
  std::vector<Place> PlacesOf(int64_t number) const override {
    std::vector<Place> places;
    int64_t at = 0;
    for (const int64_t idx : rows_.at(static_cast<size_t>(number))) {
      const TokenPair& pair = pairs_[static_cast<size_t>(idx)];
      places.push_back({.pair_idx = idx,
                        .chosen_begin = at,
                        .rejected_begin = at + pair.chosen_places()});
      at += pair.num_places();
    }
    return places;
  }
  void SetReferences(std::vector<float> references) override {
    references_ = std::move(references);
  }

 private:
  const int64_t sequence_length_;
  const std::vector<std::string> prefixes_;
  const std::vector<std::vector<int64_t>> rows_;
  const std::vector<TokenPair> pairs_ = MadePairs();
  std::vector<float> references_;
};

using Rows = std::vector<std::vector<int64_t>>;
const Rows kOneEach = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
const Rows kPacked = {{2}, {1, 3}, {7}, {0, 5}, {4}, {6}};

JobSpec PairJob() {
  JobSpec job = SmallJob();
  job.training.objective = "dpo";
  return job;
}

struct PairResult {
  absl::Status status;
  std::vector<StepResult> steps;
  double validation_loss = 0;
  Tensors tensors;
};

// Computes the references or finds them in `folder`, trains and validates. Each
// step reads all rows.
PairResult TrainPairs(JobSpec job, Layout layout, const Rows& rows,
                      const std::string& folder,
                      int64_t num_steps = kPairSteps) {
  layout.objective = Objective::kPreference;
  job.training.global_batch = static_cast<int64_t>(rows.size());
  CHECK(layout.global_batch() == job.training.global_batch);
  PairResult result;
  std::mutex mutex;
  InProcessHub hub;
  // RunRanks() makes a rank's batches in the thread that trains it.
  static thread_local EvaluationBatches* of_rank = nullptr;
  result.status = RunRanks(
      job, layout, [&] { return hub.NewFactory(); },
      [&](Rank rank, Trainer& trainer) -> absl::Status {
        RETURN_IF_ERROR(
            PrepareReferences(job, layout, rank, trainer, *of_rank).status());
        for (int64_t i = 0; i < num_steps; ++i) {
          ASSIGN_OR_RETURN(const auto step, trainer.RunStep({}));
          if (rank == Rank{0}) result.steps.push_back(*step);
        }
        const int64_t of_pass = int64_t{layout.micro_batch} * layout.data;
        const auto num_rows = static_cast<int64_t>(rows.size());
        double validation_loss = 0;
        if (num_rows % of_pass == 0) {
          ASSIGN_OR_RETURN(validation_loss,
                           trainer.RunValidation(num_rows / of_pass));
        }
        ASSIGN_OR_RETURN(const std::vector<StatePiece> pieces,
                         trainer.ReadState());
        std::lock_guard lock(mutex);
        if (rank == Rank{0}) result.validation_loss = validation_loss;
        CollectOwned(pieces, &result.tensors);
        return absl::OkStatus();
      },
      [&](const JobSpec& job) -> std::unique_ptr<BatchSource> {
        auto opened = EvaluationBatches::Open(
            job,
            std::make_unique<PairBatches>(job.model.sequence_length,
                                          folder + "/pairs", rows),
            {});
        CHECK(opened.ok()) << opened.status();
        of_rank = opened->get();
        return *std::move(opened);
      });
  return result;
}

void ExpectNear(double actual, double expected, const char* what) {
  EXPECT_NEAR(actual, expected,
              kPairTolerance * std::max(1e-2, std::abs(expected)))
      << what;
}

void ExpectSamePairSteps(const PairResult& actual, const PairResult& expected) {
  ASSERT_TRUE(actual.status.ok()) << actual.status;
  ASSERT_EQ(actual.steps.size(), expected.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    SCOPED_TRACE(i);
    const StepResult& a = actual.steps[i];
    const StepResult& e = expected.steps[i];
    EXPECT_NEAR(a.loss / e.loss, 1, kPairTolerance);
    EXPECT_NEAR(a.gradient_norm / e.gradient_norm, 1, kPairTolerance);
    ASSERT_TRUE(a.preference.has_value() && e.preference.has_value());
    ExpectNear(a.preference->chosen_reward, e.preference->chosen_reward,
               "chosen");
    ExpectNear(a.preference->rejected_reward, e.preference->rejected_reward,
               "rejected");
    // All margins of the first step are rounding errors.
    if (i > 0) {
      EXPECT_EQ(a.preference->accuracy, e.preference->accuracy);
    }
  }
  // Not where passes do not cover the same sequences.
  if (actual.validation_loss > 0) {
    EXPECT_NEAR(actual.validation_loss / expected.validation_loss, 1,
                kPairTolerance);
  }
}

// Goal: the model begins as its reference, learns to prefer the chosen answers,
// and says so. Method: one rank; ln 2 and no margin in the first step.
TEST(PreferenceTest, BeginsAtTheReferenceAndLearns) {
  const TemporaryFolder folder;
  const PairResult result =
      TrainPairs(PairJob(), {.micro_batch = 8}, kOneEach, folder.path(), 40);
  ASSERT_TRUE(result.status.ok()) << result.status;
  EXPECT_NEAR(result.steps[0].loss, std::log(2.0), 1e-6);
  EXPECT_NEAR(result.steps[0].preference->margin(), 0, 2e-6);
  const StepResult& last = result.steps.back();
  EXPECT_LT(last.loss, 0.9 * std::log(2.0));
  EXPECT_GT(last.preference->margin(), 0.1);
  EXPECT_EQ(last.preference->accuracy, 1);
  EXPECT_NEAR(result.validation_loss, last.loss, 0.05);
}

// Goal: the loss is the mean over the pairs of the global batch, on every
// layout. Method: the same pairs as 1 x 8, 2 x 4, 8 x 1, and on every axis and
// ZeRO stage.
TEST(PreferenceTest, LayoutsAgree) {
  const TemporaryFolder folder;
  const JobSpec job = PairJob();
  const PairResult expected =
      TrainPairs(job, {.micro_batch = 8}, kOneEach, folder.path());
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  for (const Layout& layout : std::vector<Layout>{
           {.micro_batch = 4, .num_microbatches = 2},
           {.micro_batch = 2, .num_microbatches = 4},
           {.micro_batch = 1, .num_microbatches = 8},
           {.data = 2, .micro_batch = 4},
           {.data = 2, .micro_batch = 1, .num_microbatches = 4, .zero = 1},
           {.data = 4, .micro_batch = 1, .num_microbatches = 2, .zero = 2},
           {.data = 3,
           .micro_batch = 1,
           .num_microbatches = 2,
           .extra_microbatches = 2},
           {.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 3},
           {.tensor = 2, .micro_batch = 2, .num_microbatches = 4},
           {.pipeline = 2, .micro_batch = 1, .num_microbatches = 8},
           {.pipeline = 2,
           .tensor = 2,
           .micro_batch = 4,
           .num_microbatches = 2},
           {.data = 2, .tensor = 2, .micro_batch = 4, .zero = 1},
       }) {
    SCOPED_TRACE(LayoutToString(layout));
    // Each layout computes its own references.
    const TemporaryFolder own;
    ExpectSamePairSteps(TrainPairs(job, layout, kOneEach, own.path()),
                        expected);
  }
}

// Goal: pairs that share a sequence teach what each teaches alone.
TEST(PreferenceTest, PackedEqualsUnpacked) {
  const TemporaryFolder folder;
  JobSpec job = PairJob();
  job.training.dpo_label_smoothing = 0.1;
  const PairResult expected =
      TrainPairs(job, {.micro_batch = 8}, kOneEach, folder.path());
  ASSERT_TRUE(expected.status.ok()) << expected.status;
  for (const Layout& layout :
       {Layout{.micro_batch = 6}, Layout{.data = 3, .micro_batch = 2},
        Layout{.data = 2, .micro_batch = 1, .num_microbatches = 3, .zero = 1},
        Layout{.pipeline = 2,
        .tensor = 2,
        .micro_batch = 3,
        .num_microbatches = 2}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const TemporaryFolder own;
    ExpectSamePairSteps(TrainPairs(job, layout, kPacked, own.path()), expected);
  }
}

// Goal: references are computed once, by the weights that training starts from,
// whoever finds their file. Method: other weights begin at a loss of ln 2 too,
// with a file of their own; a file that was damaged is made anew; a second run
// takes the first one's numbers.
TEST(PreferenceTest, ReferencesAreKept) {
  const TemporaryFolder folder;
  JobSpec job = PairJob();
  const PairBatches pairs(job.model.sequence_length, folder.path() + "/pairs",
                          kOneEach);
  const std::string path = ReferencePath(job, pairs);
  EXPECT_TRUE(absl::IsNotFound(ReadReferences(path, 8).status()));
  const Layout layout = {.data = 2, .micro_batch = 4};
  const PairResult first = TrainPairs(job, layout, kOneEach, folder.path(), 1);
  ASSERT_TRUE(first.status.ok()) << first.status;
  auto kept = ReadReferences(path, 8);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(absl::IsDataLoss(ReadReferences(path, 7).status()));

  // Answers of 1 to 9 tokens of a vocabulary of 128 that nothing was learnt of.
  for (const float log_probability : *kept) {
    EXPECT_LT(log_probability, -3);
    EXPECT_GT(log_probability, -60);
  }
  (*kept)[0] += 10;
  ASSERT_TRUE(WriteReferences(path, 0, *kept).ok());
  const PairResult changed =
      TrainPairs(job, layout, kOneEach, folder.path(), 1);
  EXPECT_NEAR(changed.steps[0].preference->chosen_reward,
              -10 * job.training.dpo_beta / 8, 1e-5);
  ASSERT_TRUE(WriteFileAtomically(path, "damaged").ok());
  const PairResult anew = TrainPairs(job, layout, kOneEach, folder.path(), 1);
  ASSERT_TRUE(anew.status.ok()) << anew.status;
  EXPECT_NEAR(anew.steps[0].loss, std::log(2.0), 1e-6);

  // Exports of one model have one fingerprint.
  JobSpec tuned = job;
  tuned.model_from = folder.path();
  tuned.model_fingerprint = "0123456789abcdef";
  const std::string weights = folder.Write("model.safetensors", "weights");
  const std::string of_first_export = ReferencePath(tuned, pairs);
  std::filesystem::last_write_time(
      weights,
      std::filesystem::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_NE(ReferencePath(tuned, pairs), of_first_export);

  job.training.seed = 7;
  EXPECT_NE(ReferencePath(job, pairs), path);
  const PairResult other = TrainPairs(job, layout, kOneEach, folder.path(), 1);
  ASSERT_TRUE(other.status.ok()) << other.status;
  EXPECT_NEAR(other.steps[0].loss, std::log(2.0), 1e-6);
}

}  // namespace
}  // namespace millrace
