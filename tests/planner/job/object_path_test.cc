#include "planner/job/object_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(ObjectPathTest, ReadsBucketAndKey) {
  const auto path = ParseObjectPath("s3://my.bucket-1/a/b/");
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(path->bucket, "my.bucket-1");
  EXPECT_EQ(path->key, "a/b");
  EXPECT_EQ(ParseObjectPath("s3://bucket")->key, "");
  for (const char* text :
       {"s3:/bucket/a", "s3://", "s3://ab/c", "s3://bu cket/a",
        "s3://bucket//a", "s3://bucket/a/../b", "s3://bucket/./a",
        "s3:bucket"}) {
    EXPECT_TRUE(IsObjectPath(text)) << text;
    EXPECT_FALSE(ParseObjectPath(text).ok()) << text;
  }
  EXPECT_FALSE(IsObjectPath("/s3/bucket"));
  EXPECT_FALSE(IsObjectPath("s3/bucket"));
}

TEST(ObjectPathTest, ReadsEndpoints) {
  const auto plain = ParseObjectEndpoint("http://minio:9000/");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->is_encrypted);
  EXPECT_EQ(plain->host, "minio");
  EXPECT_EQ(plain->port, 9000);
  EXPECT_EQ(ParseObjectEndpoint("https://s3.example.com")->port, 443);
  EXPECT_TRUE(ParseObjectEndpoint("https://s3.example.com")->is_encrypted);
  EXPECT_EQ(ParseObjectEndpoint("http://[fd00::1]:80")->host, "fd00::1");
  for (const char* text :
       {"", "minio:9000", "ftp://minio", "http://", "http://minio:0",
        "http://minio:x", "http://minio:90/bucket", "http://minio/bucket",
        "http://[fd00::1", "http://user@minio", "https://:443"}) {
    EXPECT_FALSE(ParseObjectEndpoint(text).ok()) << text;
  }
}

// Goal: a job file's keys are judged together. Method: what fits and what does
// not.
TEST(ObjectPathTest, JudgesKeysOfAJob) {
  const auto problems = [](CheckpointSpec checkpoint) {
    JobSpec job;
    job.checkpoint = std::move(checkpoint);
    return ProblemsOfObjectKeys(job);
  };
  EXPECT_THAT(problems({.directory = "/ckpt"}), IsEmpty());
  EXPECT_THAT(problems({.directory = "s3://bucket/a",
                        .endpoint = "http://minio:9000",
                        .region = "x"}),
              IsEmpty());
  EXPECT_THAT(problems({.directory = "/ckpt", .region = "x"}),
              ElementsAre(Pair("checkpoint.region", ::testing::_)));
  EXPECT_THAT(problems({.directory = "s3://b",
                        .resume = "s3://bucket//a",
                        .endpoint = "minio"}),
              ElementsAre(Pair("checkpoint.directory", ::testing::_),
                          Pair("checkpoint.resume", ::testing::_),
                          Pair("checkpoint.endpoint", ::testing::_)));
  JobSpec exports_to_bucket;
  exports_to_bucket.exports.directory = "s3://bucket/a";
  EXPECT_THAT(ProblemsOfObjectKeys(exports_to_bucket),
              ElementsAre(Pair("export.directory",
                               ::testing::HasSubstr("expected a folder"))));
}

}  // namespace
}  // namespace millrace
