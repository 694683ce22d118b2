// HTTP/1.1 requests to one server, over connections that are kept for the next
// request. Each call blocks its thread.

#ifndef MILLRACE_COORDINATOR_OBJECTS_HTTP_CLIENT_H_
#define MILLRACE_COORDINATOR_OBJECTS_HTTP_CLIENT_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/objects/signature.h"
#include "planner/job/object_path.h"

namespace millrace {

struct HttpReply {
  int status = 0;                              // 200
  std::map<std::string, std::string> headers;  // Lower-case names.
  std::string body;
};

struct HttpClientOptions {
  ObjectEndpoint endpoint;
  // Authorities of TLS certificates, one PEM file. Empty: the system's.
  std::string ca_file;
};

// Thread-safe: as many requests at once as there are threads.
class HttpClient {
 public:
  // InvalidArgument if the file of authorities cannot be read.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Create(
      HttpClientOptions options);
  ~HttpClient();

  // Sends the request with its headers as they are, and waits `limit` for each
  // of: a connection, the request gone and the reply come. The body must not
  // change meanwhile. Any status of HTTP is OK here. Unavailable if the server
  // is not reached, breaks off or is late; PermissionDenied if its certificate
  // is not trusted; Aborted after Abort(); ResourceExhausted for a reply of
  // more than 128 MiB.
  absl::StatusOr<HttpReply> Send(const SignedRequest& request,
                                 absl::Duration limit);

  // Ends the requests under way, and all later ones. Returns at once.
  void Abort();
  bool is_aborted() const;

  // "http://minio:9000", for messages.
  const std::string& name() const;

 private:
  class Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_HTTP_CLIENT_H_
