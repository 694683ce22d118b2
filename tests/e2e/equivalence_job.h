// Runs a small job under any layout with its ranks as threads of one process,
// and keeps what must not depend on the layout.

#ifndef MILLRACE_TESTS_E2E_EQUIVALENCE_JOB_H_
#define MILLRACE_TESTS_E2E_EQUIVALENCE_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "worker/communicate/communicator.h"
#include "worker/data/batch_source.h"
#include "worker/train/progress_board.h"
#include "worker/train/trainer.h"

namespace millrace {

// Four layers, every size divisible by four, global batch 8.
JobSpec SmallJob();

// The same job with the options of other families, by name: "scaled_rope", ...
std::vector<std::pair<std::string, JobSpec>> JobsOfFamilies();

// One factory a rank, that meet each other.
using NewFactory = std::function<std::unique_ptr<CommunicatorFactory>()>;

// One source of batches a rank.
using NewBatches = std::function<std::unique_ptr<BatchSource>(const JobSpec&)>;
std::unique_ptr<BatchSource> NewSyntheticBatches(const JobSpec& job);

// A Trainer for each rank of `layout`, each in a thread of its own; `body` runs
// in that thread. Rank 0 writes its progress on `progress`, unless it is null.
// Returns the first error.
absl::Status RunRanks(const JobSpec& job, const Layout& layout,
                      const NewFactory& new_factory,
                      const std::function<absl::Status(Rank, Trainer&)>& body,
                      const NewBatches& new_batches = NewSyntheticBatches,
                      ProgressBoard* progress = nullptr);

// Copies the pieces that this rank owns into whole tensors by name.
using Tensors = std::map<std::string, std::vector<float>>;
void CollectOwned(const std::vector<StatePiece>& pieces, Tensors* tensors);

struct JobResult {
  absl::Status status;
  // Rank 0's. All ranks' are checked to be equal.
  std::vector<double> losses;
  std::vector<double> gradient_norms;
  double validation_loss = 0;
  Tensors tensors;  // Parameters and moments.
};
// Trains `num_steps`, then validates.
JobResult RunJob(const JobSpec& job, const Layout& layout, int64_t num_steps,
                 const NewFactory& new_factory,
                 const NewBatches& new_batches = NewSyntheticBatches);
// The same with in-process communicators.
JobResult RunJob(const JobSpec& job, const Layout& layout, int64_t num_steps,
                 const NewBatches& new_batches = NewSyntheticBatches);

// The layouts of up to four ranks for a global batch of 8: pipeline, tensor and
// data in {1, 2, 4}, micro-batch counts 1, 2, 4, every ZeRO stage where it
// differs, each with the next way to recompute; and uneven ones.
std::vector<Layout> SmallLayouts();

}  // namespace millrace

#endif  // MILLRACE_TESTS_E2E_EQUIVALENCE_JOB_H_
