#include "worker/communicate/gloo_mesh.h"

#include <chrono>
#include <exception>
#include <stdexcept>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "gloo/context.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"

namespace millrace {
namespace {

// A message may wait long for a slow peer; only heartbeats decide that a silent
// peer is dead. Not infinite, because Gloo adds it to a clock.
constexpr std::chrono::milliseconds kMessageTimeout = std::chrono::hours(1000);
// How often a wait for addresses looks whether it was aborted.
constexpr absl::Duration kAbortPoll = absl::Milliseconds(100);
constexpr uint64_t kSlot = 0;

std::string MembersToString(const std::vector<Rank>& members,
                            const char* separator) {
  return absl::StrJoin(members, separator, [](std::string* out, Rank rank) {
    absl::StrAppend(out, ToInt(rank));
  });
}

}  // namespace

// Gloo's own full mesh waits for peers where nothing can stop it; this one has
// its pairs made and connected by GlooMesh.
class GlooMesh::Context : public gloo::Context {
 public:
  Context(int rank, int size) : gloo::Context(rank, size) {}

  void CreatePairs(std::shared_ptr<gloo::transport::Device> device,
                   std::chrono::milliseconds timeout) {
    device_ = std::move(device);
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(timeout);
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) transportContext_->createPair(peer);
    }
  }
};

class GlooMesh::Region {
 public:
  explicit Region(std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
      : buffer(std::move(buffer)) {}
  const std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
};

GlooMesh::GlooMesh(Options options)
    : options_(std::move(options)),
      name_(absl::StrCat(GroupName(options_.key.group), " group (ranks ",
                         MembersToString(options_.members, ", "), "; channel ",
                         options_.key.channel, ")")),
      context_(std::make_shared<Context>(options_.index, size())) {}

GlooMesh::~GlooMesh() { ForgetRegions(); }

template <typename Body>
absl::Status GlooMesh::Guard(const char* what, Body body) {
  if (aborted_) {
    return absl::AbortedError(absl::StrCat(name_, ": ", what, ": aborted"));
  }
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
  }
  absl::Status status;
  try {
    if (!body()) {
      status = absl::AbortedError(absl::StrCat(name_, ": ", what, ": aborted"));
    }
  } catch (const std::exception& error) {
    status =
        aborted_
            ? absl::AbortedError(absl::StrCat(name_, ": ", what, ": aborted"))
            : absl::UnavailableError(absl::StrCat(
                  name_, ": ", what, ": a peer is gone: ", error.what()));
  }
  if (!status.ok()) {
    std::lock_guard lock(mutex_);
    if (broken_.ok()) broken_ = status;
  }
  return status;
}

std::string GlooMesh::NameOf(Rank rank) const {
  const auto idx = static_cast<size_t>(ToInt(rank));
  if (idx >= options_.hosts.size()) return absl::StrCat(ToInt(rank));
  return absl::StrCat(ToInt(rank), " (", options_.hosts[idx], ")");
}

std::string GlooMesh::AddressKey(int32_t index) const {
  return absl::StrCat("gloo/", GroupName(options_.key.group), "/",
                      options_.key.channel, "/",
                      MembersToString(options_.members, "-"), "/",
                      ToInt(options_.members[index]));
}

// One value a member: the address of its end of each connection, in hex.
absl::Status GlooMesh::PublishAddresses() {
  std::vector<std::string> addresses(size());
  RETURN_IF_ERROR(Guard("listen", [&] {
    std::lock_guard lock(mutex_);
    if (aborted_) return false;
    // Gloo waits five times this for a connection to come about.
    context_->CreatePairs(options_.device, absl::ToChronoMilliseconds(
                                               options_.connect_timeout / 5));
    pairs_exist_ = true;
    for (int32_t peer = 0; peer < size(); ++peer) {
      if (peer == index()) continue;
      const std::vector<char> bytes =
          context_->getPair(peer)->address().bytes();
      addresses[peer] = absl::BytesToHexString({bytes.data(), bytes.size()});
    }
    return true;
  }));
  return options_.store->Set(AddressKey(index()),
                             absl::StrJoin(addresses, ","));
}

absl::StatusOr<std::string> GlooMesh::WaitForAddress(int32_t peer,
                                                     absl::Time deadline) {
  while (true) {
    if (aborted_) return absl::AbortedError(absl::StrCat(name_, ": aborted"));
    const absl::Duration left = deadline - MonotonicNow();
    absl::StatusOr<std::string> value = options_.store->Get(
        AddressKey(peer),
        std::max(absl::ZeroDuration(), std::min(left, kAbortPoll)));
    if (value.ok() || !absl::IsDeadlineExceeded(value.status())) return value;
    if (left <= absl::ZeroDuration()) return value;
  }
}

absl::Status GlooMesh::ConnectPeers(const std::vector<std::string>& addresses) {
  return Guard("connect", [&] {
    for (int32_t peer = 0; peer < size(); ++peer) {
      if (peer == index()) continue;
      const std::vector<std::string> ends =
          absl::StrSplit(addresses[peer], ',');
      if (static_cast<int32_t>(ends.size()) != size()) {
        throw std::runtime_error(absl::StrCat(
            "rank ", NameOf(options_.members[peer]), " gave ", ends.size(),
            " addresses, ", size(), " were expected"));
      }
      const std::string bytes = absl::HexStringToBytes(ends[index()]);
      context_->getPair(peer)->connect({bytes.begin(), bytes.end()});
      if (aborted_) return false;
    }
    return true;
  });
}

absl::Status GlooMesh::Connect() {
  RETURN_IF_ERROR(PublishAddresses());
  const absl::Time deadline = MonotonicNow() + options_.connect_timeout;
  std::vector<std::string> addresses(size());
  std::vector<std::string> missing;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    absl::StatusOr<std::string> value = WaitForAddress(peer, deadline);
    if (value.ok()) {
      addresses[peer] = *std::move(value);
    } else if (absl::IsDeadlineExceeded(value.status())) {
      missing.push_back(NameOf(options_.members[peer]));
    } else {
      return value.status();
    }
  }
  if (!missing.empty()) {
    return absl::DeadlineExceededError(absl::StrCat(
        name_, ": no sign of rank ", absl::StrJoin(missing, ", "), " within ",
        absl::FormatDuration(options_.connect_timeout)));
  }
  return ConnectPeers(addresses);
}

absl::StatusOr<GlooMesh::Region*> GlooMesh::RegionOf(void* data,
                                                     int64_t num_bytes) {
  Region* region = nullptr;
  RETURN_IF_ERROR(Guard("register memory", [&] {
    std::lock_guard lock(mutex_);
    if (aborted_) return false;
    std::unique_ptr<Region>& entry = regions_[{data, num_bytes}];
    if (entry == nullptr) {
      entry = std::make_unique<Region>(
          context_->createUnboundBuffer(data, num_bytes));
    }
    region = entry.get();
    return true;
  }));
  return region;
}

void GlooMesh::ForgetRegions() {
  std::lock_guard lock(mutex_);
  regions_.clear();
}

absl::Status GlooMesh::StartSend(Region* region, int32_t to, int64_t offset,
                                 int64_t num_bytes) {
  if (num_bytes == 0) return absl::OkStatus();
  return Guard("send", [&] {
    region->buffer->send(to, kSlot, offset, num_bytes);
    return true;
  });
}

absl::Status GlooMesh::StartReceive(Region* region, int32_t from,
                                    int64_t offset, int64_t num_bytes) {
  if (num_bytes == 0) return absl::OkStatus();
  return Guard("receive", [&] {
    region->buffer->recv(from, kSlot, offset, num_bytes);
    return true;
  });
}

absl::Status GlooMesh::WaitSends(Region* region, int32_t count) {
  return Guard("send", [&] {
    for (int32_t i = 0; i < count; ++i) {
      if (!region->buffer->waitSend(nullptr, kMessageTimeout)) return false;
    }
    return true;
  });
}

absl::Status GlooMesh::WaitReceives(Region* region, int32_t count) {
  return Guard("receive", [&] {
    for (int32_t i = 0; i < count; ++i) {
      if (!region->buffer->waitRecv(nullptr, kMessageTimeout)) return false;
    }
    return true;
  });
}

void GlooMesh::Abort() {
  aborted_ = true;
  std::lock_guard lock(mutex_);
  // A wait under way, or about to start, ends with false: the flag that these
  // calls set stays up until a wait sees it.
  for (const auto& [key, region] : regions_) {
    region->buffer->abortWaitSend();
    region->buffer->abortWaitRecv();
  }
  // Closed connections tell the peers, and end a connect under way.
  if (!pairs_exist_) return;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    try {
      context_->getPair(peer)->close();
    } catch (const std::exception&) {
      // The connection is broken already; the others are still to be closed.
    }
  }
}

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateGlooDevice(
    const std::string& host_address) {
  try {
    return gloo::transport::tcp::CreateDevice(host_address.c_str());
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("no network interface for the address \"", host_address,
                     "\" of this host: ", error.what()));
  }
}

}  // namespace millrace
