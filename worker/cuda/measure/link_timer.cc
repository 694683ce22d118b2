#include "worker/cuda/measure/link_timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/device_memory.h"

namespace millrace {
namespace {

constexpr int kNumLinkGraphs = 3;
constexpr double kMaxLinkCalls = 100;
// Gradients and what is gathered into them; the rate of a link does not depend
// on the type.
constexpr DType kDType = DType::kFloat32;

// Keys of one set of communicators apart from those of the others.
class PrefixedStore : public RendezvousStore {
 public:
  PrefixedStore(RendezvousStore* store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_->Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration timeout) override {
    return store_->Get(prefix_ + key, timeout);
  }

 private:
  RendezvousStore* store_;
  const std::string prefix_;
};

}  // namespace

// Calls captured once; must be gone before their communicators are.
class CudaLinkTimer::Loop : public TimedLoop {
 public:
  Loop(CudaLinkTimer* timer, CudaEvent start, CudaEvent end)
      : timer_(timer), start_(std::move(start)), end_(std::move(end)) {}
  ~Loop() override {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    timer_->copy_engine_calls_.erase(call_.get());
  }

  // Keeps memory that the calls need; one of several.
  void Hold(DeviceBuffer<std::byte> buffer) {
    buffer_.emplace(std::move(buffer));
  }
  void Hold(std::unique_ptr<CopyEngineCall> call) {
    call_ = std::move(call);
    timer_->copy_engine_calls_.insert(call_.get());
  }

  template <typename Body>
  absl::Status Capture(const Body& body) {
    // NCCL has threads of its own, whose calls do not concern the capture.
    RETURN_IF_ERROR(CudaStatus(
        cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal),
        "begin to capture communication"));
    const absl::Status enqueued = body();
    const absl::Status captured = CudaStatus(
        cudaStreamEndCapture(stream(), &graph_), "capture communication");
    RETURN_IF_ERROR(enqueued);
    RETURN_IF_ERROR(captured);
    return CudaStatus(cudaGraphInstantiate(&exec_, graph_, 0),
                      "make a graph of communication");
  }

  absl::Status Start() override {
    RETURN_IF_ERROR(start_.Record(stream()));
    RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(exec_, stream()),
                               "launch a graph of communication"));
    return end_.Record(stream());
  }
  absl::StatusOr<double> Finish() override {
    RETURN_IF_ERROR(timer_->Wait(timer_->options_.patience));
    return end_.SecondsSince(start_);
  }

 private:
  cudaStream_t stream() const { return timer_->stream_.get(); }

  CudaLinkTimer* timer_;
  std::optional<DeviceBuffer<std::byte>> buffer_;
  std::unique_ptr<CopyEngineCall> call_;
  CudaEvent start_;
  CudaEvent end_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

absl::StatusOr<std::unique_ptr<CudaLinkTimer>> CudaLinkTimer::Create(
    const CudaLinkTimerOptions& options) {
  ASSIGN_OR_RETURN(CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kHigh));
  ASSIGN_OR_RETURN(auto sum, DeviceBuffer<double>::Allocate(1));
  return std::unique_ptr<CudaLinkTimer>(
      new CudaLinkTimer(options, std::move(stream), std::move(sum)));
}

CudaLinkTimer::~CudaLinkTimer() = default;

Layout CudaLinkTimer::LayoutOf(const SetKey& key, int32_t num_ranks) {
  Layout layout;
  if (key.transfers) {
    layout.tensor = key.stride;
    layout.pipeline = num_ranks / key.stride;
  } else if (key.stride > 1) {
    layout.tensor = key.stride;
    layout.data = key.group_size;
  } else {
    layout.tensor = key.group_size;
    layout.data = num_ranks / key.group_size;
  }
  return layout;
}

CudaLinkTimer::SetKey CudaLinkTimer::KeyOf(const ProfileCommunication& what) {
  return {.transfers = what.kind == OpKind::kSend,
          .group_size = what.group_size,
          .stride = what.stride};
}

absl::StatusOr<NcclCommunicatorSet*> CudaLinkTimer::SetOf(SetKey key) {
  std::unique_ptr<NcclCommunicatorSet>& set = sets_[key];
  if (set != nullptr) return set.get();
  const Layout layout = LayoutOf(key, options_.num_ranks);
  PrefixedStore store(options_.store,
                      absl::StrCat("profile/", key.transfers ? "pairs" : "of",
                                   key.group_size, "by", key.stride, "/"));
  ASSIGN_OR_RETURN(const int64_t before, UsedDeviceBytes());
  ASSIGN_OR_RETURN(set,
                   NcclCommunicatorSet::Create({.layout = layout,
                                                .rank = options_.rank,
                                                .store = &store,
                                                .timeout = options_.patience},
                                               abort_requested_));
  ASSIGN_OR_RETURN(const int64_t after, UsedDeviceBytes());
  const int32_t stage = CoordinatesOf(layout, options_.rank).pipeline;
  const int32_t num_made = NumCommunicators(layout, stage);
  // The set of all ranks is made first (Sum()), and alone.
  if (sets_.size() == 1 && num_made == 1) {
    first_bytes_ = after - before;
  } else {
    further_bytes_ += after - before;
    num_further_ += num_made;
  }
  return set.get();
}

absl::Status CudaLinkTimer::Wait(absl::Duration patience) {
  const absl::Time deadline = absl::Now() + patience;
  while (true) {
    const cudaError_t state = cudaStreamQuery(stream_.get());
    if (state != cudaErrorNotReady) {
      return CudaStatus(state, "wait for communication");
    }
    for (const auto& [key, set] : sets_) RETURN_IF_ERROR(set->Health());
    if (absl::Now() > deadline) break;
    absl::SleepFor(absl::Microseconds(50));
  }
  for (CopyEngineCall* call : copy_engine_calls_) call->Abort();
  for (const auto& [key, set] : sets_) set->Abort();
  cudaStreamSynchronize(stream_.get());
  return absl::DeadlineExceededError(
      absl::StrCat("measuring communication: rank ", ToInt(options_.rank),
                   " waited ", absl::FormatDuration(patience),
                   " for the other ranks; their logs say what they did"));
}

absl::StatusOr<double> CudaLinkTimer::Sum(double mine) {
  ASSIGN_OR_RETURN(
      NcclCommunicatorSet * set,
      SetOf(
          {.transfers = false, .group_size = options_.num_ranks, .stride = 1}));
  RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(sum_.data(), &mine, sizeof(mine),
                                 cudaMemcpyHostToDevice, stream_.get()),
                 "copy a number"));
  RETURN_IF_ERROR(
      set->ForCollective(Group::kTensor)
          ->AllReduce(sum_.data(), 1, DType::kFloat64, stream_.get()));
  RETURN_IF_ERROR(Wait(options_.patience));
  double sum = 0;
  RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(&sum, sum_.data(), sizeof(sum), cudaMemcpyDeviceToHost),
      "copy a number"));
  return sum;
}

absl::Status CudaLinkTimer::Enqueue(const ProfileCommunication& what,
                                    NcclCommunicatorSet& set, std::byte* buffer,
                                    int64_t num_elements) {
  cudaStream_t stream = stream_.get();
  const int64_t num_bytes = num_elements * DTypeBytes(kDType);
  if (what.kind == OpKind::kSend) {
    if (MembersOf(what, options_.rank, options_.num_ranks)[0] ==
        options_.rank) {
      return set.ForTransferLane(Lane::kSendNext)
          ->Send(buffer, num_bytes, 1, stream);
    }
    return set.ForTransferLane(Lane::kReceivePrevious)
        ->Receive(buffer, num_bytes, 0, stream);
  }
  NcclCommunicator& group = *set.ForCollective(AxisOf(KeyOf(what)));
  std::byte* const mine = buffer + group.index() * (num_bytes / group.size());
  switch (what.kind) {
    case OpKind::kAllGather:
      return group.AllGather(mine, buffer, num_elements, kDType, stream);
    case OpKind::kReduceScatter:
      return group.ReduceScatter(buffer, mine, num_elements, kDType, stream);
    case OpKind::kAllReduce:
      return group.AllReduce(buffer, num_elements, kDType, stream);
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "a profile has no communication of kind ", OpKindName(what.kind)));
  }
}

absl::StatusOr<CudaLinkTimer::Shape> CudaLinkTimer::ShapeOf(
    const ProfileCommunication& what) const {
  const int32_t num_ranks = options_.num_ranks;
  RETURN_IF_ERROR(CheckGroups(what, num_ranks));
  const bool transfers = what.kind == OpKind::kSend;
  if (transfers
          ? what.from_host_of % what.stride != 0
          : what.stride > 1 && what.group_size * what.stride != num_ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups of ", what.group_size, " with stride ",
                     what.stride, " among ", num_ranks,
                     " GPUs: they should span all ranks, and the senders of a "
                     "host divide its ranks"));
  }
  const int64_t unit = int64_t{what.group_size} * DTypeBytes(kDType);
  return Shape{
      .members = MembersOf(what, options_.rank, num_ranks),
      .num_busy = NumBusyRanks(what, num_ranks),
      .num_elements = (what.bytes + unit - 1) / unit * what.group_size};
}

absl::StatusOr<std::unique_ptr<CopyEngineCall>>
CudaLinkTimer::MakeCopyEngineCall(const ProfileCommunication& what,
                                  int64_t num_elements) {
  Layout layout;
  if (what.kind == OpKind::kSend) {
    layout.pipeline = options_.num_ranks;
  } else {
    layout.tensor = what.group_size;
    layout.data = options_.num_ranks / what.group_size;
  }
  PrefixedStore store(
      options_.store,
      absl::StrCat("profile/copies", num_copy_engine_calls_++, "/"));
  ASSIGN_OR_RETURN(auto call,
                   CopyEngineCall::Create({.layout = layout,
                                           .rank = options_.rank,
                                           .store = &store,
                                           .kind = what.kind,
                                           .num_elements = num_elements,
                                           .dtype = kDType,
                                           .timeout = options_.patience},
                                          abort_requested_));
  ASSIGN_OR_RETURN(const double num_unable, Sum(call->can_run() ? 0 : 1));
  if (num_unable == 0) return call;
  return absl::FailedPreconditionError(
      absl::StrCat(num_unable, " of ", options_.num_ranks,
                   " ranks cannot use copy engines for ", OpKindName(what.kind),
                   " among ", what.group_size, "; their logs say why"));
}

absl::StatusOr<std::unique_ptr<TimedLoop>> CudaLinkTimer::MakeLoop(
    const ProfileCommunication& what, int64_t count) {
  ASSIGN_OR_RETURN(const Shape shape, ShapeOf(what));
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kTimed));
  ASSIGN_OR_RETURN(CudaEvent end, CudaEvent::Create(CudaEvent::Kind::kTimed));
  auto loop = std::make_unique<Loop>(this, std::move(start), std::move(end));
  std::function<absl::Status()> enqueue_one;
  if (what.by_copy_engines) {
    ASSIGN_OR_RETURN(auto call, MakeCopyEngineCall(what, shape.num_elements));
    enqueue_one = [this, call = call.get()] {
      return call->Enqueue(stream_.get());
    };
    loop->Hold(std::move(call));
  } else {
    ASSIGN_OR_RETURN(NcclCommunicatorSet * set, SetOf(KeyOf(what)));
    ASSIGN_OR_RETURN(auto buffer,
                     DeviceBuffer<std::byte>::Allocate(static_cast<size_t>(
                         shape.num_elements * DTypeBytes(kDType))));
    RETURN_IF_ERROR(CudaStatus(
        cudaMemsetAsync(buffer.data(), 0, buffer.size(), stream_.get()),
        "zero a message"));
    enqueue_one = [this, what, set, shape, data = buffer.data()] {
      return Enqueue(what, *set, data, shape.num_elements);
    };
    loop->Hold(std::move(buffer));
  }
  const bool takes_part = !shape.members.empty();
  auto enqueue = [&](int64_t num_calls) -> absl::Status {
    for (int64_t i = 0; takes_part && i < num_calls; ++i) {
      RETURN_IF_ERROR(enqueue_one());
    }
    return absl::OkStatus();
  };
  // The first call connects, which a capture does not allow.
  RETURN_IF_ERROR(enqueue(1));
  RETURN_IF_ERROR(Wait(options_.patience));
  RETURN_IF_ERROR(loop->Capture([&] { return enqueue(count); }));
  return loop;
}

absl::StatusOr<double> CudaLinkTimer::Time(const ProfileCommunication& what,
                                           double budget_seconds) {
  ASSIGN_OR_RETURN(const Shape shape, ShapeOf(what));
  const bool takes_part = !shape.members.empty();
  // Seconds of one of a loop's calls.
  auto time = [&](TimedLoop& loop, int64_t count) -> absl::StatusOr<double> {
    RETURN_IF_ERROR(Sum(0).status());
    RETURN_IF_ERROR(loop.Start());
    ASSIGN_OR_RETURN(const double seconds, loop.Finish());
    ASSIGN_OR_RETURN(const double sum, Sum(takes_part ? seconds : 0));
    return sum / shape.num_busy / static_cast<double>(count);
  };
  constexpr int64_t kTrialCalls = 2;
  ASSIGN_OR_RETURN(std::unique_ptr<TimedLoop> loop,
                   MakeLoop(what, kTrialCalls));
  ASSIGN_OR_RETURN(const double trial, time(*loop, kTrialCalls));
  const auto count = static_cast<int64_t>(
      std::clamp(budget_seconds / kNumLinkGraphs / std::max(trial, 1e-6), 2.0,
                 kMaxLinkCalls));
  loop = nullptr;
  ASSIGN_OR_RETURN(loop, MakeLoop(what, count));
  std::vector<double> samples;
  for (int i = 0; i < kNumLinkGraphs; ++i) {
    ASSIGN_OR_RETURN(const double seconds, time(*loop, count));
    samples.push_back(seconds);
  }
  std::sort(samples.begin(), samples.end());
  return samples[kNumLinkGraphs / 2];
}

}  // namespace millrace
