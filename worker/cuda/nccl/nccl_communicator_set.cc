#include "worker/cuda/nccl/nccl_communicator_set.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_endpoint.h"
#include "worker/cuda/nccl/nccl_rendezvous.h"
#include "worker/cuda/nccl/nccl_version.h"

namespace millrace {
namespace {

constexpr absl::Duration kPoll = absl::Microseconds(200);

using Endpoints = std::vector<std::unique_ptr<NcclEndpoint>>;

class LibraryCommunicatorSet : public NcclCommunicatorSet {
 public:
  LibraryCommunicatorSet(Layout layout, Endpoints endpoints)
      : layout_(layout), endpoints_(std::move(endpoints)) {}
  ~LibraryCommunicatorSet() override {
    const bool healthy = Health().ok();
    for (const auto& endpoint : endpoints_) {
      healthy ? endpoint->Close() : endpoint->Abort();
    }
  }

  NcclCommunicator* ForCollective(Group group) const override {
    CHECK(group != Group::kPipeline) << "no collectives over the pipeline axis";
    const Group serving = ServingGroup(layout_, group);
    return Find([&](const Membership& membership) {
      return membership.group == serving;
    });
  }

  NcclCommunicator* ForTransferLane(Lane lane) const override {
    return Find([&](const Membership& membership) {
      return membership.transfer_lane == lane;
    });
  }

  absl::Status Health() const override {
    for (const auto& endpoint : endpoints_) {
      RETURN_IF_ERROR(endpoint->Health());
    }
    return absl::OkStatus();
  }

  void Abort() override {
    for (const auto& endpoint : endpoints_) endpoint->Abort();
  }

 private:
  template <typename Predicate>
  NcclCommunicator* Find(Predicate matches) const {
    for (const auto& endpoint : endpoints_) {
      if (matches(endpoint->membership())) return endpoint.get();
    }
    return nullptr;
  }

  const Layout layout_;
  const Endpoints endpoints_;
};

int MaxBlocksOf(const Membership& membership, const NcclBlockLimits& limits) {
  switch (membership.group) {
    case Group::kTensor:
      return limits.tensor;
    case Group::kData:
    case Group::kShards:
    case Group::kReplicas:
      return limits.data;
    case Group::kPipeline:
      return limits.transfers;
    case Group::kWorld:
      return 1;  // Sums a step's scalars.
  }
  CHECK(false) << "unknown group " << static_cast<int>(membership.group);
  return 0;
}

absl::Status WaitUntilReady(const Endpoints& endpoints,
                            const NcclPatience& patience) {
  for (const auto& endpoint : endpoints) {
    while (true) {
      bool ready = false;
      ASSIGN_OR_RETURN(ready, endpoint->Ready());
      if (ready) break;
      RETURN_IF_ERROR(patience.Check(absl::StrCat(
          endpoint->membership().Name(),
          ": all members were there, but one died or hangs while they "
          "connect to each other")));
      absl::SleepFor(kPoll);
    }
  }
  return absl::OkStatus();
}

// The first calls of one communicator, and what they should give.
class Trial {
 public:
  static absl::StatusOr<Trial> Create(NcclEndpoint* endpoint) {
    const int32_t size = endpoint->size();
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kNormal));
    ASSIGN_OR_RETURN(DeviceBuffer<float> values,
                     DeviceBuffer<float>::Allocate(1 + size));
    return Trial(endpoint, std::move(stream), std::move(values));
  }

  // A transfer moves the sender's one; a collective first sums everyone's.
  absl::Status BeginFirst() {
    const Membership& membership = endpoint_->membership();
    const bool is_transfer = membership.transfer_lane.has_value();
    const float own = is_transfer && !membership.sends() ? 0.0f : 1.0f;
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(values_.data(), &own, sizeof(own),
                                   cudaMemcpyHostToDevice, stream_.get()),
                   "copy to the device"));
    const int32_t other = 1 - endpoint_->index();
    return endpoint_->Begin("begin", [&](ncclComm_t comm) {
      if (!is_transfer) {
        return ncclAllReduce(values_.data(), values_.data(), 1, ncclFloat32,
                             ncclSum, comm, stream_.get());
      }
      return membership.sends() ? ncclSend(values_.data(), 1, ncclFloat32,
                                           other, comm, stream_.get())
                                : ncclRecv(values_.data(), 1, ncclFloat32,
                                           other, comm, stream_.get());
    });
  }

  // Gathers take other connections than small sums.
  absl::Status BeginSecond() {
    if (endpoint_->membership().transfer_lane.has_value()) {
      return absl::OkStatus();
    }
    return endpoint_->Begin("begin", [&](ncclComm_t comm) {
      return ncclAllGather(values_.data(), values_.data() + 1, 1, ncclFloat32,
                           comm, stream_.get());
    });
  }

  bool IsUnderWay() const {
    return cudaStreamQuery(stream_.get()) == cudaErrorNotReady;
  }

  absl::Status Check() const {
    const bool is_transfer = endpoint_->membership().transfer_lane.has_value();
    std::vector<float> values(is_transfer ? 1 : values_.size());
    RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(values.data(), values_.data(), values.size() * sizeof(float),
                   cudaMemcpyDeviceToHost),
        absl::StrCat("run the first calls of the ",
                     endpoint_->membership().Name())));
    const float expected = is_transfer ? 1.0f : endpoint_->size();
    for (const float value : values) {
      if (value == expected) continue;
      return absl::InternalError(absl::StrCat(
          endpoint_->membership().Name(), ": the first call gave ", value,
          ", expected ", expected,
          "; do the GPUs of this machine reach each other's memory rightly?"));
    }
    return absl::OkStatus();
  }

 private:
  Trial(NcclEndpoint* endpoint, CudaStream stream, DeviceBuffer<float> values)
      : endpoint_(endpoint),
        stream_(std::move(stream)),
        values_(std::move(values)) {}

  NcclEndpoint* endpoint_;
  CudaStream stream_;
  DeviceBuffer<float> values_;
};

// Moves a few bytes on every communicator, so that connections are made here
// and found to work: in a step's capture, ranks that connect in different
// orders might wait for each other. For the same reason every communicator
// begins before any is waited for.
absl::Status TryOut(const Endpoints& endpoints, const NcclPatience& patience,
                    std::vector<Trial>* trials) {
  for (const auto& endpoint : endpoints) {
    ASSIGN_OR_RETURN(Trial trial, Trial::Create(endpoint.get()));
    trials->push_back(std::move(trial));
  }
  for (Trial& trial : *trials) RETURN_IF_ERROR(trial.BeginFirst());
  RETURN_IF_ERROR(WaitUntilReady(endpoints, patience));
  for (Trial& trial : *trials) RETURN_IF_ERROR(trial.BeginSecond());
  RETURN_IF_ERROR(WaitUntilReady(endpoints, patience));
  for (const Trial& trial : *trials) {
    while (trial.IsUnderWay()) {
      RETURN_IF_ERROR(patience.Check(
          "first calls of the communicators: a member died or hangs"));
      absl::SleepFor(kPoll);
    }
    RETURN_IF_ERROR(trial.Check());
  }
  return absl::OkStatus();
}

absl::Status Connect(const NcclOptions& options, const NcclPatience& patience,
                     Endpoints* endpoints, std::vector<Trial>* trials) {
  const std::vector<Membership> memberships =
      MembershipsOf(options.layout, options.rank);
  RETURN_IF_ERROR(
      MeetMembers(memberships, options.rank, *options.store, patience));
  // All ids that this rank makes before any that it waits for.
  std::vector<std::string> ids(memberships.size());
  for (const bool makes : {true, false}) {
    for (size_t i = 0; i < memberships.size(); ++i) {
      if ((memberships[i].index == 0) != makes) continue;
      ASSIGN_OR_RETURN(ids[i], ShareId(memberships[i], MakeNcclId,
                                       *options.store, patience));
    }
  }
  for (size_t i = 0; i < memberships.size(); ++i) {
    std::unique_ptr<NcclEndpoint> endpoint;
    ASSIGN_OR_RETURN(
        endpoint, NcclEndpoint::Start({.membership = memberships[i],
                                       .id = ids[i],
                                       .max_blocks = MaxBlocksOf(
                                           memberships[i], options.max_blocks),
                                       .call_timeout = options.timeout}));
    endpoints->push_back(std::move(endpoint));
  }
  RETURN_IF_ERROR(WaitUntilReady(*endpoints, patience));
  return TryOut(*endpoints, patience, trials);
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicatorSet>>
NcclCommunicatorSet::Create(const NcclOptions& options,
                            const std::atomic<bool>& abort_requested) {
  int version = 0;
  RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "ask NCCL's version"));
  RETURN_IF_ERROR(CheckNcclVersion(version).status());
  const NcclPatience patience{.deadline = MonotonicNow() + options.timeout,
                              .timeout = options.timeout,
                              .abort_requested = abort_requested};
  Endpoints endpoints;
  // Freed last: memory and streams are in use until the endpoints have ended.
  std::vector<Trial> trials;
  const absl::Status status = Connect(options, patience, &endpoints, &trials);
  if (!status.ok()) {
    // All at once, or the first would wait for what the last still holds.
    for (const auto& endpoint : endpoints) endpoint->Abort();
    endpoints.clear();
    return status;
  }
  return std::make_unique<LibraryCommunicatorSet>(options.layout,
                                                  std::move(endpoints));
}

}  // namespace millrace
