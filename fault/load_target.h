// Memory that a loaded state goes to and that the host cannot write itself:
// that of a device.

#ifndef MILLRACE_FAULT_LOAD_TARGET_H_
#define MILLRACE_FAULT_LOAD_TARGET_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

class LoadTarget {
 public:
  virtual ~LoadTarget() = default;

  // The way of one thread at a time. Destroying it waits for its copies.
  class Lane {
   public:
    virtual ~Lane() = default;
    // Host memory of kChunkBytes to read the next chunk into; the lane's own,
    // and only until the next call. Waits while copies still read from it.
    virtual absl::StatusOr<float*> Buffer() = 0;
    // Begins to copy elements of the newest Buffer() to `to`, which is an
    // address in the target's memory.
    virtual absl::Status Copy(float* to, const float* from,
                              int64_t num_elements) = 0;
    // Waits until all copies have ended.
    virtual absl::Status Finish() = 0;
  };
  // Thread-safe. The target must outlive the lane.
  virtual absl::StatusOr<std::unique_ptr<Lane>> OpenLane() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_LOAD_TARGET_H_
