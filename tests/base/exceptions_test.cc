#include "base/exceptions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <thread>

namespace millrace {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

// Goal: exit codes pass through, exceptions become the one code. Method: one
// body of each kind.
TEST(ExceptionsTest, BecomeAnExitCode) {
  EXPECT_EQ(CatchExceptions([] { return 3; }), 3);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(CatchExceptions([]() -> int { throw std::runtime_error("why"); }),
            kExceptionExitCode);
  EXPECT_EQ(CatchExceptions([]() -> int { throw std::bad_alloc(); }),
            kExceptionExitCode);
  EXPECT_EQ(CatchExceptions([]() -> int { throw 5; }), kExceptionExitCode);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "millrace: an unexpected error: why\n"
            "millrace: out of memory; give the process more, or a smaller "
            "input\n"
            "millrace: an unexpected error of an unknown kind\n");
}

// Goal: an exception that ends a thread ends the process with the same line and
// code, not with a bare abort. Method: a thread that throws.
TEST(ExceptionsDeathTest, OfAnotherThreadEndTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto body = [] {
    std::thread thread([] { throw std::runtime_error("in a thread"); });
    thread.join();
    return 0;
  };
  EXPECT_EXIT(CatchExceptions(body), ExitedWithCode(kExceptionExitCode),
              "millrace: an unexpected error: in a thread");
}

}  // namespace
}  // namespace millrace
