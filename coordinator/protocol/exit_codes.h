// Exit codes of a job, the same under every launcher (docs/cluster.md).

#ifndef MILLRACE_COORDINATOR_PROTOCOL_EXIT_CODES_H_
#define MILLRACE_COORDINATOR_PROTOCOL_EXIT_CODES_H_

namespace millrace {

// All steps are done, or the job was stopped by request after the step.
inline constexpr int kDoneExitCode = 0;
inline constexpr int kFailedExitCode = 1;
// The job cannot work: its file, its data, its hosts or its command line.
inline constexpr int kRefusedExitCode = 2;
// The job was asked, by SIGUSR1, to make room. Started again, it goes on after
// the step at which it stopped. EX_TEMPFAIL of sysexits.h, and what
// administrators of Slurm give as RequeueExit.
inline constexpr int kRequeueExitCode = 75;
// Not of a job, but of a coordinator's process that gives its place to that of
// another agent (coordinator/succession).
inline constexpr int kSteppedDownExitCode = 76;

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_EXIT_CODES_H_
