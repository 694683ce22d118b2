#include "worker/communicate/directory_rendezvous_store.h"

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: a value set in one process, here another store of the same folder, is
// got whole, also one with zero bytes and newlines; a key that nobody sets is
// named after the time-out. Method: one setter that comes late.
TEST(DirectoryRendezvousStoreTest, HandsValuesOverAndNamesWhatIsMissing) {
  const std::string folder = testing::TempDir() + "/store/" +
                             std::to_string(absl::GetCurrentTimeNanos());
  DirectoryRendezvousStore here(folder);
  DirectoryRendezvousStore there(folder);
  const std::string value("a\0b\n", 4);
  std::thread late([&] {
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_TRUE(there.Set("group/ranks 0, 1", value).ok());
  });
  EXPECT_EQ(here.Get("group/ranks 0, 1", absl::Seconds(10)).value(), value);
  late.join();

  const auto missing = here.Get("group/rank 2", absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()),
              testing::HasSubstr("'group/rank 2'"));
}

}  // namespace
}  // namespace millrace
