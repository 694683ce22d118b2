// A small HTTP server for programs and browsers that ask for the newest state:
// GET and HEAD, one answer a connection, on a thread of its own. A client that
// is slow or silent costs one of a few connections for some seconds, and
// nothing else.

#ifndef MILLRACE_COORDINATOR_HTTP_HTTP_SERVER_H_
#define MILLRACE_COORDINATOR_HTTP_HTTP_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct HttpAnswer {
  int32_t status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  int32_t refresh_s = 0;  // A browser asks again after so long; 0: never.
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // An IP address.
  int32_t port = 0;                   // 0: any free one.
  // Called on the server's thread with the path asked for: "/metrics".
  std::function<HttpAnswer(const std::string& path)> answer;
};

class HttpServer {
 public:
  // InvalidArgument if the address is none, Unavailable if the port cannot be
  // had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      HttpServerOptions options);
  // Ends the thread; waits for an answer that is being made.
  ~HttpServer();

  int32_t port() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_HTTP_HTTP_SERVER_H_
