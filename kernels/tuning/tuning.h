// Choices a kernel leaves open (threads, rows a block, stages), made by
// measuring: per family, shape class and chip.
//
// A family declares its knobs and what of a shape matters (tuning_families.h).
// A launcher asks TunedChoice() (tuned_choice.h) and gets the installed entry
// of its class, or the start that it brought. Nothing here measures during
// training: `Tune` runs only where somebody asks for it, and its results travel
// as text with where they came from.
//
// Method: coordinate descent with growing steps from a good start, after
// Canesche et al., "The Droplet Search Algorithm for Kernel Scheduling", 2024.

#ifndef MILLRACE_KERNELS_TUNING_TUNING_H_
#define MILLRACE_KERNELS_TUNING_TUNING_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/tuning/tuned_choice.h"

namespace millrace {

struct TuningKnob {
  std::string name;
  std::vector<int> values;  // Ascending; neighbours should behave alike.
};

struct TuningFamily {
  std::string name;  // "rmsnorm_forward"
  // The dims of a shape that matter; at most 4.
  std::vector<std::string> class_dims;
  std::vector<TuningKnob> knobs;  // At most 4.
};

struct TuningEntry {
  std::string family;
  TuningValues shape_class = {};
  TuningValues choice = {};
  double seconds = 0;        // Measured with the choice.
  double start_seconds = 0;  // With the start, in the same run.
};

// The choices that were measured on one chip.
struct TuningTable {
  std::string chip;     // As CUDA names it: "NVIDIA H200".
  std::string version;  // Version of Millrace.
  std::string date;     // ISO 8601.
  std::vector<TuningEntry> entries;
};

// An entry in words: "norm_forward", "layer=0 residual=1 vectors=512 cached=0"
// and "threads=256", as hardware profiles keep it.
struct TuningWords {
  std::string family;
  std::string shape_class;
  std::string choice;
};
TuningWords WordsOf(const TuningEntry& entry, const TuningFamily& family);
// Without the times. InvalidArgument says what is none of `families`.
absl::StatusOr<TuningEntry> TuningEntryOf(
    const TuningWords& words, absl::Span<const TuningFamily> families);

// As text, one entry a line, and back; InvalidArgument names the line, what it
// holds and what was expected. Families and knobs that `families` lacks, and
// values that a knob does not have, are errors.
std::string FormatTuningTable(const TuningTable& table,
                              absl::Span<const TuningFamily> families);
absl::StatusOr<TuningTable> ParseTuningTable(
    absl::string_view text, absl::Span<const TuningFamily> families);

// From now on launchers choose by `table`; an empty one brings back the starts.
// Any thread may call it at any time; what is enqueued keeps its choice.
void InstallTuning(const TuningTable& table);

// As TunedChoice() of tuned_choice.h, of any family.
TuningValues TunedChoice(const TuningFamily& family,
                         const TuningValues& shape_class,
                         const TuningValues& start);

// While it lives, TunedChoice() of `family` on this thread is `choice`; without
// a choice it is the start. The innermost of a family counts.
class ScopedTuningChoice {
 public:
  explicit ScopedTuningChoice(const TuningFamily& family);
  ScopedTuningChoice(const TuningFamily& family, const TuningValues& choice);
  ~ScopedTuningChoice();
  ScopedTuningChoice(const ScopedTuningChoice&) = delete;
  ScopedTuningChoice& operator=(const ScopedTuningChoice&) = delete;

  // The family's last question; nothing if it was not asked.
  struct Question {
    TuningValues shape_class;
    TuningValues start;
  };
  const std::optional<Question>& asked() const { return asked_; }

 private:
  ScopedTuningChoice* outer_;
  const TuningFamily& family_;
  std::optional<TuningValues> choice_;
  std::optional<Question> asked_;
  friend TuningValues TunedChoice(const TuningFamily&, const TuningValues&,
                                  const TuningValues&);
};

// Seconds of one call with `choice`. InvalidArgument or ResourceExhausted says
// that the kernel cannot run so, and the choice is passed over; any other error
// ends the search.
using TuningMeasure =
    std::function<absl::StatusOr<double>(const TuningValues& choice)>;

struct TuningResult {
  TuningValues choice;
  double seconds;
  double start_seconds;
  int num_measured;
};

// Descends from `start`, which must run. A move counts if it gains
// more than `least_gain` (0.01: one per cent), which should exceed the noise.
absl::StatusOr<TuningResult> Tune(const TuningFamily& family,
                                  const TuningValues& start,
                                  const TuningMeasure& measure,
                                  double least_gain);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_TUNING_TUNING_H_
