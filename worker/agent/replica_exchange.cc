#include "worker/agent/replica_exchange.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "fault/checkpoint.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"

namespace millrace {
namespace {

constexpr absl::Duration kProofLimit = absl::Seconds(10);
// Without a byte of what is under way. A connection between two requests may
// be silent for as long as it likes.
constexpr absl::Duration kSilenceLimit = absl::Seconds(10);
constexpr absl::Duration kNoLimit = absl::Hours(24 * 365);
constexpr int kMaxServed = 1024;
constexpr int kAcceptPeriodMs = 50;
constexpr int64_t kBlock = kMiB;
constexpr int64_t kLongestEntry = int64_t{1} << 30;

// All machines of a job are x86-64, so structs go over the wire as they are.
enum class Request : int64_t { kEntry = 1, kRead = 2, kKeep = 3 };
struct RequestHeader {
  Request request;
  int64_t generation;
  int64_t step;
  int64_t offset;
  int64_t num_bytes;    // To read, or of the part to keep.
  int64_t entry_bytes;  // The entry of the part to keep.
  int32_t rank;
  int32_t num_ranks;
};
struct AnswerHeader {
  int64_t code;       // absl::StatusCode.
  int64_t num_bytes;  // Bytes that follow: those asked for, or the message.
};

absl::Time Soon() { return MonotonicNow() + kSilenceLimit; }

ReplicaPart PartOf(const RequestHeader& header) {
  return {{Generation{header.generation}, header.step}, Rank{header.rank}};
}

RequestHeader HeaderOf(Request request, const ReplicaPart& part) {
  return {.request = request,
          .generation = ToInt(part.set.generation),
          .step = part.set.step,
          .offset = 0,
          .num_bytes = 0,
          .entry_bytes = 0,
          .rank = ToInt(part.rank),
          .num_ranks = 0};
}

absl::Status SendAnswer(TimedSocket& socket, const absl::Status& status,
                        absl::string_view bytes) {
  const absl::string_view sent = status.ok() ? bytes : status.message();
  const AnswerHeader answer = {.code = static_cast<int64_t>(status.code()),
                               .num_bytes = static_cast<int64_t>(sent.size())};
  RETURN_IF_ERROR(socket.Write(&answer, sizeof(answer), Soon()));
  return socket.Write(sent.data(), sent.size(), Soon());
}

// An answer that carries `num_bytes` at most.
absl::StatusOr<int64_t> ReadAnswer(TimedSocket& socket, int64_t num_bytes) {
  AnswerHeader answer = {};
  RETURN_IF_ERROR(socket.Read(&answer, sizeof(answer), Soon()));
  if (answer.num_bytes < 0 || answer.num_bytes > num_bytes) {
    return absl::DataLossError("the holder of a part answered with nonsense");
  }
  if (answer.code == 0) return answer.num_bytes;
  std::string message(static_cast<size_t>(answer.num_bytes), '\0');
  RETURN_IF_ERROR(socket.Read(message.data(), message.size(), Soon()));
  return absl::Status(static_cast<absl::StatusCode>(answer.code), message);
}

absl::Status GiveBytes(TimedSocket& socket, const ReplicaStore& store,
                       const ReplicaPart& part, int64_t offset,
                       int64_t num_bytes) {
  std::vector<char> block(static_cast<size_t>(std::min(num_bytes, kBlock)));
  for (int64_t at = 0; at < num_bytes; at += kBlock) {
    const int64_t count = std::min(kBlock, num_bytes - at);
    RETURN_IF_ERROR(store.Read(part, offset + at, count, block.data()));
    RETURN_IF_ERROR(
        socket.Write(block.data(), static_cast<size_t>(count), Soon()));
  }
  return absl::OkStatus();
}

absl::Status AnswerRead(TimedSocket& socket, const ReplicaStore& store,
                        const RequestHeader& header) {
  // Whether it is there, before an answer promises bytes.
  const absl::Status there =
      header.num_bytes < 0
          ? absl::InvalidArgumentError("not a request")
          : store.Read(PartOf(header), header.offset + header.num_bytes, 0,
                       nullptr);
  if (!there.ok()) return SendAnswer(socket, there, "");
  const AnswerHeader answer = {.code = 0, .num_bytes = header.num_bytes};
  RETURN_IF_ERROR(socket.Write(&answer, sizeof(answer), Soon()));
  return GiveBytes(socket, store, PartOf(header), header.offset,
                   header.num_bytes);
}

// Takes a part from the socket. The connection ends after an error of either
// end, since the part's bytes may be under way.
absl::Status AnswerKeep(TimedSocket& socket, ReplicaStore& store,
                        const RequestHeader& header) {
  if (header.entry_bytes < 0 || header.entry_bytes > kLongestEntry ||
      header.num_bytes < 0) {
    return absl::InvalidArgumentError("not a request");
  }
  std::string entry(static_cast<size_t>(header.entry_bytes), '\0');
  RETURN_IF_ERROR(socket.Read(entry.data(), entry.size(), Soon()));
  const ReplicaPart part = PartOf(header);
  store.DropBefore(part.set);
  absl::StatusOr<std::unique_ptr<ReplicaStore::Writer>> writer =
      store.Begin({.part = part,
                   .num_ranks = header.num_ranks,
                   .kind = ReplicaKind::kCopy,
                   .bytes = header.num_bytes});
  // First a word on whether there is room, so that none is sent in vain.
  RETURN_IF_ERROR(SendAnswer(socket, writer.status(), ""));
  RETURN_IF_ERROR(writer.status());
  std::vector<char> block(
      static_cast<size_t>(std::min(header.num_bytes, kBlock)));
  for (int64_t at = 0; at < header.num_bytes; at += kBlock) {
    const int64_t count = std::min(kBlock, header.num_bytes - at);
    RETURN_IF_ERROR(
        socket.Read(block.data(), static_cast<size_t>(count), Soon()));
    RETURN_IF_ERROR((*writer)->Append(block.data(), count));
  }
  return SendAnswer(socket, (*writer)->Commit(entry), "");
}

absl::StatusOr<std::pair<std::string, int32_t>> SplitAddress(
    const std::string& address) {
  const size_t colon = address.rfind(':');
  int32_t port = 0;
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", address, "' is no address"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') {
    host = host.substr(1, host.size() - 2);
  }
  return std::pair(host, port);
}

}  // namespace

// Server. ---------------------------------------------------------------------

ReplicaServer::ReplicaServer(Listener listener, std::string secret,
                             ReplicaStore* store)
    : listener_(std::move(listener)),
      secret_(std::move(secret)),
      store_(store) {
  fcntl(listener_.fd(), F_SETFL, fcntl(listener_.fd(), F_GETFL) | O_NONBLOCK);
}

absl::StatusOr<std::unique_ptr<ReplicaServer>> ReplicaServer::Create(
    const std::string& host_address, const std::string& secret,
    ReplicaStore* store) {
  ASSIGN_OR_RETURN(Listener listener, Listener::Create({host_address}, {}));
  std::unique_ptr<ReplicaServer> server(
      new ReplicaServer(std::move(listener), secret, store));
  server->thread_ = std::thread([own = server.get()] { own->Accept(); });
  return server;
}

ReplicaServer::~ReplicaServer() {
  stopping_ = true;
  thread_.join();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (TimedSocket* socket : sockets_) socket->ShutDown();
  }
  while (num_serving_ > 0) absl::SleepFor(absl::Milliseconds(1));
}

void ReplicaServer::Accept() {
  while (!stopping_) {
    pollfd entry = {.fd = listener_.fd(), .events = POLLIN};
    if (poll(&entry, 1, kAcceptPeriodMs) <= 0) continue;
    const int fd = num_serving_ < kMaxServed
                       ? accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC)
                       : -1;
    if (fd < 0) {  // Others end soon.
      absl::SleepFor(absl::Milliseconds(kAcceptPeriodMs));
      continue;
    }
    ++num_serving_;
    try {
      std::thread([this, fd] {
        TimedSocket socket(fd);
        {
          std::lock_guard<std::mutex> lock(mutex_);
          sockets_.insert(&socket);
        }
        if (!stopping_) Serve(&socket);
        {
          std::lock_guard<std::mutex> lock(mutex_);
          sockets_.erase(&socket);
        }
        --num_serving_;
      }).detach();
    } catch (const std::system_error&) {  // No thread is free.
      --num_serving_;
      close(fd);
    }
  }
}

void ReplicaServer::Serve(TimedSocket* socket) {
  absl::Status status = socket
                            ->Greet(TlsEnd::kCoordinator, secret_, "replicas",
                                    MonotonicNow() + kProofLimit)
                            .status();
  while (status.ok() && !stopping_) {
    RequestHeader header = {};
    status = socket->Read(&header, sizeof(header), MonotonicNow() + kNoLimit);
    if (!status.ok()) return;
    switch (header.request) {
      case Request::kEntry: {
        const absl::StatusOr<std::string> entry = store_->Entry(PartOf(header));
        status = SendAnswer(*socket, entry.status(),
                            entry.ok() ? absl::string_view(*entry) : "");
        break;
      }
      case Request::kRead:
        status = AnswerRead(*socket, *store_, header);
        break;
      case Request::kKeep:
        if (header.generation < least_generation_) {
          status = absl::FailedPreconditionError("an older generation");
          break;  // Its sender was left out, or will hear of it.
        }
        status = AnswerKeep(*socket, *store_, header);
        break;
      default:
        return;
    }
  }
}

// Client. ---------------------------------------------------------------------

class ReplicaClient::Channel {
 public:
  Channel(ReplicaClient* client, TimedSocket socket)
      : client_(*client), socket_(std::move(socket)) {}
  ~Channel() {
    std::lock_guard<std::mutex> lock(client_.mutex_);
    client_.sockets_.erase(&socket_);
  }
  TimedSocket& socket() { return socket_; }

  absl::StatusOr<std::string> Entry(const ReplicaPart& part) {
    const RequestHeader header = HeaderOf(Request::kEntry, part);
    RETURN_IF_ERROR(socket_.Write(&header, sizeof(header), Soon()));
    ASSIGN_OR_RETURN(const int64_t num_bytes,
                     ReadAnswer(socket_, kLongestEntry));
    std::string entry(static_cast<size_t>(num_bytes), '\0');
    RETURN_IF_ERROR(socket_.Read(entry.data(), entry.size(), Soon()));
    return entry;
  }

  absl::Status Read(const ReplicaPart& part, int64_t offset, int64_t num_bytes,
                    void* out) {
    RequestHeader header = HeaderOf(Request::kRead, part);
    header.offset = offset;
    header.num_bytes = num_bytes;
    RETURN_IF_ERROR(socket_.Write(&header, sizeof(header), Soon()));
    ASSIGN_OR_RETURN(const int64_t given,
                     ReadAnswer(socket_, std::max(num_bytes, kBlock)));
    if (given != num_bytes) {
      return absl::DataLossError("the holder of a part gave too little");
    }
    auto* next = static_cast<char*>(out);
    for (int64_t at = 0; at < num_bytes; at += kBlock) {
      const auto count = static_cast<size_t>(std::min(kBlock, num_bytes - at));
      RETURN_IF_ERROR(socket_.Read(next + at, count, Soon()));
    }
    return absl::OkStatus();
  }

  absl::Status Keep(const ReplicaStore& store, const StoredReplica& replica,
                    const std::string& entry) {
    RequestHeader header = HeaderOf(Request::kKeep, replica.part);
    header.num_bytes = replica.bytes;
    header.entry_bytes = static_cast<int64_t>(entry.size());
    header.num_ranks = replica.num_ranks;
    RETURN_IF_ERROR(socket_.Write(&header, sizeof(header), Soon()));
    RETURN_IF_ERROR(socket_.Write(entry.data(), entry.size(), Soon()));
    RETURN_IF_ERROR(ReadAnswer(socket_, kBlock).status());
    RETURN_IF_ERROR(GiveBytes(socket_, store, replica.part, 0, replica.bytes));
    return ReadAnswer(socket_, kBlock).status();
  }

 private:
  ReplicaClient& client_;
  TimedSocket socket_;
};

ReplicaClient::ReplicaClient(std::string secret) : secret_(std::move(secret)) {}
ReplicaClient::~ReplicaClient() = default;

absl::StatusOr<std::unique_ptr<ReplicaClient::Channel>> ReplicaClient::Open(
    const std::string& address) {
  ASSIGN_OR_RETURN(const auto host_and_port, SplitAddress(address));
  const absl::Time deadline = MonotonicNow() + kProofLimit;
  absl::StatusOr<TimedSocket> socket =
      TimedSocket::Connect(host_and_port.first, host_and_port.second, deadline);
  if (!socket.ok()) {
    return absl::UnavailableError(absl::StrCat(
        "the worker at ", address,
        ", which keeps a part of the state: ", socket.status().message()));
  }
  auto channel = std::make_unique<Channel>(this, *std::move(socket));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return absl::AbortedError("the generation has ended");
    sockets_.insert(&channel->socket());
  }
  RETURN_IF_ERROR(
      channel->socket().Greet(TlsEnd::kPeer, secret_, "", deadline).status());
  return channel;
}

void ReplicaClient::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  for (TimedSocket* socket : sockets_) socket->ShutDown();
}

absl::Status ReplicaClient::Push(const ReplicaStore& store,
                                 const StoredReplica& replica,
                                 const std::string& address) {
  ASSIGN_OR_RETURN(const std::string entry, store.Entry(replica.part));
  std::unique_ptr<Channel>& channel = push_channels_[address];
  if (channel == nullptr) {
    ASSIGN_OR_RETURN(channel, Open(address));
  }
  const absl::Status status = channel->Keep(store, replica, entry);
  if (!status.ok()) channel = nullptr;
  return status;
}

// Reads a part from its holder, over as many connections as threads read.
class RemotePart : public RandomAccessFile {
 public:
  // `channel` is a connection to begin with; may be null.
  RemotePart(ReplicaClient* client, std::string address, ReplicaPart part,
             int64_t num_bytes, std::unique_ptr<ReplicaClient::Channel> channel)
      : client_(*client),
        address_(std::move(address)),
        part_(part),
        num_bytes_(num_bytes) {
    if (channel != nullptr) idle_.push_back(std::move(channel));
  }

  int64_t size() const override { return num_bytes_; }
  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    std::unique_ptr<ReplicaClient::Channel> channel;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        channel = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (channel == nullptr) {
      ASSIGN_OR_RETURN(channel, client_.Open(address_));
    }
    RETURN_IF_ERROR(channel->Read(part_, offset, num_bytes, out));
    std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(channel));
    return absl::OkStatus();
  }

 private:
  ReplicaClient& client_;
  const std::string address_;
  const ReplicaPart part_;
  const int64_t num_bytes_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<ReplicaClient::Channel>> idle_;
};

namespace {

class LocalPart : public RandomAccessFile {
 public:
  LocalPart(const ReplicaStore* store, ReplicaPart part, int64_t num_bytes)
      : store_(*store), part_(part), num_bytes_(num_bytes) {}
  int64_t size() const override { return num_bytes_; }
  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    return store_.Read(part_, offset, num_bytes, out);
  }

 private:
  const ReplicaStore& store_;
  const ReplicaPart part_;
  const int64_t num_bytes_;
};

// The parts of a set as the files of a checkpoint, by their paths.
class PartFiles : public FileSystem {
 public:
  using Opener = std::function<std::unique_ptr<RandomAccessFile>()>;
  std::map<std::string, Opener> openers;

  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override {
    const auto found = openers.find(path);
    if (found == openers.end()) {
      return absl::NotFoundError(absl::StrCat(path, " is not in memory"));
    }
    return found->second();
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string&) override {
    return ReadOnly();
  }
  absl::Status Rename(const std::string&, const std::string&) override {
    return ReadOnly();
  }
  absl::Status SyncDirectory(const std::string&) override { return ReadOnly(); }
  absl::Status MakeDirectories(const std::string&) override {
    return ReadOnly();
  }
  absl::Status Remove(const std::string&) override { return ReadOnly(); }
  bool Exists(const std::string& path) override {
    return openers.contains(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    return ReadOnly();
  }

 private:
  static absl::Status ReadOnly() {
    return absl::UnimplementedError("parts in memory are only read");
  }
};

}  // namespace

absl::Status ReplicaClient::Fill(const ReplicaSet& set,
                                 const std::vector<std::string>& addresses,
                                 const std::string& own_address,
                                 const ReplicaStore& store,
                                 const std::vector<StatePiece>& pieces,
                                 LoadTarget* target) {
  const std::string folder = absl::StrCat("step ", set.step, " in memory");
  const auto num_ranks = static_cast<int64_t>(addresses.size());
  std::vector<ManifestFile> parts(addresses.size());
  std::vector<std::unique_ptr<Channel>> channels(addresses.size());
  RETURN_IF_ERROR(
      ParallelFor(num_ranks, NumCopyThreads(), [&](int64_t i) -> absl::Status {
        const ReplicaPart part = {set, Rank{static_cast<int32_t>(i)}};
        std::string entry;
        if (addresses[i] == own_address) {
          ASSIGN_OR_RETURN(entry, store.Entry(part));
        } else {
          ASSIGN_OR_RETURN(channels[i], Open(addresses[i]));
          ASSIGN_OR_RETURN(entry, channels[i]->Entry(part));
        }
        ASSIGN_OR_RETURN(parts[i], ParsePart(entry));
        return absl::OkStatus();
      }));
  // Parts are named by rank, of one generation.
  PartFiles files;
  for (size_t i = 0; i < parts.size(); ++i) {
    const ReplicaPart part = {set, Rank{static_cast<int32_t>(i)}};
    const int64_t num_bytes = parts[i].bytes;
    const std::string& address = addresses[i];
    files.openers[JoinPath(folder, parts[i].name)] =
        [this, &store, part, num_bytes, &address, &channel = channels[i],
         is_own =
             address == own_address]() -> std::unique_ptr<RandomAccessFile> {
      if (is_own) return std::make_unique<LocalPart>(&store, part, num_bytes);
      return std::make_unique<RemotePart>(this, address, part, num_bytes,
                                          std::move(channel));
    };
  }
  ASSIGN_OR_RETURN(const Manifest manifest,
                   JoinParts({.step = set.step, .generation = set.generation},
                             std::move(parts)));
  return LoadPieces(files, folder, manifest, pieces, target, &aborted_);
}

}  // namespace millrace
