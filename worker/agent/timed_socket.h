// A TCP connection on which every wait ends: no peer, port or network can hold
// its user for longer than was said.

#ifndef MILLRACE_WORKER_AGENT_TIMED_SOCKET_H_
#define MILLRACE_WORKER_AGENT_TIMED_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/protocol/tls.h"

namespace millrace {

class TimedSocket {
 public:
  // Takes over a connected socket.
  explicit TimedSocket(int fd);
  // `address` is one of IPv4 or IPv6, without a port. DeadlineExceeded if
  // nothing answers, Unavailable if the connection is refused or there is no
  // way. `deadline` here and below is MonotonicNow()'s.
  static absl::StatusOr<TimedSocket> Connect(const std::string& address,
                                             int32_t port, absl::Time deadline);
  TimedSocket(TimedSocket&& other) noexcept;
  TimedSocket& operator=(TimedSocket&& other) noexcept;
  ~TimedSocket();

  // All of `size` bytes. Unavailable if the connection ends before,
  // DeadlineExceeded at the deadline.
  absl::Status Read(void* bytes, size_t size, absl::Time deadline);
  absl::Status Write(const void* bytes, size_t size, absl::Time deadline);

  // Both ends prove to know the secret; the server's `words` reach the client.
  // Returns them at both ends. Plain bytes follow. PermissionDenied if the
  // secrets differ.
  absl::StatusOr<std::string> Greet(TlsEnd end, absl::string_view secret,
                                    const std::string& words,
                                    absl::Time deadline);

  // This end's address: the kernel chose the interface.
  std::string OwnAddress() const;
  // Makes every call under way, and all later ones, fail soon. Thread-safe.
  void ShutDown();

 private:
  absl::Status Wait(short events, absl::Time deadline) const;
  int fd_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_TIMED_SOCKET_H_
