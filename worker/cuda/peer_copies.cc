#include "worker/cuda/peer_copies.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/sum_shards.h"
#include "worker/cuda/nccl_rendezvous.h"
#include "worker/cuda/peer_card.h"
#include "worker/cuda/peer_mailbox.h"
#include "worker/cuda/peer_memory.h"
#include "worker/cuda/peer_protocol.h"
#include "worker/cuda/stream_words.h"

namespace millrace {
namespace {

// Of the running system: containers of one host share it.
std::string HostName() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return absl::StrCat(name, " ", boot);
}

// Who takes part in an instruction.
struct Route {
  std::vector<Rank> members;
  int32_t index;   // Of this rank among them.
  Lane lane;       // Of the instruction here,
  Lane peer_lane;  // and at the others.
};

// None: no copy engine is to do it.
std::optional<Route> RouteOf(const PeerCopyOptions& options,
                             const Instruction& in) {
  const Layout& layout = options.layout;
  if (IsTransfer(in.kind)) {
    if (!options.use.transfers) return std::nullopt;
    MeshCoordinates other = CoordinatesOf(layout, options.rank);
    const bool with_next =
        in.lane == Lane::kSendNext || in.lane == Lane::kReceiveNext;
    other.pipeline += with_next ? 1 : -1;
    return Route{.members = {options.rank, RankOf(layout, other)},
                 .index = 0,
                 .lane = in.lane,
                 .peer_lane = MatchingLane(in.lane)};
  }
  const bool gathers = in.kind == OpKind::kAllGather;
  if (!gathers && in.kind != OpKind::kReduceScatter) return std::nullopt;
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
  const PeerCopyUse& use = options.use;
  const bool is_used =
      attributes.group == Group::kTensor
          ? (gathers ? use.tensor_gathers : use.tensor_reductions)
          : attributes.group == Group::kData && gathers && use.data_gathers;
  const int32_t size = GroupSize(layout, attributes.group);
  if (!is_used || size == 1) return std::nullopt;
  if (!gathers && (size > kMaxSumShards || DTypeBytes(attributes.dtype) > 4)) {
    return std::nullopt;
  }
  return Route{.members = GroupMembers(layout, attributes.group, options.rank),
               .index = GroupIndex(layout, attributes.group, options.rank),
               .lane = in.lane,
               .peer_lane = in.lane};
}

int64_t ShardBytes(const CollectiveAttributes& attributes, size_t size) {
  const auto members = static_cast<int64_t>(size);
  CHECK(attributes.num_elements % members == 0);
  return attributes.num_elements / members * DTypeBytes(attributes.dtype);
}

// What a stream is given, one after the other.
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

// The memory of one peer, mapped here.
struct Peer {
  PeerCard card;
  PeerMemory persistent_arena;
  PeerMemory step_arena;
  PeerMemory mailbox;

  std::byte* Base(Arena arena) const {
    return (arena == Arena::kPersistent ? persistent_arena : step_arena).data();
  }
};

absl::StatusOr<Peer> OpenPeer(PeerCard card) {
  ASSIGN_OR_RETURN(PeerMemory persistent,
                   PeerMemory::Open(card.persistent_arena));
  ASSIGN_OR_RETURN(PeerMemory step, PeerMemory::Open(card.step_arena));
  ASSIGN_OR_RETURN(PeerMemory mailbox, PeerMemory::Open(card.mailbox));
  return Peer{.card = std::move(card),
              .persistent_arena = std::move(persistent),
              .step_arena = std::move(step),
              .mailbox = std::move(mailbox)};
}

class IpcPeerCopies : public PeerCopies {
 public:
  explicit IpcPeerCopies(const PeerCopyOptions& options) : options_(options) {}

  absl::Status Connect(const NcclPatience& patience);

  bool Carries(const Instruction& instruction) const override {
    const std::optional<Route> route = RouteOf(options_, instruction);
    return route.has_value() && CanReach(route->members);
  }
  absl::StatusOr<CudaOp> Bind(const CudaOpContext& context,
                              const Instruction& instruction) const override;
  const uint32_t* mark() const override { return mailbox_->mark(); }
  void Abort() override {
    std::vector<std::byte*> mailboxes;
    for (const auto& [rank, peer] : peers_) {
      mailboxes.push_back(peer.mailbox.data());
    }
    mailbox_->Release(mailboxes);
  }

 private:
  bool CanReach(const std::vector<Rank>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [&](Rank member) { return able_.contains(member); });
  }
  PeerMailboxLayout PlanMailbox() const;
  std::set<Rank> RanksToReach() const;
  absl::Status Publish() const;
  absl::StatusOr<std::byte*> Destination(const CudaOpContext& context,
                                         const Instruction& in,
                                         const Route& route, Rank peer) const;
  absl::StatusOr<SumShardsArgs> SumOf(const Route& route,
                                      const CollectiveAttributes& attributes,
                                      void* full, void* shard) const;

  const PeerCopyOptions options_;
  std::unique_ptr<PeerMailbox> mailbox_;
  std::map<Rank, Peer> peers_;
  // Ranks of this host that reach the memory of all they have to, this one
  // included.
  std::set<Rank> able_;
};

PeerMailboxLayout IpcPeerCopies::PlanMailbox() const {
  std::array<int64_t, kNumLanes> scratch_bytes = {};
  for (const Program* program : options_.programs) {
    for (const Instruction& in : program->instructions) {
      if (in.kind != OpKind::kReduceScatter) continue;
      const std::optional<Route> route = RouteOf(options_, in);
      if (!route.has_value()) continue;
      const size_t size = route->members.size();
      int64_t& bytes = scratch_bytes[static_cast<int>(in.lane)];
      bytes = std::max(
          bytes,
          static_cast<int64_t>(size - 1) *
              ShardBytes(std::get<CollectiveAttributes>(in.attributes), size));
    }
  }
  return PeerMailboxLayout(options_.layout.num_ranks(), scratch_bytes);
}

std::set<Rank> IpcPeerCopies::RanksToReach() const {
  std::set<Rank> ranks;
  for (const Program* program : options_.programs) {
    for (const Instruction& in : program->instructions) {
      const std::optional<Route> route = RouteOf(options_, in);
      if (!route.has_value()) continue;
      ranks.insert(route->members.begin(), route->members.end());
    }
  }
  ranks.erase(options_.rank);
  return ranks;
}

std::string CardKey(Rank rank) {
  return absl::StrCat("peers/card/", ToInt(rank));
}
std::string OpenedKey(Rank rank) {
  return absl::StrCat("peers/opened/", ToInt(rank));
}

absl::Status IpcPeerCopies::Publish() const {
  PeerCard card = {.host = HostName()};
  ASSIGN_OR_RETURN(
      card.persistent_arena,
      ExportDeviceMemory(options_.arenas->Base(Arena::kPersistent)));
  ASSIGN_OR_RETURN(card.step_arena,
                   ExportDeviceMemory(options_.arenas->Base(Arena::kStep)));
  ASSIGN_OR_RETURN(card.mailbox, ExportDeviceMemory(mailbox_->data()));
  for (size_t i = 0; i < options_.programs.size(); ++i) {
    for (auto& [lane, places] : ReceivePlacesOf(*options_.programs[i])) {
      card.receives[{static_cast<int32_t>(i), lane}] = std::move(places);
    }
  }
  return options_.store->Set(CardKey(options_.rank), PeerCardToString(card));
}

absl::Status IpcPeerCopies::Connect(const NcclPatience& patience) {
  ASSIGN_OR_RETURN(mailbox_, PeerMailbox::Create(PlanMailbox(), options_.rank));
  RETURN_IF_ERROR(Publish());
  const std::string host = HostName();
  const std::set<Rank> ranks = RanksToReach();
  std::string failure;
  for (const Rank rank : ranks) {
    ASSIGN_OR_RETURN(
        const std::string text,
        GetPatiently(CardKey(rank),
                     absl::StrCat("rank ", ToInt(rank), "'s memory"),
                     *options_.store, patience));
    ASSIGN_OR_RETURN(PeerCard card, PeerCardFromString(text));
    if (card.host != host) continue;
    absl::StatusOr<Peer> peer = OpenPeer(std::move(card));
    if (peer.ok()) {
      peers_.emplace(rank, *std::move(peer));
      continue;
    }
    failure = absl::StrCat("rank ", ToInt(options_.rank), " of rank ",
                           ToInt(rank), ": ", peer.status().message());
    std::cerr << "no copy engines between GPUs, NCCL instead: " << failure
              << std::endl;
    break;
  }
  RETURN_IF_ERROR(options_.store->Set(OpenedKey(options_.rank),
                                      failure.empty() ? "all" : failure));
  if (failure.empty()) able_.insert(options_.rank);
  for (const auto& [rank, peer] : peers_) {
    ASSIGN_OR_RETURN(const std::string opened,
                     GetPatiently(OpenedKey(rank),
                                  absl::StrCat("rank ", ToInt(rank),
                                               "'s word that it "
                                               "reaches its peers' memory"),
                                  *options_.store, patience));
    if (opened == "all") able_.insert(rank);
  }
  return absl::OkStatus();
}

// Where the peer wants what this rank sends it.
absl::StatusOr<std::byte*> IpcPeerCopies::Destination(
    const CudaOpContext& context, const Instruction& in, const Route& route,
    Rank rank) const {
  const Peer& peer = peers_.at(rank);
  if (in.kind == OpKind::kReduceScatter) {
    return peer.mailbox.data() + mailbox_->layout().ScratchOffset(in.lane);
  }
  if (in.kind == OpKind::kAllGather) {
    // The peer runs the same Program.
    const Buffer& full = context.program->buffers[in.outputs.at(0)];
    return peer.Base(full.arena) + full.offset_bytes;
  }
  const auto program = std::find(options_.programs.begin(),
                                 options_.programs.end(), context.program);
  CHECK(program != options_.programs.end());
  const auto receives = peer.card.receives.find(
      {static_cast<int32_t>(program - options_.programs.begin()),
       route.peer_lane});
  const std::vector<InstructionId>& lane =
      context.program->lanes[static_cast<int>(in.lane)];
  const auto id =
      static_cast<InstructionId>(&in - context.program->instructions.data());
  const auto place = std::find(lane.begin(), lane.end(), id) - lane.begin();
  if (receives == peer.card.receives.end() ||
      static_cast<size_t>(place) >= receives->second.size()) {
    return absl::InternalError(
        absl::StrCat("rank ", ToInt(rank), " does not receive what is sent as ",
                     "number ", place, " of lane ", LaneName(in.lane)));
  }
  const PeerPlace& to = receives->second[static_cast<size_t>(place)];
  return peer.Base(to.arena) + to.offset_bytes;
}

absl::StatusOr<SumShardsArgs> IpcPeerCopies::SumOf(
    const Route& route, const CollectiveAttributes& attributes, void* full,
    void* shard) const {
  const auto size = static_cast<int32_t>(route.members.size());
  const int64_t bytes = ShardBytes(attributes, route.members.size());
  std::byte* const scratch =
      mailbox_->data() + mailbox_->layout().ScratchOffset(route.lane);
  SumShardsArgs sum = {.sum = shard,
                       .num_shards = size,
                       .num_elements = bytes / DTypeBytes(attributes.dtype),
                       .type = attributes.dtype == DType::kBfloat16
                                   ? ElementType::kBfloat16
                                   : ElementType::kFloat32};
  for (int32_t member = 0; member < size; ++member) {
    sum.shards[member] =
        member == route.index
            ? static_cast<std::byte*>(full) + route.index * bytes
            : scratch + ScratchSlot(route.index, member) * bytes;
  }
  return sum;
}

absl::StatusOr<CudaOp> IpcPeerCopies::Bind(const CudaOpContext& context,
                                           const Instruction& in) const {
  const std::optional<Route> route = RouteOf(options_, in);
  CHECK(route.has_value() && CanReach(route->members));
  const PeerGroup group = {.index = route->index,
                           .size = static_cast<int32_t>(route->members.size())};
  std::vector<PeerAction> actions;
  const std::byte* from = nullptr;
  std::optional<Copy> own_copy;
  std::optional<SumShardsArgs> sum;
  if (IsTransfer(in.kind)) {
    const auto& attributes = std::get<TransferAttributes>(in.attributes);
    const int64_t num_bytes =
        attributes.num_elements * DTypeBytes(attributes.dtype);
    const bool sends = in.kind == OpKind::kSend;
    actions = sends ? SendActions(1, num_bytes) : ReceiveActions(1);
    if (sends) from = context.Input<std::byte>(in, 0);
  } else {
    const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
    const int64_t bytes = ShardBytes(attributes, route->members.size());
    const bool in_place = in.inputs.at(0) == in.outputs.at(0);
    const int64_t own = route->index * bytes;
    auto* const input = context.Input<std::byte>(in, 0);
    auto* const output = context.Output<std::byte>(in, 0);
    if (in.kind == OpKind::kAllGather) {
      actions = AllGatherActions(group, bytes);
      from = in_place ? input + own : input;
      if (!in_place) own_copy = Copy{output + own, input, bytes};
    } else {
      actions = ReduceScatterActions(group, bytes);
      from = input;
      ASSIGN_OR_RETURN(sum, SumOf(*route, attributes, input,
                                  in_place ? output + own : output));
    }
  }

  auto calls = std::make_shared<std::vector<Call>>();
  auto flags = [&]() -> StreamWordOps& {
    if (calls->empty() ||
        !std::holds_alternative<StreamWordOps>(calls->back())) {
      calls->push_back(StreamWordOps());
    }
    return std::get<StreamWordOps>(calls->back());
  };
  const PeerMailboxLayout& mailbox = mailbox_->layout();
  for (const PeerAction& action : actions) {
    const Rank peer = route->members[static_cast<size_t>(action.peer)];
    switch (action.kind) {
      case PeerActionKind::kSet:
        flags().AddWrite(peers_.at(peer).mailbox.data() +
                             mailbox.FlagOffset(route->peer_lane, options_.rank,
                                                action.flag),
                         1);
        break;
      case PeerActionKind::kAwait: {
        std::byte* const flag =
            mailbox_->data() +
            mailbox.FlagOffset(route->lane, peer, action.flag);
        flags().AddAwait(flag, 1);
        flags().AddWrite(flag, 0);
        break;
      }
      case PeerActionKind::kCopy: {
        ASSIGN_OR_RETURN(std::byte * to,
                         Destination(context, in, *route, peer));
        calls->push_back(Copy{to + action.to_bytes, from + action.from_bytes,
                              action.num_bytes});
        break;
      }
      case PeerActionKind::kSum:
        calls->push_back(*sum);
        break;
    }
  }
  // Within a device a copy is a kernel: last, since it waits for
  // multiprocessors where the others do not.
  if (own_copy.has_value()) calls->push_back(*own_copy);
  return [calls](cudaStream_t stream) -> absl::Status {
    for (const Call& call : *calls) RETURN_IF_ERROR(Enqueue(call, stream));
    return absl::OkStatus();
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerCopies>> PeerCopies::Create(
    const PeerCopyOptions& options, const std::atomic<bool>& abort_requested) {
  const NcclPatience patience{.deadline = MonotonicNow() + options.timeout,
                              .timeout = options.timeout,
                              .abort_requested = abort_requested};
  auto copies = std::make_unique<IpcPeerCopies>(options);
  RETURN_IF_ERROR(copies->Connect(patience));
  return copies;
}

}  // namespace millrace
