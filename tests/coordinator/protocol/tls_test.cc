#include "coordinator/protocol/tls.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace millrace {
namespace {

HandshakeStream StreamOf(int fd) {
  return {.read = [fd](std::string* bytes) -> absl::Status {
            const auto size = static_cast<ssize_t>(bytes->size());
            return recv(fd, bytes->data(), bytes->size(), MSG_WAITALL) == size
                       ? absl::OkStatus()
                       : absl::UnavailableError("lost");
          },
          .write = [fd](absl::string_view bytes) -> absl::Status {
            send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            return absl::OkStatus();
          }};
}

struct Shaken {
  absl::StatusOr<std::string> server = absl::UnknownError("");
  absl::StatusOr<std::string> client = absl::UnknownError("");
  std::string plain;  // The client reads it after the handshake.
};

Shaken ShakeOverASocket(SSL_CTX* server, SSL_CTX* client) {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Shaken result;
  std::thread thread([&] {
    result.server = Shake(TlsEnd::kCoordinator, server, StreamOf(ends[0]), "7");
    if (result.server.ok()) send(ends[0], "plain", 5, MSG_NOSIGNAL);
    close(ends[0]);
  });
  result.client = Shake(TlsEnd::kPeer, client, StreamOf(ends[1]), "");
  result.plain.resize(5);
  const ssize_t size =
      recv(ends[1], result.plain.data(), result.plain.size(), MSG_WAITALL);
  result.plain.resize(size > 0 ? static_cast<size_t>(size) : 0);
  close(ends[1]);
  thread.join();
  return result;
}

TlsContext ContextOf(TlsEnd end, const std::string& secret) {
  absl::StatusOr<TlsContext> context = MakeTlsContext(end, secret);
  EXPECT_TRUE(context.ok()) << context.status();
  return *std::move(context);
}

// Goal: two ends with one secret meet, and the stream is free for plain bytes
// afterwards.
TEST(TlsTest, ShakesWithTheSecret) {
  const Shaken shaken =
      ShakeOverASocket(ContextOf(TlsEnd::kCoordinator, "one secret").get(),
                       ContextOf(TlsEnd::kPeer, "one secret").get());
  EXPECT_TRUE(shaken.server.ok()) << shaken.server.status();
  ASSERT_TRUE(shaken.client.ok()) << shaken.client.status();
  EXPECT_EQ(*shaken.client, "7");
  EXPECT_EQ(shaken.plain, "plain");
}

TEST(TlsTest, RefusesAnotherSecret) {
  const Shaken shaken =
      ShakeOverASocket(ContextOf(TlsEnd::kCoordinator, "one secret").get(),
                       ContextOf(TlsEnd::kPeer, "one Secret").get());
  EXPECT_EQ(shaken.server.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(shaken.client.status().code(), absl::StatusCode::kPermissionDenied);
}

// A server with a certificate that it has signed itself, and no secret.
TlsContext ContextWithCertificate() {
  TlsContext context(SSL_CTX_new(TLS_server_method()));
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  EXPECT_NE(X509_sign(certificate, key, EVP_sha256()), 0);
  EXPECT_EQ(SSL_CTX_use_certificate(context.get(), certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context.get(), key), 1);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return context;
}

// Goal: the secret is the only way in. Method: a server that has a certificate
// instead, a client that asks for one, and one of an older TLS.
TEST(TlsTest, NoCertificateStandsInForTheSecret) {
  const TlsContext certified = ContextWithCertificate();
  Shaken shaken =
      ShakeOverASocket(certified.get(), ContextOf(TlsEnd::kPeer, "one").get());
  EXPECT_EQ(shaken.client.status().code(), absl::StatusCode::kPermissionDenied);

  const TlsContext any(SSL_CTX_new(TLS_client_method()));
  // It is a server that a plain client accepts: the refusal above was ours.
  shaken = ShakeOverASocket(certified.get(), any.get());
  EXPECT_TRUE(shaken.client.ok()) << shaken.client.status();
  const TlsContext server = ContextOf(TlsEnd::kCoordinator, "one");
  shaken = ShakeOverASocket(server.get(), any.get());
  EXPECT_FALSE(shaken.server.ok());
  SSL_CTX_set_max_proto_version(any.get(), TLS1_2_VERSION);
  shaken = ShakeOverASocket(server.get(), any.get());
  EXPECT_FALSE(shaken.server.ok());
}

}  // namespace
}  // namespace millrace
