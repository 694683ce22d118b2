// Collectives and transfers.

#include <variant>

#include "absl/strings/str_cat.h"
#include "worker/cpu/ops.h"
#include "worker/train/bucket_slice.h"

namespace millrace {
namespace {

// In place means: the shard is this rank's slice of the full tensor.
void* ShardPointer(const Instruction& in, void* full, void* shard,
                   const Communicator& communicator) {
  if (in.inputs.at(0) != in.outputs.at(0)) return shard;
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  const int64_t shard_bytes = attributes.num_elements / communicator.size() *
                              DTypeBytes(attributes.dtype);
  return static_cast<char*>(full) + communicator.index() * shard_bytes;
}

absl::StatusOr<BoundOp> BindCollective(const OpContext& context,
                                       const Instruction& in) {
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  Communicator* communicator =
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
      return [=, shard = ShardPointer(in, to, from, *communicator)] {
        return communicator->AllGather(shard, to, num_elements, dtype);
      };
    case OpKind::kReduceScatter:
      return [=, shard = ShardPointer(in, from, to, *communicator)] {
        return communicator->ReduceScatter(from, shard, num_elements, dtype);
      };
    case OpKind::kAllReduce:
      if (from != to) return absl::InternalError("an all-reduce not in place");
      return [=, part = ReducedPart(context.layout, context.coordinates,
                                    attributes)] {
        return communicator->AllReduce(
            static_cast<char*>(to) + part.begin * DTypeBytes(dtype),
            part.num_elements, dtype);
      };
    default:
      return absl::InternalError("not a collective");
  }
}

absl::StatusOr<BoundOp> BindTransfer(const OpContext& context,
                                     const Instruction& in) {
  const auto& attributes = std::get<TransferAttributes>(in.attributes);
  Communicator* communicator =
      context.communicators->ForTransfer(attributes.direction);
  if (communicator == nullptr) {
    return absl::InternalError("a transfer in a pipeline of one stage");
  }
  const int64_t num_bytes =
      attributes.num_elements * DTypeBytes(attributes.dtype);
  const int32_t step = attributes.direction == Direction::kToNext ? 1 : -1;
  const int32_t peer =
      communicator->index() + (in.kind == OpKind::kSend ? step : -step);
  if (peer < 0 || peer >= communicator->size()) {
    return absl::InternalError("a transfer beyond the ends of the pipeline");
  }
  if (in.kind == OpKind::kSend) {
    return [=, data = context.Input<void>(in, 0)] {
      return communicator->Send(data, num_bytes, peer);
    };
  }
  return [=, data = context.Output<void>(in, 0)] {
    return communicator->Receive(data, num_bytes, peer);
  };
}

}  // namespace

void RegisterCommunicationOps(CpuBinders& binders) {
  binders.Bind(OpKind::kAllGather, BindCollective);
  binders.Bind(OpKind::kReduceScatter, BindCollective);
  binders.Bind(OpKind::kAllReduce, BindCollective);
  binders.Bind(OpKind::kSend, BindTransfer);
  binders.Bind(OpKind::kReceive, BindTransfer);
}

}  // namespace millrace
