// Collectives and transfers.

#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/cuda/nccl/nccl_communicator_set.h"
#include "worker/cuda/ops/ops.h"
#include "worker/cuda/peer/peer_copies.h"
#include "worker/train/bucket_slice.h"

namespace millrace {
namespace {

// In place means: the shard is this rank's slice of the full tensor.
void* ShardPointer(const Instruction& in, void* full, void* shard,
                   const NcclCommunicator& communicator) {
  if (in.inputs.at(0) != in.outputs.at(0)) return shard;
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  const int64_t shard_bytes = attributes.num_elements / communicator.size() *
                              DTypeBytes(attributes.dtype);
  return static_cast<char*>(full) + communicator.index() * shard_bytes;
}

absl::StatusOr<CudaOp> BindCollective(const CudaOpContext& context,
                                      const Instruction& in) {
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  NcclCommunicator* communicator =
      context.communicators->ForCollective(attributes.group);
  if (communicator == nullptr) {
    return absl::InternalError(absl::StrCat("a collective over the ",
                                            GroupName(attributes.group),
                                            " group, which has one member"));
  }
  void* from = context.Input<void>(in, 0);
  void* to = context.Output<void>(in, 0);
  const int64_t num_elements = attributes.num_elements;
  const DType dtype = attributes.dtype;
  switch (in.kind) {
    case OpKind::kAllGather:
      return [=, shard = ShardPointer(in, to, from, *communicator)](
                 cudaStream_t stream) {
        return communicator->AllGather(shard, to, num_elements, dtype, stream);
      };
    case OpKind::kReduceScatter:
      return [=, shard = ShardPointer(in, from, to, *communicator)](
                 cudaStream_t stream) {
        return communicator->ReduceScatter(from, shard, num_elements, dtype,
                                           stream);
      };
    case OpKind::kAllReduce:
      if (from != to) return absl::InternalError("an all-reduce not in place");
      return [=, part = ReducedPart(context.layout, context.coordinates,
                                    attributes)](cudaStream_t stream) {
        return communicator->AllReduce(
            static_cast<char*>(to) + part.begin * DTypeBytes(dtype),
            part.num_elements, dtype, stream);
      };
    default:
      return absl::InternalError("not a collective");
  }
}

absl::StatusOr<CudaOp> BindTransfer(const CudaOpContext& context,
                                    const Instruction& in) {
  const auto& attributes = std::get<TransferAttributes>(in.attributes);
  NcclCommunicator* communicator =
      context.communicators->ForTransferLane(in.lane);
  if (communicator == nullptr) {
    return absl::InternalError(
        absl::StrCat("a transfer on lane ", LaneName(in.lane),
                     ", which ends here: it has no stage at its other end"));
  }
  const int64_t num_bytes =
      attributes.num_elements * DTypeBytes(attributes.dtype);
  const int32_t peer = 1 - communicator->index();
  if (in.kind == OpKind::kSend) {
    return [=, data = context.Input<void>(in, 0)](cudaStream_t stream) {
      return communicator->Send(data, num_bytes, peer, stream);
    };
  }
  return [=, data = context.Output<void>(in, 0)](cudaStream_t stream) {
    return communicator->Receive(data, num_bytes, peer, stream);
  };
}

absl::StatusOr<CudaOp> BindCommunication(const CudaOpContext& context,
                                         const Instruction& instruction) {
  if (context.peer_copies != nullptr &&
      context.peer_copies->Carries(instruction)) {
    return context.peer_copies->Bind(context, instruction);
  }
  if (context.communicators == nullptr) {
    return absl::InternalError("communication without communicators");
  }
  if (IsTransfer(instruction.kind)) return BindTransfer(context, instruction);
  return BindCollective(context, instruction);
}

}  // namespace

void RegisterCudaCommunicationOps(CudaBinders& binders) {
  for (const OpKind kind :
       {OpKind::kAllGather, OpKind::kReduceScatter, OpKind::kAllReduce,
        OpKind::kSend, OpKind::kReceive}) {
    binders.Bind(kind, BindCommunication);
  }
}

}  // namespace millrace
