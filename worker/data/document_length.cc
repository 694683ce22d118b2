#include "worker/data/document_length.h"

#include <cmath>
#include <vector>

#include "base/status_macros.h"

namespace millrace {
namespace {

// Enough for a mean within a few percent.
constexpr int64_t kSequencesRead = 256;

// Over a sequence's documents.
double SumOfSquaredLengths(const std::vector<int32_t>& document_starts) {
  double sum = 0;
  size_t begin = 0;
  for (size_t end = 1; end <= document_starts.size(); ++end) {
    if (end < document_starts.size() &&
        document_starts[end] == document_starts[begin]) {
      continue;
    }
    const auto length = static_cast<double>(end - begin);
    sum += length * length;
    begin = end;
  }
  return sum;
}

}  // namespace

absl::StatusOr<int64_t> MeanDocumentLength(const JobSpec& job,
                                           BatchSource& batches) {
  const int64_t global_batch = job.training.global_batch;
  const auto length = static_cast<size_t>(job.model.sequence_length);
  std::vector<int32_t> tokens(length), targets(length), starts(length), pairs;
  std::vector<float> references;
  if (job.training.trains_preferences()) {
    pairs.resize(length);
    references.resize(length);
  }
  double sum = 0;
  for (int64_t i = 0; i < kSequencesRead; ++i) {
    pairs.assign(pairs.size(), -1);
    RETURN_IF_ERROR(batches.Fill(
        {.split = DataSplit::kTraining,
         .step = 1 + i / global_batch,
         .global_batch = global_batch,
         .first_sequence_idx = i % global_batch,
         .num_sequences = 1},
        {.tokens = tokens.data(),
         .targets = targets.data(),
         .document_starts = starts.data(),
         .pair_starts = pairs.empty() ? nullptr : pairs.data(),
         .references = references.empty() ? nullptr : references.data()}));
    sum += SumOfSquaredLengths(starts);
  }
  const double num_tokens = static_cast<double>(kSequencesRead) *
                            static_cast<double>(job.model.sequence_length);
  const auto mean = static_cast<int64_t>(std::llround(sum / num_tokens));
  return mean < job.model.sequence_length ? mean : 0;
}

}  // namespace millrace
