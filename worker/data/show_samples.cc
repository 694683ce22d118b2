#include "worker/data/show_samples.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

bool IsTrained(const Sample& sample, size_t token_idx) {
  return sample.trained.empty() || sample.trained[token_idx];
}

std::string Counted(size_t count, const char* noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Tokens [begin, end) of one document, all of them trained or none.
void AppendRun(const Sample& sample, size_t begin, size_t end,
               const Tokenizer* tokenizer, std::string* text) {
  const std::vector<int32_t> ids(
      sample.tokens.begin() + static_cast<int64_t>(begin),
      sample.tokens.begin() + static_cast<int64_t>(end));
  std::string shown = absl::StrJoin(ids, " ");
  if (tokenizer != nullptr) {
    const absl::StatusOr<std::string> decoded = tokenizer->Decode(ids);
    if (decoded.ok()) shown = *decoded;
  }
  const char* mark = IsTrained(sample, begin) ? "    + " : "    - ";
  for (const absl::string_view line : absl::StrSplit(shown, '\n')) {
    absl::StrAppend(text, mark, line, "\n");
  }
}

}  // namespace

absl::StatusOr<std::vector<Sample>> ReadSamples(const JobSpec& job,
                                                BatchSource* batches,
                                                int64_t step, int64_t count) {
  count = std::min(count, job.training.global_batch);
  const int64_t length = job.model.sequence_length;
  const auto size = static_cast<size_t>(count * length);
  std::vector<int32_t> tokens(size);
  std::vector<int32_t> targets(size);
  std::vector<int32_t> starts(size);
  RETURN_IF_ERROR(batches->Fill({.split = DataSplit::kTraining,
                                 .step = step,
                                 .global_batch = job.training.global_batch,
                                 .first_sequence_idx = 0,
                                 .num_sequences = count},
                                {.tokens = tokens.data(),
                                 .targets = targets.data(),
                                 .document_starts = starts.data()}));
  std::vector<Sample> samples;
  for (int64_t i = 0; i < count; ++i) {
    const auto part = [&](const std::vector<int32_t>& whole) {
      return std::vector<int32_t>(whole.begin() + i * length,
                                  whole.begin() + (i + 1) * length);
    };
    samples.push_back(
        {.tokens = part(tokens), .document_starts = part(starts)});
    const std::vector<int32_t> predicted = part(targets);
    std::vector<bool> trained;
    for (size_t j = 0; j < predicted.size(); ++j) {
      trained.push_back(predicted[std::max<size_t>(j, 1) - 1] >= 0);
    }
    samples.back().trained = std::move(trained);
  }
  return samples;
}

std::string DescribeSample(const Sample& sample, const Tokenizer* tokenizer,
                           int64_t max_tokens) {
  std::string text;
  const size_t num_tokens = sample.tokens.size();
  size_t document = 0;
  for (size_t begin = 0; begin < num_tokens;) {
    const int32_t start = sample.document_starts[begin];
    size_t end = begin;
    while (end < num_tokens && sample.document_starts[end] == start) ++end;
    const size_t shown_end =
        std::min(end, begin + static_cast<size_t>(max_tokens));
    absl::StrAppend(&text, "  document ", ++document, ", ",
                    Counted(end - begin, "token"), "\n");
    for (size_t at = begin; at < shown_end;) {
      size_t run_end = at;
      while (run_end < shown_end &&
             IsTrained(sample, run_end) == IsTrained(sample, at)) {
        ++run_end;
      }
      AppendRun(sample, at, run_end, tokenizer, &text);
      at = run_end;
    }
    if (shown_end < end) {
      absl::StrAppend(&text, "    ... ", end - shown_end, " more\n");
    }
    begin = end;
  }
  const auto num_trained = static_cast<size_t>(
      sample.trained.empty()
          ? static_cast<int64_t>(num_tokens)
          : std::count(sample.trained.begin(), sample.trained.end(), true));
  return absl::StrCat(Counted(num_tokens, "token"), ", ",
                      Counted(document, "document"), ", ", num_trained,
                      " trained\n", text);
}

}  // namespace millrace
