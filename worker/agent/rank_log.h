// The logs of a host's ranks, which stay on the host; others get pieces.

#ifndef MILLRACE_WORKER_AGENT_RANK_LOG_H_
#define MILLRACE_WORKER_AGENT_RANK_LOG_H_

#include <cstdint>
#include <string>

#include "coordinator/protocol/millrace.pb.h"

namespace millrace {

// "RUN/logs/worker-0003.log".
std::string RankLogPath(const std::string& run_directory, int32_t rank);

// The last 8 KiB, for agent 0's host; or why there are none.
std::string EndOfLog(const std::string& path);

// The piece that was asked for, at most 64 KiB, or why there is none.
protocol::LogText PieceOfLog(const std::string& run_directory,
                             const std::string& host,
                             const protocol::LogRequest& request);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_RANK_LOG_H_
