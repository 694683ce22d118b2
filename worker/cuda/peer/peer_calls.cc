#include "worker/cuda/peer/peer_calls.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/sum_shards.h"
#include "planner/program/copy_engines.h"
#include "worker/cuda/peer/peer_protocol.h"
#include "worker/cuda/peer/stream_words.h"

namespace millrace {
namespace {

static_assert(kMaxCopyEngineSum <= kMaxSumShards);

// The work given to a stream, in order.
struct Copy {
  void* to;
  const void* from;
  int64_t num_bytes;
};
using Call = std::variant<StreamWordOps, Copy, SumShardsArgs>;

absl::Status Enqueue(const Call& call, cudaStream_t stream) {
  if (const auto* flags = std::get_if<StreamWordOps>(&call)) {
    return flags->Enqueue(stream);
  }
  if (const auto* sum = std::get_if<SumShardsArgs>(&call)) {
    return LaunchSumShards(*sum, stream);
  }
  const Copy& copy = std::get<Copy>(call);
  return CudaStatus(
      cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.num_bytes),
                      cudaMemcpyDeviceToDevice, stream),
      "copy to a peer");
}

// The needs of an instruction before it is known where peers want its data.
struct Exchange {
  std::vector<PeerAction> actions;
  const std::byte* from = nullptr;  // Where what is copied begins.
  SumShardsArgs sum = {};           // Only a reduce-scatter has one.
  std::vector<Copy> own_copies;  // Only a gather that is not in place has any.
};

class Binding {
 public:
  Binding(const PeerReach& reach, const PeerRoute& route,
          const CudaOpContext& context, const Instruction& in)
      : reach_(reach), route_(route), context_(context), in_(in) {}

  absl::StatusOr<CudaOp> Bind() {
    const Exchange exchange =
        IsTransfer(in_.kind) ? TransferExchange() : CollectiveExchange();
    for (const PeerAction& action : exchange.actions) {
      RETURN_IF_ERROR(Add(action, exchange));
    }
    // Within a device a copy is a kernel: last, since it waits for
    // multiprocessors where the others do not.
    calls_.insert(calls_.end(), exchange.own_copies.begin(),
                  exchange.own_copies.end());
    auto calls = std::make_shared<const std::vector<Call>>(std::move(calls_));
    return [calls](cudaStream_t stream) -> absl::Status {
      for (const Call& call : *calls) RETURN_IF_ERROR(Enqueue(call, stream));
      return absl::OkStatus();
    };
  }

 private:
  Exchange TransferExchange() const {
    const auto& attributes = std::get<TransferAttributes>(in_.attributes);
    if (in_.kind != OpKind::kSend) return {.actions = ReceiveActions(1)};
    return {.actions = SendActions(
                1, attributes.num_elements * DTypeBytes(attributes.dtype)),
            .from = context_.Input<std::byte>(in_, 0)};
  }

  Exchange CollectiveExchange() const {
    const auto& attributes = std::get<CollectiveAttributes>(in_.attributes);
    const PeerGroup group = {
        .index = route_.index,
        .size = static_cast<int32_t>(route_.members.size())};
    const int64_t bytes = ShardBytes(attributes, route_.members.size());
    const bool in_place = in_.inputs.at(0) == in_.outputs.at(0);
    const int64_t own = route_.index * bytes;
    auto* const input = context_.Input<std::byte>(in_, 0);
    auto* const output = context_.Output<std::byte>(in_, 0);
    if (in_.kind == OpKind::kAllGather) {
      Exchange exchange{.actions = AllGatherActions(group, bytes),
                        .from = in_place ? input + own : input};
      if (!in_place) {
        exchange.own_copies.push_back({output + own, input, bytes});
      }
      return exchange;
    }
    return {.actions = ReduceScatterActions(group, bytes),
            .from = input,
            .sum = SumOf(attributes, input, in_place ? output + own : output)};
  }

  SumShardsArgs SumOf(const CollectiveAttributes& attributes, std::byte* full,
                      std::byte* shard) const {
    const auto size = static_cast<int32_t>(route_.members.size());
    const int64_t bytes = ShardBytes(attributes, route_.members.size());
    std::byte* const scratch = reach_.mailbox->scratch() +
                               reach_.mailbox->layout().ScratchOffset(in_.lane);
    SumShardsArgs sum = {.sum = shard,
                         .num_shards = size,
                         .num_elements = bytes / DTypeBytes(attributes.dtype),
                         .type = attributes.dtype == DType::kBfloat16
                                     ? ElementType::kBfloat16
                                     : ElementType::kFloat32};
    for (int32_t member = 0; member < size; ++member) {
      sum.shards[member] =
          member == route_.index
              ? full + member * bytes
              : scratch + ScratchSlot(route_.index, member) * bytes;
    }
    return sum;
  }

  absl::Status Add(const PeerAction& action, const Exchange& exchange) {
    const Rank peer = route_.members[static_cast<size_t>(action.peer)];
    const PeerMailboxLayout& mailbox = reach_.mailbox->layout();
    switch (action.kind) {
      case PeerActionKind::kSet:
        Flags().AddWrite(
            reach_.peers->at(peer).words.device_words() +
                mailbox.FlagIndex(route_.peer_lane, reach_.rank, action.flag),
            1);
        break;
      case PeerActionKind::kAwait: {
        uint32_t* const flag =
            reach_.mailbox->words().device_words() +
            mailbox.FlagIndex(route_.lane, peer, action.flag);
        Flags().AddAwait(flag, 1);
        Flags().AddWrite(flag, 0);
        break;
      }
      case PeerActionKind::kCopy: {
        ASSIGN_OR_RETURN(std::byte* const to, Destination(peer));
        calls_.push_back(Copy{to + action.to_bytes,
                              exchange.from + action.from_bytes,
                              action.num_bytes});
        break;
      }
      case PeerActionKind::kSum:
        calls_.push_back(exchange.sum);
        break;
    }
    return absl::OkStatus();
  }

  // Flags that follow each other become one call.
  StreamWordOps& Flags() {
    if (calls_.empty() ||
        !std::holds_alternative<StreamWordOps>(calls_.back())) {
      calls_.push_back(StreamWordOps());
    }
    return std::get<StreamWordOps>(calls_.back());
  }

  // Where the peer wants what this rank sends it.
  absl::StatusOr<std::byte*> Destination(Rank rank) const {
    const ReachedPeer& peer = reach_.peers->at(rank);
    if (in_.kind == OpKind::kReduceScatter) {
      return peer.scratch.data() +
             reach_.mailbox->layout().ScratchOffset(in_.lane);
    }
    if (in_.kind == OpKind::kAllGather) {
      // The peer runs the same Program.
      const Buffer& full = context_.program->buffers[in_.outputs.at(0)];
      return peer.Base(full.arena) + full.offset_bytes;
    }
    const auto program = std::find(reach_.programs.begin(),
                                   reach_.programs.end(), context_.program);
    CHECK(program != reach_.programs.end());
    const auto receives = peer.card.receives.find(
        {static_cast<int32_t>(program - reach_.programs.begin()),
         route_.peer_lane});
    const std::vector<InstructionId>& lane =
        context_.program->lanes[static_cast<int>(in_.lane)];
    const auto id = static_cast<InstructionId>(
        &in_ - context_.program->instructions.data());
    const auto place = std::find(lane.begin(), lane.end(), id) - lane.begin();
    if (receives == peer.card.receives.end() ||
        static_cast<size_t>(place) >= receives->second.size()) {
      return absl::InternalError(absl::StrCat(
          "rank ", ToInt(rank), " does not receive what is sent as ", "number ",
          place, " of lane ", LaneName(in_.lane)));
    }
    const PeerPlace& to = receives->second[static_cast<size_t>(place)];
    return peer.Base(to.arena) + to.offset_bytes;
  }

  const PeerReach& reach_;
  const PeerRoute& route_;
  const CudaOpContext& context_;
  const Instruction& in_;
  std::vector<Call> calls_;
};

}  // namespace

absl::StatusOr<ReachedPeer> ReachPeer(PeerCard card) {
  const auto open =
      [](const std::string& handle) -> absl::StatusOr<PeerMemory> {
    if (handle.empty()) return PeerMemory();
    return PeerMemory::Open(handle);
  };
  ASSIGN_OR_RETURN(PeerMemory persistent, open(card.persistent_arena));
  ASSIGN_OR_RETURN(PeerMemory step, open(card.step_arena));
  ASSIGN_OR_RETURN(PeerMemory scratch, open(card.scratch));
  ASSIGN_OR_RETURN(SharedWords words, SharedWords::Open(card.words));
  return ReachedPeer{.card = std::move(card),
                     .persistent_arena = std::move(persistent),
                     .step_arena = std::move(step),
                     .scratch = std::move(scratch),
                     .words = std::move(words)};
}

absl::StatusOr<CudaOp> BindPeerCalls(const PeerReach& reach,
                                     const PeerRoute& route,
                                     const CudaOpContext& context,
                                     const Instruction& instruction) {
  return Binding(reach, route, context, instruction).Bind();
}

}  // namespace millrace
