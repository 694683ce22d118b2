#include "worker/cuda/measure/copy_engine_call.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "planner/program/copy_engines.h"

namespace millrace {
namespace {

// Memory that is shared with other processes takes whole pages.
constexpr int64_t kCallPage = int64_t{2} << 20;

BufferId AddBuffer(absl::string_view name, int64_t num_elements, DType dtype,
                   Program* program) {
  const int64_t bytes = num_elements * DTypeBytes(dtype);
  program->buffers.push_back({.name = std::string(name),
                              .dtype = dtype,
                              .dims = {num_elements},
                              .arena = Arena::kStep,
                              .offset_bytes = program->step_arena_bytes,
                              .bytes = bytes});
  program->step_arena_bytes +=
      (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  return static_cast<BufferId>(program->buffers.size()) - 1;
}

// Builds the Program of one instruction, out of place as in training. The
// Program is empty if the rank takes no part.
Program BuildProgram(const CopyEngineCallOptions& options) {
  const Layout& layout = options.layout;
  Program program = {};
  program.layout = layout;
  program.layout.copy_engines = CopyEngineUseOf(layout);
  program.stage = CoordinatesOf(layout, options.rank).pipeline;
  program.persistent_arena_bytes = kCallPage;
  Instruction in = {.kind = options.kind,
                    .phase = Phase::kForward,
                    .microbatch_idx = -1,
                    .name = "call"};
  auto add = [&](int64_t num_elements) {
    return AddBuffer("operand", num_elements, options.dtype, &program);
  };
  if (options.kind == OpKind::kSend) {
    const bool sends = program.stage % 2 == 0;
    if (sends && program.stage == layout.pipeline - 1) return program;
    in.kind = sends ? OpKind::kSend : OpKind::kReceive;
    in.attributes = TransferAttributes{.direction = Direction::kToNext,
                                       .num_elements = options.num_elements,
                                       .dtype = options.dtype};
    (sends ? in.inputs : in.outputs) = {add(options.num_elements)};
  } else {
    const bool gathers = options.kind == OpKind::kAllGather;
    const int64_t shard = options.num_elements / layout.tensor;
    in.attributes = CollectiveAttributes{.group = Group::kTensor,
                                         .num_elements = options.num_elements,
                                         .dtype = options.dtype};
    in.inputs = {add(gathers ? shard : options.num_elements)};
    in.outputs = {add(gathers ? options.num_elements : shard)};
  }
  in.lane = LaneOf(in.kind, in.attributes);
  program.lanes[static_cast<int>(in.lane)] = {0};
  program.instructions = {std::move(in)};
  return program;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CopyEngineCall>> CopyEngineCall::Create(
    const CopyEngineCallOptions& options,
    const std::atomic<bool>& abort_requested) {
  std::unique_ptr<CopyEngineCall> call(new CopyEngineCall);
  call->program_ = BuildProgram(options);
  const Program& program = call->program_;
  ASSIGN_OR_RETURN(
      DeviceArenas arenas,
      DeviceArenas::Allocate(program.persistent_arena_bytes,
                             program.step_arena_bytes + kCallPage));
  call->arenas_ = std::make_unique<DeviceArenas>(std::move(arenas));
  RETURN_IF_ERROR(
      CudaStatus(cudaMemset(call->arenas_->Base(Arena::kStep), 0,
                            static_cast<size_t>(program.step_arena_bytes)),
                 "zero a message"));
  RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "zero a message"));
  ASSIGN_OR_RETURN(call->copies_,
                   PeerCopies::Create({.layout = program.layout,
                                       .rank = options.rank,
                                       .store = options.store,
                                       .arenas = call->arenas_.get(),
                                       .programs = {&program},
                                       .timeout = options.timeout},
                                      abort_requested));
  if (program.instructions.empty() ||
      !call->copies_->Carries(program.instructions[0])) {
    return call;
  }
  const CudaOpContext context = {
      .program = &program,
      .layout = program.layout,
      .coordinates = CoordinatesOf(program.layout, options.rank),
      .arenas = call->arenas_.get(),
      .peer_copies = call->copies_.get()};
  ASSIGN_OR_RETURN(call->op_,
                   call->copies_->Bind(context, program.instructions[0]));
  return call;
}

}  // namespace millrace
