// A file server of a test, on a port that a later server may take again.

#ifndef MILLRACE_TESTS_COORDINATOR_FILES_FILE_SERVING_H_
#define MILLRACE_TESTS_COORDINATOR_FILES_FILE_SERVING_H_

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "coordinator/files/file_server.h"
#include "worker/agent/listener.h"

namespace millrace {

// Returns a port that was free a moment ago.
inline int32_t FreePort() {
  const absl::StatusOr<Listener> listener = Listener::Create();
  EXPECT_TRUE(listener.ok());
  int32_t port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(
      listener->address().substr(listener->address().rfind(':') + 1), &port));
  return port;
}

inline std::unique_ptr<FileServer> ServeFilesAt(int32_t port,
                                                const std::string& secret) {
  ListenerPorts ports;
  ports.range = {port, port};
  const absl::StatusOr<Listener> listener =
      Listener::Create({"127.0.0.1"}, ports);
  EXPECT_TRUE(listener.ok()) << listener.status();
  auto server =
      FileServer::Create(fcntl(listener->fd(), F_DUPFD_CLOEXEC, 0), secret);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_COORDINATOR_FILES_FILE_SERVING_H_
