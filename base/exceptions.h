// The last line of defence. Errors travel as absl::Status, and each outside
// library's exceptions end at its door; whatever slips through (memory that ran
// out, a defect) ends the process with one clear line instead of a bare abort.

#ifndef MILLRACE_BASE_EXCEPTIONS_H_
#define MILLRACE_BASE_EXCEPTIONS_H_

#include <functional>
#include <string>

namespace millrace {

// The exit code of a process that such an exception ended (EX_SOFTWARE).
// Whoever started the process takes it for a crash, as a signal's.
inline constexpr int kExceptionExitCode = 70;

// Runs `body` and returns its exit code; an exception becomes a line on
// standard error and kExceptionExitCode. An exception that ends another thread
// does the same from now on, at once and without destructors.
int CatchExceptions(const std::function<int()>& body);

// The line for the exception that is being handled; for tests.
std::string DescribeException();

}  // namespace millrace

#endif  // MILLRACE_BASE_EXCEPTIONS_H_
