#include "coordinator/files/remote_files.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/files/file_server.h"
#include "coordinator/files/files.pb.h"
#include "coordinator/protocol/connection.h"
#include "coordinator/protocol/tls.h"

namespace millrace {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using protocol::FileAnswer;
using protocol::FileCall;
using protocol::FileRequest;

constexpr absl::Duration kConnectLimit = absl::Seconds(5);
// A part that becomes durable may be gigabytes that the disk still writes.
constexpr absl::Duration kSyncLimit = absl::Minutes(10);
constexpr absl::Duration kRetryPause = absl::Milliseconds(200);
// How soon Abort() is noticed.
constexpr auto kSlice = std::chrono::milliseconds(50);

// Asking twice does what asking once does.
bool IsRepeatable(FileCall call) {
  return call == protocol::FILE_CALL_OPEN || call == protocol::FILE_CALL_READ ||
         call == protocol::FILE_CALL_EXISTS || call == protocol::FILE_CALL_LIST;
}

}  // namespace

// The connection and the calls on it.
class RemoteFiles::Link {
 public:
  Link(RemoteFilesOptions options, TlsContext tls)
      : options_(std::move(options)),
        tls_(tls.release()),
        work_(boost::asio::make_work_guard(loop_)) {}

  ~Link() {
    if (connection_ != nullptr) {
      connection_->Close(absl::CancelledError("done"));
    }
    // Drops all that still refers to the connection.
    loop_.poll();
  }

  void Abort() { aborted_ = true; }
  const std::string& directory() const { return options_.directory; }

  absl::StatusOr<FileRequest> NewRequest(FileCall call,
                                         const std::string& path) const {
    FileRequest request;
    request.set_call(call);
    ASSIGN_OR_RETURN(const std::string name, NameOf(path));
    request.set_name(name);
    request.set_term(options_.term);
    return request;
  }

  absl::StatusOr<std::string> NameOf(std::string path) const {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    const std::string& directory = options_.directory;
    if (path == directory) return options_.name;
    if (!absl::StartsWith(path, directory + "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is not in ", directory, ", which alone ",
                       options_.host, " serves"));
    }
    return absl::StrCat(options_.name, path.substr(directory.size()));
  }

  absl::StatusOr<FileAnswer> Ask(const FileRequest& request) {
    std::lock_guard<std::mutex> lock(mutex_);
    const absl::Time give_up_at = MonotonicNow() + options_.retry;
    while (true) {
      absl::StatusOr<FileAnswer> answer = AskOnce(request);
      if (!absl::IsUnavailable(answer.status()) ||
          !IsRepeatable(request.call()) || MonotonicNow() > give_up_at) {
        return Judged(std::move(answer));
      }
      absl::SleepFor(kRetryPause);
    }
  }

 private:
  // An error of the other end's files becomes this call's error.
  absl::StatusOr<FileAnswer> Judged(absl::StatusOr<FileAnswer> answer) const {
    if (answer.ok() && answer->code() == 0) return answer;
    const absl::Status status =
        answer.ok()
            ? absl::Status(static_cast<absl::StatusCode>(answer->code()),
                           answer->message())
            : answer.status();
    return absl::Status(status.code(),
                        absl::StrCat(options_.host, ": ", status.message()));
  }

  absl::StatusOr<FileAnswer> AskOnce(const FileRequest& request) {
    loop_.poll();  // The other end may have ended the connection meanwhile.
    if (closed_.has_value()) connection_ = nullptr;
    if (connection_ == nullptr) RETURN_IF_ERROR(Connect());
    answer_.reset();
    connection_->Send(request.SerializeAsString());
    const bool syncs = request.call() == protocol::FILE_CALL_SYNC;
    RETURN_IF_ERROR(RunUntil([this] { return answer_.has_value(); },
                             syncs ? kSyncLimit : options_.answer_limit,
                             "it does not answer"));
    FileAnswer answer;
    if (!answer.ParseFromString(*answer_)) {
      Drop();
      return absl::DataLossError("its answer is not one on files");
    }
    return answer;
  }

  // Runs the loop until `done` or the connection is gone, which is an error.
  template <typename Done>
  absl::Status RunUntil(const Done& done, absl::Duration limit,
                        const char* overrun) {
    const absl::Time deadline = MonotonicNow() + limit;
    while (!done()) {
      if (aborted_) {
        Drop();
        return absl::AbortedError("not needed any more");
      }
      if (closed_.has_value()) {
        connection_ = nullptr;
        return *closed_;
      }
      if (MonotonicNow() > deadline) {
        Drop();
        return absl::UnavailableError(
            absl::StrCat(overrun, " within ", absl::FormatDuration(limit)));
      }
      loop_.run_one_for(kSlice);
    }
    return absl::OkStatus();
  }

  void Drop() {
    if (connection_ == nullptr) return;
    const auto connection = std::exchange(connection_, nullptr);
    connection->Close(absl::CancelledError("given up"));
  }

  absl::Status Connect() {
    if (aborted_) return absl::AbortedError("not needed any more");
    error_code error;
    const auto address = boost::asio::ip::make_address(options_.address, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", options_.address, "' is not an address"));
    }
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options_.port));
    tcp::socket socket(loop_);
    std::optional<error_code> connected;
    socket.async_connect(endpoint,
                         [&](const error_code& result) { connected = result; });
    closed_.reset();
    const absl::Duration limit = std::min(kConnectLimit, options_.answer_limit);
    const absl::Status reached =
        RunUntil([&] { return connected.has_value(); }, limit, "no connection");
    if (!reached.ok()) {
      error_code ignored;
      socket.close(ignored);
      // The handler refers to what is on this stack.
      while (!connected.has_value()) loop_.run_one();
      return reached;
    }
    if (*connected) {
      return absl::UnavailableError(
          absl::StrCat("no connection to its port ", options_.port, " at ",
                       options_.address, ": ", connected->message()));
    }
    bool proven = false;
    connection_ =
        std::make_shared<Connection>(std::move(socket), tls_, TlsEnd::kPeer);
    connection_->Start(
        {.on_proven = [&proven] { proven = true; },
         .on_message =
             [this](std::string payload) { answer_ = std::move(payload); },
         .on_closed = [this](absl::Status reason) { OnClosed(reason); }});
    const absl::Status shaken =
        RunUntil([&] { return proven; }, limit, "no proof");
    // on_proven has run, or never will.
    return shaken;
  }

  void OnClosed(const absl::Status& reason) {
    closed_ = absl::IsPermissionDenied(reason)
                  ? absl::PermissionDeniedError(
                        "it is of another job: the secrets differ")
                  : absl::UnavailableError(reason.message());
  }

  const RemoteFilesOptions options_;
  std::atomic<bool> aborted_ = false;
  std::mutex mutex_;  // Guards what follows.
  boost::asio::ssl::context tls_;
  boost::asio::io_context loop_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type>
      work_;
  std::shared_ptr<Connection> connection_;
  std::optional<absl::Status> closed_;  // Why the connection is gone.
  std::optional<std::string> answer_;
};

namespace {

using protocol::FILE_CALL_APPEND;
using protocol::FILE_CALL_CLOSE;
using protocol::FILE_CALL_SYNC;

// `Link` is private to RemoteFiles, so files know it as a type of their own.
template <typename Link>
class RemoteWritableFile : public WritableFile {
 public:
  RemoteWritableFile(std::shared_ptr<Link> link, FileRequest request)
      : link_(std::move(link)), request_(std::move(request)) {}
  // A file that nobody closed, since a write failed, is closed over there.
  ~RemoteWritableFile() override {
    request_.clear_data();
    // Who wrote has the error of the writing; nobody waits for this one.
    if (is_open_) Call(FILE_CALL_CLOSE).IgnoreError();
  }

  absl::Status Append(const void* data, int64_t num_bytes) override {
    const char* next = static_cast<const char*>(data);
    while (num_bytes > 0) {
      const int64_t piece = std::min(num_bytes, kMaxFilePieceBytes);
      request_.set_data(next, static_cast<size_t>(piece));
      request_.set_offset(num_written_);
      RETURN_IF_ERROR(Call(FILE_CALL_APPEND));
      next += piece;
      num_written_ += piece;
      num_bytes -= piece;
    }
    request_.clear_data();
    return absl::OkStatus();
  }
  absl::Status Sync() override { return Call(FILE_CALL_SYNC); }
  absl::Status Close() override { return Call(FILE_CALL_CLOSE); }

 private:
  absl::Status Call(FileCall call) {
    request_.set_call(call);
    const absl::Status status = link_->Ask(request_).status();
    // The other end closes what is written over a connection that ends.
    if (call == FILE_CALL_CLOSE || absl::IsUnavailable(status) ||
        absl::IsAborted(status)) {
      is_open_ = false;
    }
    return status;
  }

  const std::shared_ptr<Link> link_;
  FileRequest request_;
  int64_t num_written_ = 0;
  bool is_open_ = true;  // Over there.
};

template <typename Link>
class RemoteRandomAccessFile : public RandomAccessFile {
 public:
  RemoteRandomAccessFile(std::shared_ptr<Link> link, FileRequest request,
                         int64_t size)
      : link_(std::move(link)), request_(std::move(request)), size_(size) {}

  int64_t size() const override { return size_; }

  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    char* next = static_cast<char*>(out);
    while (num_bytes > 0) {
      const int64_t piece = std::min(num_bytes, kMaxFilePieceBytes);
      FileRequest request = request_;
      request.set_call(protocol::FILE_CALL_READ);
      request.set_offset(offset);
      request.set_num_bytes(piece);
      ASSIGN_OR_RETURN(const FileAnswer answer, link_->Ask(request));
      if (static_cast<int64_t>(answer.data().size()) != piece) {
        return absl::DataLossError(absl::StrCat(request_.name(), ": ",
                                                answer.data().size(), " of ",
                                                piece, " bytes came"));
      }
      std::memcpy(next, answer.data().data(), static_cast<size_t>(piece));
      next += piece;
      offset += piece;
      num_bytes -= piece;
    }
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Link> link_;
  const FileRequest request_;
  const int64_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteFiles>> RemoteFiles::Create(
    RemoteFilesOptions options) {
  ASSIGN_OR_RETURN(TlsContext tls,
                   MakeTlsContext(TlsEnd::kPeer, options.secret));
  return std::unique_ptr<RemoteFiles>(new RemoteFiles(
      std::make_shared<Link>(std::move(options), std::move(tls))));
}

RemoteFiles::RemoteFiles(std::shared_ptr<Link> link) : link_(std::move(link)) {}
RemoteFiles::~RemoteFiles() = default;
void RemoteFiles::Abort() { link_->Abort(); }

absl::StatusOr<protocol::KeepAnswer> RemoteFiles::Keep(
    const protocol::KeepRequest& request) {
  FileRequest call;
  call.set_call(protocol::FILE_CALL_KEEP);
  *call.mutable_keep() = request;
  ASSIGN_OR_RETURN(const FileAnswer answer, link_->Ask(call));
  return answer.keep();
}

absl::StatusOr<std::unique_ptr<WritableFile>> RemoteFiles::Create(
    const std::string& path) {
  ASSIGN_OR_RETURN(const FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_CREATE, path));
  RETURN_IF_ERROR(link_->Ask(request).status());
  return std::make_unique<RemoteWritableFile<Link>>(link_, request);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> RemoteFiles::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(const FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_OPEN, path));
  ASSIGN_OR_RETURN(const FileAnswer answer, link_->Ask(request));
  return std::make_unique<RemoteRandomAccessFile<Link>>(link_, request,
                                                        answer.size());
}

absl::Status RemoteFiles::Rename(const std::string& from,
                                 const std::string& to) {
  ASSIGN_OR_RETURN(FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_RENAME, from));
  ASSIGN_OR_RETURN(const std::string name, link_->NameOf(to));
  request.set_to(name);
  return link_->Ask(request).status();
}

absl::Status RemoteFiles::SyncDirectory(const std::string& path) {
  if (path == "/" || path == "." ||
      absl::StartsWith(link_->directory(), path + "/")) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_SYNC_DIRECTORY, path));
  return link_->Ask(request).status();
}

absl::Status RemoteFiles::MakeDirectories(const std::string& path) {
  ASSIGN_OR_RETURN(
      const FileRequest request,
      link_->NewRequest(protocol::FILE_CALL_MAKE_DIRECTORIES, path));
  return link_->Ask(request).status();
}

absl::Status RemoteFiles::Remove(const std::string& path) {
  ASSIGN_OR_RETURN(const FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_REMOVE, path));
  return link_->Ask(request).status();
}

bool RemoteFiles::Exists(const std::string& path) {
  const absl::StatusOr<FileRequest> request =
      link_->NewRequest(protocol::FILE_CALL_EXISTS, path);
  if (!request.ok()) return false;
  const absl::StatusOr<FileAnswer> answer = link_->Ask(*request);
  return answer.ok() && answer->size() == 1;
}

absl::StatusOr<std::vector<std::string>> RemoteFiles::List(
    const std::string& path) {
  ASSIGN_OR_RETURN(const FileRequest request,
                   link_->NewRequest(protocol::FILE_CALL_LIST, path));
  ASSIGN_OR_RETURN(const FileAnswer answer, link_->Ask(request));
  return std::vector<std::string>(answer.names().begin(), answer.names().end());
}

}  // namespace millrace
