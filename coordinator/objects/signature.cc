#include "coordinator/objects/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace millrace {
namespace {

constexpr size_t kDigestBytes = 32;
constexpr char kAlgorithm[] = "AWS4-HMAC-SHA256";

std::string Sha256Hex(absl::string_view text) {
  std::array<unsigned char, kDigestBytes> digest;
  CHECK(EVP_Digest(text.data(), text.size(), digest.data(), nullptr,
                   EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(absl::string_view(
      reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string HmacSha256(absl::string_view key, absl::string_view text) {
  std::array<unsigned char, kDigestBytes> digest;
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(),
             digest.data(), &size) != nullptr);
  return std::string(reinterpret_cast<const char*>(digest.data()), size);
}

std::string UriEncode(absl::string_view text, bool keeps_slash) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' ||
        c == '~' || (c == '/' && keeps_slash)) {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", byte);
    }
  }
  return encoded;
}

// Names are of one case and need no encoding, so their order is that of the
// encoded ones.
std::string EncodedQuery(const SignedRequest& request) {
  std::string query;
  for (const auto& [name, value] : request.query) {
    absl::StrAppend(&query, query.empty() ? "" : "&", UriEncode(name, false),
                    "=", UriEncode(value, false));
  }
  return query;
}

}  // namespace

std::string RequestTarget(const SignedRequest& request) {
  const std::string query = EncodedQuery(request);
  return absl::StrCat(UriEncode(request.path, true), query.empty() ? "" : "?",
                      query);
}

void SignRequest(const ObjectCredentials& credentials, absl::string_view region,
                 absl::Time now, SignedRequest* request) {
  const std::string time =
      absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
  const std::string date = time.substr(0, 8);
  const std::string body_hash = Sha256Hex(request->body);
  request->headers["x-amz-date"] = time;
  request->headers["x-amz-content-sha256"] = body_hash;
  if (!credentials.session_token.empty()) {
    request->headers["x-amz-security-token"] = credentials.session_token;
  }
  std::string headers;
  std::string names;
  for (const auto& [name, value] : request->headers) {
    absl::StrAppend(&headers, name, ":", absl::StripAsciiWhitespace(value),
                    "\n");
    absl::StrAppend(&names, names.empty() ? "" : ";", name);
  }
  const std::string canonical = absl::StrCat(
      request->method, "\n", UriEncode(request->path, true), "\n",
      EncodedQuery(*request), "\n", headers, "\n", names, "\n", body_hash);
  const std::string scope = absl::StrCat(date, "/", region, "/s3/aws4_request");
  const std::string to_sign = absl::StrCat(kAlgorithm, "\n", time, "\n", scope,
                                           "\n", Sha256Hex(canonical));
  std::string key = absl::StrCat("AWS4", credentials.secret_access_key);
  for (const absl::string_view part :
       {absl::string_view(date), region, absl::string_view("s3"),
        absl::string_view("aws4_request")}) {
    key = HmacSha256(key, part);
  }
  request->headers["authorization"] = absl::StrCat(
      kAlgorithm, " Credential=", credentials.access_key_id, "/", scope,
      ",SignedHeaders=", names,
      ",Signature=", absl::BytesToHexString(HmacSha256(key, to_sign)));
}

}  // namespace millrace
