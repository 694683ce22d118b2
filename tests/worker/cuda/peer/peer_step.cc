#include "tests/worker/cuda/peer/peer_step.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "planner/program/copy_engines.h"
#include "worker/cuda/device/op.h"

namespace millrace {
namespace {

const std::atomic<bool> kNeverAborted = false;

class Builder {
 public:
  Builder(const Layout& layout, int32_t stage) {
    program_.layout = layout;
    program_.stage = stage;
    program_.step_arena_bytes = 0;
    program_.persistent_arena_bytes = int64_t{2} << 20;
  }

  BufferId AddBuffer(const std::string& name, int64_t num_elements,
                     DType dtype) {
    const int64_t bytes = num_elements * DTypeBytes(dtype);
    program_.buffers.push_back({.name = name,
                                .dtype = dtype,
                                .dims = {num_elements},
                                .arena = Arena::kStep,
                                .offset_bytes = program_.step_arena_bytes,
                                .bytes = bytes});
    program_.step_arena_bytes +=
        (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  void AddInstruction(OpKind kind, const std::string& name,
                      OpAttributes attributes, Operands inputs,
                      Operands outputs) {
    const Lane lane = LaneOf(kind, attributes);
    const auto id = static_cast<InstructionId>(program_.instructions.size());
    program_.instructions.push_back({.kind = kind,
                                     .phase = Phase::kForward,
                                     .lane = lane,
                                     .microbatch_idx = -1,
                                     .name = name,
                                     .attributes = std::move(attributes),
                                     .inputs = std::move(inputs),
                                     .outputs = std::move(outputs)});
    program_.lanes[static_cast<int>(lane)].push_back(id);
  }

  void AddTransfer(const PeerCall& call, const std::string& number) {
    const bool to_next = call.kind == OpKind::kSend;
    const TransferAttributes attributes = {
        .direction = to_next ? Direction::kToNext : Direction::kToPrevious,
        .num_elements = call.num_elements,
        .dtype = call.dtype};
    const bool is_last = program_.stage == program_.layout.pipeline - 1;
    const bool is_first = program_.stage == 0;
    if (to_next ? !is_last : !is_first) {
      const BufferId in =
          AddBuffer(absl::StrCat("in/", number), call.num_elements, call.dtype);
      AddInstruction(OpKind::kSend, absl::StrCat("send/", number), attributes,
                     {in}, {});
    }
    if (to_next ? !is_first : !is_last) {
      const BufferId out = AddBuffer(absl::StrCat("out/", number),
                                     call.num_elements, call.dtype);
      AddInstruction(OpKind::kReceive, absl::StrCat("receive/", number),
                     attributes, {}, {out});
    }
  }

  void AddCollective(const PeerCall& call, const std::string& number) {
    const int64_t size = program_.layout.tensor;
    const bool gathers = call.kind == OpKind::kAllGather;
    const int64_t shard = call.num_elements / size;
    const BufferId in = AddBuffer(
        absl::StrCat("in/", number),
        gathers && !call.in_place ? shard : call.num_elements, call.dtype);
    const BufferId out =
        call.in_place
            ? in
            : AddBuffer(absl::StrCat("out/", number),
                        gathers ? call.num_elements : shard, call.dtype);
    AddInstruction(call.kind, absl::StrCat("call/", number),
                   CollectiveAttributes{.group = Group::kTensor,
                                        .num_elements = call.num_elements,
                                        .dtype = call.dtype},
                   {in}, {out});
  }

  Program Take() { return std::move(program_); }

 private:
  Program program_ = {};
};

}  // namespace

Program BuildPeerProgram(const Layout& layout, int32_t stage,
                         const std::vector<PeerCall>& calls) {
  Builder builder(layout, stage);
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string number = absl::StrCat(i);
    if (IsTransfer(calls[i].kind)) {
      builder.AddTransfer(calls[i], number);
    } else {
      builder.AddCollective(calls[i], number);
    }
  }
  return builder.Take();
}

absl::StatusOr<std::unique_ptr<PeerStep>> PeerStep::Create(Options options) {
  std::unique_ptr<PeerStep> step(new PeerStep);
  step->options_ = std::move(options);
  if (step->options_.use_copies) {
    step->options_.layout.copy_engines = CopyEngineUseOf(step->options_.layout);
  }
  const Options& o = step->options_;
  const MeshCoordinates coordinates = CoordinatesOf(o.layout, o.rank);
  step->program_ = BuildPeerProgram(o.layout, coordinates.pipeline, o.calls);
  const Program& program = step->program_;
  ASSIGN_OR_RETURN(DeviceArenas arenas,
                   DeviceArenas::Allocate(program.persistent_arena_bytes,
                                          program.step_arena_bytes));
  step->arenas_ = std::make_unique<DeviceArenas>(std::move(arenas));
  if (o.use_copies) {
    ASSIGN_OR_RETURN(step->copies_,
                     PeerCopies::Create({.layout = o.layout,
                                         .rank = o.rank,
                                         .store = o.store,
                                         .arenas = step->arenas_.get(),
                                         .programs = {&program}},
                                        kNeverAborted));
  } else {
    ASSIGN_OR_RETURN(step->communicators_,
                     NcclCommunicatorSet::Create(
                         {.layout = o.layout, .rank = o.rank, .store = o.store},
                         kNeverAborted));
  }
  const CudaOpContext context = {.program = &program,
                                 .layout = o.layout,
                                 .coordinates = coordinates,
                                 .arenas = step->arenas_.get(),
                                 .communicators = step->communicators_.get(),
                                 .peer_copies = step->copies_.get()};
  std::vector<CudaOp> ops;
  for (const Instruction& in : program.instructions) {
    ASSIGN_OR_RETURN(CudaOp op, BindCudaOp(context, in));
    if (o.work_bytes == 0) {
      ops.push_back(std::move(op));
      continue;
    }
    ASSIGN_OR_RETURN(auto work, DeviceBuffer<std::byte>::Allocate(
                                    static_cast<size_t>(o.work_bytes)));
    std::byte* const data = work.data();
    step->work_.push_back(std::move(work));
    const auto bytes = static_cast<size_t>(o.work_bytes);
    ops.push_back([op, data, bytes](cudaStream_t stream) -> absl::Status {
      RETURN_IF_ERROR(
          CudaStatus(cudaMemsetAsync(data, 1, bytes, stream), "set memory"));
      return op(stream);
    });
  }
  ASSIGN_OR_RETURN(
      step->executor_,
      CudaExecutor::Create({.name = absl::StrCat("rank ", ToInt(o.rank)),
                            .use_graphs = o.use_graphs}));
  ASSIGN_OR_RETURN(step->prepared_,
                   CudaPreparedProgram::Create(&program, std::move(ops)));
  return step;
}

PeerStep::~PeerStep() {
  if (executor_ != nullptr) executor_->Synchronize().IgnoreError();
  prepared_.reset();
  communicators_.reset();
  copies_.reset();
}

bool PeerStep::IsUnderWay() const {
  return cudaStreamQuery(executor_->stream()) == cudaErrorNotReady;
}

void PeerStep::Abort() {
  if (copies_ != nullptr) copies_->Abort();
  if (communicators_ != nullptr) communicators_->Abort();
}

const Buffer* PeerStep::Find(const std::string& name) const {
  for (const Buffer& buffer : program_.buffers) {
    if (buffer.name == name) return &buffer;
  }
  return nullptr;
}

}  // namespace millrace
