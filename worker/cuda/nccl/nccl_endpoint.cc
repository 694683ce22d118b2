#include "worker/cuda/nccl/nccl_endpoint.h"

#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Limit for this rank's own calls, which have ended if all is well.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(5);
// An abort takes half a second, NCCL's service thread looking up that seldom. A
// peer that hangs is killed long before this is over.
constexpr std::chrono::seconds kAbortTimeout(60);

ncclDataType_t NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ncclFloat32;
    case DType::kFloat64:
      return ncclFloat64;
    case DType::kInt32:
      return ncclInt32;
    case DType::kBfloat16:
      return ncclBfloat16;
    case DType::kFloat8E4m3:
      return ncclFloat8e4m3;
    case DType::kSignedBlock8:
    case DType::kUnsignedBlock8:
      break;  // Moments are not sent.
  }
  CHECK(false) << "unknown dtype " << static_cast<int>(dtype);
  return ncclFloat32;
}

// Most calls are on their stream within microseconds; the first ones connect.
class Pause {
 public:
  void Wait() { absl::SleepFor(absl::Microseconds(++count_ < 100 ? 5 : 200)); }

 private:
  int count_ = 0;
};

}  // namespace

absl::Status NcclStatus(ncclResult_t result, const std::string& action) {
  if (result == ncclSuccess || result == ncclInProgress) {
    return absl::OkStatus();
  }
  const std::string message =
      absl::StrCat("failed to ", action, ": ", ncclGetErrorString(result));
  if (result == ncclRemoteError || result == ncclSystemError) {
    return absl::UnavailableError(message);
  }
  const char* const detail = ncclGetLastError(nullptr);
  return absl::InternalError(
      absl::StrCat(message, detail == nullptr || *detail == '\0'
                                ? ""
                                : absl::StrCat(" (", detail, ")")));
}

absl::StatusOr<std::string> MakeNcclId() {
  ncclUniqueId id;
  RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "make an NCCL id"));
  return std::string(id.internal, sizeof(id.internal));
}

absl::Status WarmUpNccl(int32_t device_idx) {
  ncclComm_t comm = nullptr;
  const int device = device_idx;
  RETURN_IF_ERROR(NcclStatus(ncclCommInitAll(&comm, 1, &device),
                             "make a communicator of one rank"));
  return NcclStatus(ncclCommDestroy(comm), "end a communicator of one rank");
}

NcclEndpoint::NcclEndpoint(Options options, int device)
    : options_(std::move(options)), device_(device) {}

absl::StatusOr<std::unique_ptr<NcclEndpoint>> NcclEndpoint::Start(
    Options options) {
  ncclUniqueId id;
  CHECK(options.id.size() == sizeof(id.internal));
  options.id.copy(id.internal, sizeof(id.internal));
  int device = 0;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "get the device"));
  std::unique_ptr<NcclEndpoint> endpoint(
      new NcclEndpoint(std::move(options), device));

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (endpoint->options_.max_blocks > 0) {
    config.maxCTAs = endpoint->options_.max_blocks;
  }
  const ncclResult_t result = ncclCommInitRankConfig(
      &endpoint->comm_, endpoint->size(), id, endpoint->index(), &config);
  RETURN_IF_ERROR(NcclStatus(result, endpoint->Describe("join")));
  return endpoint;
}

NcclEndpoint::~NcclEndpoint() {
  Abort();
  {
    std::unique_lock lock(mutex_);
    const bool ended = ended_changed_.wait_for(
        lock, kAbortTimeout, [this] { return ended_ || closing_; });
    CHECK(ended)
        << Describe("leave")
        << " has not ended: is there still a CUDA graph with its calls?";
  }
  ending_thread_.join();
}

std::string NcclEndpoint::Describe(const char* what) const {
  return absl::StrCat(what, " as rank ",
                      ToInt(options_.membership.members[index()]), " of the ",
                      options_.membership.Name());
}

absl::StatusOr<bool> NcclEndpoint::Ready() {
  std::lock_guard lock(mutex_);
  if (ending_)
    return absl::AbortedError(absl::StrCat(Describe(last_call_), ": aborted"));
  RETURN_IF_ERROR(broken_);
  ncclResult_t result = ncclSuccess;
  broken_ =
      NcclStatus(ncclCommGetAsyncError(comm_, &result), Describe(last_call_));
  if (broken_.ok()) broken_ = NcclStatus(result, Describe(last_call_));
  RETURN_IF_ERROR(broken_);
  return result == ncclSuccess;
}

absl::Status NcclEndpoint::Health() { return Ready().status(); }

absl::Status NcclEndpoint::Begin(const char* what, Issue issue) {
  std::lock_guard lock(mutex_);
  if (ending_)
    return absl::AbortedError(absl::StrCat(Describe(what), ": aborted"));
  RETURN_IF_ERROR(broken_);
  last_call_ = what;
  broken_ = NcclStatus(issue(comm_), Describe(what));
  return broken_;
}

absl::Status NcclEndpoint::Call(const char* what, Issue issue) {
  RETURN_IF_ERROR(Begin(what, issue));
  const absl::Time deadline = MonotonicNow() + options_.call_timeout;
  Pause pause;
  while (true) {
    bool ready = false;
    ASSIGN_OR_RETURN(ready, Ready());
    if (ready) return absl::OkStatus();
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "failed to ", Describe(what), ": the others did not connect within ",
          absl::FormatDuration(options_.call_timeout)));
    }
    pause.Wait();
  }
}

absl::Status NcclEndpoint::AllGather(const void* shard, void* full,
                                     int64_t num_elements, DType dtype,
                                     cudaStream_t stream) {
  CHECK(num_elements % size() == 0);
  return Call("all-gather", [&](ncclComm_t comm) {
    return ncclAllGather(shard, full, num_elements / size(), NcclTypeOf(dtype),
                         comm, stream);
  });
}

absl::Status NcclEndpoint::ReduceScatter(const void* full, void* shard,
                                         int64_t num_elements, DType dtype,
                                         cudaStream_t stream) {
  CHECK(num_elements % size() == 0);
  return Call("reduce-scatter", [&](ncclComm_t comm) {
    return ncclReduceScatter(full, shard, num_elements / size(),
                             NcclTypeOf(dtype), ncclSum, comm, stream);
  });
}

absl::Status NcclEndpoint::AllReduce(void* data, int64_t num_elements,
                                     DType dtype, cudaStream_t stream) {
  return Call("all-reduce", [&](ncclComm_t comm) {
    return ncclAllReduce(data, data, num_elements, NcclTypeOf(dtype), ncclSum,
                         comm, stream);
  });
}

absl::Status NcclEndpoint::Send(const void* data, int64_t num_bytes,
                                int32_t to_index, cudaStream_t stream) {
  return Call("send", [&](ncclComm_t comm) {
    return ncclSend(data, num_bytes, ncclInt8, to_index, comm, stream);
  });
}

absl::Status NcclEndpoint::Receive(void* data, int64_t num_bytes,
                                   int32_t from_index, cudaStream_t stream) {
  return Call("receive", [&](ncclComm_t comm) {
    return ncclRecv(data, num_bytes, ncclInt8, from_index, comm, stream);
  });
}

void NcclEndpoint::EndWith(void (NcclEndpoint::*body)(), bool closing) {
  std::lock_guard lock(mutex_);
  if (ending_) return;
  ending_ = true;
  closing_ = closing;
  ending_thread_ = std::thread([this, body] {
    cudaSetDevice(device_);
    (this->*body)();
    std::lock_guard ended_lock(mutex_);
    ended_ = true;
    ended_changed_.notify_all();
  });
}

void NcclEndpoint::Abort() {
  EndWith(&NcclEndpoint::RunAbort, /*closing=*/false);
}
void NcclEndpoint::Close() {
  EndWith(&NcclEndpoint::RunClose, /*closing=*/true);
}

// ncclCommAbort raises the flag that kernels look at, then waits until no CUDA
// graph holds calls of the communicator. It and not ncclCommRevoke, which waits
// for no graph: that one lowers the flag again once nothing runs, so a step
// that another thread launches a moment later would wait for its peers for
// ever.
void NcclEndpoint::RunAbort() {
  if (comm_ != nullptr) ncclCommAbort(comm_);
}

void NcclEndpoint::RunClose() {
  const absl::Time deadline = MonotonicNow() + kFinalizeTimeout;
  ncclResult_t result = ncclCommFinalize(comm_);
  Pause pause;
  while (result == ncclInProgress && MonotonicNow() < deadline) {
    pause.Wait();
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) break;
  }
  // After a failure nothing but an abort is safe.
  if (result == ncclSuccess) {
    ncclCommDestroy(comm_);
  } else {
    ncclCommAbort(comm_);
  }
}

}  // namespace millrace
