// Rewriting a checkpoint under another layout. Loading does not need it, every
// layout loads every checkpoint; it helps when many ranks load at once, since
// each then reads its own file from end to end.

#ifndef MILLRACE_FAULT_RESHARD_H_
#define MILLRACE_FAULT_RESHARD_H_

#include <string>

#include "absl/status/statusor.h"
#include "fault/checkpoint.h"
#include "planner/layout/model.h"

namespace millrace {

// Loads `path` and writes it as a committed checkpoint of the same step under
// `directory`, cut for `layout`, one rank at a time: memory needed is that of
// one rank. Other checkpoints in `directory` stay. Returns the new one.
//
// InvalidArgument if the layout cannot hold the model or the checkpoint is of
// another model, AlreadyExists if `directory` has that step.
absl::StatusOr<CheckpointEntry> ReshardCheckpoint(FileSystem& files,
                                                  const std::string& path,
                                                  const std::string& directory,
                                                  const ModelSpec& model,
                                                  const Layout& layout);

}  // namespace millrace

#endif  // MILLRACE_FAULT_RESHARD_H_
