#include "coordinator/protocol/tls.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// AES-128 and SHA-256: as strong as a secret of 128 bits.
constexpr char kCipherName[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipher[] = {0x13, 0x01};
constexpr char kIdentity[] = "millrace job";
constexpr size_t kRecordHeaderBytes = 5;
constexpr size_t kMaxRecordBytes = 1 << 14;
constexpr size_t kMaxWords = 256;

// The key that stays with a context as long as a connection needs it.
using Key = std::string;
void FreeKey(void*, void* key, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Key*>(key);
}
int KeyIndex() {
  static const int index =
      SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeKey);
  return index;
}

// The secret may be of any length, a key is not; and no other use of the secret
// may ever have the same key.
Key KeyOf(absl::string_view secret) {
  constexpr absl::string_view kPurpose = "millrace TLS 1.3 pre-shared key";
  unsigned char result[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  CHECK(HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
             reinterpret_cast<const unsigned char*>(kPurpose.data()),
             kPurpose.size(), result, &size) != nullptr);
  return Key(reinterpret_cast<const char*>(result), size);
}

// OpenSSL's form of a pre-shared key; null if memory is short.
SSL_SESSION* NewSession(SSL* ssl) {
  const auto* key = static_cast<const Key*>(
      SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), KeyIndex()));
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(
          session, reinterpret_cast<const unsigned char*>(key->data()),
          key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kCipher)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int UseKey(SSL* ssl, const EVP_MD* digest, const unsigned char** identity,
           size_t* identity_size, SSL_SESSION** session) {
  *session = nullptr;
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = NewSession(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kIdentity);
  *identity_size = sizeof(kIdentity) - 1;
  return *session != nullptr;
}

int FindKey(SSL* ssl, const unsigned char* identity, size_t identity_size,
            SSL_SESSION** session) {
  *session = nullptr;
  if (absl::string_view(reinterpret_cast<const char*>(identity),
                        identity_size) != kIdentity) {
    return 1;  // The handshake then fails: there is no certificate either.
  }
  *session = NewSession(ssl);
  return *session != nullptr;
}

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

absl::Status WritePending(SSL* ssl, const HandshakeStream& stream) {
  char bytes[4096];
  int size = 0;
  while ((size = BIO_read(SSL_get_wbio(ssl), bytes, sizeof(bytes))) > 0) {
    RETURN_IF_ERROR(stream.write({bytes, static_cast<size_t>(size)}));
  }
  return absl::OkStatus();
}

absl::Status ReadRecord(SSL* ssl, const HandshakeStream& stream) {
  std::string record(kRecordHeaderBytes, '\0');
  RETURN_IF_ERROR(stream.read(&record));
  const size_t size = size_t{static_cast<unsigned char>(record[3])} << 8 |
                      static_cast<unsigned char>(record[4]);
  if (size > kMaxRecordBytes + kMaxWords) {
    return absl::PermissionDeniedError("not a record of TLS");
  }
  std::string body(size, '\0');
  RETURN_IF_ERROR(stream.read(&body));
  record += body;
  CHECK(BIO_write(SSL_get_rbio(ssl), record.data(),
                  static_cast<int>(record.size())) ==
        static_cast<int>(record.size()));
  return absl::OkStatus();
}

// Calls `step` until it succeeds, with bytes of the stream as it needs them.
absl::Status Drive(SSL* ssl, const HandshakeStream& stream,
                   const std::function<int()>& step) {
  while (true) {
    const int result = step();
    const int error = SSL_get_error(ssl, result);
    RETURN_IF_ERROR(WritePending(ssl, stream));
    if (result > 0) return absl::OkStatus();
    if (error != SSL_ERROR_WANT_READ) {
      return absl::PermissionDeniedError("the secrets differ");
    }
    RETURN_IF_ERROR(ReadRecord(ssl, stream));
  }
}

}  // namespace

void FreeTlsContext::operator()(SSL_CTX* context) const {
  SSL_CTX_free(context);
}

absl::StatusOr<TlsContext> MakeTlsContext(TlsEnd end,
                                          absl::string_view secret) {
  const bool is_server = end == TlsEnd::kCoordinator;
  TlsContext context(
      SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method()));
  SSL_CTX* raw = context.get();
  if (raw == nullptr || KeyIndex() < 0 ||
      SSL_CTX_set_ex_data(raw, KeyIndex(), new Key(KeyOf(secret))) != 1 ||
      SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(raw, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(raw, kCipherName) != 1 ||
      SSL_CTX_set1_groups_list(raw, "X25519") != 1) {
    return absl::InternalError(
        "OpenSSL offers no TLS 1.3 with AES-128 and X25519, which processes "
        "of a job need; see the system's openssl.cnf");
  }
  // No tickets: every connection proves the secret anew.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  if (is_server) {
    SSL_CTX_set_psk_find_session_callback(raw, FindKey);
  } else {
    SSL_CTX_set_psk_use_session_callback(raw, UseKey);
    // Nobody is believed for a certificate: none is trusted.
    SSL_CTX_set_verify(raw, SSL_VERIFY_PEER, nullptr);
  }
  return context;
}

absl::StatusOr<std::string> Shake(TlsEnd end, SSL_CTX* context,
                                  const HandshakeStream& stream,
                                  const std::string& words) {
  CHECK(words.size() <= kMaxWords);
  const std::unique_ptr<SSL, FreeSsl> owner(SSL_new(context));
  SSL* ssl = owner.get();
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  if (ssl == nullptr || in == nullptr || out == nullptr) {
    BIO_free(in);
    BIO_free(out);
    return absl::ResourceExhaustedError("no memory for a connection");
  }
  SSL_set_bio(ssl, in, out);
  BIO_set_mem_eof_return(in, -1);
  std::string result = words;
  if (end == TlsEnd::kCoordinator) {
    SSL_set_accept_state(ssl);
    RETURN_IF_ERROR(Drive(ssl, stream, [&] { return SSL_do_handshake(ssl); }));
    RETURN_IF_ERROR(Drive(ssl, stream, [&] {
      return SSL_write(ssl, words.data(), static_cast<int>(words.size()));
    }));
  } else {
    SSL_set_connect_state(ssl);
    RETURN_IF_ERROR(Drive(ssl, stream, [&] { return SSL_do_handshake(ssl); }));
    result.assign(kMaxWords, '\0');
    int size = 0;
    RETURN_IF_ERROR(Drive(ssl, stream, [&] {
      return size = SSL_read(ssl, result.data(), static_cast<int>(kMaxWords));
    }));
    result.resize(static_cast<size_t>(size));
  }
  return result;
}

}  // namespace millrace
