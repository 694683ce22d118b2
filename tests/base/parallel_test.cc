#include "base/parallel.h"

#include <atomic>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Goal: every index is worked on once, however many threads there are. Method:
// counts of few and many indices on one thread, some, and more than indices.
TEST(ParallelForTest, CallsEachOnce) {
  for (const int64_t count : {0, 1, 7, 1000}) {
    for (const int num_threads : {1, 3, 16}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      EXPECT_TRUE(ParallelFor(count, num_threads, [&](int64_t i) {
                    ++calls[static_cast<size_t>(i)];
                    return absl::OkStatus();
                  }).ok());
      for (const std::atomic<int>& number : calls) EXPECT_EQ(number, 1);
    }
  }
}

// Goal: whichever thread is quicker, the same error comes back, and work ends
// soon. Method: all from an index on fail; the lowest is told, many times over.
TEST(ParallelForTest, ReturnsTheLowestError) {
  constexpr int64_t kCount = 100000, kFirstBad = 50;
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> num_calls = 0;
    const absl::Status status = ParallelFor(kCount, 4, [&](int64_t i) {
      ++num_calls;
      return i < kFirstBad ? absl::OkStatus()
                           : absl::DataLossError(absl::StrCat(i));
    });
    EXPECT_EQ(status, absl::DataLossError(absl::StrCat(kFirstBad)));
    EXPECT_LE(num_calls, kFirstBad + 4);  // One a thread beyond.
  }
}

}  // namespace
}  // namespace millrace
