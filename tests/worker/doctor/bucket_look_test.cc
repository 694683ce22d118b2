#include "worker/doctor/bucket_look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/coordinator/objects/fake_store.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kPlace[] = "s3://bucket/run/ckpt";

std::string ErrorBody(const std::string& code) {
  return absl::StrCat("<Error><Code>", code, "</Code><Message>no</Message>",
                      "</Error>");
}

TEST(BucketLookTest, MeasuresAndLeavesNothing) {
  FakeStore store;
  store.SetObject("run/ckpt/step-00000004/manifest.json", "{}");
  for (const char* place : {kPlace, "s3://bucket"}) {
    const BucketFacts facts = ProbeBucket(store.Options(), place, "probe-1");
    EXPECT_EQ(facts.error, "");
    EXPECT_EQ(facts.path, place);
    EXPECT_GT(facts.request_s, 0);
    EXPECT_GT(facts.write_bytes_s, 0);
    EXPECT_GT(facts.read_bytes_s, 0);
    EXPECT_EQ(store.objects().size(), 1u);
  }
}

// Goal: each thing that may be amiss is said with what to do about it.
TEST(BucketLookTest, SaysWhatIsAmiss) {
  FakeStore store;
  const auto error = [&] {
    return ProbeBucket(store.Options(), kPlace, "probe-1").error;
  };
  store.AnswerAll(404, ErrorBody("NoSuchBucket"));
  EXPECT_THAT(error(),
              AllOf(HasSubstr("NoSuchBucket"), HasSubstr("make the bucket")));
  store.AnswerAll(403, ErrorBody("SignatureDoesNotMatch"));
  EXPECT_THAT(error(), HasSubstr("AWS_SECRET_ACCESS_KEY"));
  store.AnswerAll(403, ErrorBody("AccessDenied"));
  EXPECT_THAT(error(), HasSubstr("rights to list the bucket"));
  store.AnswerAll(0, "");
  ObjectFilesOptions options = store.Options();
  options.environment = [](const std::string&) { return std::string(); };
  EXPECT_THAT(ProbeBucket(options, kPlace, "probe-1").error,
              HasSubstr("AWS_ACCESS_KEY_ID"));
  options = store.Options();
  options.patience = absl::Milliseconds(200);
  options.place.endpoint = "http://127.0.0.1:1";
  EXPECT_THAT(ProbeBucket(options, kPlace, "probe-1").error,
              AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("checkpoint.endpoint"),
                    HasSubstr("firewall")));
  EXPECT_THAT(ProbeBucket(store.Options(), "s3://", "probe-1").error,
              HasSubstr("s3://"));
}

// Goal: the object is removed where it can be written and not read back.
TEST(BucketLookTest, RemovesWhatItCannotRead) {
  FakeStore store;
  store.SetFault([](const StoreRequest& request) {
    const bool reads = request.method == "GET" &&
                       absl::StrContains(request.target, "probe-1") &&
                       !absl::StrContains(request.target, "list-type");
    return reads ? StoreFault::kBusy : StoreFault::kNone;
  });
  ObjectFilesOptions options = store.Options();
  options.patience = absl::Milliseconds(200);
  EXPECT_THAT(ProbeBucket(options, kPlace, "probe-1").error,
              HasSubstr("cannot get s3://bucket/run/ckpt/probe-1"));
  EXPECT_TRUE(store.objects().empty());
}

TEST(BucketLookTest, LooksForACheckpoint) {
  FakeStore store;
  const std::string step = absl::StrCat(kPlace, "/step-00000004");
  EXPECT_EQ(LookForObjects(store.Options(), step).code(),
            absl::StatusCode::kNotFound);
  store.SetObject("run/ckpt/step-00000004/manifest.json", "{}");
  EXPECT_EQ(LookForObjects(store.Options(), step), absl::OkStatus());
  EXPECT_THAT(LookForObjects(store.Options(), absl::StrCat(kPlace, "/step-9"))
                  .message(),
              HasSubstr("millrace checkpoint list"));
}

}  // namespace
}  // namespace millrace
