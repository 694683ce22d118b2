// The agents' and workers' end of the protocol: a thread of its own keeps the
// connection to the coordinator, sends heartbeats, reconnects when the
// coordinator was restarted, and sends again what was not acknowledged. Where
// coordinators have terms, it hangs up on one of an earlier term than it knows,
// and on one that is silent for some seconds: another one may be elsewhere.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_CLIENT_H_
#define MILLRACE_COORDINATOR_PROTOCOL_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/clock_offset.h"
#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

struct ClientOptions {
  // "10.0.0.1:4711", or several of one coordinator or where it may be, of which
  // the first that answers and proves to know the secret is taken:
  // "10.0.0.1:4711,[fd00::1]:4711".
  std::string address;
  std::string secret;
  absl::Duration heartbeat_interval = absl::Milliseconds(200);
  // The coordinator may be away this long before Receive() gives up.
  absl::Duration give_up_after = absl::Seconds(30);
  // Learn how far the coordinator's clock is from this one, by an exchange with
  // a heartbeat every few seconds.
  bool measures_clock = false;
  std::function<absl::Time()> clock = MonotonicNow;
  // Says who this is, anew for each connection; called on the client's thread.
  std::function<protocol::Hello()> make_hello;
  // Adds to a heartbeat what it is to tell; called on the client's thread. May
  // be empty.
  std::function<void(protocol::ToCoordinator*)> fill_heartbeat;
};

// Thread-safe.
class Client {
 public:
  // Returns at once; the connection is made in the background. InvalidArgument
  // for an address that is not one.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  // Waits, up to half a second, until what was sent has left.
  ~Client();

  // Kept until the coordinator acknowledges it.
  void SendReliably(protocol::ToCoordinator message);
  // Lost if there is no connection now.
  void Send(protocol::ToCoordinator message);
  // The next connection goes to one of these, as in ClientOptions; a connection
  // that is there stays. InvalidArgument for an address that is not one.
  absl::Status SetAddress(const std::string& address);
  // Forgets what is not acknowledged of generations below `generation`.
  // Messages of generation 0, which belong to none, stay. So do reports of
  // steps, since the next generation may go on from the state after them.
  void DropOlderThan(int64_t generation);

  // The next message, or nothing after `timeout`. Unavailable when the
  // coordinator stayed away too long. Acknowledgements are handled inside.
  absl::StatusOr<std::optional<protocol::FromCoordinator>> Receive(
      absl::Duration timeout);

  // The coordinator's clock less this process's, by the last few exchanges.
  // Nothing before the first, or if it is not measured.
  std::optional<ClockOffset> clock_offset() const;

  // The address, of those given, at which the coordinator last proved to know
  // the secret. Empty before.
  std::string address() const;

  // Readable while Receive() would return at once; for poll().
  int event_fd() const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_CLIENT_H_
