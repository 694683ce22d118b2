// Serves some of this host's files and folders to the other hosts of a job:
// over TLS, to whoever knows the job's secret, and nothing that was not given a
// name here.

#ifndef MILLRACE_COORDINATOR_FILES_FILE_SERVER_H_
#define MILLRACE_COORDINATOR_FILES_FILE_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/files/files.pb.h"

namespace millrace {

// A piece of a file that one call moves.
inline constexpr int64_t kMaxFilePieceBytes = int64_t{4} << 20;

// Thread-safe. Works on threads of its own.
class FileServer {
 public:
  // `listen_fd` is a listening TCP socket; taken over.
  static absl::StatusOr<std::unique_ptr<FileServer>> Create(
      int listen_fd, const std::string& secret);
  // Breaks all connections.
  ~FileServer();

  // From now on the file or folder `path` has this name, which holds no "/" at
  // its ends; below a folder's, names are those of what it holds. Others may
  // change what is `writable`. Takes the place of an earlier path.
  void Serve(const std::string& name, const std::string& path, bool writable);

  // From now on `keep` answers who asks for the coordinator's log, on threads
  // of the server.
  void KeepLog(
      std::function<protocol::KeepAnswer(const protocol::KeepRequest&)> keep);
  // Once this returns, coordinators of earlier terms rename and remove nothing
  // here any more.
  void RefuseTermsBelow(int64_t term);

  // Where it listens.
  int32_t port() const;

 private:
  class Impl;
  explicit FileServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_FILES_FILE_SERVER_H_
