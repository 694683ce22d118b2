#include "worker/backend/shared_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Goal: what the system says about a missing library, or one that it needs, is
// read for its name; other messages are not misread. Method: a real failure,
// then texts as glibc writes them.
TEST(SharedLibraryTest, NamesWhatIsMissing) {
  const auto missing = LoadSharedLibrary("libno_such_thing.so.7");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MissingLibrary(missing.status().message()),
            "libno_such_thing.so.7");
  EXPECT_EQ(MissingLibrary("/a/libb.so: undefined symbol: f"), "");
  EXPECT_EQ(MissingLibrary(""), "");
  EXPECT_TRUE(LoadSharedLibrary("libm.so.6").ok());
}

// Goal: folders are searched in order, with wildcards, and a pattern whose
// variable is unset finds nothing. Method: two folders with a file of the name.
TEST(SharedLibraryTest, SearchesFolders) {
  TemporaryFolder folder;
  const std::string root = folder.path();
  for (const char* name : {"/one/lib", "/two/lib", "/three"}) {
    std::filesystem::create_directories(root + name);
  }
  std::ofstream(root + "/one/lib/libx.so") << "x";
  std::ofstream(root + "/two/lib/libx.so") << "x";
  setenv("MILLRACE_TEST_ROOT", root.c_str(), 1);
  unsetenv("MILLRACE_TEST_UNSET");
  EXPECT_THAT(
      FindInFolders({"${MILLRACE_TEST_UNSET}/one/lib", root + "/three",
                     "${MILLRACE_TEST_ROOT}/t*/lib", root + "/one/lib"},
                    "libx.so"),
      ElementsAre(root + "/two/lib/libx.so", root + "/one/lib/libx.so"));
  EXPECT_THAT(FindInFolders({root + "/*"}, "liby.so"), IsEmpty());
}

}  // namespace
}  // namespace millrace
