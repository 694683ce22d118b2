// Reads messages in which ranks tell the state of their hosts and GPUs.

#ifndef MILLRACE_COORDINATOR_HOST_SIGNS_H_
#define MILLRACE_COORDINATOR_HOST_SIGNS_H_

#include "coordinator/protocol/health.pb.h"
#include "fault/slow_cause.h"

namespace millrace {

// The inverse of ToMessage() (worker/agent/host_sign.h). Nothing is known of
// the GPU where the message has none.
HostSign SignFromMessage(const protocol::HostSign& message);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_HOST_SIGNS_H_
