// Between the planner's types and the protocol's messages.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_CONVERT_H_
#define MILLRACE_COORDINATOR_PROTOCOL_CONVERT_H_

#include "coordinator/protocol/millrace.pb.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/simulate/timeline.h"

namespace millrace {

protocol::LayoutMessage ToMessage(const Layout& layout);
Layout FromMessage(const protocol::LayoutMessage& message);

protocol::KernelTuningMessage ToMessage(const KernelTuning& tuning);
KernelTuning FromMessage(const protocol::KernelTuningMessage& message);

protocol::Breakdown ToMessage(const TimeBreakdown& breakdown);
TimeBreakdown FromMessage(const protocol::Breakdown& message);

void AddTimeline(const RankTimeline& timeline, protocol::StepDone* message);
RankTimeline TimelineOf(const protocol::StepDone& message, Rank rank);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_CONVERT_H_
