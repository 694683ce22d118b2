// Into how many chunks the tokens of a micro-batch are cut
// (Layout::tensor_chunks): what may be worth it, and whether it is.

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

// Of a plan that was predicted by instructions with one chunk: changes its
// layout, prediction, timeline and hashes to those with as many as the job
// pins, where the layout can have so many, or else as are faster, if any.
// Errors as PredictLayout's.
absl::Status ChooseTensorChunks(const JobSpec& job, const CostModel& cost,
                                Plan* plan);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_CHUNK_CHOICE_H_
