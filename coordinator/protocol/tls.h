// TLS 1.3 between the processes of a job. The key of both ends is the job's
// secret, as a pre-shared key (RFC 8446, 2.2) with an ephemeral key exchange:
// there are no certificates, either end proves by the handshake that it knows
// the secret, no recorded byte opens a connection again, and who learns the
// secret later cannot read what was recorded before.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_TLS_H_
#define MILLRACE_COORDINATOR_PROTOCOL_TLS_H_

#include <openssl/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// Who accepts connections, and who makes them.
enum class TlsEnd : uint8_t { kCoordinator, kPeer };

struct FreeTlsContext {
  void operator()(SSL_CTX* context) const;
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeTlsContext>;

// Settings that all connections of one end share. Internal if OpenSSL cannot
// do it, as under a policy of the system that forbids TLS 1.3.
absl::StatusOr<TlsContext> MakeTlsContext(TlsEnd end, absl::string_view secret);

// A handshake alone, on a stream that the caller reads and writes. It reads not
// a byte beyond the handshake and `words`, so that the stream serves for plain
// bytes afterwards. `read` fills its string; both may fail. The server's
// `words`, 256 at most, reach the client encrypted; returns them at both ends.
// PermissionDenied if the other end does not know the secret.
struct HandshakeStream {
  std::function<absl::Status(std::string* bytes)> read;
  std::function<absl::Status(absl::string_view bytes)> write;
};
absl::StatusOr<std::string> Shake(TlsEnd end, SSL_CTX* context,
                                  const HandshakeStream& stream,
                                  const std::string& words);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_TLS_H_
