// Data that one host has and the others fetch from it (data.from).

#ifndef MILLRACE_WORKER_AGENT_DATA_OFFER_H_
#define MILLRACE_WORKER_AGENT_DATA_OFFER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/files/file_server.h"
#include "coordinator/protocol/millrace.pb.h"
#include "worker/agent/data_preparation.h"

namespace millrace {

// Describes all token files of `data`, which has no offer yet. Reads every byte
// of them for their hashes. Errors are those of reading.
absl::StatusOr<protocol::DataOffer> OfferOf(const PreparedJobData& data);

// From now on `server` gives out the files of data.offer.
void ServeData(const PreparedJobData& data, FileServer* server);

struct DataFetch {
  protocol::FetchData order;
  std::string secret;
  std::string cache_directory;  // The job's. Empty: the user's.
  // Called now and then from the calling thread; may be null.
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
};

// The offered data, in token files of this host's own: those that an earlier
// call left in CACHE/fetched/, or fetched now. A file that an earlier call left
// unfinished is continued. Every file is compared with its hash. Agents of one
// host may call it at once: one fetches, the others wait.
//
// Unavailable, with the hosts that were tried, if a file does not come for a
// minute; DataLoss if it has another hash than was offered; errors of writing
// name the path.
absl::StatusOr<PreparedJobData> FetchData(const DataFetch& fetch);

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_DATA_OFFER_H_
