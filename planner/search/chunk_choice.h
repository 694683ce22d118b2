// Chooses into how many chunks a micro-batch's tokens are cut
// (Layout::tensor_chunks).

#ifndef MILLRACE_PLANNER_SEARCH_CHUNK_CHOICE_H_
#define MILLRACE_PLANNER_SEARCH_CHUNK_CHOICE_H_

#include <vector>

#include "absl/status/status.h"
#include "planner/cost/op_cost.h"
#include "planner/job/job.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/search/plan.h"

namespace millrace {

// The layout with 2 and with 4 chunks, as far as it can have them: more make
// products too small. Nothing for one that has chunks.
std::vector<Layout> ChunkedVariants(const ModelSpec& model,
                                    const Layout& layout);

// Whether the planner may choose: on GPUs, where the job leaves it open. On a
// CPU communication takes the cores that products compute on.
bool MayChooseChunks(const JobSpec& job);

// `plan` must have been predicted by instructions with one chunk. Changes its
// layout, prediction, timeline and hashes to those with as many chunks as the
// job pins, if the layout can have so many. If the job pins none, changes them
// to the fastest number of chunks, if any is faster. Errors are
// PredictLayout's.
absl::Status ChooseTensorChunks(const JobSpec& job, const CostModel& cost,
                                Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CHUNK_CHOICE_H_
