#include "coordinator/objects/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"

namespace millrace {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// Signs as in the examples of
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
std::string Authorization(SignedRequest request) {
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  SignRequest({.access_key_id = "AKIAIOSFODNN7EXAMPLE",
               .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"},
              "us-east-1",
              absl::FromCivil(absl::CivilSecond(2013, 5, 24, 0, 0, 0),
                              absl::UTCTimeZone()),
              &request);
  return request.headers["authorization"];
}

// Goal: signatures are those that Amazon computes. Method: its four published
// examples, with a range, a body, a query without a value and one with values.
TEST(SignatureTest, SignsAmazonsExamples) {
  const std::string got = Authorization({.method = "GET",
                                         .path = "/test.txt",
                                         .headers = {{"range", "bytes=0-9"}}});
  EXPECT_THAT(got, HasSubstr("Credential=AKIAIOSFODNN7EXAMPLE/20130524/"
                             "us-east-1/s3/aws4_request,"));
  EXPECT_THAT(got, HasSubstr("SignedHeaders=host;range;x-amz-content-sha256;"
                             "x-amz-date,"));
  EXPECT_THAT(got, EndsWith("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f01"
                            "70aba48dd91039c6036bdb41"));
  EXPECT_THAT(
      Authorization({.method = "PUT",
                     .path = "/test$file.text",
                     .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                 {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                     .body = "Welcome to Amazon S3."}),
      EndsWith("Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971"
               "af0ece108bd"));
  EXPECT_THAT(Authorization(
                  {.method = "GET", .path = "/", .query = {{"lifecycle", ""}}}),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f9"
                       "1ac7a200a0136783543"));
  EXPECT_THAT(
      Authorization({.method = "GET",
                     .path = "/",
                     .query = {{"max-keys", "2"}, {"prefix", "J"}}}),
      EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed57"
               "11ef69dc6f7"));
}

// Goal: a token is sent and signed; what goes over the network is encoded as it
// is signed. Method: a token, and a path and a query with reserved characters.
TEST(SignatureTest, SignsTokensAndEncodes) {
  SignedRequest request = {.method = "GET",
                           .path = "/b/a b/c+d=%",
                           .query = {{"prefix", "x/y z"}, {"a", ""}},
                           .headers = {{"host", "h"}}};
  SignRequest({"id", "secret", "token"}, "eu-west-1", absl::UnixEpoch(),
              &request);
  EXPECT_EQ(request.headers["x-amz-security-token"], "token");
  EXPECT_THAT(request.headers["authorization"],
              HasSubstr("x-amz-date;x-amz-security-token,"));
  EXPECT_EQ(RequestTarget(request), "/b/a%20b/c%2Bd%3D%25?a=&prefix=x%2Fy%20z");
}

}  // namespace
}  // namespace millrace
