// AWS Signature Version 4, by which a request to an S3-compatible store proves
// who sends it and that nobody has changed it on the way:
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html

#ifndef MILLRACE_COORDINATOR_OBJECTS_SIGNATURE_H_
#define MILLRACE_COORDINATOR_OBJECTS_SIGNATURE_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace millrace {

struct ObjectCredentials {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // Empty: none.
};

struct SignedRequest {
  std::string method;                          // "GET"
  std::string path;                            // "/bucket/a b", not encoded.
  std::map<std::string, std::string> query;    // Neither encoded.
  std::map<std::string, std::string> headers;  // Lower-case names; "host".
  absl::string_view body;
};

// Adds the headers x-amz-date, x-amz-content-sha256, x-amz-security-token if
// there is a token, and authorization. All headers are signed.
void SignRequest(const ObjectCredentials& credentials, absl::string_view region,
                 absl::Time now, SignedRequest* request);

// The path and the query as they go over the network, and as they are signed:
// each byte but letters, digits, "-._~" and the path's "/" as %XX.
std::string RequestTarget(const SignedRequest& request);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_SIGNATURE_H_
