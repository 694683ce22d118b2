// Reads what NVIDIA's driver reports of GPUs in the kernel's log from now on.

#ifndef MILLRACE_WORKER_AGENT_KERNEL_LOG_H_
#define MILLRACE_WORKER_AGENT_KERNEL_LOG_H_

#include <vector>

#include "fault/xid.h"

namespace millrace {

class KernelLog {
 public:
  // Opens /dev/kmsg at its end. Where this process may not read it, or there is
  // none, nothing is ever reported: it takes root, CAP_SYSLOG, or
  // kernel.dmesg_restrict=0.
  KernelLog();
  // For tests: reads one record at a time from `fd`, which does not block, and
  // closes it in the end.
  explicit KernelLog(int fd) : fd_(fd) {}
  ~KernelLog();
  KernelLog(const KernelLog&) = delete;
  KernelLog& operator=(const KernelLog&) = delete;

  // The XID messages that came since the last call. Never waits, and reads a
  // thousand records at most (some 2 ms): the next call goes on.
  std::vector<Xid> Take();

 private:
  int fd_ = -1;  // -1: the log is not read.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_KERNEL_LOG_H_
