#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_job.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/data/evaluation_batches.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/open_batches.h"
#include "worker/train/evaluate.h"

namespace millrace {
namespace {

// Layouts sum the same fp32 terms in different orders.
constexpr double kEvaluationTolerance = 2e-5;

using Losses = std::map<std::string, double>;

// Documents of tokens that mostly follow from the one before, so that few steps
// teach something; `num_samples` sequences and a rest.
void WriteTokens(const std::string& path, const JobSpec& job,
                 int64_t num_samples, uint32_t seed) {
  auto writer = IndexedDatasetWriter::Create(path, TokenType::kUint16);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::mt19937 random(seed);
  const auto vocab_size = static_cast<uint32_t>(job.model.vocab_size);
  int64_t left = num_samples * job.model.sequence_length + 3;
  uint32_t token = 0;
  while (left > 0) {
    const int64_t length = std::min<int64_t>(left, 5 + random() % 60);
    std::vector<int32_t> document;
    for (int64_t i = 0; i < length; ++i) {
      token = random() % 4 == 0 ? random() % vocab_size
                                : (token * 5 + 1) % (vocab_size / 2);
      document.push_back(static_cast<int32_t>(token));
    }
    ASSERT_TRUE(writer->AddDocument(document).ok());
    left -= length;
  }
  ASSERT_TRUE(writer->Finish().ok());
}

// A text after three tokens, and the same cut in two after eight.
std::map<std::string, TokenSequence> Sequences() {
  const std::vector<int32_t> tokens = {5, 26, 3, 16, 9, 46, 39, 4, 21, 42, 19};
  return {{"all", {.tokens = tokens, .num_context = 3}},
          {"head",
           {.tokens = {tokens.begin(), tokens.begin() + 8}, .num_context = 3}},
          {"tail", {.tokens = tokens, .num_context = 8}}};
}

// The losses of all sets, and of Sequences(), after a few steps under `layout`,
// as workers read them.
absl::Status EvaluateUnder(const JobSpec& job, const Layout& layout,
                           const std::string& training,
                           const std::vector<EvaluationSet>& sets,
                           Losses* losses) {
  InProcessHub hub;
  std::mutex mutex;
  absl::Status first_error;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const absl::Status status = [&]() -> absl::Status {
        std::unique_ptr<BatchSource> source;
        ASSIGN_OR_RETURN(
            source, OpenBatches(job, {std::vector<std::string>{training}}));
        std::unique_ptr<EvaluationBatches> batches;
        ASSIGN_OR_RETURN(batches,
                         EvaluationBatches::Open(job, std::move(source), sets));
        const auto factory = hub.NewFactory();
        ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                         CreateCpuTrainer({.job = job,
                                           .layout = layout,
                                           .rank = Rank{rank},
                                           .communicators = factory.get(),
                                           .batches = batches.get()}));
        for (int step = 0; step < 4; ++step) {
          RETURN_IF_ERROR(trainer->RunStep({}).status());
        }
        for (size_t set = 0; set < batches->num_sets(); ++set) {
          ASSIGN_OR_RETURN(const double loss,
                           EvaluateSet(*trainer, layout, *batches, set));
          const std::lock_guard lock(mutex);
          if (rank == 0) (*losses)[batches->name(set)] = loss;
        }
        for (const auto& [name, sequence] : Sequences()) {
          ASSIGN_OR_RETURN(const double log_probability,
                           LogProbability(*trainer, *batches, sequence));
          const std::lock_guard lock(mutex);
          if (rank == 0) (*losses)[name] = -log_probability;
        }
        return absl::OkStatus();
      }();
      const std::lock_guard lock(mutex);
      if (first_error.ok()) first_error = status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

class EvaluationTest : public testing::Test {
 protected:
  EvaluationTest() : job_(SmallJob()) {
    job_.data.synthetic = false;
    job_.data.validation_fraction = 0;
    WriteTokens(folder_ / "training", job_, 64, 1);
    WriteTokens(folder_ / "near", job_, 19, 2);
    WriteTokens(folder_ / "far", job_, 27, 3);
    sets_ = {{.name = "near", .prefixes = {folder_ / "near"}},
             {.name = "far", .prefixes = {folder_ / "far"}}};
  }
  Losses EvaluateUnder(const Layout& layout) {
    Losses losses;
    const absl::Status status = millrace::EvaluateUnder(
        job_, layout, folder_ / "training", sets_, &losses);
    EXPECT_TRUE(status.ok()) << LayoutToString(layout) << ": " << status;
    return losses;
  }

  TemporaryFolder folder_;
  JobSpec job_;
  std::vector<EvaluationSet> sets_;
};

// Goal: the loss of a set, and the log-probability of a text, is the same
// whatever the layout. Method: two sets whose sizes are no multiple of
// anything, one rank against layouts of each axis, of several micro-batches and
// of all axes together.
TEST_F(EvaluationTest, LayoutsGiveTheSameLosses) {
  const Losses expected = EvaluateUnder({.micro_batch = 8});
  ASSERT_EQ(expected.size(), 5u);
  // A text's probability is the product of its tokens'.
  EXPECT_NEAR(expected.at("all"), expected.at("head") + expected.at("tail"),
              kEvaluationTolerance * expected.at("all"));
  EXPECT_GT(expected.at("head"), 1);
  EXPECT_GT(expected.at("tail"), 1);
  for (const Layout& layout :
       {Layout{.micro_batch = 1, .num_microbatches = 8},
        Layout{.tensor = 2, .micro_batch = 4, .num_microbatches = 2},
        Layout{.pipeline = 2, .micro_batch = 2, .num_microbatches = 4},
        Layout{.data = 2, .micro_batch = 2, .num_microbatches = 2, .zero = 1},
        Layout{.pipeline = 2,
        .data = 2,
        .micro_batch = 1,
        .num_microbatches = 4}}) {
    SCOPED_TRACE(LayoutToString(layout));
    const Losses losses = EvaluateUnder(layout);
    ASSERT_EQ(losses.size(), expected.size());
    for (const auto& [name, loss] : expected) {
      EXPECT_NEAR(losses.at(name), loss, kEvaluationTolerance * loss) << name;
    }
  }
  // A loss over other samples would not pass: leaving two out shows.
  job_.evaluation.max_sequences = 17;
  const Losses fewer = EvaluateUnder({.micro_batch = 8});
  EXPECT_GT(std::abs(fewer.at("near") - expected.at("near")),
            kEvaluationTolerance * expected.at("near"));
}

// Goal: the job's seed, which shuffles the training data, leaves the sets as
// they are, and what lies past their end has no targets. Method: the third pass
// over 19 sequences, under two seeds.
TEST_F(EvaluationTest, ReadsTheSameSamplesUnderAnySeed) {
  const auto order = [&](uint64_t seed) {
    JobSpec job = job_;
    job.training.seed = seed;
    auto training =
        OpenBatches(job, {std::vector<std::string>{folder_ / "training"}});
    EXPECT_TRUE(training.ok()) << training.status();
    auto batches =
        EvaluationBatches::Open(job, *std::move(training), {sets_[0]});
    EXPECT_TRUE(batches.ok()) << batches.status();
    EXPECT_EQ((*batches)->num_sequences(0), 19);
    (*batches)->Select(0);
    const auto size = static_cast<size_t>(8 * job.model.sequence_length);
    std::vector<int32_t> tokens(size), targets(size), starts(size);
    const BatchRequest request = {.split = DataSplit::kValidation,
                                  .step = 3,
                                  .global_batch = 8,
                                  .first_sequence_idx = 0,
                                  .num_sequences = 8};
    EXPECT_TRUE(
        (*batches)
            ->Fill(request, {tokens.data(), targets.data(), starts.data()})
            .ok());
    const auto real = static_cast<size_t>(3 * job.model.sequence_length);
    EXPECT_TRUE(std::all_of(targets.begin(), targets.begin() + real,
                            [](int32_t target) { return target >= 0; }));
    EXPECT_TRUE(std::all_of(targets.begin() + real, targets.end(),
                            [](int32_t target) { return target == -1; }));
    return tokens;
  };
  EXPECT_EQ(order(1), order(2));
}

// Goal: a set that is too small, or is not there, is refused by name. Method:
// one of each.
TEST_F(EvaluationTest, RefusesSetsThatCannotBeEvaluated) {
  WriteTokens(folder_ / "small", job_, 0, 4);
  const auto open = [&](const std::string& name) {
    auto training =
        OpenBatches(job_, {std::vector<std::string>{folder_ / "training"}});
    const absl::Status status =
        EvaluationBatches::Open(job_, *std::move(training),
                                {{.name = name, .prefixes = {folder_ / name}}})
            .status();
    return std::string(status.message());
  };
  EXPECT_THAT(open("small"), testing::HasSubstr("evaluation.sets.small: "));
  EXPECT_THAT(open("absent"), testing::HasSubstr("evaluation.sets.absent: "));
}

}  // namespace
}  // namespace millrace
