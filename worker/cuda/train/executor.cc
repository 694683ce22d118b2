#include "worker/cuda/train/executor.h"

#include <cstring>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/store_word.h"
#include "nvtx3/nvToolsExt.h"

namespace millrace {
namespace {

constexpr int kComputeLane = static_cast<int>(Lane::kCompute);

// Ends a capture under way and drops what it holds.
void AbandonCapture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();  // A failed capture's error is not the next call's.
}

// Shows the instruction's name over its kernels in a profiler.
class ProfilerRange {
 public:
  explicit ProfilerRange(const std::string& name) {
    nvtxRangePushA(name.c_str());
  }
  ~ProfilerRange() { nvtxRangePop(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace

CudaPreparedProgram::CudaPreparedProgram(const Program* program,
                                         std::vector<CudaOp> ops)
    : program_(program),
      ops_(std::move(ops)),
      done_(program->instructions.size()),
      place_(program->instructions.size()) {
  CHECK(ops_.size() == program->instructions.size());
  for (const std::vector<InstructionId>& lane : program->lanes) {
    for (size_t i = 0; i < lane.size(); ++i) {
      place_[lane[i]] = static_cast<int32_t>(i);
    }
  }
}

absl::StatusOr<std::unique_ptr<CudaPreparedProgram>>
CudaPreparedProgram::Create(const Program* program, std::vector<CudaOp> ops) {
  std::unique_ptr<CudaPreparedProgram> prepared(
      new CudaPreparedProgram(program, std::move(ops)));
  for (const Instruction& instruction : program->instructions) {
    for (const InstructionId earlier : instruction.waits) {
      if (prepared->done_[earlier].has_value()) continue;
      ASSIGN_OR_RETURN(prepared->done_[earlier],
                       CudaEvent::Create(CudaEvent::Kind::kOrder));
    }
  }
  return prepared;
}

CudaPreparedProgram::~CudaPreparedProgram() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  if (measured_graph_ != nullptr) cudaGraphExecDestroy(measured_graph_);
}

absl::StatusOr<RankTimeline> CudaPreparedProgram::ReadTimeline() const {
  if (!timer_.has_value()) {
    return absl::FailedPreconditionError("no run was measured");
  }
  return timer_->Read();
}

absl::StatusOr<std::unique_ptr<CudaExecutor>> CudaExecutor::Create(
    Options options) {
  std::unique_ptr<CudaExecutor> executor(new CudaExecutor(std::move(options)));
  RETURN_IF_ERROR(executor->AddLanes(Program{}));
  ASSIGN_OR_RETURN(executor->start_,
                   CudaEvent::Create(CudaEvent::Kind::kOrder));
  if (executor->options_.note_progress) {
    RETURN_IF_ERROR(executor->AddProgress());
  }
  return executor;
}

cudaStream_t CudaExecutor::stream() const { return LaneStream(Lane::kCompute); }

cudaStream_t CudaExecutor::LaneStream(Lane lane) const {
  return lanes_[static_cast<int>(lane)]->stream.get();
}

// Adds the compute lane and the lanes that `program` uses. Work on the other
// lanes is short and others wait for it, so these lanes have priority.
absl::Status CudaExecutor::AddLanes(const Program& program) {
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (lanes_[lane].has_value()) continue;
    if (lane != kComputeLane && program.lanes[lane].empty()) continue;
    ASSIGN_OR_RETURN(
        CudaStream stream,
        CudaStream::Create(lane == kComputeLane ? CudaStream::Priority::kNormal
                                                : CudaStream::Priority::kHigh));
    ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kOrder));
    lanes_[lane].emplace(std::move(stream), std::move(end));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::AddProgress() {
  ASSIGN_OR_RETURN(auto device, DeviceBuffer<int32_t>::Allocate(kNumLanes));
  ASSIGN_OR_RETURN(PinnedMemory host,
                   PinnedMemory::Allocate(kNumLanes * sizeof(int32_t)));
  ASSIGN_OR_RETURN(CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kHigh));
  ASSIGN_OR_RETURN(CudaEvent read, CudaEvent::Create(CudaEvent::Kind::kOrder));
  progress_.emplace(std::move(device), std::move(host), std::move(stream),
                    std::move(read));
  return absl::OkStatus();
}

absl::StatusOr<CudaExecutor::Progress> CudaExecutor::ReadProgress(
    absl::Duration timeout) {
  CHECK(progress_.has_value()) << "Options::note_progress was false";
  Progress progress;
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(progress_->host.data(), progress_->device.data(),
                      sizeof(progress), cudaMemcpyDeviceToHost,
                      progress_->stream.get()),
      "read how far the lanes are"));
  RETURN_IF_ERROR(progress_->read.Record(progress_->stream.get()));
  const absl::Time deadline = MonotonicNow() + timeout;
  while (cudaEventQuery(progress_->read.get()) == cudaErrorNotReady) {
    if (MonotonicNow() > deadline) {
      return absl::DeadlineExceededError(
          "the device does not even copy a few bytes any more");
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::memcpy(progress.data(), progress_->host.data(), sizeof(progress));
  return progress;
}

absl::Status CudaExecutor::MakeReady(CudaPreparedProgram& prepared) {
  RETURN_IF_ERROR(AddLanes(prepared.program()));
  const bool may_capture = options_.use_graphs && prepared.has_run_ &&
                           !prepared.graph_failed_ &&
                           prepared.graph_ == nullptr;
  if (!may_capture) return absl::OkStatus();
  const absl::Status captured = Capture(prepared, nullptr, &prepared.graph_);
  if (!captured.ok()) {
    prepared.graph_failed_ = true;
    std::cerr << options_.name << ": no CUDA graph, steps go to the streams: "
              << captured.message() << std::endl;
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Run(CudaPreparedProgram& prepared) {
  RETURN_IF_ERROR(MakeReady(prepared));
  prepared.has_run_ = true;
  if (prepared.graph_ == nullptr) return RunOnStreams(prepared, nullptr);
  return CudaStatus(cudaGraphLaunch(prepared.graph_, stream()),
                    "launch a Program's graph");
}

absl::Status CudaExecutor::RunMeasured(CudaPreparedProgram& prepared) {
  RETURN_IF_ERROR(AddLanes(prepared.program()));
  const bool in_graph = options_.measure_in_graphs && prepared.has_graph();
  if (in_graph && prepared.measured_graph_ == nullptr) {
    ASSIGN_OR_RETURN(prepared.timer_, StepTimer::Create(&prepared.program(),
                                                        /*in_graph=*/true));
    RETURN_IF_ERROR(
        Capture(prepared, &*prepared.timer_, &prepared.measured_graph_));
  }
  if (in_graph) {
    return CudaStatus(cudaGraphLaunch(prepared.measured_graph_, stream()),
                      "launch a Program's measured graph");
  }
  if (!prepared.timer_.has_value()) {
    ASSIGN_OR_RETURN(prepared.timer_, StepTimer::Create(&prepared.program(),
                                                        /*in_graph=*/false));
  }
  return RunObserved(prepared, *prepared.timer_);
}

absl::Status CudaExecutor::RunObserved(CudaPreparedProgram& prepared,
                                       CudaRunObserver& observer) {
  RETURN_IF_ERROR(AddLanes(prepared.program()));
  prepared.has_run_ = true;
  return RunOnStreams(prepared, &observer);
}

absl::Status CudaExecutor::RunOnStreams(CudaPreparedProgram& prepared,
                                        CudaRunObserver* observer) {
  const Program& program = prepared.program();
  guarded_.fill(nullptr);
  if (progress_.has_value()) {
    RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(progress_->device.data(), 0,
                                               sizeof(Progress), stream()),
                               "note that no lane has begun"));
  }
  if (observer != nullptr) RETURN_IF_ERROR(observer->Begin(stream()));
  RETURN_IF_ERROR(start_->Record(stream()));
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (lane == kComputeLane || program.lanes[lane].empty()) continue;
    RETURN_IF_ERROR(start_->MakeWait(LaneStream(static_cast<Lane>(lane))));
  }
  for (size_t id = 0; id < program.instructions.size(); ++id) {
    RETURN_IF_ERROR(
        RunInstruction(prepared, static_cast<InstructionId>(id), observer));
  }
  for (int lane = 0; lane < kNumLanes; ++lane) {
    if (lane == kComputeLane || program.lanes[lane].empty()) continue;
    const CudaEvent& end = lanes_[lane]->end;
    RETURN_IF_ERROR(end.Record(LaneStream(static_cast<Lane>(lane))));
    RETURN_IF_ERROR(end.MakeWait(stream()));
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::RunInstruction(CudaPreparedProgram& prepared,
                                          InstructionId id,
                                          CudaRunObserver* observer) {
  const Instruction& instruction = prepared.program().instructions[id];
  const cudaStream_t stream = LaneStream(instruction.lane);
  const auto lane_idx = static_cast<size_t>(instruction.lane);
  auto enqueue = [&]() -> absl::Status {
    for (const InstructionId earlier : instruction.waits) {
      RETURN_IF_ERROR(prepared.done_[earlier]->MakeWait(stream));
    }
    const CudaEvent* const is_read = options_.state_is_read != nullptr
                                         ? options_.state_is_read(instruction)
                                         : nullptr;
    if (is_read != nullptr && is_read != guarded_[lane_idx]) {
      guarded_[lane_idx] = is_read;
      RETURN_IF_ERROR(is_read->MakeWaitAlsoInGraph(stream));
    }
    if (observer != nullptr) RETURN_IF_ERROR(observer->Before(id, stream));
    RETURN_IF_ERROR(prepared.ops_[id](stream));
    if (observer != nullptr) RETURN_IF_ERROR(observer->After(id, stream));
    if (prepared.done_[id].has_value()) {
      RETURN_IF_ERROR(prepared.done_[id]->Record(stream));
    }
    if (!progress_.has_value()) return absl::OkStatus();
    // On the compute lane only where it matters, and behind what others wait
    // for: the note delays nobody but its own lane.
    if (instruction.lane == Lane::kCompute && !prepared.done_[id].has_value()) {
      return absl::OkStatus();
    }
    return LaunchStoreWord(
        progress_->device.data() + static_cast<int>(instruction.lane),
        prepared.place_[id] + 1, stream);
  };
  const ProfilerRange range(instruction.name);
  const absl::Status status = enqueue();
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(instruction.name, " (",
                                                  OpKindName(instruction.kind),
                                                  "): ", status.message()));
}

absl::Status CudaExecutor::Capture(CudaPreparedProgram& prepared,
                                   CudaRunObserver* observer,
                                   cudaGraphExec_t* exec) {
  // Captures this thread's work only. Other threads may use the device
  // meanwhile, such as those of communicators; that is no part of the graph and
  // no error.
  RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
      "begin to capture a graph"));
  const absl::Status status = RunOnStreams(prepared, observer);
  if (!status.ok()) {
    AbandonCapture(stream());
    return status;
  }
  cudaGraph_t graph = nullptr;
  absl::Status ended =
      CudaStatus(cudaStreamEndCapture(stream(), &graph), "capture a graph");
  if (ended.ok()) {
    // Each kernel keeps the priority of its lane.
    ended =
        CudaStatus(cudaGraphInstantiate(
                       exec, graph, cudaGraphInstantiateFlagUseNodePriority),
                   "make the captured graph ready");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!ended.ok()) {
    *exec = nullptr;
    cudaGetLastError();
  }
  return ended;
}

absl::Status CudaExecutor::Synchronize() {
  for (const std::optional<LaneState>& lane : lanes_) {
    if (!lane.has_value()) continue;
    RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(lane->stream.get()),
                               "finish what the device was given"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
