#include "planner/frameworks/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/import.h"
#include "planner/job/job_keys.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Goal: every adapter says who it is, under a name of its own, translates keys
// that jobs have, and stands in the guide. Method: walk the registry.
TEST(AdapterTest, EveryAdapterIsWhole) {
  const absl::StatusOr<std::string> guide = ReadFile("docs/frameworks.md");
  ASSERT_TRUE(guide.ok()) << guide.status();
  std::set<std::string> names;
  for (const Framework adapter : Adapters()) {
    SCOPED_TRACE(adapter->name);
    EXPECT_TRUE(names.insert(adapter->name).second);
    EXPECT_EQ(FindAdapter(adapter->name), adapter);
    for (const char* text :
         {adapter->title, adapter->version, adapter->configuration}) {
      EXPECT_STRNE(text, "");
    }
    EXPECT_FALSE(adapter->keys.empty());
    for (const FrameworkKey& key : adapter->keys) {
      EXPECT_NE(FindJobKey(key.job_path), nullptr) << key.job_path;
    }
    EXPECT_THAT(*guide, HasSubstr(absl::StrCat("--from ", adapter->name)));
  }
  EXPECT_EQ(FindAdapter("Megatron"), nullptr);
  EXPECT_EQ(FindAdapter(""), nullptr);
}

// Goal: every adapter reads a configuration of its notation, and an empty one
// is refused with what is missing, not taken for a job. Method: walk the
// registry with an empty file.
TEST(AdapterTest, EveryAdapterRefusesAnEmptyConfiguration) {
  for (const Framework adapter : Adapters()) {
    SCOPED_TRACE(adapter->name);
    absl::StatusOr<Settings> settings = adapter->read("", "empty");
    if (!settings.ok()) settings = adapter->read("{}", "empty");
    ASSERT_TRUE(settings.ok()) << settings.status();
    const absl::StatusOr<ImportedJob> imported =
        ImportJob(adapter, *settings, {});
    EXPECT_TRUE(absl::IsInvalidArgument(imported.status()))
        << imported.status();
  }
}

// Goal: every adapter with layouts writes one that names the framework and its
// version, and the others say why not. Method: walk the registry with one job.
TEST(AdapterTest, EveryAdapterExportsOrSaysWhyNot) {
  const JobSpec job = UnusualJob();
  for (const Framework adapter : Adapters()) {
    SCOPED_TRACE(adapter->name);
    const absl::StatusOr<std::string> text =
        ExportLayout(job, {.num_microbatches = 96}, adapter);
    if (adapter->write == nullptr) {
      EXPECT_THAT(text.status().message(), HasSubstr(adapter->why_no_export));
      EXPECT_STRNE(adapter->why_no_export, "");
      EXPECT_THAT(ExportNames(), Not(::testing::Contains(adapter->name)));
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_THAT(*text, HasSubstr(absl::StrCat(adapter->title, " (",
                                              adapter->version, ") for")));
    EXPECT_THAT(ExportNames(), ::testing::Contains(adapter->name));
  }
}

// Goal: the command line offers what it always did. Method: the lists.
TEST(AdapterTest, ListsNames) {
  EXPECT_THAT(ImportNames(),
              ElementsAre("huggingface", "megatron", "megatron-bridge", "nemo",
                          "torchtitan", "deepspeed"));
  EXPECT_EQ(JoinWithOr(ExportNames()),
            "megatron, megatron-bridge, nemo, torchtitan or deepspeed");
  EXPECT_EQ(JoinWithOr(std::vector<std::string>{"one"}), "one");
  EXPECT_EQ(JoinWithOr({}), "");
}

}  // namespace
}  // namespace millrace
