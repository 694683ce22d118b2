// Describes a host's data to the coordinator, so that hosts with other data
// than the rest are found before training.

#ifndef MILLRACE_WORKER_AGENT_DATA_FACTS_H_
#define MILLRACE_WORKER_AGENT_DATA_FACTS_H_

#include "absl/status/statusor.h"
#include "coordinator/protocol/millrace.pb.h"
#include "worker/agent/data_preparation.h"

namespace millrace {

// Errors are those of reading the tokenizer and the evaluation sets.
absl::StatusOr<protocol::DataFacts> FactsOf(const PreparedJobData& data);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_DATA_FACTS_H_
