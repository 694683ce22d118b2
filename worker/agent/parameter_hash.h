// One number for the state of a model's parameters: equal bits, equal hash,
// whatever layout holds them.

#ifndef MILLRACE_WORKER_AGENT_PARAMETER_HASH_H_
#define MILLRACE_WORKER_AGENT_PARAMETER_HASH_H_

#include <cstdint>
#include <vector>

#include "fault/training_state.h"

namespace millrace {

// The sum, modulo 2^64, over all parameter elements in the pieces that this
// rank owns, of a hash of (tensor name, global index, bits). The sum over all
// ranks is the model's; moments do not count.
uint64_t HashOwnedParameters(const std::vector<StatePiece>& pieces);

// A hash of the parameters and moments that the ranks of a data group hold
// alike (fault/replica_check.h). `checksums`: ChecksumsOf() all of the rank's
// pieces.
uint64_t HashReplica(const std::vector<std::vector<uint64_t>>& checksums);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_PARAMETER_HASH_H_
