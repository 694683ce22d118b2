// How an endpoint uses NCCL, on any machine: NCCL and the two CUDA calls are
// played by this file, which aborts the test when a communicator is used after
// it was freed, or by two threads at once.

#include "worker/cuda/nccl/nccl_endpoint.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Until `ready`, whatever was asked for is under way. An abort, like NCCL's,
// takes until `graphs` is zero.
struct ncclComm {
  std::atomic<bool> ready = false;
  std::atomic<int> graphs = 0;
  std::atomic<ncclResult_t> error = ncclSuccess;
  std::atomic<bool> flag = false;
  std::atomic<bool> freed = false;
  std::atomic<bool> in_use = false;
  std::vector<std::string> calls;
};

namespace {

ncclComm* the_comm = nullptr;  // The running test's.

class Use {
 public:
  Use(ncclComm* comm, const char* call) : comm_(comm) {
    CHECK(!comm->freed) << call << " after the communicator was freed";
    CHECK(!comm->in_use.exchange(true)) << call << " beside another call";
    if (call != nullptr) comm->calls.push_back(call);
  }
  ~Use() { comm_->in_use = false; }

 private:
  ncclComm* comm_;
};

ncclResult_t Issue(ncclComm* comm, const char* call) {
  const Use use(comm, call);
  return comm->ready ? ncclSuccess : ncclInProgress;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return ""; }
const char* cudaGetErrorString(cudaError_t) { return ""; }

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "other error";
}
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId*) { return ncclSuccess; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int,
                                    ncclConfig_t* config) {
  CHECK(config->blocking == 0);
  *comm = the_comm;
  return ncclInProgress;
}
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int, const int*) {
  *comm = the_comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  CHECK(!comm->freed) << "asked after the communicator was freed";
  *error = comm->error;
  if (*error == ncclSuccess && !comm->ready) *error = ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t,
                           ncclComm_t comm, cudaStream_t) {
  return Issue(comm, "all-gather");
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  return Issue(comm, "reduce-scatter");
}
ncclResult_t ncclAllReduce(const void*, void*, size_t, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  return Issue(comm, "all-reduce");
}
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                      cudaStream_t) {
  return Issue(comm, "send");
}
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t comm,
                      cudaStream_t) {
  return Issue(comm, "receive");
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return Issue(comm, "finalize");
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Use use(comm, "destroy");
  comm->freed = true;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Use use(comm, "abort");
  comm->flag = true;
  while (comm->graphs > 0) absl::SleepFor(absl::Milliseconds(1));
  comm->freed = true;
  return ncclSuccess;
}

}  // extern "C"

namespace millrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class NcclEndpointTest : public testing::Test {
 protected:
  NcclEndpointTest() { the_comm = &comm_; }

  std::unique_ptr<NcclEndpoint> Start(
      absl::Duration call_timeout = absl::Seconds(20)) {
    NcclEndpoint::Options options;
    options.membership.group = Group::kTensor;
    options.membership.members = {Rank{4}, Rank{5}};
    options.membership.index = 1;
    options.id = std::string(sizeof(ncclUniqueId), 'x');
    options.max_blocks = 0;
    options.call_timeout = call_timeout;
    auto endpoint = NcclEndpoint::Start(std::move(options));
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    return *std::move(endpoint);
  }
  static absl::Status Reduce(NcclEndpoint& endpoint) {
    return endpoint.AllReduce(nullptr, 1, DType::kFloat32, nullptr);
  }

  ncclComm comm_;
};

TEST_F(NcclEndpointTest, IsReadyWhenNcclIs) {
  const auto endpoint = Start();
  EXPECT_FALSE(endpoint->Ready().value());
  comm_.ready = true;
  EXPECT_TRUE(endpoint->Ready().value());
  EXPECT_TRUE(endpoint->Health().ok());
  EXPECT_TRUE(Reduce(*endpoint).ok());
  EXPECT_THAT(comm_.calls, ElementsAre("all-reduce"));
}

// Goal: an error names call, group, members and rank, stays, and is Unavailable
// where a peer is to blame.
TEST_F(NcclEndpointTest, KeepsTheFirstError) {
  const auto endpoint = Start();
  comm_.ready = true;
  ASSERT_TRUE(Reduce(*endpoint).ok());
  comm_.error = ncclRemoteError;
  const absl::Status broken = endpoint->Health();
  EXPECT_TRUE(absl::IsUnavailable(broken));
  EXPECT_THAT(std::string(broken.message()),
              AllOf(HasSubstr("all-reduce as rank 5 of the tensor group "
                              "(ranks 4, 5)"),
                    HasSubstr("remote process exited")));
  comm_.error = ncclSuccess;
  EXPECT_EQ(Reduce(*endpoint), broken);
  EXPECT_THAT(comm_.calls, ElementsAre("all-reduce"));
}

TEST_F(NcclEndpointTest, CallsThatCannotConnectTimeOut) {
  const auto endpoint = Start(absl::Milliseconds(50));
  comm_.ready = true;
  ASSERT_TRUE(endpoint->Ready().value());
  comm_.ready = false;
  const absl::Status status = Reduce(*endpoint);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("all-reduce as rank 5 of the tensor group"));
}

// Goal: an abort returns at once, ends a call that polls in another thread,
// lets nobody near the freed communicator, and waits in the destructor until
// the last graph is gone. Method: two threads call and ask all the time.
TEST_F(NcclEndpointTest, AbortEndsCallsAndWaitsForGraphs) {
  auto endpoint = Start();
  comm_.graphs = 1;
  absl::Status called;
  std::thread caller([&] { called = Reduce(*endpoint); });
  std::atomic<bool> stop = false;
  std::thread watcher([&] {
    while (!stop) endpoint->Health().IgnoreError();
  });
  absl::SleepFor(absl::Milliseconds(20));
  const absl::Time start = MonotonicNow();
  endpoint->Abort();
  endpoint->Abort();
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(1));
  caller.join();
  EXPECT_TRUE(absl::IsAborted(called)) << called;
  EXPECT_TRUE(absl::IsAborted(Reduce(*endpoint)));
  while (!comm_.flag) absl::SleepFor(absl::Milliseconds(1));

  std::thread graph_owner([&] {
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_FALSE(comm_.freed);
    comm_.graphs = 0;
  });
  absl::SleepFor(absl::Milliseconds(100));
  stop = true;
  watcher.join();
  graph_owner.join();
  endpoint.reset();
  EXPECT_TRUE(comm_.freed);
  EXPECT_THAT(comm_.calls, ElementsAre("all-reduce", "abort"));
}

TEST_F(NcclEndpointTest, ClosesInOrder) {
  auto endpoint = Start();
  comm_.ready = true;
  endpoint->Close();
  endpoint.reset();
  EXPECT_THAT(comm_.calls, ElementsAre("finalize", "destroy"));
}

// Goal: calls still under way, or an error, turn a close into an abort.
TEST_F(NcclEndpointTest, ClosesByAbortWhenSomethingIsWrong) {
  auto endpoint = Start();
  comm_.error = ncclSystemError;
  endpoint->Close();
  endpoint.reset();
  EXPECT_THAT(comm_.calls, ElementsAre("finalize", "abort"));
}

TEST_F(NcclEndpointTest, AbortsWhenNobodyEndedIt) {
  Start().reset();
  EXPECT_THAT(comm_.calls, ElementsAre("abort"));
}

}  // namespace
}  // namespace millrace
