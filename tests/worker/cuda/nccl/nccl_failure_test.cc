// Needs two to four GPUs that reach each other's memory.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "tests/worker/cuda/peer/captured_graph.h"
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"
#include "worker/cuda/nccl/nccl_version.h"

namespace millrace {
namespace {

constexpr absl::Duration kTeardownBar = absl::Seconds(2);
constexpr absl::Duration kRoundTimeout = absl::Seconds(40);
const std::atomic<bool> kNeverAborted = false;

bool Says(const absl::Status& status, absl::StatusCode code,
          absl::string_view text) {
  return status.code() == code && absl::StrContains(status.message(), text);
}

// Goal: a rank that never starts is named by all others after the time-out, and
// one that dies between arriving and joining ends the others' creation as well.
// Method: the last rank does nothing, or does only what tells the others that
// it is there.
TEST(NcclFailureTest, CreationEndsWithoutAMember) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  constexpr absl::Duration kTimeout = absl::Seconds(2);
  for (const bool arrives : {false, true}) {
    RankProcesses ranks;
    const std::string last = absl::StrCat(num_ranks - 1);
    const absl::Status status =
        ranks.RunAll(num_ranks, kRoundTimeout, [&](Rank rank) -> absl::Status {
          DirectoryRendezvousStore store(ranks.folder() + "/store");
          if (ToInt(rank) == num_ranks - 1) {
            return arrives ? store.Set("nccl/here/" + last, "here")
                           : absl::OkStatus();
          }
          const absl::Time start = MonotonicNow();
          const absl::Status failure =
              NcclCommunicatorSet::Create({.layout = {.data = num_ranks},
                                           .rank = rank,
                                           .store = &store,
                                           .timeout = kTimeout},
                                          kNeverAborted)
                  .status();
          const absl::Duration took = MonotonicNow() - start;
          // The rank whose time is over first gives up; NCCL then tells the
          // others that it is gone.
          const bool expected =
              arrives
                  ? Says(failure, absl::StatusCode::kDeadlineExceeded,
                         "were there, but one died or hangs") ||
                        Says(failure, absl::StatusCode::kUnavailable,
                             "failed to join as rank ")
                  : Says(failure, absl::StatusCode::kDeadlineExceeded,
                         absl::StrCat("waited 2s for rank ", last, " to join"));
          if (!expected ||
              !Says(failure, failure.code(), "data group (ranks 0, ")) {
            return absl::InternalError(
                absl::StrCat("unexpected: ", failure.ToString()));
          }
          if (took > kTimeout + kTeardownBar) {
            return absl::InternalError(
                absl::StrCat("took ", absl::FormatDuration(took)));
          }
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
}

// Goal: whoever makes communicators can be told to give up. Method: rank 0
// alone, told so after 300 ms.
TEST(NcclFailureTest, CreationCanBeGivenUp) {
  ASSERT_GE(CountDevices(), 2) << "this test needs two GPUs at least";
  RankProcesses ranks;
  ranks.Start(Rank{0}, [&](Rank rank) -> absl::Status {
    DirectoryRendezvousStore store(ranks.folder() + "/store");
    // The other one is there, so that NCCL itself has to be stopped.
    RETURN_IF_ERROR(store.Set("nccl/here/1", "here"));
    std::atomic<bool> abort_requested = false;
    std::thread aborter([&] {
      absl::SleepFor(absl::Milliseconds(300));
      abort_requested = true;
    });
    const absl::Time start = MonotonicNow();
    const absl::Status status =
        NcclCommunicatorSet::Create(
            {.layout = {.data = 2}, .rank = rank, .store = &store},
            abort_requested)
            .status();
    aborter.join();
    if (!absl::IsAborted(status) || MonotonicNow() - start > kTeardownBar) {
      return absl::InternalError(absl::StrCat(
          "unexpected after ", absl::FormatDuration(MonotonicNow() - start),
          ": ", status.ToString()));
    }
    return absl::OkStatus();
  });
  const absl::Status status = ranks.Wait(Rank{0}, kRoundTimeout);
  EXPECT_TRUE(status.ok()) << status;
}

// A training step as communicators see it: calls on all of them, each on its
// stream, with work in between, captured into one graph.
class Step {
 public:
  static constexpr int64_t kElements = 1 << 20;
  static constexpr int64_t kWorkBytes = int64_t{1} << 30;
  static constexpr int kCallsOfEach = 20;

  static absl::StatusOr<std::unique_ptr<Step>> Create(
      const NcclCommunicatorSet& set) {
    std::unique_ptr<Step> step(new Step);
    for (const Group group : {Group::kTensor, Group::kData, Group::kWorld}) {
      RETURN_IF_ERROR(step->AddStream(set.ForCollective(group), std::nullopt));
    }
    for (const Lane lane : {Lane::kSendNext, Lane::kReceivePrevious,
                            Lane::kSendPrevious, Lane::kReceiveNext}) {
      RETURN_IF_ERROR(step->AddStream(set.ForTransferLane(lane), lane));
    }
    ASSIGN_OR_RETURN(CudaStream origin,
                     CudaStream::Create(CudaStream::Priority::kNormal));
    step->origin_.emplace(std::move(origin));
    ASSIGN_OR_RETURN(CudaEvent start,
                     CudaEvent::Create(CudaEvent::Kind::kOrder));
    step->start_.emplace(std::move(start));
    ASSIGN_OR_RETURN(CapturedGraph graph,
                     CapturedGraph::Capture(step->origin_->get(), [&step] {
                       return step->Enqueue();
                     }));
    step->graph_.emplace(std::move(graph));
    return step;
  }

  absl::Status Launch() { return graph_->Launch(origin_->get()); }
  absl::Status Synchronize() {
    return CudaStatus(cudaStreamSynchronize(origin_->get()), "run a step");
  }
  bool IsUnderWay() const {
    return cudaStreamQuery(origin_->get()) == cudaErrorNotReady;
  }

  // Sums of equal terms grow by the group's size with every call.
  absl::Status CheckSums() {
    for (Member& member : members_) {
      if (member.lane.has_value()) continue;
      const std::vector<float> ones(kElements, 1.0f / 1024);
      RETURN_IF_ERROR(CudaStatus(
          cudaMemcpy(member.data.data(), ones.data(), kElements * sizeof(float),
                     cudaMemcpyHostToDevice),
          "fill"));
    }
    RETURN_IF_ERROR(Launch());
    RETURN_IF_ERROR(Synchronize());
    for (Member& member : members_) {
      if (member.lane.has_value()) continue;
      double expected = 1.0 / 1024;
      for (int i = 0; i < kCallsOfEach; ++i) {
        expected *= member.communicator->size();
      }
      std::vector<float> sums(kElements);
      RETURN_IF_ERROR(CudaStatus(
          cudaMemcpy(sums.data(), member.data.data(), kElements * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "read"));
      for (const float sum : sums) {
        if (sum > 0.999 * expected && sum < 1.001 * expected) continue;
        return absl::DataLossError(
            absl::StrCat("a sum is ", sum, ", expected ", expected));
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Member {
    NcclCommunicator* communicator;
    std::optional<Lane> lane;
    CudaStream stream;
    CudaEvent done;
    DeviceBuffer<float> data;
    DeviceBuffer<std::byte> work;
  };
  Step() = default;

  absl::Status AddStream(NcclCommunicator* communicator,
                         std::optional<Lane> lane) {
    if (communicator == nullptr) return absl::OkStatus();
    for (const Member& member : members_) {
      if (member.communicator == communicator) return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kHigh));
    ASSIGN_OR_RETURN(CudaEvent done,
                     CudaEvent::Create(CudaEvent::Kind::kOrder));
    ASSIGN_OR_RETURN(auto data, DeviceBuffer<float>::Allocate(kElements));
    ASSIGN_OR_RETURN(auto work, DeviceBuffer<std::byte>::Allocate(kWorkBytes));
    members_.push_back({communicator, lane, std::move(stream), std::move(done),
                        std::move(data), std::move(work)});
    return absl::OkStatus();
  }

  static absl::Status EnqueueOne(Member& member) {
    // Work before each call, so that many calls begin only long after a peer
    // was lost.
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(member.work.data(), 1, kWorkBytes, member.stream.get()),
        "set memory"));
    if (!member.lane.has_value()) {
      return member.communicator->AllReduce(
          member.data.data(), kElements, DType::kFloat32, member.stream.get());
    }
    const int64_t num_bytes = kElements * sizeof(float);
    const int32_t other = 1 - member.communicator->index();
    const bool sends =
        member.lane == Lane::kSendNext || member.lane == Lane::kSendPrevious;
    return sends ? member.communicator->Send(member.data.data(), num_bytes,
                                             other, member.stream.get())
                 : member.communicator->Receive(member.data.data(), num_bytes,
                                                other, member.stream.get());
  }

  absl::Status Enqueue() {
    RETURN_IF_ERROR(start_->Record(origin_->get()));
    for (Member& member : members_) {
      RETURN_IF_ERROR(start_->MakeWait(member.stream.get()));
      for (int i = 0; i < kCallsOfEach; ++i) {
        RETURN_IF_ERROR(EnqueueOne(member));
      }
      RETURN_IF_ERROR(member.done.Record(member.stream.get()));
      RETURN_IF_ERROR(member.done.MakeWait(origin_->get()));
    }
    return absl::OkStatus();
  }

  std::vector<Member> members_;
  std::optional<CudaStream> origin_;
  std::optional<CudaEvent> start_;
  std::optional<CapturedGraph> graph_;  // Destroyed before what it uses.
};

struct Round {
  Layout layout;
  Rank victim;
  // False: the victim dies while nobody communicates, and nobody aborts.
  bool in_flight;
};

std::vector<Round> Rounds(int32_t num_ranks) {
  std::vector<Layout> layouts = {{.data = num_ranks}, {.pipeline = num_ranks}};
  if (num_ranks == 4) {
    layouts.push_back({.data = 2, .tensor = 2});
    layouts.push_back({.pipeline = 2, .data = 2});
  }
  std::vector<Round> rounds;
  for (int i = 0; i < 11; ++i) {
    rounds.push_back({.layout = layouts[i % layouts.size()],
                      .victim = Rank{i * 3 % num_ranks},
                      .in_flight = i < 10});
  }
  return rounds;
}

// A survivor's and a victim's way through one round.
absl::Status RunRound(const Round& round, int index, Rank rank,
                      const std::string& folder) {
  const int32_t num_ranks = round.layout.num_ranks();
  DirectoryRendezvousStore store(absl::StrCat(folder, "/", index));
  const absl::Time start = MonotonicNow();
  ASSIGN_OR_RETURN(auto set,
                   NcclCommunicatorSet::Create(
                       {.layout = round.layout, .rank = rank, .store = &store},
                       kNeverAborted));
  const absl::Duration joined = MonotonicNow() - start;
  ASSIGN_OR_RETURN(auto step, Step::Create(*set));
  const absl::Duration captured = MonotonicNow() - start - joined;
  RETURN_IF_ERROR(step->CheckSums());
  RETURN_IF_ERROR(Meet(store, "checked", rank, num_ranks));
  if (round.in_flight) {
    // Two more than the victim has, which a kill that comes late would find at
    // its end.
    const int num_launches = rank == round.victim ? 10 : 12;
    for (int i = 0; i < num_launches; ++i) RETURN_IF_ERROR(step->Launch());
  }
  RETURN_IF_ERROR(store.Set(absl::StrCat("launched/", ToInt(rank)), ""));
  // The test kills the victim, which waits here, and tells the others.
  RETURN_IF_ERROR(store.Get("killed", kRoundTimeout).status());
  // As long as an agent takes to notice and the coordinator to tell.
  absl::SleepFor(absl::Milliseconds(100));

  if (step->IsUnderWay() != round.in_flight) {
    return absl::InternalError(absl::StrCat(
        "round ", index, ": rank ", ToInt(rank), " should ",
        round.in_flight ? "hang in a call" : "be idle", ", but is not"));
  }

  const absl::Time teardown = MonotonicNow();
  const absl::Status health = set->Health();
  if (round.in_flight) set->Abort();
  const absl::Duration aborted = MonotonicNow() - teardown;
  RETURN_IF_ERROR(step->Synchronize());
  const absl::Duration drained = MonotonicNow() - teardown;
  step.reset();
  set.reset();
  const absl::Duration took = MonotonicNow() - teardown;
  if (rank == Rank{0} || round.victim == Rank{0}) {
    std::printf(
        "round %d, %s: rank %d joined in %.0f ms, captured in %.0f ms; rank %d "
        "lost%s; abort() %.1f ms, drained %.0f ms, torn down %.0f ms; health "
        "%s\n",
        index, LayoutToString(round.layout).c_str(), ToInt(rank),
        absl::ToDoubleMilliseconds(joined),
        absl::ToDoubleMilliseconds(captured), ToInt(round.victim),
        round.in_flight ? "" : " while idle",
        absl::ToDoubleMilliseconds(aborted),
        absl::ToDoubleMilliseconds(drained), absl::ToDoubleMilliseconds(took),
        health.ToString().c_str());
    std::fflush(stdout);
  }
  if (took > kTeardownBar) {
    return absl::DeadlineExceededError(absl::StrCat(
        "round ", index, ": rank ", ToInt(rank), " took ",
        absl::FormatDuration(took), " to tear down, drained after ",
        absl::FormatDuration(drained)));
  }
  return absl::OkStatus();
}

// Goal: when a rank is killed in the middle of steps replayed by a graph, every
// survivor is done with its communicators within two seconds, ten times of ten,
// and goes on with a new process in the lost one's place. The same holds,
// without an abort, when the rank dies while nobody communicates. Method:
// survivors live through all rounds; layouts and victims alternate.
TEST(NcclFailureTest, SurvivorsGoOnAfterALoss) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  int version = 0;
  ncclGetVersion(&version);
  std::printf("NCCL %s\n", NcclVersionName(version).c_str());
  std::fflush(stdout);
  const std::vector<Round> rounds = Rounds(num_ranks);
  RankProcesses ranks;
  // From `first_round` on, until its own end.
  const auto start = [&](Rank rank, size_t first_round) {
    ranks.Start(rank, [&, first_round](Rank self) -> absl::Status {
      for (size_t i = first_round; i < rounds.size(); ++i) {
        RETURN_IF_ERROR(
            RunRound(rounds[i], static_cast<int>(i), self, ranks.folder()));
      }
      return absl::OkStatus();
    });
  };
  for (int32_t rank = 0; rank < num_ranks; ++rank) start(Rank{rank}, 0);
  for (size_t i = 0; i < rounds.size(); ++i) {
    DirectoryRendezvousStore store(absl::StrCat(ranks.folder(), "/", i));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const absl::Status launched =
          store.Get(absl::StrCat("launched/", rank), kRoundTimeout).status();
      if (launched.ok()) continue;
      // The one that is missing may wait for another, which has failed.
      for (int32_t other = 0; other < num_ranks; ++other) {
        ADD_FAILURE() << "round " << i << ": " << launched << "; rank " << other
                      << ": " << ranks.Wait(Rank{other}, absl::ZeroDuration());
      }
      return;
    }
    // Into ten steps of some 10 ms each.
    absl::SleepFor(absl::Milliseconds(10));
    ranks.Kill(rounds[i].victim);
    ASSERT_TRUE(store.Set("killed", "").ok());
    if (i + 1 < rounds.size()) start(rounds[i].victim, i + 1);
  }
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    if (Rank{rank} == rounds.back().victim) continue;
    const absl::Status status = ranks.Wait(Rank{rank}, kRoundTimeout);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
  }
}

}  // namespace
}  // namespace millrace
