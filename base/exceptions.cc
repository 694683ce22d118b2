#include "base/exceptions.h"

#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// The terminate handler: runs for an exception that no thread caught, and for
// a call of std::terminate().
[[noreturn]] void EndWithALine() {
  if (std::current_exception() == nullptr) std::abort();
  std::cerr << DescribeException() << std::endl;
  _exit(kExceptionExitCode);
}

}  // namespace

std::string DescribeException() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "millrace: out of memory; give the process more, or a smaller input";
  } catch (const std::exception& error) {
    return absl::StrCat("millrace: an unexpected error: ", error.what());
  } catch (...) {
    return "millrace: an unexpected error of an unknown kind";
  }
}

int CatchExceptions(const std::function<int()>& body) {
  std::set_terminate(EndWithALine);
  try {
    return body();
  } catch (...) {
    std::cerr << DescribeException() << std::endl;
    return kExceptionExitCode;
  }
}

}  // namespace millrace
