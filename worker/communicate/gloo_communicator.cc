#include "worker/communicate/gloo_communicator.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "worker/communicate/gloo_mesh.h"
#include "worker/communicate/reduction.h"

namespace millrace {
namespace {

// A reduction receives its terms in pieces of this size, so that summing one
// overlaps with receiving the next and the terms stay in the cache.
constexpr int64_t kPieceBytes = 128 << 10;
// All-reduces up to this size exchange everything in one round; larger ones
// reduce-scatter and gather, which moves less.
constexpr int64_t kOneRoundBytes = 8 << 10;
static_assert(kOneRoundBytes <= kPieceBytes);

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<GlooMesh> mesh)
      : mesh_(std::move(mesh)),
        scratch_(2 * (mesh_->size() - 1) * kPieceBytes),
        terms_(mesh_->size()) {}
  // The factory's Abort() may hold the mesh a little longer than this lives.
  ~GlooCommunicator() override { mesh_->ForgetRegions(); }

  int32_t size() const override { return mesh_->size(); }
  int32_t index() const override { return mesh_->index(); }

  absl::Status AllGather(const void* shard, void* full, int64_t num_elements,
                         DType dtype) override {
    CHECK(num_elements % size() == 0);
    char* const mine = static_cast<char*>(full) +
                       SliceBytes(num_elements, index(), dtype).begin;
    if (shard != mine && num_elements > 0) {
      std::memcpy(mine, shard, num_elements / size() * DTypeBytes(dtype));
    }
    return GatherSlices(full, num_elements, dtype);
  }

  absl::Status ReduceScatter(void* full, void* shard, int64_t num_elements,
                             DType dtype) override {
    CHECK(num_elements % size() == 0);
    return ReduceSlice(full, shard, num_elements, dtype);
  }

  absl::Status AllReduce(void* data, int64_t num_elements,
                         DType dtype) override {
    if (num_elements * DTypeBytes(dtype) <= kOneRoundBytes) {
      return AllReduceInOneRound(data, num_elements, dtype);
    }
    char* const mine = static_cast<char*>(data) +
                       SliceBytes(num_elements, index(), dtype).begin;
    RETURN_IF_ERROR(ReduceSlice(data, mine, num_elements, dtype));
    return GatherSlices(data, num_elements, dtype);
  }

  absl::Status Send(const void* data, int64_t num_bytes,
                    int32_t to_index) override {
    ASSIGN_OR_RETURN(GlooMesh::Region * region,
                     mesh_->RegionOf(const_cast<void*>(data), num_bytes));
    RETURN_IF_ERROR(mesh_->StartSend(region, to_index, 0, num_bytes));
    return mesh_->WaitSends(region, num_bytes > 0 ? 1 : 0);
  }

  absl::Status Receive(void* data, int64_t num_bytes,
                       int32_t from_index) override {
    ASSIGN_OR_RETURN(GlooMesh::Region * region,
                     mesh_->RegionOf(data, num_bytes));
    RETURN_IF_ERROR(mesh_->StartReceive(region, from_index, 0, num_bytes));
    return mesh_->WaitReceives(region, num_bytes > 0 ? 1 : 0);
  }

  void Abort() override { mesh_->Abort(); }

 private:
  ElementRange SliceBytes(int64_t num_elements, int32_t member,
                          DType dtype) const {
    const ElementRange slice = SliceOf(num_elements, size(), member);
    return {.begin = slice.begin * DTypeBytes(dtype),
            .end = slice.end * DTypeBytes(dtype)};
  }

  // Peers in an order that differs between members, so that they do not all
  // call on the same one first.
  int32_t Peer(int32_t i) const { return (index() + 1 + i) % size(); }
  int32_t num_peers() const { return size() - 1; }

  // Every member's slice of `full` to every other.
  absl::Status GatherSlices(void* full, int64_t num_elements, DType dtype) {
    if (size() == 1) return absl::OkStatus();
    ASSIGN_OR_RETURN(GlooMesh::Region * region,
                     mesh_->RegionOf(full, num_elements * DTypeBytes(dtype)));
    const ElementRange mine = SliceBytes(num_elements, index(), dtype);
    int32_t num_receives = 0;
    for (int32_t i = 0; i < num_peers(); ++i) {
      const ElementRange theirs = SliceBytes(num_elements, Peer(i), dtype);
      if (theirs.size() > 0) ++num_receives;
      RETURN_IF_ERROR(
          mesh_->StartReceive(region, Peer(i), theirs.begin, theirs.size()));
    }
    for (int32_t i = 0; i < num_peers(); ++i) {
      RETURN_IF_ERROR(
          mesh_->StartSend(region, Peer(i), mine.begin, mine.size()));
    }
    RETURN_IF_ERROR(mesh_->WaitReceives(region, num_receives));
    return mesh_->WaitSends(region, mine.size() > 0 ? num_peers() : 0);
  }

  // out = the sum over members of this member's slice of `full`.
  absl::Status ReduceSlice(void* full, void* out, int64_t num_elements,
                           DType dtype) {
    const ElementRange mine = SliceBytes(num_elements, index(), dtype);
    const char* const own_term = static_cast<char*>(full) + mine.begin;
    if (size() == 1) {
      if (out != own_term && mine.size() > 0) {
        std::memcpy(out, own_term, mine.size());
      }
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(GlooMesh::Region * region,
                     mesh_->RegionOf(full, num_elements * DTypeBytes(dtype)));
    ASSIGN_OR_RETURN(GlooMesh::Region * scratch,
                     mesh_->RegionOf(scratch_.data(), scratch_.size()));
    RETURN_IF_ERROR(StartReceivingPiece(scratch, mine, 0));
    int32_t num_sends = 0;
    for (int32_t i = 0; i < num_peers(); ++i) {
      const ElementRange theirs = SliceBytes(num_elements, Peer(i), dtype);
      for (int64_t at = theirs.begin; at < theirs.end; at += kPieceBytes) {
        RETURN_IF_ERROR(mesh_->StartSend(
            region, Peer(i), at, std::min(kPieceBytes, theirs.end - at)));
        ++num_sends;
      }
    }
    for (int64_t piece = 0; piece * kPieceBytes < mine.size(); ++piece) {
      // Receives of one region are counted, not told apart: the next piece may
      // be asked for only when the last has come whole from every peer.
      RETURN_IF_ERROR(mesh_->WaitReceives(scratch, num_peers()));
      RETURN_IF_ERROR(StartReceivingPiece(scratch, mine, piece + 1));
      const int64_t at = piece * kPieceBytes;
      for (int32_t member = 0; member < size(); ++member) {
        terms_[member] =
            member == index() ? own_term + at : PieceFrom(member, piece);
      }
      SumInOrder(terms_, static_cast<char*>(out) + at,
                 std::min(kPieceBytes, mine.size() - at) / DTypeBytes(dtype),
                 dtype);
    }
    return mesh_->WaitSends(region, num_sends);
  }

  absl::Status AllReduceInOneRound(void* data, int64_t num_elements,
                                   DType dtype) {
    if (size() == 1 || num_elements == 0) return absl::OkStatus();
    const int64_t num_bytes = num_elements * DTypeBytes(dtype);
    ASSIGN_OR_RETURN(GlooMesh::Region * region,
                     mesh_->RegionOf(data, num_bytes));
    ASSIGN_OR_RETURN(GlooMesh::Region * scratch,
                     mesh_->RegionOf(scratch_.data(), scratch_.size()));
    RETURN_IF_ERROR(
        StartReceivingPiece(scratch, {.begin = 0, .end = num_bytes}, 0));
    for (int32_t i = 0; i < num_peers(); ++i) {
      RETURN_IF_ERROR(mesh_->StartSend(region, Peer(i), 0, num_bytes));
    }
    RETURN_IF_ERROR(mesh_->WaitReceives(scratch, num_peers()));
    RETURN_IF_ERROR(mesh_->WaitSends(region, num_peers()));
    for (int32_t member = 0; member < size(); ++member) {
      terms_[member] = member == index() ? data : PieceFrom(member, 0);
    }
    SumInOrder(terms_, data, num_elements, dtype);
    return absl::OkStatus();
  }

  // Piece `piece` of `slice` from every peer into its half of the scratch
  // memory; nothing beyond the slice's end.
  absl::Status StartReceivingPiece(GlooMesh::Region* scratch,
                                   ElementRange slice, int64_t piece) {
    const int64_t num_bytes =
        std::min(kPieceBytes, slice.size() - piece * kPieceBytes);
    if (num_bytes <= 0) return absl::OkStatus();
    for (int32_t i = 0; i < num_peers(); ++i) {
      RETURN_IF_ERROR(mesh_->StartReceive(
          scratch, Peer(i), PieceFrom(Peer(i), piece) - scratch_.data(),
          num_bytes));
    }
    return absl::OkStatus();
  }

  const char* PieceFrom(int32_t member, int64_t piece) const {
    const int64_t place = member < index() ? member : member - 1;
    return scratch_.data() + ((piece % 2) * num_peers() + place) * kPieceBytes;
  }

  const std::shared_ptr<GlooMesh> mesh_;  // The factory may abort it.
  std::vector<char> scratch_;             // [2][peer][kPieceBytes].
  std::vector<const void*> terms_;
};

class GlooFactory : public CommunicatorFactory {
 public:
  GlooFactory(GlooOptions options,
              std::shared_ptr<gloo::transport::Device> device)
      : options_(std::move(options)), device_(std::move(device)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      CommunicatorKey key, const std::vector<Rank>& members,
      Rank self) override {
    const auto position = std::find(members.begin(), members.end(), self);
    CHECK(position != members.end());
    auto mesh = std::make_shared<GlooMesh>(GlooMesh::Options{
        .key = key,
        .members = members,
        .index = static_cast<int32_t>(position - members.begin()),
        .store = options_.store,
        .device = device_,
        .connect_timeout = options_.connect_timeout,
        .hosts = options_.hosts});
    {
      std::lock_guard lock(mutex_);
      if (aborted_) return absl::AbortedError("communicators are aborted");
      meshes_.push_back(mesh);
    }
    RETURN_IF_ERROR(mesh->Connect());
    return std::make_unique<GlooCommunicator>(std::move(mesh));
  }

  void Abort() override {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const std::weak_ptr<GlooMesh>& weak : meshes_) {
      if (const std::shared_ptr<GlooMesh> mesh = weak.lock()) mesh->Abort();
    }
  }

 private:
  const GlooOptions options_;
  const std::shared_ptr<gloo::transport::Device> device_;
  std::mutex mutex_;
  bool aborted_ = false;
  std::vector<std::weak_ptr<GlooMesh>> meshes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> CreateGlooFactory(
    const GlooOptions& options) {
  // Gloo writes to sockets whose other end may be gone, and a lost peer must be
  // an error here, not the end of this process too.
  signal(SIGPIPE, SIG_IGN);
  ASSIGN_OR_RETURN(std::shared_ptr<gloo::transport::Device> device,
                   CreateGlooDevice(options.host_address));
  return std::make_unique<GlooFactory>(options, std::move(device));
}

}  // namespace millrace
