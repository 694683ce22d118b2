// Needs two to four GPUs of one host that reach each other's memory.

#include "worker/cuda/peer/peer_copies.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/cast.h"
#include "tests/worker/cuda/peer/peer_step.h"
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"

namespace millrace {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

int32_t NumRanks() { return std::min(4, CountDevices()); }

// Element i of what `rank` puts into call `call` of step `step`: small whole
// numbers, so that sums are exact in every type.
int Value(int32_t rank, int call, int step, int64_t i) {
  return static_cast<int>((i * 7 + rank * 5 + call * 11 + step * 3) % 17) - 8;
}

void Put(int value, DType dtype, int64_t i, std::vector<std::byte>& bytes) {
  std::byte* const at = bytes.data() + i * DTypeBytes(dtype);
  const float narrow = static_cast<float>(value);
  const uint16_t half = EncodeBf16(narrow);
  dtype == DType::kBfloat16 ? std::memcpy(at, &half, 2)
                            : std::memcpy(at, &narrow, 4);
}

// Checks the values that each kind of call should find and leave.
class Checker {
 public:
  Checker(const PeerStep& step, const Layout& layout, Rank rank,
          const std::vector<PeerCall>& calls)
      : step_(step), layout_(layout), rank_(ToInt(rank)), calls_(calls) {}

  // Poisons outputs and fills inputs.
  absl::Status Fill(int number) {
    for (size_t c = 0; c < calls_.size(); ++c) {
      for (const char* name : {"out/", "in/"}) {
        const Buffer* const buffer = step_.Find(absl::StrCat(name, c));
        if (buffer == nullptr) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(buffer->bytes),
                                     std::byte{0xff});
        if (name[0] == 'i') PutInput(static_cast<int>(c), number, bytes);
        RETURN_IF_ERROR(CudaStatus(
            cudaMemcpyAsync(step_.At(*buffer), bytes.data(), bytes.size(),
                            cudaMemcpyHostToDevice, step_.stream()),
            "fill"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Check(int number) {
    for (size_t c = 0; c < calls_.size(); ++c) {
      const PeerCall& call = calls_[c];
      const Buffer* const buffer =
          step_.Find(absl::StrCat(call.in_place ? "in/" : "out/", c));
      if (buffer == nullptr) continue;
      const std::vector<std::byte> expected =
          Expected(static_cast<int>(c), number);
      std::vector<std::byte> got(expected.size());
      const std::byte* at = step_.At(*buffer);
      if (call.in_place && call.kind == OpKind::kReduceScatter) {
        at += rank_ * static_cast<int64_t>(expected.size());
      }
      RETURN_IF_ERROR(CudaStatus(
          cudaMemcpy(got.data(), at, got.size(), cudaMemcpyDeviceToHost),
          "read"));
      if (got == expected) continue;
      const auto differs =
          std::mismatch(got.begin(), got.end(), expected.begin());
      return absl::DataLossError(absl::StrCat(
          "step ", number, ", call ", c, " (", OpKindName(call.kind),
          "): byte ", differs.first - got.begin(), " of ", got.size(),
          " is wrong"));
    }
    return absl::OkStatus();
  }

 private:
  int64_t Shard(const PeerCall& call) const {
    return call.num_elements / layout_.tensor;
  }

  void PutInput(int c, int number, std::vector<std::byte>& bytes) const {
    const PeerCall& call = calls_[static_cast<size_t>(c)];
    const bool gathers = call.kind == OpKind::kAllGather;
    const int64_t count = gathers ? Shard(call) : call.num_elements;
    const int64_t first =
        gathers && call.in_place ? rank_ * Shard(call) : int64_t{0};
    for (int64_t i = 0; i < count; ++i) {
      Put(Value(rank_, c, number, i), call.dtype, first + i, bytes);
    }
  }

  std::vector<std::byte> Expected(int c, int number) const {
    const PeerCall& call = calls_[static_cast<size_t>(c)];
    const bool reduces = call.kind == OpKind::kReduceScatter;
    const int64_t count = reduces ? Shard(call) : call.num_elements;
    std::vector<std::byte> bytes(
        static_cast<size_t>(count * DTypeBytes(call.dtype)));
    for (int64_t i = 0; i < count; ++i) {
      int value = 0;
      if (call.kind == OpKind::kAllGather) {
        value = Value(static_cast<int32_t>(i / Shard(call)), c, number,
                      i % Shard(call));
      } else if (reduces) {
        for (int32_t other = 0; other < layout_.tensor; ++other) {
          value += Value(other, c, number, rank_ * Shard(call) + i);
        }
      } else {
        value = Value(call.kind == OpKind::kSend ? rank_ - 1 : rank_ + 1, c,
                      number, i);
      }
      Put(value, call.dtype, i, bytes);
    }
    return bytes;
  }

  const PeerStep& step_;
  const Layout layout_;
  const int32_t rank_;
  const std::vector<PeerCall> calls_;
};

std::vector<PeerCall> Collectives(int32_t num_ranks) {
  std::vector<PeerCall> calls;
  // An odd number of elements a shard, and one that is a multiple of 16 bytes.
  for (const int64_t shard : {int64_t{1001}, int64_t{32768}}) {
    for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter}) {
      for (const DType dtype : {DType::kBfloat16, DType::kFloat32}) {
        for (const bool in_place : {false, true}) {
          calls.push_back({.kind = kind,
                           .num_elements = shard * num_ranks,
                           .dtype = dtype,
                           .in_place = in_place});
        }
      }
    }
  }
  return calls;
}

std::vector<PeerCall> Transfers() {
  std::vector<PeerCall> calls;
  for (const int64_t size :
       {int64_t{1}, int64_t{4097}, int64_t{65536}, int64_t{524288}}) {
    calls.push_back({.kind = OpKind::kSend, .num_elements = size});
    calls.push_back({.kind = OpKind::kReceive, .num_elements = size});
  }
  return calls;
}

// Fills, runs and checks `num_steps` steps on every rank.
absl::Status MoveAndCheck(int32_t num_ranks, bool transfers, bool use_graphs,
                          int num_steps) {
  const Layout layout =
      transfers ? Layout{.pipeline = num_ranks} : Layout{.tensor = num_ranks};
  const std::vector<PeerCall> calls =
      transfers ? Transfers() : Collectives(num_ranks);
  RankProcesses ranks;
  return ranks.RunAll(num_ranks, kTestTimeout, [&](Rank rank) -> absl::Status {
    DirectoryRendezvousStore store(ranks.folder() + "/store");
    ASSIGN_OR_RETURN(auto step, PeerStep::Create({.layout = layout,
                                                  .rank = rank,
                                                  .store = &store,
                                                  .calls = calls,
                                                  .use_graphs = use_graphs,
                                                  .work_bytes = 1 << 20}));
    Checker checker(*step, layout, rank, calls);
    std::mt19937 random(static_cast<uint32_t>(ToInt(rank)));
    for (int number = 0; number < num_steps; ++number) {
      const int repeats = number % 10 == 9 ? 3 : 1;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        RETURN_IF_ERROR(checker.Fill(number));
        if (random() % 4 == 0) {
          absl::SleepFor(absl::Microseconds(random() % 300));
        }
        RETURN_IF_ERROR(step->Run());
      }
      RETURN_IF_ERROR(step->Synchronize());
      RETURN_IF_ERROR(checker.Check(number));
    }
    const uint32_t mark = step->mark();
    if (mark == 0) return absl::OkStatus();
    return absl::InternalError("marked, though nobody aborted");
  });
}

// Goal: what is gathered, summed and sent is right to the bit in a thousand
// replays of a step, each with other numbers and outputs poisoned, while ranks
// come to their calls at different times; on streams, too. Method: whole
// numbers; three steps under way at once now and then, so that a rank may be
// ahead of another by a step.
TEST(PeerCopiesTest, MovesWhatItShould) {
  const int32_t num_ranks = NumRanks();
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  for (const bool use_graphs : {false, true}) {
    for (const bool transfers : {false, true}) {
      EXPECT_EQ(MoveAndCheck(num_ranks, transfers, use_graphs,
                             use_graphs ? 1000 : 50),
                absl::OkStatus())
          << (use_graphs ? "graph, " : "streams, ")
          << (transfers ? "transfers" : "collectives");
    }
  }
}

// Waits until done. False: it was not in time.
bool DrainsWithin(const PeerStep& step, absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + patience;
  while (step.IsUnderWay()) {
    if (MonotonicNow() > deadline) return false;
    absl::SleepFor(absl::Microseconds(100));
  }
  return true;
}

std::vector<PeerCall> LongCalls(bool transfers) {
  std::vector<PeerCall> calls;
  for (int i = 0; i < 10; ++i) {
    const int64_t num_elements = int64_t{32} << 20;
    if (transfers) {
      calls.push_back({.kind = OpKind::kSend, .num_elements = num_elements});
      calls.push_back({.kind = OpKind::kReceive, .num_elements = num_elements});
    } else {
      calls.push_back(
          {.kind = OpKind::kAllGather, .num_elements = num_elements});
      calls.push_back(
          {.kind = OpKind::kReduceScatter, .num_elements = num_elements});
    }
  }
  return calls;
}

// Goal: when a rank is killed in the middle of ten replays, the survivors'
// queues drain within a second of their abort, their device is usable, and they
// go on with a new process in its place, numbers right; five times, the kill at
// different moments of copies and waits. Method: survivors live through all
// rounds.
TEST(PeerCopiesTest, SurvivorsGoOnAfterALoss) {
  const int32_t num_ranks = NumRanks();
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  constexpr int kRounds = 6;
  RankProcesses ranks;
  const Rank victim{num_ranks - 1};
  const auto live = [&](Rank rank, int first_round) {
    ranks.Start(rank, [&, first_round](Rank self) -> absl::Status {
      for (int round = first_round; round < kRounds; ++round) {
        DirectoryRendezvousStore store(
            absl::StrCat(ranks.folder(), "/", round));
        const bool transfers = round % 2 != 0;
        const Layout layout = transfers ? Layout{.pipeline = num_ranks}
                                        : Layout{.tensor = num_ranks};
        const std::vector<PeerCall> calls = LongCalls(transfers);
        ASSIGN_OR_RETURN(auto step, PeerStep::Create({.layout = layout,
                                                      .rank = self,
                                                      .store = &store,
                                                      .calls = calls}));
        Checker checker(*step, layout, self, calls);
        RETURN_IF_ERROR(checker.Fill(round));
        for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(step->Run());
        RETURN_IF_ERROR(step->Synchronize());
        RETURN_IF_ERROR(checker.Check(round));
        RETURN_IF_ERROR(Meet(store, "checked", self, num_ranks));
        if (round == kRounds - 1) break;
        // Two more than the victim has, which a kill that comes late would find
        // at its end.
        const int num_replays = self == victim ? 10 : 12;
        for (int i = 0; i < num_replays; ++i) RETURN_IF_ERROR(step->Run());
        RETURN_IF_ERROR(store.Set(absl::StrCat("launched/", ToInt(self)), ""));
        RETURN_IF_ERROR(store.Get("killed", kTestTimeout).status());
        absl::SleepFor(absl::Milliseconds(100));
        if (!step->IsUnderWay()) {
          return absl::InternalError("nothing hangs though a rank is lost");
        }
        const absl::Time start = MonotonicNow();
        step->Abort();
        const absl::Duration aborted = MonotonicNow() - start;
        if (!DrainsWithin(*step, absl::Seconds(5))) {
          return absl::DeadlineExceededError("the queue does not drain");
        }
        const absl::Duration drained = MonotonicNow() - start;
        RETURN_IF_ERROR(step->Synchronize());
        step.reset();
        const absl::Duration took = MonotonicNow() - start;
        if (self == Rank{0}) {
          std::printf(
              "round %d: abort() %.2f ms, drained %.2f ms, torn down %.2f ms\n",
              round, absl::ToDoubleMilliseconds(aborted),
              absl::ToDoubleMilliseconds(drained),
              absl::ToDoubleMilliseconds(took));
          std::fflush(stdout);
        }
        if (took > absl::Seconds(1)) {
          return absl::DeadlineExceededError(
              absl::StrCat("torn down in ", absl::FormatDuration(took)));
        }
      }
      return absl::OkStatus();
    });
  };
  for (int32_t rank = 0; rank < num_ranks; ++rank) live(Rank{rank}, 0);
  for (int round = 0; round + 1 < kRounds; ++round) {
    DirectoryRendezvousStore store(absl::StrCat(ranks.folder(), "/", round));
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const absl::Status launched =
          store.Get(absl::StrCat("launched/", rank), kTestTimeout).status();
      ASSERT_TRUE(launched.ok())
          << "round " << round << ": " << launched << "; rank " << rank << ": "
          << ranks.Wait(Rank{rank}, absl::ZeroDuration());
    }
    absl::SleepFor(absl::Microseconds(300 * round));
    ranks.Kill(victim);
    ASSERT_TRUE(store.Set("killed", "").ok());
    live(victim, round + 1);
  }
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const absl::Status status = ranks.Wait(Rank{rank}, kTestTimeout);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
  }
}

// Goal: a rank that gives up in the middle of a step ends on its own, and the
// others, whose steps its nonsense may let go on, find its mark. Method: rank 0
// runs three steps and aborts at once; the others run them to their end.
TEST(PeerCopiesTest, MarksWhatItSendsAfterAnAbort) {
  const int32_t num_ranks = NumRanks();
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  RankProcesses ranks;
  const absl::Status status =
      ranks.RunAll(num_ranks, kTestTimeout, [&](Rank rank) -> absl::Status {
        DirectoryRendezvousStore store(ranks.folder() + "/store");
        ASSIGN_OR_RETURN(auto step,
                         PeerStep::Create({.layout = {.tensor = num_ranks},
                                           .rank = rank,
                                           .store = &store,
                                           .calls = LongCalls(false)}));
        for (int i = 0; i < 2; ++i) RETURN_IF_ERROR(step->Run());
        RETURN_IF_ERROR(step->Synchronize());
        RETURN_IF_ERROR(Meet(store, "warm", rank, num_ranks));
        if (rank == Rank{0}) {
          for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(step->Run());
          step->Abort();
          if (!DrainsWithin(*step, absl::Seconds(5))) {
            return absl::DeadlineExceededError("the queue does not drain");
          }
          RETURN_IF_ERROR(step->Synchronize());
          RETURN_IF_ERROR(store.Set("aborted", ""));
          // Its memory must outlive what the others send.
          return Meet(store, "over", rank, num_ranks);
        }
        RETURN_IF_ERROR(store.Get("aborted", kTestTimeout).status());
        for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(step->Run());
        // They may end, or wait for what rank 0 has no reason to send.
        absl::SleepFor(absl::Milliseconds(200));
        const uint32_t mark = step->mark();
        step->Abort();
        if (!DrainsWithin(*step, absl::Seconds(5))) {
          return absl::DeadlineExceededError("the queue does not drain");
        }
        RETURN_IF_ERROR(Meet(store, "over", rank, num_ranks));
        if (mark == 1) return absl::OkStatus();
        return absl::InternalError(
            absl::StrCat("the mark is ", mark, ", expected rank 0's"));
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace millrace
