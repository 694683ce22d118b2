#include "coordinator/objects/object_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/objects/object_lease.h"
#include "coordinator/objects/xml_leaves.h"
#include "tests/coordinator/objects/fake_store.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFolder[] = "s3://bucket/run/ckpt";

absl::Status WriteObject(FileSystem& files, const std::string& path,
                         const std::string& content) {
  const auto file = files.Create(path);
  if (!file.ok()) return file.status();
  const absl::Status appended =
      (*file)->Append(content.data(), static_cast<int64_t>(content.size()));
  return appended.ok() ? (*file)->Close() : appended;
}

absl::Status SaveStep(FileSystem& files, int64_t step) {
  std::vector<RankState> state = MakeState(TinyModel(), Layout{});
  FillState(state, step);
  return Save(files, kFolder, InfoOf(Layout{}, step), state, /*keep=*/2);
}

int64_t CountWrongOf(FileSystem& files, int64_t step, const Layout& layout) {
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  for (const RankState& rank : state) {
    const absl::Status loaded =
        LoadCheckpoint(files, absl::StrCat(kFolder, "/step-0000000", step),
                       rank.pieces)
            .status();
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
  return CountWrong(state, step);
}

// Goal: a bucket is a file system as far as checkpoints need one. Method: every
// call, with a file of several parts and a list of several pages.
TEST(ObjectFilesTest, DoesWhatAFileSystemDoes) {
  FakeStore store;
  ObjectFiles files(store.Options());
  EXPECT_TRUE(absl::IsNotFound(files.List(kFolder).status()));
  EXPECT_FALSE(files.Exists(kFolder));
  std::string content(40 << 20, 'a');
  for (size_t i = 0; i < content.size(); i += 4097) content[i] += i % 23;
  const std::string large = absl::StrCat(kFolder, "/step/large");
  ASSERT_TRUE(WriteObject(files, large, content).ok());
  ASSERT_TRUE(WriteObject(files, absl::StrCat(kFolder, "/step/a b"), "").ok());
  EXPECT_EQ(store.objects().at("run/ckpt/step/large"), content);
  EXPECT_EQ(store.num_uploads(), 0);
  const auto file = files.Open(large);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string read(1 << 20, '\0');
  ASSERT_TRUE((*file)->Read(17 << 20, 1 << 20, read.data()).ok());
  EXPECT_EQ(read, content.substr(17 << 20, 1 << 20));
  EXPECT_TRUE(
      absl::IsDataLoss((*file)->Read((*file)->size() - 1, 2, read.data())));
  for (const char* name : {"b", "c", "d", "e/f", "e/g"}) {
    ASSERT_TRUE(
        WriteObject(files, absl::StrCat(kFolder, "/step/", name), name).ok());
  }
  EXPECT_THAT(*files.List(absl::StrCat(kFolder, "/step/")),
              ElementsAre("a b", "b", "c", "d", "e", "large"));
  EXPECT_TRUE(files.Exists(absl::StrCat(kFolder, "/step/e")));
  ASSERT_TRUE(files
                  .Rename(absl::StrCat(kFolder, "/step/b"),
                          absl::StrCat(kFolder, "/step/c"))
                  .ok());
  EXPECT_EQ(store.objects().at("run/ckpt/step/c"), "b");
  EXPECT_EQ(store.objects().count("run/ckpt/step/b"), 0u);
  // An object that is written again while it is read is not mixed.
  store.SetObject("run/ckpt/step/large", content);
  EXPECT_TRUE(absl::IsDataLoss((*file)->Read(0, 1, read.data())));
  ASSERT_TRUE(files.Remove(absl::StrCat(kFolder, "/step")).ok());
  EXPECT_TRUE(store.objects().empty());
}

// Goal: what is not complete is not there, and an upload whose writer gave up
// or died is taken away. Method: drop a writer; leave an upload behind.
TEST(ObjectFilesTest, LeavesNoHalfObject) {
  FakeStore store;
  ObjectFiles files(store.Options());
  const std::string content(20 << 20, 'x');
  {
    auto file = *files.Create(absl::StrCat(kFolder, "/step/part"));
    ASSERT_TRUE(file->Append(content.data(), 20 << 20).ok());
    EXPECT_EQ(store.num_uploads(), 1);
  }
  EXPECT_EQ(store.num_uploads(), 0);
  EXPECT_TRUE(store.objects().empty());
  ASSERT_TRUE((*files.StoreOf(kFolder))->BeginUpload("run/ckpt/step/x").ok());
  ASSERT_TRUE((*files.StoreOf(kFolder))->BeginUpload("run/ckpt/other").ok());
  ASSERT_TRUE(WriteObject(files, absl::StrCat(kFolder, "/step/y"), "y").ok());
  ASSERT_TRUE(files.Remove(absl::StrCat(kFolder, "/step")).ok());
  EXPECT_EQ(store.num_uploads(), 1);  // That of the other folder.
}

// Goal: checkpoints are saved, replaced, found and loaded under another layout
// though requests are refused, lost, and done without an answer. Method: each
// fault at every third request or so, then another seed of the pattern.
TEST(ObjectFilesTest, ChecksOutUnderFaults) {
  for (const StoreFault fault :
       {StoreFault::kBusy, StoreFault::kCutBefore, StoreFault::kCutAfter}) {
    FakeStore store;
    std::atomic<int64_t> num_faults = 0;
    store.SetFault([&](const StoreRequest& request) {
      if (request.number % 3 != 1) return StoreFault::kNone;
      ++num_faults;
      return fault;
    });
    ObjectFiles files(store.Options());
    for (const int64_t step : {1, 2, 3}) {
      const absl::Status saved = SaveStep(files, step);
      ASSERT_TRUE(saved.ok()) << saved;
    }
    EXPECT_GT(num_faults, 10);
    const auto entries = ListCheckpoints(files, kFolder);
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), 2u);
    EXPECT_EQ(entries->front().step, 3);
    EXPECT_TRUE(VerifyCheckpoint(files, entries->front().path).ok());
    EXPECT_EQ(CountWrongOf(files, 3, AllLayouts(4).back()), 0);
  }
}

// Goal: a byte that changes in the bucket is found. Method: change one.
TEST(ObjectFilesTest, FindsDamage) {
  FakeStore store;
  ObjectFiles files(store.Options());
  ASSERT_TRUE(SaveStep(files, 1).ok());
  ASSERT_TRUE(SaveStep(files, 2).ok());
  for (auto& [key, content] : store.objects()) {
    if (!absl::StrContains(key, "step-00000002/rank")) continue;
    std::string changed = content;
    changed[changed.size() - 9] ^= 4;
    store.SetObject(key, changed);
  }
  std::vector<std::string> skipped;
  const auto newest = FindNewestCheckpoint(files, kFolder, &skipped);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->step, 1);
  EXPECT_EQ(skipped.size(), 1u);
}

// Goal: a bucket that cannot be asked is never taken for an empty one, and a
// save that fails says why. Method: a server that is always busy, and none.
TEST(ObjectFilesTest, IsNotEmptyWhereNobodyAnswers) {
  FakeStore store;
  ObjectFilesOptions options = store.Options();
  options.patience = absl::Milliseconds(300);
  ObjectFiles files(options);
  ASSERT_TRUE(SaveStep(files, 1).ok());
  store.SetFault([](const StoreRequest&) { return StoreFault::kBusy; });
  EXPECT_TRUE(absl::IsUnavailable(ListCheckpoints(files, kFolder).status()));
  const absl::Status saved = SaveStep(files, 2);
  EXPECT_TRUE(absl::IsUnavailable(saved)) << saved;
  EXPECT_THAT(std::string(saved.message()),
              AllOf(HasSubstr("s3://bucket/"), HasSubstr("503 SlowDown")));
  options.place.endpoint = "http://127.0.0.1:1";
  ObjectFiles nobody(options);
  const absl::Status listed = ListCheckpoints(nobody, kFolder).status();
  EXPECT_TRUE(absl::IsUnavailable(listed)) << listed;
  EXPECT_THAT(std::string(listed.message()), HasSubstr("http://127.0.0.1:1"));
}

// Goal: errors say what to do, and are told apart. Method: what servers answer.
TEST(ObjectFilesTest, SaysWhatToDo) {
  FakeStore store;
  ObjectFiles files(store.Options());
  const auto error = [](absl::string_view code, absl::string_view more = "") {
    return absl::StrCat("<Error><Code>", code, "</Code><Message>m</Message>",
                        more, "</Error>");
  };
  const auto expect = [&](int status, const std::string& body,
                          absl::StatusCode code, const std::string& remedy,
                          std::map<std::string, std::string> headers = {}) {
    store.AnswerAll(status, body, std::move(headers));
    const absl::Status got = files.List(kFolder).status();
    EXPECT_EQ(got.code(), code) << got;
    EXPECT_THAT(std::string(got.message()),
                AllOf(HasSubstr("s3://bucket/"), HasSubstr(remedy),
                      HasSubstr(absl::StrCat(status))));
  };
  using Code = absl::StatusCode;
  expect(404, error("NoSuchBucket"), Code::kInvalidArgument, "make the bucket");
  expect(403, error("AccessDenied"), Code::kPermissionDenied,
         "need the rights");
  expect(403, error("InvalidAccessKeyId"), Code::kPermissionDenied,
         "checkpoint.endpoint");
  expect(403, error("SignatureDoesNotMatch"), Code::kPermissionDenied,
         "AWS_SECRET_ACCESS_KEY");
  expect(400, error("ExpiredToken"), Code::kPermissionDenied, "expired");
  expect(400,
         error("AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>"),
         Code::kInvalidArgument, "the bucket is in eu-west-3");
  expect(301, error("PermanentRedirect"), Code::kInvalidArgument,
         "the bucket is in us-west-2", {{"x-amz-bucket-region", "us-west-2"}});
  expect(507, error("XMinioStorageFull"), Code::kResourceExhausted,
         "make room");
  expect(418, "<html>a proxy</html>", Code::kInvalidArgument, "a proxy");
  expect(403, "<!DOCTYPE d [<!ENTITY a 'b'>]><Error><Code>&a;</Code></Error>",
         Code::kPermissionDenied, "need the rights");
}

// Goal: a wrong clock of this host is made up for. Method: a server that
// complains until the request's date is its own.
TEST(ObjectFilesTest, FollowsTheServersClock) {
  FakeStore store;
  store.AdvanceClock(absl::Hours(2));
  store.AnswerAll(403,
                  "<Error><Code>RequestTimeTooSkewed</Code>"
                  "<Message>m</Message></Error>");
  std::atomic<int> num_late = 0;
  store.SetFault([&](const StoreRequest& request) {
    absl::Time sent;
    std::string problem;
    EXPECT_TRUE(absl::ParseTime(
        "%E4Y%m%dT%H%M%SZ", request.headers.at("x-amz-date"), &sent, &problem));
    if (sent < absl::Now() + absl::Hours(1)) ++num_late;
    return StoreFault::kNone;
  });
  ObjectFiles files(store.Options());
  const absl::Status refused = files.List(kFolder).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("clock"));
  EXPECT_EQ(store.num_requests(), 2);
  EXPECT_EQ(num_late, 1);
  store.AnswerAll(0, "");
  EXPECT_TRUE(absl::IsNotFound(files.List(kFolder).status()));
  EXPECT_EQ(num_late, 1);
}

// Goal: of two that commit the same step, one is told. Method: another manifest
// appears between the look and the write, where the store has conditions.
TEST(ObjectFilesTest, RefusesASecondCommit) {
  FakeStore store;
  ObjectFiles files(store.Options());
  const std::string temporary = absl::StrCat(kFolder, "/m.tmp");
  const std::string name = absl::StrCat(kFolder, "/m");
  ASSERT_TRUE(WriteObject(files, temporary, "ours").ok());
  std::atomic<int> num_writes = 0;
  store.SetFault([&](const StoreRequest& request) {
    if (request.headers.count("if-none-match") == 0) return StoreFault::kNone;
    EXPECT_EQ(request.target, "/bucket/run/ckpt/m");
    return ++num_writes == 1 ? StoreFault::kCutAfter : StoreFault::kNone;
  });
  // The answer is lost, and the second try finds the first one's object.
  EXPECT_TRUE(files.Rename(temporary, name).ok());
  EXPECT_EQ(num_writes, 2);
  EXPECT_EQ(store.objects().at("run/ckpt/m"), "ours");
  const auto object_store = *files.StoreOf(kFolder);
  const auto facts = object_store->Look("run/ckpt/m");
  ASSERT_TRUE(facts.ok());
  store.SetFault(nullptr);
  store.SetObject("run/ckpt/m", "theirs");
  EXPECT_TRUE(absl::IsAborted(
      object_store->Put("run/ckpt/m", "late", {.if_tag = facts->tag})
          .status()));
  EXPECT_EQ(store.objects().at("run/ckpt/m"), "theirs");
}

// Goal: a job that ends gives its calls up at once. Method: abort while a busy
// server is asked again and again.
TEST(ObjectFilesTest, EndsCallsOnAbort) {
  FakeStore store;
  store.SetFault([](const StoreRequest&) { return StoreFault::kBusy; });
  ObjectFilesOptions options = store.Options();
  options.patience = absl::Hours(1);
  ObjectFiles files(options);
  std::thread aborting([&] {
    while (store.num_requests() < 2) absl::SleepFor(absl::Milliseconds(5));
    files.Abort();
  });
  EXPECT_TRUE(absl::IsAborted(files.List(kFolder).status()));
  aborting.join();
  EXPECT_TRUE(absl::IsAborted(files.List("s3://other/x").status()));
}

ObjectLeaseOptions LeaseOf(ObjectFiles& files, const std::string& owner) {
  return {.store = *files.StoreOf(kFolder),
          .key = "run/ckpt/.owner",
          .owner = owner,
          .term = absl::Seconds(600)};
}

// Goal: a prefix is one job's at a time: another is refused while the first
// lives, follows once it has ended or is silent, and the silent one is told.
// Method: two owners, and the server's clock put forward.
TEST(ObjectLeaseTest, KeepsOneOwner) {
  for (const bool has_conditions : {true, false}) {
    FakeStore store;
    store.SetHasConditions(has_conditions);
    ObjectFiles files(store.Options());
    auto first = ObjectLease::Take(LeaseOf(files, "job one"));
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE((*first)->CheckHeld().ok());
    const auto refused = ObjectLease::Take(LeaseOf(files, "job two"));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("job one"));
    // The same job again, whose coordinator has started anew.
    EXPECT_TRUE(ObjectLease::Take(LeaseOf(files, "job one")).ok());
    EXPECT_TRUE((*first)->CheckHeld().ok());
    store.AdvanceClock(absl::Seconds(601));
    const auto second = ObjectLease::Take(LeaseOf(files, "job two"));
    ASSERT_TRUE(second.ok()) << second.status();
    const absl::Status lost = (*first)->CheckHeld();
    EXPECT_TRUE(absl::IsAborted(lost)) << lost;
    EXPECT_THAT(std::string(lost.message()), HasSubstr("job two"));
    first->reset();
    EXPECT_TRUE((*second)->CheckHeld().ok());
  }
}

// Goal: an owner that lives is not taken for silent. Method: a term of a
// second, renewed over three.
TEST(ObjectLeaseTest, IsRenewed) {
  FakeStore store;
  ObjectFiles files(store.Options());
  ObjectLeaseOptions options = LeaseOf(files, "job one");
  options.term = absl::Seconds(3);
  const auto first = ObjectLease::Take(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const int64_t before = store.num_requests();
  const absl::Time give_up_at = absl::Now() + absl::Seconds(60);
  while (store.num_requests() < before + 3 && absl::Now() < give_up_at) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_GE(store.num_requests(), before + 3);
  EXPECT_TRUE((*first)->CheckHeld().ok());
}

// Goal: credentials come from where Amazon's tools take them from, and no error
// shows one. Method: environments and files.
TEST(CredentialsTest, AreFoundWhereToolsLookForThem) {
  const std::string path = ::testing::TempDir() + "/credentials_test";
  std::ofstream(path) << "# comment\n[default]\naws_access_key_id = one\n"
                         "aws_secret_access_key=two=2\n\n[other]\n"
                         "aws_access_key_id=three\naws_secret_access_key=four\n"
                         "aws_session_token = five\n[half]\n"
                         "aws_access_key_id = hidden\n";
  std::map<std::string, std::string> variables = {
      {"AWS_SHARED_CREDENTIALS_FILE", path}};
  const Environment of = [&](const std::string& name) {
    return variables[name];
  };
  EXPECT_EQ(FindCredentials(of)->secret_access_key, "two=2");
  variables["AWS_PROFILE"] = "other";
  EXPECT_EQ(FindCredentials(of)->session_token, "five");
  for (const char* profile : {"half", "none"}) {
    variables["AWS_PROFILE"] = profile;
    const absl::Status none = FindCredentials(of).status();
    EXPECT_TRUE(absl::IsPermissionDenied(none));
    EXPECT_THAT(std::string(none.message()),
                AllOf(HasSubstr(profile), HasSubstr("AWS_ACCESS_KEY_ID"),
                      ::testing::Not(HasSubstr("hidden"))));
  }
  variables["AWS_ACCESS_KEY_ID"] = "id";
  EXPECT_FALSE(FindCredentials(of).ok());
  variables["AWS_SECRET_ACCESS_KEY"] = "secret";
  EXPECT_EQ(FindCredentials(of)->access_key_id, "id");
  variables["AWS_ENDPOINT_URL"] = "http://a";
  variables["AWS_DEFAULT_REGION"] = "eu";
  const ObjectStorePlace place = CompletePlace({}, of);
  EXPECT_EQ(place.endpoint, "http://a");
  EXPECT_EQ(place.region, "eu");
  EXPECT_EQ(CompletePlace({.endpoint = "http://b", .region = "x"}, of).endpoint,
            "http://b");
}

// Goal: answers are read, and bombs are not. Method: lists, spaces of names,
// entities, depth.
TEST(XmlLeavesTest, ReadsAnswers) {
  const auto xml = XmlLeaves::Parse(
      "<a:List xmlns:a=\"s3\"><C><Key>x&amp;y</Key><Size>1</Size></C>"
      "<C><Key>z</Key></C><T/></a:List>");
  ASSERT_TRUE(xml.ok()) << xml.status();
  EXPECT_EQ(xml->root(), "List");
  EXPECT_THAT(xml->All("C/Key"), ElementsAre("x&y", "z"));
  EXPECT_EQ(xml->First("C/Size"), "1");
  EXPECT_EQ(xml->First("none"), "");
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "<a>";
  for (const std::string& bad :
       {std::string(), std::string("<a>"), std::string("plain"), deep,
        std::string("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(XmlLeaves::Parse(bad).status())) << bad;
  }
}

}  // namespace
}  // namespace millrace
