// The coordinator's end of the protocol: accepts connections on a listening
// socket that its agent made, lets nobody in who does not know the secret, and
// runs everything, callbacks and timers included, on the one thread that calls
// Run().

#ifndef MILLRACE_COORDINATOR_SERVER_H_
#define MILLRACE_COORDINATOR_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

// Names one connection; never used twice.
enum class SessionId : uint64_t {};

struct SessionRoute {
  std::string here;   // "10.0.0.1": where the peer reached this host.
  std::string there;  // Equal to `here` for a peer on this host.
};

struct ServerOptions {
  int listen_fd;  // A listening TCP socket; taken over.
  std::string secret;
  // This coordinator's, told with every message, and each second that there is
  // none; 0: terms are not counted.
  int64_t term = 0;
  // The first message of a session is its Hello; that its peer knows the secret
  // is already proven.
  std::function<void(SessionId, const protocol::ToCoordinator&)> on_message;
  std::function<void(SessionId)> on_closed;
  // Called for the first stranger alone, with who he is and why he was turned
  // away. May be empty.
  std::function<void(const std::string& description)> on_stranger;
  absl::Duration tick_interval;
  std::function<void()> on_tick;
};

class Server {
 public:
  static absl::StatusOr<std::unique_ptr<Server>> Create(ServerOptions options);
  ~Server();

  // Runs until Stop(), and then until everything sent has been written.
  void Run();
  void Stop();

  // Call these only from callbacks.
  void Send(SessionId session, const protocol::FromCoordinator& message);
  void CloseSession(SessionId session);
  // The addresses of the connection's two ends, without ports. Empty for a
  // session that is gone.
  SessionRoute RouteOf(SessionId session) const;
  // Connections turned away because they did not prove to know the secret.
  // Those that ended by themselves before are not counted: a client tries
  // several addresses of one coordinator and keeps one.
  int64_t num_strangers() const;

  // Runs `work` on the server's thread. Thread-safe.
  void Post(std::function<void()> work);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_SERVER_H_
