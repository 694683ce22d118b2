// Needs two to four GPUs that reach each other's memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "planner/program/copy_engines.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/worker/cuda/rank_processes.h"
#include "tests/worker/cuda/train/gpu_job.h"
#include "tests/worker/cuda/train/tested_layouts.h"
#include "tests/worker/trained_state.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"
#include "worker/cuda/train/trainer.h"

namespace millrace {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kSteps = 12;
// As many as so small a model can use: more would only wait for each other, for
// long where other tests run beside this one.
constexpr int32_t kCpuThreads = 8;

// Every size divides by four ranks of each axis.
JobSpec Job() {
  JobSpec job = GpuJob();
  job.model.num_layers = 4;
  job.model.num_kv_heads = 4;
  return job;
}

// Losses and gradient norms of all steps, and the state after them.
struct Learnt {
  std::vector<double> losses;
  std::vector<double> gradient_norms;
};

// A validation follows, which must work; its samples depend on the layout.
// `look` sees the state after the last step, before that.
using Look = std::function<absl::Status(const std::vector<StatePiece>&)>;
absl::StatusOr<Learnt> Train(Trainer& trainer, const Look& look) {
  Learnt learnt;
  for (int64_t i = 0; i <= kSteps; ++i) {
    std::optional<StepResult> result;
    if (i < kSteps) {
      ASSIGN_OR_RETURN(result, trainer.RunStep({}));
    } else {
      ASSIGN_OR_RETURN(result, trainer.LastResult());
    }
    if (!result.has_value()) continue;
    learnt.losses.push_back(result->loss);
    learnt.gradient_norms.push_back(result->gradient_norm);
  }
  ASSIGN_OR_RETURN(const std::vector<StatePiece> state, trainer.ReadState());
  RETURN_IF_ERROR(look(state));
  ASSIGN_OR_RETURN(const double validation, trainer.RunValidation(2));
  // Like training's, which is not far from it in so few steps.
  if (!(std::fabs(validation - learnt.losses.back()) < 0.3)) {
    return absl::InternalError(absl::StrCat("validation loss ", validation,
                                            " after training's ",
                                            learnt.losses.back()));
  }
  return learnt;
}

std::string ToText(const std::vector<double>& values) {
  return absl::StrJoin(values, " ", [](std::string* out, double value) {
    absl::StrAppend(out, absl::StrFormat("%.17g", value));
  });
}

std::vector<double> FromText(const std::string& text) {
  std::vector<double> values;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    double value = std::nan("");
    EXPECT_TRUE(absl::SimpleAtod(word, &value)) << text;
    values.push_back(value);
  }
  return values;
}

// Trains on the CPU, in a process of its own like all that computes here: this
// process only forks. The states before and after the steps go into files.
std::string BeforeFolder(const RankProcesses& cpu) {
  return cpu.folder() + "/before";
}
std::string AfterFolder(const RankProcesses& cpu) {
  return cpu.folder() + "/after";
}

absl::Status KeepState(const std::vector<StatePiece>& pieces,
                       const std::string& folder) {
  ASSIGN_OR_RETURN(const WholeState state, CopyWholeState(pieces));
  std::filesystem::create_directory(folder);
  return SaveWholeState(state, folder);
}

absl::Status TrainOnCpu(const RankProcesses& cpu, RendezvousStore& store) {
  const JobSpec job = Job();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  InProcessHub hub;
  const auto factory = hub.NewFactory();
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCpuTrainer({.job = job,
                        .layout = {.micro_batch = 2, .num_microbatches = 4},
                        .rank = Rank{0},
                        .num_threads = std::min<int32_t>(
                            kCpuThreads, std::thread::hardware_concurrency()),
                        .communicators = factory.get(),
                        .batches = &batches}));
  ASSIGN_OR_RETURN(const std::vector<StatePiece> before, trainer->ReadState());
  RETURN_IF_ERROR(KeepState(before, BeforeFolder(cpu)));
  ASSIGN_OR_RETURN(const Learnt learnt,
                   Train(*trainer, [&](const std::vector<StatePiece>& after) {
                     return KeepState(after, AfterFolder(cpu));
                   }));
  RETURN_IF_ERROR(store.Set("losses", ToText(learnt.losses)));
  return store.Set("norms", ToText(learnt.gradient_norms));
}

// `reference` may be null: then only losses are wanted.
absl::Status TrainOnGpu(const Layout& layout, Rank rank, int32_t device_idx,
                        RendezvousStore& store, const WholeState* reference,
                        const JobSpec& job = Job()) {
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = rank, .batches = &batches},
          device_idx, &store));
  StateDistances distances;
  ASSIGN_OR_RETURN(const Learnt learnt,
                   Train(*trainer, [&](const std::vector<StatePiece>& state) {
                     return reference == nullptr
                                ? absl::OkStatus()
                                : AddDistances(state, *reference, &distances);
                   }));
  RETURN_IF_ERROR(store.Set(absl::StrCat("distances/", ToInt(rank)),
                            DistancesToText(distances)));
  RETURN_IF_ERROR(store.Set(absl::StrCat("norms/", ToInt(rank)),
                            ToText(learnt.gradient_norms)));
  return store.Set(absl::StrCat("losses/", ToInt(rank)), ToText(learnt.losses));
}

// One after the other, in one process a rank: making its CUDA context takes the
// longest.
absl::Status TrainAll(const std::vector<Layout>& layouts, Rank rank,
                      const RankProcesses& ranks, const WholeState* reference,
                      const JobSpec& job = Job()) {
  for (size_t i = 0; i < layouts.size(); ++i) {
    DirectoryRendezvousStore store(absl::StrCat(ranks.folder(), "/", i));
    const absl::Status status = TrainOnGpu(
        layouts[i], rank, ranks.DeviceOf(rank), store, reference, job);
    if (!status.ok()) {
      return absl::Status(
          status.code(),
          absl::StrCat(LayoutToString(layouts[i]), ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

// A rank that waits for another for so long hangs; each layout has its time.
absl::Duration TimeoutFor(const std::vector<Layout>& layouts) {
  return kTimeout + absl::Seconds(5) * layouts.size();
}

// How far a GPU may be from the CPU, whose numbers are fp32. The measured
// values are the largest of all layouts of one and two H200
// (docs/results/2026-11-22-layouts-h200.md); bars are three to eight times
// those. Gradients that fp32 rounded unasked would be over every bar of fp32 at
// least ten times: see the values of gradients reduced in bf16.
struct Bars {
  // Largest difference of a loss. fp32 3.3e-8, reduced in bf16 4.4e-6, bf16
  // 1.6e-4.
  double loss;
  // Relative error of gradient norms. fp32 1.7e-7: other orders of sums.
  // Reduced in bf16 2.8e-5. bf16 1.0e-3: every product reads operands of 8
  // bits, 2^-9 each on average over some thirty products one behind the other.
  double norm;
  // Relative error of the tensor furthest off: moments are linear in gradients
  // and its square, and rounding adds up over a tensor as a walk does. fp32
  // 2.7e-6, reduced in bf16 3.5e-3, bf16 1.2e-2.
  double moment;
  // Error as a share of what training moved the tensor by. fp32 3.6e-5, reduced
  // in bf16 3.0e-3, bf16 2.0e-2. In the first step Adam divides each element by
  // its own size, so that a share r of rounding turns the sign of a share of
  // about r of the elements: an error of sqrt(r) times that step's part in the
  // whole move, which is small in a warm-up. Later steps divide by older
  // gradients too: an error of about r.
  double parameter;
};
Bars BarsFor(const Layout& layout) {
  if (layout.precision == Precision::kBfloat16) {
    return {.loss = 1e-3, .norm = 6e-3, .moment = 6e-2, .parameter = 1e-1};
  }
  if (layout.rounds_gradients() || layout.rounds_across()) {
    return {.loss = 3e-5, .norm = 2e-4, .moment = 1e-2, .parameter = 2e-2};
  }
  return {.loss = 2e-7, .norm = 1e-6, .moment = 2e-5, .parameter = 2e-4};
}

// The CPU's result, which every layout is compared with.
struct Expected {
  Learnt learnt;
  WholeState before, after;
};

// The largest difference, over what is expected where `relative`.
double Worst(const std::vector<double>& found,
             const std::vector<double>& expected, bool relative) {
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double apart = std::fabs(found[i] - expected[i]) /
                         (relative ? std::fabs(expected[i]) : 1.0);
    if (!(apart <= worst)) worst = apart;
  }
  return worst;
}

// The same on all ranks; rank 0's.
std::vector<double> OfAllRanks(const std::string& key, const Layout& layout,
                               DirectoryRendezvousStore& store) {
  const std::string first = *store.Get(key + "/0", absl::Seconds(1));
  for (int32_t rank = 1; rank < layout.num_ranks(); ++rank) {
    EXPECT_EQ(*store.Get(absl::StrCat(key, "/", rank), absl::Seconds(1)),
              first);
  }
  return FromText(first);
}

void ExpectLearnt(const Layout& layout, const std::string& folder,
                  const Expected& expected) {
  SCOPED_TRACE(LayoutToString(layout));
  DirectoryRendezvousStore store(folder);
  const std::vector<double> losses = OfAllRanks("losses", layout, store);
  const std::vector<double> norms = OfAllRanks("norms", layout, store);
  ASSERT_EQ(losses.size(), expected.learnt.losses.size());
  ASSERT_EQ(norms.size(), losses.size());
  StateDistances distances;
  for (int32_t rank = 0; rank < layout.num_ranks(); ++rank) {
    ASSERT_EQ(AddDistancesFromText(*store.Get(absl::StrCat("distances/", rank),
                                              absl::Seconds(1)),
                                   &distances),
              absl::OkStatus());
  }
  const absl::StatusOr<StateError> state =
      WorstErrors(distances, expected.before, expected.after);
  ASSERT_TRUE(state.ok()) << state.status();
  const double loss = Worst(losses, expected.learnt.losses, false);
  const double norm = Worst(norms, expected.learnt.gradient_norms, true);
  std::printf(
      "%-72s loss %.1e norm %.1e moments %.1e %.1e parameters %.1e (%s)\n",
      LayoutToString(layout).c_str(), loss, norm, state->first_moments.error,
      state->second_moments.error, state->parameters.error,
      state->parameters.name.c_str());
  const Bars bars = BarsFor(layout);
  EXPECT_LE(loss, bars.loss);
  EXPECT_LE(norm, bars.norm);
  EXPECT_LE(state->first_moments.error, bars.moment)
      << state->first_moments.name;
  EXPECT_LE(state->second_moments.error, bars.moment)
      << state->second_moments.name;
  EXPECT_LE(state->parameters.error, bars.parameter) << state->parameters.name;
}

void ExpectToLearnWhatTheCpuDoes(
    std::vector<Layout> (*layouts_of)(int32_t num_ranks)) {
  const int32_t num_devices = CountDevices();
  ASSERT_GE(num_devices, 2) << "this test needs two GPUs at least";
  RankProcesses cpu;
  DirectoryRendezvousStore cpu_store(cpu.folder() + "/cpu");
  ASSERT_EQ(
      cpu.RunAll(1, kTimeout, [&](Rank) { return TrainOnCpu(cpu, cpu_store); }),
      absl::OkStatus());
  const Expected expected = {
      .learnt = {.losses = FromText(*cpu_store.Get("losses", absl::Seconds(1))),
                 .gradient_norms =
                     FromText(*cpu_store.Get("norms", absl::Seconds(1)))},
      .before = *LoadWholeState(BeforeFolder(cpu)),
      .after = *LoadWholeState(AfterFolder(cpu))};
  int num_trained = 0;
  for (const int32_t num_ranks : {1, 2, 4}) {
    if (num_ranks > num_devices) continue;
    const std::vector<Layout> layouts = layouts_of(num_ranks);
    if (layouts.empty()) continue;
    RankProcesses ranks;
    ASSERT_EQ(ranks.RunAll(num_ranks, TimeoutFor(layouts),
                           [&](Rank rank) {
                             return TrainAll(layouts, rank, ranks,
                                             &expected.after);
                           }),
              absl::OkStatus());
    for (size_t i = 0; i < layouts.size(); ++i) {
      ExpectLearnt(layouts[i], absl::StrCat(ranks.folder(), "/", i), expected);
      ++num_trained;
    }
  }
  std::printf("%d layouts\n", num_trained);
  EXPECT_GT(num_trained, 0);
}

// Goal: whatever the layout, GPUs learn what one CPU does: losses, gradient
// norms, parameters and moments; all ranks see one loss and one norm. Method:
// every layout of one, two and four ranks, a dozen steps from graphs, then a
// validation.
TEST(CudaLayoutsTest, AllLearnWhatTheCpuDoes) {
  ExpectToLearnWhatTheCpuDoes(LayoutsOf);
}
TEST(CudaLayoutsTest, AllLearnWhatTheCpuDoesByCopyEngines) {
  ExpectToLearnWhatTheCpuDoes(LayoutsByCopyEngines);
}

// Goal: the other orders of passes teach the same. Method: as above.
TEST(CudaLayoutsTest, PassOrdersLearnWhatTheCpuDoes) {
  ExpectToLearnWhatTheCpuDoes(PassOrderLayoutsOf);
}
TEST(CudaLayoutsTest, PassOrdersLearnWhatTheCpuDoesByCopyEngines) {
  ExpectToLearnWhatTheCpuDoes(PassOrderLayoutsByCopyEngines);
}

// Losses of rank 0, as text, of deterministic steps under each layout of two
// ranks.
std::vector<std::string> DeterministicLosses(const std::vector<Layout>& layouts,
                                             RankProcesses::Sight sight) {
  JobSpec job = Job();
  job.training.deterministic = true;
  RankProcesses ranks(sight);
  const absl::Status status = ranks.RunAll(2, kTimeout, [&](Rank rank) {
    return TrainAll(layouts, rank, ranks, /*reference=*/nullptr, job);
  });
  EXPECT_TRUE(status.ok()) << status;
  std::vector<std::string> losses;
  for (size_t i = 0; i < layouts.size(); ++i) {
    DirectoryRendezvousStore store(absl::StrCat(ranks.folder(), "/", i));
    losses.push_back(store.Get("losses/0", absl::Seconds(1)).value_or("none"));
    EXPECT_EQ(FromText(losses.back()).size(), static_cast<size_t>(kSteps));
  }
  return losses;
}

// Goal: deterministic steps give equal bits each time, and by copy engines
// those of NCCL: among two ranks sums have two terms, so no order. Where ranks
// cannot map each other's memory they train all the same, by NCCL. Method:
// layouts with every kind of copy, thrice; losses as text.
TEST(CudaLayoutsTest, CopyEnginesChangeNoBitOfDeterministicSteps) {
  ASSERT_GE(CountDevices(), 2) << "this test needs two GPUs at least";
  std::vector<Layout> by_nccl;
  for (Layout layout :
       {Layout{.pipeline = 2}, Layout{.tensor = 2},
        Layout{.data = 2, .zero = 1}, Layout{.data = 2, .zero = 3}}) {
    layout.micro_batch = 1;
    layout.num_microbatches = 8 / layout.data;
    layout.precision = Precision::kBfloat16;
    by_nccl.push_back(layout);
  }
  const std::vector<Layout> by_copies = WithCopyEngines(by_nccl);
  ASSERT_EQ(by_copies.size(), by_nccl.size());
  using Sight = RankProcesses::Sight;
  const auto expected = DeterministicLosses(by_nccl, Sight::kAllDevices);
  EXPECT_EQ(DeterministicLosses(by_copies, Sight::kAllDevices), expected);
  EXPECT_EQ(DeterministicLosses(by_copies, Sight::kAllDevices), expected);
  EXPECT_EQ(DeterministicLosses(by_copies, Sight::kOwnDevice), expected);
}

// Goal: gradients reduced in bf16 teach the same up to their rounding. Method:
// as of the layouts above.
TEST(CudaLayoutsTest, LearnsFromGradientsReducedInBf16) {
  ExpectToLearnWhatTheCpuDoes(RoundedLayoutsOf);
}

// Goal: reducing in bf16 changes bits, and the same ones each time. Method:
// losses of deterministic steps as text, against those of fp32 sums.
TEST(CudaLayoutsTest, ReducingInBf16RoundsAndRepeats) {
  ASSERT_GE(CountDevices(), 2) << "this test needs two GPUs at least";
  std::vector<Layout> rounded = RoundedLayoutsOf(2);
  std::erase_if(rounded, [](const Layout& layout) {
    return layout.precision == Precision::kFloat32;
  });
  ASSERT_EQ(rounded.size(), 4u);  // One a ZeRO stage.
  std::vector<Layout> plain = rounded;
  for (Layout& layout : plain)
    layout.gradient_reduction = GradientReduction::kFloat32;
  using Sight = RankProcesses::Sight;
  const auto losses = DeterministicLosses(rounded, Sight::kAllDevices);
  EXPECT_EQ(DeterministicLosses(rounded, Sight::kAllDevices), losses);
  const auto of_plain = DeterministicLosses(plain, Sight::kAllDevices);
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NE(losses[i], of_plain[i]) << LayoutToString(rounded[i]);
  }
}

// Steps until they fail; with the time from Abort() until all is gone.
absl::Status TrainUntilAborted(const Layout& layout, Rank rank,
                               RendezvousStore& store) {
  const JobSpec job = Job();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = rank, .batches = &batches},
          ToInt(rank), &store));
  for (int i = 0; i < 5; ++i) RETURN_IF_ERROR(trainer->RunStep({}).status());
  RETURN_IF_ERROR(store.Set(absl::StrCat("stepping/", ToInt(rank)), "yes"));
  absl::Time aborted_at;
  std::thread aborter([&] {
    store.Get("killed", kTimeout).IgnoreError();
    absl::SleepFor(absl::Milliseconds(200));
    aborted_at = MonotonicNow();
    trainer->Abort();
  });
  absl::Status status;
  while (status.ok()) status = trainer->RunStep({}).status();
  aborter.join();
  trainer.reset();
  const absl::Duration took = MonotonicNow() - aborted_at;
  std::printf("rank %d: %s; gone after %s\n", ToInt(rank),
              std::string(status.message()).c_str(),
              absl::FormatDuration(took).c_str());
  std::fflush(stdout);
  if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return status;
  if (took > absl::Seconds(2)) {
    return absl::DeadlineExceededError(
        absl::StrCat("took ", absl::FormatDuration(took)));
  }
  return absl::OkStatus();
}

void ExpectSurvivorsToBeFreeSoon(bool with_copy_engines) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  for (Layout layout : {Layout{.data = num_ranks,
                       .micro_batch = 1,
                       .num_microbatches = 8 / num_ranks,
                       .zero = 1,
                       .precision = Precision::kBfloat16},
                        Layout{.data = num_ranks / 2,
                        .tensor = 2,
                        .micro_batch = 4 / num_ranks,
                        .num_microbatches = 4,
                        .precision = Precision::kBfloat16},
                        Layout{.pipeline = num_ranks,
                        .micro_batch = 1,
                        .num_microbatches = 8,
                        .precision = Precision::kBfloat16}}) {
    if (with_copy_engines) layout.copy_engines = CopyEngineUseOf(layout);
    SCOPED_TRACE(LayoutToString(layout));
    RankProcesses ranks;
    DirectoryRendezvousStore store(ranks.folder() + "/store");
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      ranks.Start(Rank{rank}, [&](Rank self) {
        return TrainUntilAborted(layout, self, store);
      });
    }
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      ASSERT_TRUE(store.Get(absl::StrCat("stepping/", rank), kTimeout).ok());
    }
    absl::SleepFor(absl::Milliseconds(100));
    ranks.Kill(Rank{num_ranks - 1});
    ASSERT_EQ(store.Set("killed", "yes"), absl::OkStatus());
    for (int32_t rank = 0; rank < num_ranks - 1; ++rank) {
      EXPECT_EQ(ranks.Wait(Rank{rank}, kTimeout), absl::OkStatus());
    }
    DirectoryRendezvousStore next(ranks.folder() + "/next");
    EXPECT_EQ(ranks.RunAll(num_ranks, kTimeout,
                           [&](Rank rank) {
                             return TrainOnGpu(layout, rank, ToInt(rank), next,
                                               /*reference=*/nullptr);
                           }),
              absl::OkStatus());
  }
}

// Goal: when a rank dies in the middle of steps that graphs hold, the others
// are free within two seconds of being told, and the GPUs train on. Method:
// kill -9 the last rank; then a new generation of all. Every collective that a
// graph still has to run takes some 4 ms to see that it is aborted: this counts
// those of four micro-batches, whatever the number of GPUs.
TEST(CudaLayoutsTest, SurvivorsOfALostRankAreFreeSoon) {
  ExpectSurvivorsToBeFreeSoon(/*with_copy_engines=*/false);
}
TEST(CudaLayoutsTest, SurvivorsOfALostRankAreFreeSoonByCopyEngines) {
  ExpectSurvivorsToBeFreeSoon(/*with_copy_engines=*/true);
}

// Steps until the others have noticed; or the last rank, after three steps,
// does not come any more.
absl::Status TrainWithoutTheLast(const Layout& layout, Rank rank,
                                 RendezvousStore& store) {
  const JobSpec job = Job();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Trainer> trainer,
      CreateCudaTrainer(
          {.job = job, .layout = layout, .rank = rank, .batches = &batches},
          ToInt(rank), &store, {.step_timeout = absl::Seconds(2)}));
  for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(trainer->RunStep({}).status());
  const int32_t last = layout.num_ranks() - 1;
  if (ToInt(rank) == last) {
    RETURN_IF_ERROR(trainer->LastResult().status());
    return store.Get("noticed", kTimeout).status();
  }
  absl::Status status;
  while (status.ok()) status = trainer->RunStep({}).status();
  if (ToInt(rank) == 0) {
    std::printf("%s\n", std::string(status.message()).c_str());
    std::fflush(stdout);
    RETURN_IF_ERROR(store.Set("noticed", "yes"));
  }
  const std::string missing = absl::StrCat("rank ", last, " is missing");
  if (absl::IsDeadlineExceeded(status) &&
      status.message().find(missing) != std::string::npos &&
      status.message().find("step 4") != std::string::npos) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("unexpected: ", status.ToString()));
}

void ExpectToNameWhoAllWaitFor(bool with_copy_engines) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  for (Layout layout : {Layout{.data = num_ranks,
                       .micro_batch = 1,
                       .num_microbatches = 8 / num_ranks,
                       .precision = Precision::kBfloat16},
                        Layout{.data = num_ranks / 2,
                        .tensor = 2,
                        .micro_batch = 1,
                        .num_microbatches = 16 / num_ranks,
                        .precision = Precision::kBfloat16}}) {
    if (with_copy_engines) layout.copy_engines = CopyEngineUseOf(layout);
    SCOPED_TRACE(LayoutToString(layout));
    RankProcesses ranks;
    DirectoryRendezvousStore store(ranks.folder() + "/store");
    EXPECT_EQ(ranks.RunAll(num_ranks, kTimeout,
                           [&](Rank rank) {
                             return TrainWithoutTheLast(layout, rank, store);
                           }),
              absl::OkStatus());
  }
}

// Goal: a step that hangs is ended by each rank, naming the step, the call and
// the rank that all wait for. Method: the last rank's host stops giving its
// device steps, under layouts that meet in unlike calls.
TEST(CudaLayoutsTest, NamesWhoAllWaitFor) {
  ExpectToNameWhoAllWaitFor(/*with_copy_engines=*/false);
}
TEST(CudaLayoutsTest, NamesWhoAllWaitForByCopyEngines) {
  ExpectToNameWhoAllWaitFor(/*with_copy_engines=*/true);
}

}  // namespace
}  // namespace millrace
