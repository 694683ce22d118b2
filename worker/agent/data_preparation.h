// Preparing a job's data on a thread of its own, while the agent goes on
// listening.

#ifndef MILLRACE_WORKER_AGENT_DATA_PREPARATION_H_
#define MILLRACE_WORKER_AGENT_DATA_PREPARATION_H_

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/protocol/millrace.pb.h"
#include "planner/job/job.h"
#include "worker/data/evaluation_batches.h"
#include "worker/data/prepare.h"

namespace millrace {

struct PreparedJobData {
  PreparedData training;
  std::vector<EvaluationSet> evaluation;
  int64_t document_length = 0;  // MeanDocumentLength(), where it is counted.
  // Where data.from names a host: its files and facts (data_offer.h).
  std::optional<protocol::DataOffer> offer;
};

struct DataPreparationOptions {
  int32_t num_threads = 1;
  bool show_progress = false;     // On standard output.
  bool counts_documents = false;  // Fills document_length.
  bool offers = false;            // Fills offer.
  // If set, the data come from here and nothing is prepared.
  std::function<absl::StatusOr<PreparedJobData>()> fetch;
};

class DataPreparation {
 public:
  // Starts at once. Agents of one host may do so all together: one works, the
  // others wait for it.
  DataPreparation(const JobSpec& job, const DataPreparationOptions& options);
  // Waits for the thread; ask ended() first.
  ~DataPreparation();

  // Readable once the result is there; for poll().
  int event_fd() const { return event_fd_; }
  // True, once, when the result is there.
  bool TakeResult(absl::StatusOr<PreparedJobData>* result);
  bool ended() const { return ended_; }

 private:
  void Run(const JobSpec& job);
  absl::StatusOr<PreparedJobData> Prepare(const JobSpec& job);
  // Tells people what the data is.
  static void Describe(const JobSpec& job, const PreparedData& data);
  void Show(const PrepareProgress& progress);

  const DataPreparationOptions options_;
  const bool interactive_;
  int event_fd_;
  absl::Time last_shown_ = absl::InfinitePast();
  // When the stage began, and how much was done then: what a restart or other
  // processes did says nothing of this one's speed.
  absl::Time stage_began_ = absl::InfinitePast();
  int64_t stage_began_bytes_ = 0;
  PrepareStage last_stage_ = PrepareStage::kWaiting;
  bool line_open_ = false;
  std::mutex mutex_;
  absl::StatusOr<PreparedJobData> result_ = absl::UnavailableError("not yet");
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_AGENT_DATA_PREPARATION_H_
