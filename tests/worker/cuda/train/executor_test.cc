#include "worker/cuda/train/executor.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "kernels/pointwise/random_normal_cuda.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr int32_t kNumInstructions = 60;

InstructionId Add(Program& program, Lane lane, Waits waits) {
  const auto id = static_cast<InstructionId>(program.instructions.size());
  program.instructions.push_back({.kind = OpKind::kAdd,
                                  .phase = Phase::kForward,
                                  .lane = lane,
                                  .name = absl::StrCat("instruction_", id),
                                  .waits = std::move(waits)});
  program.lanes[static_cast<int>(lane)].push_back(id);
  return id;
}

Program RandomProgram(uint32_t seed) {
  std::mt19937 random(seed);
  Program program{.stage = 2};
  for (InstructionId id = 0; id < kNumInstructions; ++id) {
    const auto lane = static_cast<Lane>(random() % kNumLanes);
    Waits waits;
    for (uint32_t i = 0; i < random() % 3 && id > 0; ++i) {
      const auto earlier = static_cast<InstructionId>(random() % id);
      if (program.instructions[earlier].lane != lane &&
          std::find(waits.begin(), waits.end(), earlier) == waits.end()) {
        waits.push_back(earlier);
      }
    }
    Add(program, lane, waits);
  }
  return program;
}

// Ops that take unlike times on the device and note when they are done there,
// by a count that the host keeps for it. Without the waits their order would be
// another one.
class NotedOps {
 public:
  explicit NotedOps(uint32_t seed) : random_(seed) {
    auto buffer = DeviceBuffer<float>::Allocate(kElements);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = std::make_unique<DeviceBuffer<float>>(*std::move(buffer));
  }

  std::vector<CudaOp> Make(size_t count) {
    notes_.resize(count);
    std::vector<CudaOp> ops;
    for (size_t id = 0; id < count; ++id) {
      notes_[id].count = &count_;
      // Up to 10 x 25 us.
      const int repetitions = static_cast<int>(random_() % 11);
      ops.push_back([this, repetitions,
                     note = &notes_[id]](cudaStream_t stream) -> absl::Status {
        for (int i = 0; i < repetitions; ++i) {
          RETURN_IF_ERROR(LaunchFill(buffer_->data(), kElements, 1.0f, stream));
        }
        return CudaStatus(cudaLaunchHostFunc(stream, &Note::Take, note),
                          "launch a note");
      });
    }
    return ops;
  }

  // When the instruction was done: a number that rises with time, from 1 on.
  int64_t when(InstructionId id) const { return notes_[id].when; }
  void Reset() {
    count_ = 0;
    for (Note& note : notes_) note.when = 0;
  }

 private:
  static constexpr int64_t kElements = 25 << 20;
  struct Note {
    std::atomic<int64_t>* count = nullptr;
    int64_t when = 0;
    static void Take(void* note) {
      auto* self = static_cast<Note*>(note);
      self->when = ++*self->count;
    }
  };

  std::mt19937 random_;
  std::unique_ptr<DeviceBuffer<float>> buffer_;
  std::atomic<int64_t> count_ = 0;
  std::vector<Note> notes_;
};

std::unique_ptr<CudaExecutor> NewExecutor(bool use_graphs) {
  auto executor =
      CudaExecutor::Create({.name = "rank 7", .use_graphs = use_graphs});
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

std::unique_ptr<CudaPreparedProgram> Prepare(const Program& program,
                                             std::vector<CudaOp> ops) {
  auto prepared = CudaPreparedProgram::Create(&program, std::move(ops));
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return *std::move(prepared);
}

void ExpectInOrder(const Program& program, const NotedOps& ops) {
  for (InstructionId id = 0; id < kNumInstructions; ++id) {
    EXPECT_GT(ops.when(id), 0) << id << " never ran";
    for (const InstructionId earlier : program.instructions[id].waits) {
      EXPECT_LT(ops.when(earlier), ops.when(id)) << earlier << ", " << id;
    }
  }
  for (const std::vector<InstructionId>& lane : program.lanes) {
    for (size_t i = 1; i < lane.size(); ++i) {
      EXPECT_LT(ops.when(lane[i - 1]), ops.when(lane[i])) << lane[i];
    }
  }
}

// Goal: an instruction runs after everything it waits for and after its lane's
// earlier ones, from the streams as from a graph, run after run. Method: random
// Programs over all lanes, of ops that take unlike times.
TEST(CudaExecutorTest, KeepsOrderOnStreamsAndInGraphs) {
  for (const bool use_graphs : {false, true}) {
    for (uint32_t seed = 0; seed < 5; ++seed) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", graphs ", use_graphs));
      const Program program = RandomProgram(seed);
      NotedOps ops(seed);
      auto executor = NewExecutor(use_graphs);
      auto prepared = Prepare(program, ops.Make(kNumInstructions));
      for (int run = 0; run < 4; ++run) {
        ops.Reset();
        ASSERT_EQ(executor->Run(*prepared), absl::OkStatus());
        ASSERT_EQ(executor->Synchronize(), absl::OkStatus());
        ExpectInOrder(program, ops);
        EXPECT_EQ(prepared->has_graph(), use_graphs && run > 0);
      }
    }
  }
}

// Goal: a run comes after what the stream was given before it and before what
// it is given afterwards. Method: copies around runs of a Program whose only
// instruction is on another lane.
TEST(CudaExecutorTest, RunsInStreamOrder) {
  Program program{.stage = 0};
  Add(program, Lane::kDataComm, {});
  auto buffer = DeviceBuffer<float>::Allocate(1);
  ASSERT_TRUE(buffer.ok());
  constexpr int64_t kDelayElements = 64 << 20;
  auto delay = DeviceBuffer<float>::Allocate(kDelayElements);
  ASSERT_TRUE(delay.ok());
  auto executor = NewExecutor(true);
  auto prepared = Prepare(program, {[&](cudaStream_t stream) -> absl::Status {
                            RETURN_IF_ERROR(LaunchFill(
                                delay->data(), kDelayElements, 0.0f, stream));
                            return LaunchFill(buffer->data(), 1, 2.0f, stream);
                          }});
  for (int run = 0; run < 3; ++run) {
    float after = 0;
    ASSERT_EQ(
        LaunchFill(delay->data(), kDelayElements, 0.0f, executor->stream()),
        absl::OkStatus());
    ASSERT_EQ(LaunchFill(buffer->data(), 1, 1.0f, executor->stream()),
              absl::OkStatus());
    ASSERT_EQ(executor->Run(*prepared), absl::OkStatus());
    ASSERT_EQ(cudaMemcpyAsync(&after, buffer->data(), sizeof(after),
                              cudaMemcpyDeviceToHost, executor->stream()),
              cudaSuccess);
    ASSERT_EQ(executor->Synchronize(), absl::OkStatus());
    EXPECT_EQ(after, 2.0f);
  }
}

// Goal: a measured run's timeline has every instruction once, by start, each
// after what it waits for, and times that are the device's. Method: a random
// Program, and two instructions of which one does ten times the other's work.
TEST(CudaExecutorTest, MeasuresTheDevicesTimes) {
  const Program program = RandomProgram(11);
  NotedOps ops(11);
  auto executor = NewExecutor(true);
  auto prepared = Prepare(program, ops.Make(kNumInstructions));
  EXPECT_TRUE(absl::IsFailedPrecondition(prepared->ReadTimeline().status()));
  for (int run = 0; run < 3; ++run) {
    ASSERT_EQ(executor->Run(*prepared), absl::OkStatus());
    ASSERT_EQ(executor->RunMeasured(*prepared), absl::OkStatus());
    ASSERT_EQ(executor->Synchronize(), absl::OkStatus());
  }
  const auto timeline = prepared->ReadTimeline();
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  EXPECT_EQ(timeline->stage, 2);
  ASSERT_EQ(timeline->events.size(), static_cast<size_t>(kNumInstructions));
  std::vector<TimelineEvent> by_id(kNumInstructions, {-1, 0, 0});
  double last_start = 0;
  for (const TimelineEvent& event : timeline->events) {
    EXPECT_GE(event.start_s, last_start);
    EXPECT_GE(event.end_s, event.start_s);
    EXPECT_EQ(by_id[event.instruction].instruction, -1);
    by_id[event.instruction] = event;
    last_start = event.start_s;
  }
  constexpr double kClockStep = 2e-6;  // Events tell about half a microsecond.
  for (InstructionId id = 0; id < kNumInstructions; ++id) {
    for (const InstructionId earlier : program.instructions[id].waits) {
      EXPECT_GE(by_id[id].start_s, by_id[earlier].end_s - kClockStep);
    }
  }

  Program pair{.stage = 0};
  Add(pair, Lane::kCompute, {});
  Add(pair, Lane::kCompute, {});
  constexpr int64_t kElements = 64 << 20;
  auto buffer = DeviceBuffer<float>::Allocate(kElements);
  ASSERT_TRUE(buffer.ok());
  auto fills = [&](int count) -> CudaOp {
    return [&buffer, count](cudaStream_t stream) -> absl::Status {
      for (int i = 0; i < count; ++i) {
        RETURN_IF_ERROR(LaunchFill(buffer->data(), kElements, 1.0f, stream));
      }
      return absl::OkStatus();
    };
  };
  auto prepared_pair = Prepare(pair, {fills(2), fills(20)});
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(executor->RunMeasured(*prepared_pair), absl::OkStatus());
  }
  ASSERT_EQ(executor->Synchronize(), absl::OkStatus());
  const auto times = prepared_pair->ReadTimeline();
  ASSERT_TRUE(times.ok()) << times.status();
  const double little = times->events[0].end_s - times->events[0].start_s;
  const double much = times->events[1].end_s - times->events[1].start_s;
  EXPECT_GT(little, 20e-6);
  EXPECT_NEAR(much / little, 10, 2);
}

constexpr absl::Duration kPause = absl::Milliseconds(1);

// Holds a stream until it is opened.
struct Gate {
  std::atomic<bool> open = false;
  static void WaitAt(void* gate) {
    while (!static_cast<Gate*>(gate)->open) absl::SleepFor(kPause);
  }
};

// Goal: progress says how far each lane is while the run hangs, from the
// streams as from a graph, exact on all lanes but compute, and there where
// others wait. Method: a host function that holds one lane until the progress
// was read.
TEST(CudaExecutorTest, TellsProgressWhileARunHangs) {
  Program program{.stage = 0};
  const InstructionId first = Add(program, Lane::kCompute, {});
  Add(program, Lane::kCompute, {});
  Add(program, Lane::kTensorComm, {first});
  const InstructionId held = Add(program, Lane::kDataComm, {first});
  Add(program, Lane::kDataComm, {});
  Add(program, Lane::kCompute, {held});
  Gate gate;
  const CudaOp nothing = [](cudaStream_t) { return absl::OkStatus(); };
  std::vector<CudaOp> ops(program.instructions.size(), nothing);
  ops[held] = [&gate](cudaStream_t stream) {
    return CudaStatus(cudaLaunchHostFunc(stream, &Gate::WaitAt, &gate),
                      "launch a gate");
  };
  auto executor =
      CudaExecutor::Create({.name = "rank 7", .note_progress = true});
  ASSERT_TRUE(executor.ok()) << executor.status();
  auto prepared = Prepare(program, std::move(ops));
  for (int run = 0; run < 3; ++run) {
    gate.open = false;
    ASSERT_EQ((*executor)->Run(*prepared), absl::OkStatus());
    EXPECT_EQ(prepared->has_graph(), run > 0);
    CudaExecutor::Progress expected = {};
    expected[static_cast<int>(Lane::kCompute)] = 1;
    expected[static_cast<int>(Lane::kTensorComm)] = 1;
    CudaExecutor::Progress progress = {};
    for (int polls = 0; polls < 1000 && progress != expected; ++polls) {
      const auto read = (*executor)->ReadProgress(absl::Seconds(2));
      ASSERT_TRUE(read.ok()) << read.status();
      progress = *read;
      absl::SleepFor(kPause);
    }
    EXPECT_EQ(progress, expected);
    gate.open = true;
    ASSERT_EQ((*executor)->Synchronize(), absl::OkStatus());
    const auto done = (*executor)->ReadProgress(absl::Seconds(2));
    ASSERT_TRUE(done.ok()) << done.status();
    EXPECT_EQ((*done)[static_cast<int>(Lane::kDataComm)], 2);
  }
}

// Goal: an instruction that cannot start is named. Method: one fails.
TEST(CudaExecutorTest, NamesWhatFails) {
  Program program{.stage = 0};
  Add(program, Lane::kCompute, {});
  auto executor = NewExecutor(true);
  auto prepared = Prepare(
      program, {[](cudaStream_t) { return absl::InternalError("no luck"); }});
  const absl::Status status = executor->Run(*prepared);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("instruction_0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("no luck"));
}

// Goal: what a graph cannot hold still runs, in order, on the streams. Method:
// ops that wait for their stream, which no capture allows.
TEST(CudaExecutorTest, KeepsToStreamsWhatNoGraphCanHold) {
  const Program program = RandomProgram(3);
  NotedOps ops(3);
  std::vector<CudaOp> made = ops.Make(kNumInstructions);
  CudaOp plain = made[kNumInstructions / 2];
  made[kNumInstructions / 2] = [plain](cudaStream_t stream) -> absl::Status {
    RETURN_IF_ERROR(plain(stream));
    return CudaStatus(cudaStreamSynchronize(stream), "wait in an op");
  };
  auto executor = NewExecutor(true);
  auto prepared = Prepare(program, std::move(made));
  for (int run = 0; run < 3; ++run) {
    ops.Reset();
    ASSERT_EQ(executor->Run(*prepared), absl::OkStatus());
    ASSERT_EQ(executor->Synchronize(), absl::OkStatus());
    ExpectInOrder(program, ops);
    EXPECT_FALSE(prepared->has_graph());
  }
}

}  // namespace
}  // namespace millrace
