#include "worker/agent/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>

#include "absl/strings/string_view.h"

namespace millrace {
namespace {

constexpr int kMostRecords = 1000;
// The kernel's CONSOLE_EXT_LOG_MAX is 8 KiB: no record is longer.
constexpr size_t kRecordBytes = 8192;

}  // namespace

KernelLog::KernelLog()
    : fd_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (fd_ >= 0) lseek(fd_, 0, SEEK_END);
}

KernelLog::~KernelLog() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Xid> KernelLog::Take() {
  std::vector<Xid> xids;
  std::array<char, kRecordBytes> buffer;
  for (int i = 0; fd_ >= 0 && i < kMostRecords; ++i) {
    const ssize_t size = read(fd_, buffer.data(), buffer.size());
    // EPIPE: the oldest records were overwritten, and reading goes on behind.
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (size <= 0) break;
    const std::optional<Xid> xid =
        ParseXid(absl::string_view(buffer.data(), static_cast<size_t>(size)));
    if (xid.has_value()) xids.push_back(*xid);
  }
  return xids;
}

}  // namespace millrace
