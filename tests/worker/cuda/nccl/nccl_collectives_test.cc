// Needs two to four GPUs that reach each other's memory.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/status.h"
#include "tests/worker/cuda/peer/captured_graph.h"
#include "tests/worker/cuda/rank_processes.h"
#include "worker/communicate/directory_rendezvous_store.h"
#include "worker/cuda/device/handles.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"

namespace millrace {
namespace {

const std::atomic<bool> kNeverAborted = false;
constexpr absl::Duration kTestTimeout = absl::Seconds(60);

absl::StatusOr<std::unique_ptr<NcclCommunicatorSet>> Join(
    const Layout& layout, Rank rank, RendezvousStore& store) {
  return NcclCommunicatorSet::Create(
      {.layout = layout, .rank = rank, .store = &store}, kNeverAborted);
}

// The layouts that fill `num_ranks` devices along one axis or two.
std::vector<Layout> LayoutsOf(int32_t num_ranks) {
  std::vector<Layout> layouts = {{.data = num_ranks}, {.tensor = num_ranks}};
  if (num_ranks == 4) layouts.push_back({.data = 2, .tensor = 2});
  return layouts;
}

// Small whole numbers, so that sums are exact in every type. Differs between
// members, and between neighbouring elements.
int Value(int32_t member, int64_t i) {
  return static_cast<int>((i * 7 + member * 5) % 17) - 8;
}
int Sum(int32_t size, int64_t i) {
  int sum = 0;
  for (int32_t member = 0; member < size; ++member) sum += Value(member, i);
  return sum;
}

void Store(int value, DType dtype, int64_t i, std::vector<std::byte>& bytes) {
  std::byte* const at = bytes.data() + i * DTypeBytes(dtype);
  const double wide = value;
  const float narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat64:
      std::memcpy(at, &wide, sizeof(wide));
      return;
    case DType::kFloat32:
      std::memcpy(at, &narrow, sizeof(narrow));
      return;
    default:  // The upper half of a float, exact for values this small.
      std::memcpy(at, reinterpret_cast<const std::byte*>(&narrow) + 2, 2);
  }
}

// One tensor on the device, filled and checked by formulas.
class Tensor {
 public:
  using Formula = std::function<int(int64_t)>;
  static absl::StatusOr<Tensor> Create(int64_t num_elements, DType dtype) {
    ASSIGN_OR_RETURN(auto buffer, DeviceBuffer<std::byte>::Allocate(
                                      num_elements * DTypeBytes(dtype)));
    return Tensor(std::move(buffer), num_elements, dtype);
  }
  std::byte* at(int64_t i) { return buffer_.data() + i * DTypeBytes(dtype_); }

  absl::Status Fill(const Formula& formula) {
    return CudaStatus(cudaMemcpy(buffer_.data(), Expected(formula).data(),
                                 buffer_.size(), cudaMemcpyHostToDevice),
                      "fill a tensor");
  }
  // With bytes that no expected value has.
  absl::Status Poison() {
    return CudaStatus(cudaMemset(buffer_.data(), 0xFF, buffer_.size()),
                      "poison a tensor");
  }
  absl::Status Check(const std::string& what, const Formula& formula) const {
    std::vector<std::byte> actual(buffer_.size());
    RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(actual.data(), buffer_.data(), actual.size(),
                              cudaMemcpyDeviceToHost),
                   "read a tensor"));
    const std::vector<std::byte> expected = Expected(formula);
    const auto differs =
        std::mismatch(actual.begin(), actual.end(), expected.begin());
    if (differs.first == actual.end()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(what, " of ", num_elements_, " ", DTypeName(dtype_),
                     " is wrong from element ",
                     (differs.first - actual.begin()) / DTypeBytes(dtype_)));
  }

 private:
  Tensor(DeviceBuffer<std::byte> buffer, int64_t num_elements, DType dtype)
      : buffer_(std::move(buffer)),
        num_elements_(num_elements),
        dtype_(dtype) {}

  std::vector<std::byte> Expected(const Formula& formula) const {
    std::vector<std::byte> bytes(buffer_.size());
    for (int64_t i = 0; i < num_elements_; ++i) {
      Store(formula(i), dtype_, i, bytes);
    }
    return bytes;
  }

  DeviceBuffer<std::byte> buffer_;
  int64_t num_elements_;
  DType dtype_;
};

// All collectives of one communicator at one size, in place and not.
absl::Status CheckCollectives(NcclCommunicator& communicator, DType dtype,
                              int64_t shard_elements,
                              const CudaStream& stream) {
  const int32_t size = communicator.size();
  const int32_t own = communicator.index();
  const int64_t full_elements = shard_elements * size;
  const int64_t begin = own * shard_elements;
  ASSIGN_OR_RETURN(Tensor shard, Tensor::Create(shard_elements, dtype));
  ASSIGN_OR_RETURN(Tensor gathered, Tensor::Create(full_elements, dtype));
  ASSIGN_OR_RETURN(Tensor gathered_in_place,
                   Tensor::Create(full_elements, dtype));
  ASSIGN_OR_RETURN(Tensor terms, Tensor::Create(full_elements, dtype));
  ASSIGN_OR_RETURN(Tensor scattered, Tensor::Create(shard_elements, dtype));
  ASSIGN_OR_RETURN(Tensor scattered_in_place,
                   Tensor::Create(full_elements, dtype));
  ASSIGN_OR_RETURN(Tensor reduced, Tensor::Create(full_elements, dtype));

  const auto of_member = [&](int64_t i) {
    return Value(static_cast<int32_t>(i / shard_elements), i);
  };
  const auto fill = [&]() -> absl::Status {
    RETURN_IF_ERROR(
        shard.Fill([&](int64_t i) { return Value(own, begin + i); }));
    RETURN_IF_ERROR(gathered.Poison());
    RETURN_IF_ERROR(gathered_in_place.Fill([&](int64_t i) {
      return i / shard_elements == own ? of_member(i) : 99;
    }));
    const auto own_terms = [&](int64_t i) { return Value(own, i); };
    RETURN_IF_ERROR(terms.Fill(own_terms));
    RETURN_IF_ERROR(scattered.Poison());
    RETURN_IF_ERROR(scattered_in_place.Fill(own_terms));
    return reduced.Fill(own_terms);
  };
  const auto enqueue = [&]() -> absl::Status {
    RETURN_IF_ERROR(communicator.AllGather(shard.at(0), gathered.at(0),
                                           full_elements, dtype, stream.get()));
    RETURN_IF_ERROR(communicator.AllGather(gathered_in_place.at(begin),
                                           gathered_in_place.at(0),
                                           full_elements, dtype, stream.get()));
    RETURN_IF_ERROR(communicator.ReduceScatter(
        terms.at(0), scattered.at(0), full_elements, dtype, stream.get()));
    RETURN_IF_ERROR(communicator.ReduceScatter(
        scattered_in_place.at(0), scattered_in_place.at(begin), full_elements,
        dtype, stream.get()));
    return communicator.AllReduce(reduced.at(0), full_elements, dtype,
                                  stream.get());
  };
  const auto check = [&](const std::string& how) -> absl::Status {
    RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()), how));
    RETURN_IF_ERROR(gathered.Check(how + ": all-gather", of_member));
    RETURN_IF_ERROR(
        gathered_in_place.Check(how + ": all-gather in place", of_member));
    RETURN_IF_ERROR(scattered.Check(how + ": reduce-scatter", [&](int64_t i) {
      return Sum(size, begin + i);
    }));
    RETURN_IF_ERROR(scattered_in_place.Check(
        how + ": reduce-scatter in place", [&](int64_t i) {
          return i / shard_elements == own ? Sum(size, i) : Value(own, i);
        }));
    return reduced.Check(how + ": all-reduce",
                         [&](int64_t i) { return Sum(size, i); });
  };

  RETURN_IF_ERROR(fill());
  RETURN_IF_ERROR(enqueue());
  RETURN_IF_ERROR(check("on a stream"));
  ASSIGN_OR_RETURN(const CapturedGraph graph,
                   CapturedGraph::Capture(stream.get(), enqueue));
  for (const char* const how : {"first replay", "second replay"}) {
    RETURN_IF_ERROR(fill());
    RETURN_IF_ERROR(graph.Launch(stream.get()));
    RETURN_IF_ERROR(check(how));
  }
  return absl::OkStatus();
}

// Goal: every collective of every group gives exactly what it should, in every
// type, at odd sizes, in place and not, on a stream and replayed by a graph.
// Method: small whole numbers, equal byte by byte; outputs poisoned before.
TEST(NcclCollectivesTest, MatchFormulas) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  RankProcesses ranks;
  const absl::Status status =
      ranks.RunAll(num_ranks, kTestTimeout, [&](Rank rank) -> absl::Status {
        ASSIGN_OR_RETURN(CudaStream stream,
                         CudaStream::Create(CudaStream::Priority::kHigh));
        for (const Layout& layout : LayoutsOf(num_ranks)) {
          DirectoryRendezvousStore store(
              absl::StrCat(ranks.folder(), "/", LayoutToString(layout)));
          ASSIGN_OR_RETURN(auto set, Join(layout, rank, store));
          for (const Group group :
               {Group::kTensor, Group::kData, Group::kWorld}) {
            NcclCommunicator* const communicator = set->ForCollective(group);
            if (communicator == nullptr) continue;
            for (const DType dtype :
                 {DType::kFloat32, DType::kBfloat16, DType::kFloat64}) {
              for (const int64_t shard_elements : {1, 3, 257, 4099, 200003}) {
                RETURN_IF_ERROR(CheckCollectives(*communicator, dtype,
                                                 shard_elements, stream));
              }
            }
          }
          RETURN_IF_ERROR(set->Health());
        }
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

// One lane of transfers of one rank: its messages lie one after the other.
struct TransferLane {
  Lane lane;
  NcclCommunicator* communicator;
  CudaStream stream;
  CudaEvent done;
  Tensor messages;
};

constexpr int64_t kMessageElements[] = {1, 1000, 262145, 4 << 20, 17};
int64_t MessagesSize() {
  int64_t sum = 0;
  for (const int64_t elements : kMessageElements) sum += elements;
  return sum;
}

absl::Status EnqueueTransfers(TransferLane& lane) {
  const bool sends =
      lane.lane == Lane::kSendNext || lane.lane == Lane::kSendPrevious;
  const int32_t other = 1 - lane.communicator->index();
  int64_t at = 0;
  for (const int64_t elements : kMessageElements) {
    const int64_t num_bytes = elements * DTypeBytes(DType::kFloat32);
    RETURN_IF_ERROR(
        sends ? lane.communicator->Send(lane.messages.at(at), num_bytes, other,
                                        lane.stream.get())
              : lane.communicator->Receive(lane.messages.at(at), num_bytes,
                                           other, lane.stream.get()));
    at += elements;
  }
  return absl::OkStatus();
}

absl::Status CheckTransfers(const Layout& layout, Rank rank,
                            RendezvousStore& store) {
  ASSIGN_OR_RETURN(auto set, Join(layout, rank, store));
  std::vector<TransferLane> lanes;
  for (const Lane lane : {Lane::kSendNext, Lane::kReceivePrevious,
                          Lane::kSendPrevious, Lane::kReceiveNext}) {
    NcclCommunicator* const communicator = set->ForTransferLane(lane);
    if (communicator == nullptr) continue;
    ASSIGN_OR_RETURN(CudaStream stream,
                     CudaStream::Create(CudaStream::Priority::kHigh));
    ASSIGN_OR_RETURN(CudaEvent done,
                     CudaEvent::Create(CudaEvent::Kind::kOrder));
    ASSIGN_OR_RETURN(Tensor messages,
                     Tensor::Create(MessagesSize(), DType::kFloat32));
    lanes.push_back({lane, communicator, std::move(stream), std::move(done),
                     std::move(messages)});
  }
  // Every rank in another order: lanes must not depend on each other.
  std::rotate(lanes.begin(), lanes.begin() + ToInt(rank) % lanes.size(),
              lanes.end());
  // The values that a sender sends, by rank and direction.
  const auto sent_by = [](Rank sender, bool to_next) {
    return [=](int64_t i) { return Value(2 * ToInt(sender) + to_next, i); };
  };
  const auto fill = [&]() -> absl::Status {
    for (TransferLane& lane : lanes) {
      if (lane.lane == Lane::kSendNext || lane.lane == Lane::kSendPrevious) {
        RETURN_IF_ERROR(
            lane.messages.Fill(sent_by(rank, lane.lane == Lane::kSendNext)));
      } else {
        RETURN_IF_ERROR(lane.messages.Poison());
      }
    }
    return absl::OkStatus();
  };
  const auto check = [&](const std::string& how) -> absl::Status {
    RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), how));
    for (TransferLane& lane : lanes) {
      const bool from_previous = lane.lane == Lane::kReceivePrevious;
      if (!from_previous && lane.lane != Lane::kReceiveNext) continue;
      const Rank sender{ToInt(rank) + (from_previous ? -1 : 1)};
      RETURN_IF_ERROR(
          lane.messages.Check(absl::StrCat(how, ": ", LaneName(lane.lane)),
                              sent_by(sender, from_previous)));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(fill());
  for (TransferLane& lane : lanes) RETURN_IF_ERROR(EnqueueTransfers(lane));
  RETURN_IF_ERROR(check("on streams"));

  ASSIGN_OR_RETURN(CudaStream origin,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  ASSIGN_OR_RETURN(CudaEvent start, CudaEvent::Create(CudaEvent::Kind::kOrder));
  ASSIGN_OR_RETURN(const CapturedGraph graph,
                   CapturedGraph::Capture(origin.get(), [&]() -> absl::Status {
                     RETURN_IF_ERROR(start.Record(origin.get()));
                     for (TransferLane& lane : lanes) {
                       RETURN_IF_ERROR(start.MakeWait(lane.stream.get()));
                       RETURN_IF_ERROR(EnqueueTransfers(lane));
                       RETURN_IF_ERROR(lane.done.Record(lane.stream.get()));
                       RETURN_IF_ERROR(lane.done.MakeWait(origin.get()));
                     }
                     return absl::OkStatus();
                   }));
  for (const char* const how : {"first replay", "second replay"}) {
    RETURN_IF_ERROR(fill());
    RETURN_IF_ERROR(graph.Launch(origin.get()));
    RETURN_IF_ERROR(check(how));
  }
  return set->Health();
}

// Goal: activations and gradients cross every boundary of a pipeline at once,
// without waiting for each other in an order that could block. Method: as many
// stages as GPUs, four lanes on four streams, each rank starting with another.
TEST(NcclCollectivesTest, TransfersGoBothWaysAtOnce) {
  const int32_t num_ranks = std::min(4, CountDevices());
  ASSERT_GE(num_ranks, 2) << "this test needs two GPUs at least";
  RankProcesses ranks;
  const absl::Status status =
      ranks.RunAll(num_ranks, kTestTimeout, [&](Rank rank) {
        DirectoryRendezvousStore store(ranks.folder() + "/store");
        return CheckTransfers({.pipeline = num_ranks}, rank, store);
      });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace millrace
