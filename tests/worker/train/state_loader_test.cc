#include "worker/train/state_loader.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/e2e/equivalence_batches.h"
#include "tests/e2e/equivalence_job.h"
#include "worker/communicate/in_process_communicator.h"
#include "worker/cpu/trainer.h"

namespace millrace {
namespace {

// Goal: the load and the work run at the same time. Method: each waits for the
// other to have begun.
TEST(LoadWhileTest, RunsBoth) {
  absl::Notification load_began, work_began;
  const StateLoader loader = {
      .load = [&](const LoadableState&) -> absl::StatusOr<int64_t> {
        load_began.Notify();
        work_began.WaitForNotification();
        return 7;
      },
      .end = [] { ADD_FAILURE() << "nothing failed"; }};
  const auto steps = LoadWhile(loader, {}, [&] {
    work_began.Notify();
    load_began.WaitForNotification();
    return absl::OkStatus();
  });
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(*steps, 7);
}

// Goal: the first error of either ends the other, and is the one that is
// returned. Method: one fails, and the other only once it is told to end.
TEST(LoadWhileTest, TheFirstErrorEndsBoth) {
  for (const bool load_fails : {true, false}) {
    SCOPED_TRACE(load_fails);
    absl::Notification ended;
    const auto run = [&](bool fails) -> absl::Status {
      if (fails) return absl::DataLossError("damaged");
      ended.WaitForNotification();
      return absl::AbortedError("was ended");
    };
    const StateLoader loader = {
        .load = [&](const LoadableState&) -> absl::StatusOr<int64_t> {
          return run(load_fails);
        },
        .end = [&] { ended.Notify(); }};
    const auto steps = LoadWhile(loader, {}, [&] { return run(!load_fails); });
    EXPECT_EQ(steps.status(), absl::DataLossError("damaged"));
  }
}

// Goal: a load that fails after the work is done is no success.
TEST(LoadWhileTest, ALateErrorCounts) {
  absl::Notification worked;
  const StateLoader loader = {
      .load = [&](const LoadableState&) -> absl::StatusOr<int64_t> {
        worked.WaitForNotification();
        return absl::DataLossError("damaged");
      },
      .end = [] {}};
  EXPECT_FALSE(LoadWhile(loader, {}, [&] {
                 worked.Notify();
                 return absl::OkStatus();
               }).ok());
}

// Makes communicators only once it is allowed to.
class HeldFactory : public CommunicatorFactory {
 public:
  HeldFactory(std::unique_ptr<CommunicatorFactory> factory,
              absl::Notification* may_create)
      : factory_(std::move(factory)), may_create_(*may_create) {}
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      CommunicatorKey key, const std::vector<Rank>& members,
      Rank self) override {
    may_create_.WaitForNotification();
    return factory_->Create(key, members, self);
  }
  void Abort() override { factory_->Abort(); }

 private:
  std::unique_ptr<CommunicatorFactory> factory_;
  absl::Notification& may_create_;
};

// A trainer of one rank whose state `loader` loads.
absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(
    const JobSpec& job, SyntheticBatches& batches, InProcessHub& hub,
    absl::Notification& may_create, std::optional<StateLoader> loader) {
  HeldFactory factory(hub.NewFactory(), &may_create);
  return CreateCpuTrainer({.job = job,
                           .layout = {.micro_batch = 2, .num_microbatches = 4},
                           .rank = Rank{0},
                           .communicators = &factory,
                           .batches = &batches,
                           .loader = std::move(loader)});
}

std::vector<std::vector<float>> CopyOf(const std::vector<StatePiece>& pieces) {
  std::vector<std::vector<float>> copy;
  for (const StatePiece& piece : pieces) {
    copy.emplace_back(piece.data, piece.data + (piece.end - piece.begin));
  }
  return copy;
}

// Goal: a trainer on CPU cores loads its state before its communicators are
// made, and trains on from it bit by bit. Method: communicators that are not
// made before the state is there.
TEST(LoadWhileTest, ATrainerLoadsBeforeItIsConnected) {
  const JobSpec job = SmallJob();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  InProcessHub hub;
  absl::Notification at_once, loaded;
  at_once.Notify();
  auto first = MakeTrainer(job, batches, hub, at_once, std::nullopt);
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE((*first)->RunStep({}).ok());
  const auto saved = CopyOf(*(*first)->ReadState());
  const StateLoader loader = {
      .load = [&](const LoadableState& state) -> absl::StatusOr<int64_t> {
        for (size_t i = 0; i < saved.size(); ++i) {
          std::copy(saved[i].begin(), saved[i].end(), state.pieces[i].data);
        }
        loaded.Notify();
        return 2;
      },
      .end = [] { ADD_FAILURE() << "nothing failed"; }};
  auto second = MakeTrainer(job, batches, hub, loaded, loader);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->completed_steps(), 2);
  for (Trainer* trainer : {first->get(), second->get()}) {
    ASSERT_TRUE(trainer->RunStep({}).ok());
  }
  EXPECT_EQ(CopyOf(*(*second)->ReadState()), CopyOf(*(*first)->ReadState()));
}

// Goal: no trainer comes of a state that cannot be loaded.
TEST(LoadWhileTest, ATrainerSaysWhyItsStateIsMissing) {
  const JobSpec job = SmallJob();
  SyntheticBatches batches(job.model.vocab_size, job.model.sequence_length);
  InProcessHub hub;
  absl::Notification ended;
  const auto trainer = MakeTrainer(
      job, batches, hub, ended,
      StateLoader{.load = [](const LoadableState&) -> absl::StatusOr<int64_t> {
                    return absl::DataLossError("damaged");
                  },
                  .end = [&] { ended.Notify(); }});
  EXPECT_TRUE(absl::IsDataLoss(trainer.status())) << trainer.status();
}

}  // namespace
}  // namespace millrace
