// One rank's communicators for a layout: one for each group and transfer
// direction that its Programs use.

#ifndef MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_SET_H_
#define MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_SET_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "worker/communicate/communicator.h"

namespace millrace {

class CommunicatorSet {
 public:
  // Collective over the world: makes those of the groups that have more than
  // one member.
  static absl::StatusOr<CommunicatorSet> Create(const Layout& layout, Rank rank,
                                                CommunicatorFactory& factory);

  // One of CollectiveGroups() of the layout, or the world. Null for a group of
  // one.
  Communicator* ForCollective(Group group) const;
  // The communicator of the transfers that go `direction`. Null if there is one
  // stage.
  Communicator* ForTransfer(Direction direction) const;

  // Thread-safe.
  void Abort();

 private:
  std::map<Group, std::unique_ptr<Communicator>> collectives_;
  std::unique_ptr<Communicator> to_next_;
  std::unique_ptr<Communicator> to_previous_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_COMMUNICATE_COMMUNICATOR_SET_H_
