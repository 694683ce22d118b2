#include "worker/data/show_samples.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
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
  // The next run begins a line of its own anyway.
  if (absl::EndsWith(shown, "\n")) shown.pop_back();
  const char* mark = IsTrained(sample, begin) ? "    + " : "    - ";
  for (const absl::string_view line : absl::StrSplit(shown, '\n')) {
    absl::StrAppend(text, mark, line, "\n");
  }
}

// A sequence as a step reads it.
struct SequenceView {
  absl::Span<const int32_t> tokens;
  absl::Span<const int32_t> targets;
  absl::Span<const int32_t> document_starts;

  size_t DocumentEnd(size_t begin) const {
    size_t end = begin;
    while (end < tokens.size() &&
           document_starts[end] == document_starts[begin]) {
      ++end;
    }
    return end;
  }
  // Not the stream of a text, in which every token predicts the next one.
  bool HoldsSamples() const {
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (targets[i] < 0) return true;
      if (i + 1 < tokens.size() && targets[i] != tokens[i + 1]) return true;
    }
    return false;
  }
  bool IsEmpty(size_t begin, size_t end) const {
    const auto all_are = [&](absl::Span<const int32_t> values, int32_t value) {
      return std::all_of(values.begin() + static_cast<int64_t>(begin),
                         values.begin() + static_cast<int64_t>(end),
                         [value](int32_t one) { return one == value; });
    };
    return all_are(targets, -1) && all_are(tokens, 0);
  }
};

Sample SampleOfText(const SequenceView& sequence) {
  Sample sample{.tokens = {sequence.tokens.begin(), sequence.tokens.end()},
                .document_starts = {sequence.document_starts.begin(),
                                    sequence.document_starts.end()}};
  sample.trained.assign(sample.tokens.size(), true);
  return sample;
}

Sample SampleOfSamples(const SequenceView& sequence) {
  Sample sample;
  const size_t size = sequence.tokens.size();
  for (size_t begin = 0; begin < size;) {
    const size_t end = sequence.DocumentEnd(begin);
    const auto start = static_cast<int32_t>(sample.tokens.size());
    if (end == size && sequence.IsEmpty(begin, end)) {
      sample.num_empty_places = static_cast<int64_t>(end - begin);
      break;
    }
    const auto add = [&](int32_t token, bool trained) {
      sample.tokens.push_back(token);
      sample.document_starts.push_back(start);
      sample.trained.push_back(trained);
    };
    for (size_t i = begin; i < end; ++i) {
      add(sequence.tokens[i], i > begin && sequence.targets[i - 1] >= 0);
    }
    const int32_t last = sequence.targets[end - 1];
    if (last >= 0) add(last, true);
    begin = end;
  }
  return sample;
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
      return absl::MakeConstSpan(whole.data() + i * length,
                                 static_cast<size_t>(length));
    };
    const SequenceView sequence = {.tokens = part(tokens),
                                   .targets = part(targets),
                                   .document_starts = part(starts)};
    samples.push_back(sequence.HoldsSamples() ? SampleOfSamples(sequence)
                                              : SampleOfText(sequence));
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
  return absl::StrCat(
      Counted(num_tokens, "token"), ", ", Counted(document, "document"), ", ",
      num_trained, " trained",
      sample.num_empty_places == 0
          ? ""
          : absl::StrCat(", ", sample.num_empty_places, " places left empty"),
      "\n", text);
}

}  // namespace millrace
