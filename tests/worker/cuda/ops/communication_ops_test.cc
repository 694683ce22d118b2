#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/cuda/device/op.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"

namespace millrace {
namespace {

// Writes down what it is asked to do, with places as bytes from `base`.
class RecordingCommunicator : public NcclCommunicator {
 public:
  RecordingCommunicator(std::string name, int32_t size, int32_t index)
      : name_(std::move(name)), size_(size), index_(index) {}

  int32_t size() const override { return size_; }
  int32_t index() const override { return index_; }
  absl::Status AllGather(const void* shard, void* full, int64_t num_elements,
                         DType dtype, cudaStream_t) override {
    return Record("gather ", At(shard), " to ", At(full), " elements ",
                  num_elements, " ", DTypeName(dtype));
  }
  absl::Status ReduceScatter(const void* full, void* shard,
                             int64_t num_elements, DType dtype,
                             cudaStream_t) override {
    return Record("reduce ", At(full), " to ", At(shard), " elements ",
                  num_elements, " ", DTypeName(dtype));
  }
  absl::Status AllReduce(void* data, int64_t num_elements, DType dtype,
                         cudaStream_t) override {
    return Record("sum ", At(data), " elements ", num_elements, " ",
                  DTypeName(dtype));
  }
  absl::Status Send(const void* data, int64_t num_bytes, int32_t to_index,
                    cudaStream_t) override {
    return Record("send ", At(data), " bytes ", num_bytes, " to ", to_index);
  }
  absl::Status Receive(void* data, int64_t num_bytes, int32_t from_index,
                       cudaStream_t) override {
    return Record("receive ", At(data), " bytes ", num_bytes, " from ",
                  from_index);
  }

  const std::byte* base = nullptr;
  std::string last;

 private:
  int64_t At(const void* data) const {
    return static_cast<const std::byte*>(data) - base;
  }
  template <typename... Words>
  absl::Status Record(const Words&... words) {
    last = absl::StrCat(name_, ": ", words...);
    return absl::OkStatus();
  }

  const std::string name_;
  const int32_t size_;
  const int32_t index_;
};

// Member 2 of 4 along the data axis; a later stage's end of kSendPrevious.
class RecordingSet : public NcclCommunicatorSet {
 public:
  NcclCommunicator* ForCollective(Group group) const override {
    return group == Group::kData ? data.get() : nullptr;
  }
  NcclCommunicator* ForTransferLane(Lane lane) const override {
    if (lane == Lane::kSendPrevious) return to_previous.get();
    if (lane == Lane::kReceivePrevious) return from_previous.get();
    return nullptr;
  }
  absl::Status Health() const override { return absl::OkStatus(); }
  void Abort() override {}

  std::unique_ptr<RecordingCommunicator> data =
      std::make_unique<RecordingCommunicator>("data", 4, 2);
  std::unique_ptr<RecordingCommunicator> to_previous =
      std::make_unique<RecordingCommunicator>("to_previous", 2, 1);
  std::unique_ptr<RecordingCommunicator> from_previous =
      std::make_unique<RecordingCommunicator>("from_previous", 2, 1);
};

constexpr int64_t kFullBytes = 16 * 1024;

// A Program whose buffers are a full tensor and a shard behind it.
class CommunicationOpsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto arenas = DeviceArenas::Allocate(256, 2 * kFullBytes);
    ASSERT_TRUE(arenas.ok()) << arenas.status();
    arenas_ = std::make_unique<DeviceArenas>(*std::move(arenas));
    for (const int64_t offset : {int64_t{0}, kFullBytes}) {
      program_.buffers.push_back({.name = absl::StrCat("b", offset),
                                  .dtype = DType::kBfloat16,
                                  .dims = {kFullBytes / 2},
                                  .arena = Arena::kStep,
                                  .offset_bytes = offset,
                                  .bytes = kFullBytes});
    }
    for (auto* communicator :
         {set_.data.get(), set_.to_previous.get(), set_.from_previous.get()}) {
      communicator->base = arenas_->At(program_.buffers[0]);
    }
  }

  absl::Status Run(const Instruction& in) {
    const absl::StatusOr<CudaOp> op =
        BindCudaOp({.program = &program_,
                    .layout = {.pipeline = 2, .data = 4},
                    .coordinates = {.pipeline = 1, .data = 2},
                    .arenas = arenas_.get(),
                    .communicators = &set_},
                   in);
    return op.ok() ? (*op)(nullptr) : op.status();
  }
  std::string Collective(OpKind kind, BufferId from, BufferId to) {
    const absl::Status status =
        Run({.kind = kind,
             .name = "collective",
             .attributes = CollectiveAttributes{.group = Group::kData,
                                                .num_elements = 4096,
                                                .dtype = DType::kBfloat16},
             .inputs = {from},
             .outputs = {to}});
    EXPECT_TRUE(status.ok()) << status;
    return set_.data->last;
  }

  std::unique_ptr<DeviceArenas> arenas_;
  RecordingSet set_;
  Program program_;
};

// Goal: collectives take the operands that planner/program/op_table.cc names;
// in place, the shard is the slice at the rank's index, here the third quarter
// of 8192 bytes.
TEST_F(CommunicationOpsTest, FindsShards) {
  EXPECT_EQ(Collective(OpKind::kAllGather, 1, 0),
            "data: gather 16384 to 0 elements 4096 bf16");
  EXPECT_EQ(Collective(OpKind::kAllGather, 0, 0),
            "data: gather 4096 to 0 elements 4096 bf16");
  EXPECT_EQ(Collective(OpKind::kReduceScatter, 0, 1),
            "data: reduce 0 to 16384 elements 4096 bf16");
  EXPECT_EQ(Collective(OpKind::kReduceScatter, 0, 0),
            "data: reduce 0 to 4096 elements 4096 bf16");
  EXPECT_EQ(Collective(OpKind::kAllReduce, 0, 0),
            "data: sum 0 elements 4096 bf16");
}

// Goal: transfers use the communicator of their own lane, and its other end.
TEST_F(CommunicationOpsTest, TransfersOnTheirLanes) {
  const TransferAttributes attributes = {.direction = Direction::kToPrevious,
                                         .num_elements = 100,
                                         .dtype = DType::kBfloat16};
  ASSERT_TRUE(Run({.kind = OpKind::kSend,
                   .lane = Lane::kSendPrevious,
                   .name = "send",
                   .attributes = attributes,
                   .inputs = {1}})
                  .ok());
  EXPECT_EQ(set_.to_previous->last, "to_previous: send 16384 bytes 200 to 0");
  ASSERT_TRUE(Run({.kind = OpKind::kReceive,
                   .lane = Lane::kReceivePrevious,
                   .name = "receive",
                   .attributes = attributes,
                   .outputs = {0}})
                  .ok());
  EXPECT_EQ(set_.from_previous->last,
            "from_previous: receive 0 bytes 200 from 0");
}

// Goal: what has no peer is refused when it is bound, with its name.
TEST_F(CommunicationOpsTest, RefusesWhatHasNoPeer) {
  absl::Status status = Run(
      {.kind = OpKind::kAllReduce,
       .name = "alone",
       .attributes = CollectiveAttributes{Group::kTensor, 8, DType::kFloat32},
       .inputs = {0},
       .outputs = {0}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("alone"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("tensor"), absl::string_view::npos) << status;
  status = Run(
      {.kind = OpKind::kSend,
       .lane = Lane::kSendNext,
       .name = "beyond",
       .attributes = TransferAttributes{Direction::kToNext, 8, DType::kFloat32},
       .inputs = {0}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("beyond"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace millrace
