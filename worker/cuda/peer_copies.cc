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
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/sum_shards.h"
#include "planner/copy_engines.h"
#include "worker/cuda/cuda_handles.h"
#include "worker/cuda/nccl_rendezvous.h"
#include "worker/cuda/peer_card.h"
#include "worker/cuda/peer_mailbox.h"
#include "worker/cuda/peer_memory.h"
#include "worker/cuda/peer_protocol.h"
#include "worker/cuda/shared_words.h"
#include "worker/cuda/stream_words.h"

namespace millrace {
namespace {

static_assert(kMaxCopyEngineSum <= kMaxSumShards);

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
  if (!CopyEnginesCarry(layout, in.kind, in.attributes)) return std::nullopt;
  if (IsTransfer(in.kind)) {
    MeshCoordinates other = CoordinatesOf(layout, options.rank);
    const bool with_next =
        in.lane == Lane::kSendNext || in.lane == Lane::kReceiveNext;
    other.pipeline += with_next ? 1 : -1;
    return Route{.members = {options.rank, RankOf(layout, other)},
                 .index = 0,
                 .lane = in.lane,
                 .peer_lane = MatchingLane(in.lane)};
  }
  const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
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

// Of one block.
int64_t BlockBytes(const CollectiveAttributes& attributes, size_t size) {
  const int64_t bytes = ShardBytes(attributes, size);
  CHECK(bytes % attributes.num_blocks == 0);
  return bytes / attributes.num_blocks;
}

// Each copy of an action stands for so many, of one block each.
struct Blocks {
  int32_t count = 1;
  int64_t from_stride = 0;  // Bytes from one to the next.
  int64_t to_stride = 0;
};

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
  PeerMemory scratch;
  SharedWords words;

  std::byte* Base(Arena arena) const {
    return (arena == Arena::kPersistent ? persistent_arena : step_arena).data();
  }
};

absl::StatusOr<Peer> OpenPeer(PeerCard card) {
  ASSIGN_OR_RETURN(PeerMemory persistent,
                   PeerMemory::Open(card.persistent_arena));
  ASSIGN_OR_RETURN(PeerMemory step, PeerMemory::Open(card.step_arena));
  ASSIGN_OR_RETURN(PeerMemory scratch, PeerMemory::Open(card.scratch));
  ASSIGN_OR_RETURN(SharedWords words, SharedWords::Open(card.words));
  return Peer{.card = std::move(card),
              .persistent_arena = std::move(persistent),
              .step_arena = std::move(step),
              .scratch = std::move(scratch),
              .words = std::move(words)};
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
  uint32_t mark() const override {
    return mailbox_ == nullptr ? 0 : mailbox_->mark();
  }
  void Abort() override {
    if (mailbox_ == nullptr) return;
    std::vector<const SharedWords*> words;
    for (const auto& [rank, peer] : peers_) {
      words.push_back(&peer.words);
    }
    mailbox_->Release(words);
  }

 private:
  bool CanReach(const std::vector<Rank>& members) const {
    return std::all_of(members.begin(), members.end(),
                       [&](Rank member) { return able_.contains(member); });
  }
  PeerMailboxLayout PlanMailbox() const;
  std::set<Rank> RanksToReach() const;
  absl::Status ShowMemory(PeerCard* card) const;
  absl::Status Reach(Rank rank, PeerCard card);
  // In a line, if it is anything.
  void SayWhatIsLeftToNccl(const std::set<Rank>& ranks,
                           const absl::Status& obstacle) const;
  absl::StatusOr<std::byte*> Destination(const CudaOpContext& context,
                                         const Instruction& in,
                                         const Route& route, Rank peer) const;
  SumShardsArgs SumOf(const Route& route,
                      const CollectiveAttributes& attributes, int32_t block,
                      std::byte* full, std::byte* shard) const;

  const PeerCopyOptions options_;
  std::unique_ptr<PeerMailbox> mailbox_;  // Null: there is an obstacle.
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

absl::Status IpcPeerCopies::ShowMemory(PeerCard* card) const {
  ASSIGN_OR_RETURN(
      card->persistent_arena,
      ExportDeviceMemory(options_.arenas->Base(Arena::kPersistent)));
  ASSIGN_OR_RETURN(card->step_arena,
                   ExportDeviceMemory(options_.arenas->Base(Arena::kStep)));
  ASSIGN_OR_RETURN(card->scratch, ExportDeviceMemory(mailbox_->scratch()));
  card->words = mailbox_->words().handle();
  return absl::OkStatus();
}

// With a trial of the words that streams write: of a flag that is zero still
// and that nobody else sets.
absl::Status IpcPeerCopies::Reach(Rank rank, PeerCard card) {
  ASSIGN_OR_RETURN(Peer peer, OpenPeer(std::move(card)));
  StreamWordOps trial;
  trial.AddWrite(peer.words.device_words() +
                     mailbox_->layout().FlagIndex(Lane::kCompute, options_.rank,
                                                  PeerFlag::kRoom),
                 0);
  ASSIGN_OR_RETURN(const CudaStream stream,
                   CudaStream::Create(CudaStream::Priority::kNormal));
  RETURN_IF_ERROR(trial.Enqueue(stream.get()));
  RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream.get()),
                             "write into a peer's memory"));
  peers_.emplace(rank, std::move(peer));
  return absl::OkStatus();
}

absl::Status IpcPeerCopies::Connect(const NcclPatience& patience) {
  const std::set<Rank> ranks = RanksToReach();
  PeerCard own = {.host = HostName()};
  for (size_t i = 0; i < options_.programs.size(); ++i) {
    for (auto& [lane, places] : ReceivePlacesOf(*options_.programs[i])) {
      own.receives[{static_cast<int32_t>(i), lane}] = std::move(places);
    }
  }
  // Why this rank cannot do its part; others have theirs.
  absl::StatusOr<std::unique_ptr<PeerMailbox>> mailbox =
      PeerMailbox::Create(PlanMailbox(), options_.rank);
  absl::Status obstacle = mailbox.status();
  if (obstacle.ok()) {
    mailbox_ = *std::move(mailbox);
    obstacle = ShowMemory(&own);
  }
  RETURN_IF_ERROR(
      options_.store->Set(CardKey(options_.rank), PeerCardToString(own)));
  for (const Rank rank : ranks) {
    ASSIGN_OR_RETURN(
        const std::string text,
        GetPatiently(CardKey(rank),
                     absl::StrCat("rank ", ToInt(rank), "'s memory"),
                     *options_.store, patience));
    ASSIGN_OR_RETURN(PeerCard card, PeerCardFromString(text));
    if (card.host == own.host && !card.words.empty() && obstacle.ok()) {
      obstacle = Reach(rank, std::move(card));
    }
  }
  RETURN_IF_ERROR(options_.store->Set(
      OpenedKey(options_.rank),
      obstacle.ok() ? "all" : std::string(obstacle.message())));
  if (obstacle.ok()) able_.insert(options_.rank);
  for (const auto& [rank, peer] : peers_) {
    ASSIGN_OR_RETURN(const std::string opened,
                     GetPatiently(OpenedKey(rank),
                                  absl::StrCat("rank ", ToInt(rank),
                                               "'s word that it "
                                               "reaches its peers' memory"),
                                  *options_.store, patience));
    if (opened == "all") able_.insert(rank);
  }
  SayWhatIsLeftToNccl(ranks, obstacle);
  return absl::OkStatus();
}

void IpcPeerCopies::SayWhatIsLeftToNccl(const std::set<Rank>& ranks,
                                        const absl::Status& obstacle) const {
  std::vector<int32_t> others;
  for (const Rank rank : ranks) {
    if (!able_.contains(rank)) others.push_back(ToInt(rank));
  }
  if (obstacle.ok() && others.empty()) return;
  std::cerr << "rank " << ToInt(options_.rank)
            << ": NCCL instead of copy engines"
            << (obstacle.ok()
                    ? absl::StrCat(" with ranks ", absl::StrJoin(others, ", "),
                                   ", which are on another host or do not "
                                   "reach their peers' memory")
                    : absl::StrCat(": ", obstacle.message()))
            << std::endl;
}

// Where the peer wants what this rank sends it.
absl::StatusOr<std::byte*> IpcPeerCopies::Destination(
    const CudaOpContext& context, const Instruction& in, const Route& route,
    Rank rank) const {
  const Peer& peer = peers_.at(rank);
  if (in.kind == OpKind::kReduceScatter) {
    return peer.scratch.data() + mailbox_->layout().ScratchOffset(in.lane);
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

// Of one block; `full` and `shard` are where all begin.
SumShardsArgs IpcPeerCopies::SumOf(const Route& route,
                                   const CollectiveAttributes& attributes,
                                   int32_t block, std::byte* full,
                                   std::byte* shard) const {
  const auto size = static_cast<int32_t>(route.members.size());
  const int64_t bytes = BlockBytes(attributes, route.members.size());
  std::byte* const scratch =
      mailbox_->scratch() + mailbox_->layout().ScratchOffset(route.lane);
  SumShardsArgs sum = {.sum = shard + block * bytes,
                       .num_shards = size,
                       .num_elements = bytes / DTypeBytes(attributes.dtype),
                       .type = attributes.dtype == DType::kBfloat16
                                   ? ElementType::kBfloat16
                                   : ElementType::kFloat32};
  for (int32_t member = 0; member < size; ++member) {
    sum.shards[member] = member == route.index
                             ? full + (block * size + member) * bytes
                             : scratch + (block * (size - 1) +
                                          ScratchSlot(route.index, member)) *
                                             bytes;
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
  Blocks blocks;
  std::vector<Copy> own_copies;
  std::vector<SumShardsArgs> sums;
  if (IsTransfer(in.kind)) {
    const auto& attributes = std::get<TransferAttributes>(in.attributes);
    const int64_t num_bytes =
        attributes.num_elements * DTypeBytes(attributes.dtype);
    const bool sends = in.kind == OpKind::kSend;
    actions = sends ? SendActions(1, num_bytes) : ReceiveActions(1);
    if (sends) from = context.Input<std::byte>(in, 0);
  } else {
    const auto& attributes = std::get<CollectiveAttributes>(in.attributes);
    const int64_t bytes = BlockBytes(attributes, route->members.size());
    const bool in_place = in.inputs.at(0) == in.outputs.at(0);
    CHECK(!in_place || attributes.num_blocks == 1);
    const int64_t own = route->index * bytes;
    auto* const input = context.Input<std::byte>(in, 0);
    auto* const output = context.Output<std::byte>(in, 0);
    blocks.count = attributes.num_blocks;
    if (in.kind == OpKind::kAllGather) {
      actions = AllGatherActions(group, bytes);
      blocks.from_stride = bytes;
      blocks.to_stride = group.size * bytes;
      from = in_place ? input + own : input;
      for (int32_t i = 0; i < blocks.count && !in_place; ++i) {
        own_copies.push_back({output + own + i * blocks.to_stride,
                              input + i * blocks.from_stride, bytes});
      }
    } else {
      actions = ReduceScatterActions(group, bytes);
      blocks.from_stride = group.size * bytes;
      blocks.to_stride = (group.size - 1) * bytes;
      from = input;
      for (int32_t i = 0; i < blocks.count; ++i) {
        sums.push_back(SumOf(*route, attributes, i, input,
                             in_place ? output + own : output));
      }
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
        flags().AddWrite(
            peers_.at(peer).words.device_words() +
                mailbox.FlagIndex(route->peer_lane, options_.rank, action.flag),
            1);
        break;
      case PeerActionKind::kAwait: {
        uint32_t* const flag =
            mailbox_->words().device_words() +
            mailbox.FlagIndex(route->lane, peer, action.flag);
        flags().AddAwait(flag, 1);
        flags().AddWrite(flag, 0);
        break;
      }
      case PeerActionKind::kCopy: {
        ASSIGN_OR_RETURN(std::byte * to,
                         Destination(context, in, *route, peer));
        for (int32_t i = 0; i < blocks.count; ++i) {
          calls->push_back(
              Copy{to + action.to_bytes + i * blocks.to_stride,
                   from + action.from_bytes + i * blocks.from_stride,
                   action.num_bytes});
        }
        break;
      }
      case PeerActionKind::kSum:
        calls->insert(calls->end(), sums.begin(), sums.end());
        break;
    }
  }
  // Within a device a copy is a kernel: last, since it waits for
  // multiprocessors where the others do not.
  calls->insert(calls->end(), own_copies.begin(), own_copies.end());
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
