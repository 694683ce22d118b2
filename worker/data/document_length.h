// How far attention reaches in a job's training sequences.

#ifndef MILLRACE_WORKER_DATA_DOCUMENT_LENGTH_H_
#define MILLRACE_WORKER_DATA_DOCUMENT_LENGTH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/job/job.h"
#include "worker/data/batch_source.h"

namespace millrace {

// Returns the length of the document that a token lies in, averaged over the
// tokens of the job's first training sequences (Layout::document_length); zero
// where each of them is one document. What is left empty at the end of a
// sequence counts as a document, since attention computes it. Equal jobs and
// data give equal lengths. Errors are those of BatchSource::Fill().
absl::StatusOr<int64_t> MeanDocumentLength(const JobSpec& job,
                                           BatchSource& batches);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_DOCUMENT_LENGTH_H_
