#include "planner/lower/program_size.h"

#include <algorithm>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/lower/lower.h"
#include "planner/program/program.h"

namespace millrace {
namespace {

// From these numbers of micro-batches on, each further one adds the same.
constexpr int32_t kFewMicrobatches = 3;
// Bounds on the instructions of a layer in one micro-batch: every layer has
// fewer than the first and more than the second.
constexpr int64_t kMostPerLayer = 100;
constexpr int64_t kLeastPerLayer = 10;

// The instructions of a step of m micro-batches: `base + m * each`.
struct ProgramSize {
  int64_t base = 0;
  int64_t each = 0;
};

absl::StatusOr<int64_t> CountOf(const ModelSpec& model, Layout layout,
                                int32_t num_microbatches,
                                const std::stop_token& stop) {
  layout.SetMicrobatches(num_microbatches);
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(model, layout, stop));
  int64_t count = 0;
  for (const Program& program : programs) {
    count += static_cast<int64_t>(program.instructions.size());
  }
  return count;
}

// Counts the instructions of a few micro-batches.
absl::StatusOr<ProgramSize> SizeOf(const ModelSpec& model, const Layout& layout,
                                   const std::stop_token& stop) {
  ASSIGN_OR_RETURN(const int64_t fewer,
                   CountOf(model, layout, kFewMicrobatches, stop));
  ASSIGN_OR_RETURN(const int64_t more,
                   CountOf(model, layout, kFewMicrobatches + 1, stop));
  const int64_t each = more - fewer;
  return ProgramSize{.base = fewer - kFewMicrobatches * each, .each = each};
}

}  // namespace

MicrobatchBounds MicrobatchBoundsOf(const ModelSpec& model,
                                    const Layout& layout) {
  // The embedding and the head of each stage count as a layer.
  const int64_t layers = model.num_layers + 2 * int64_t{layout.pipeline};
  const auto most = [](int64_t instructions) {
    return std::max<int64_t>(kFewMicrobatches + 1,
                             kMostInstructions / instructions);
  };
  return {.always_few_enough = most(kMostPerLayer * layers),
          .too_many = most(kLeastPerLayer * model.num_layers)};
}

absl::Status CheckProgramSize(const ModelSpec& model, const Layout& layout,
                              const std::stop_token& stop) {
  if (layout.most_microbatches() <=
      MicrobatchBoundsOf(model, layout).always_few_enough) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const ProgramSize size, SizeOf(model, layout, stop));
  const int64_t count = size.base + layout.most_microbatches() * size.each;
  if (count <= kMostInstructions) return absl::OkStatus();
  const int64_t most = std::max<int64_t>(
      kFewMicrobatches + 1, (kMostInstructions - size.base) / size.each);
  return absl::ResourceExhaustedError(absl::StrCat(
      "a step of ", layout.most_microbatches(),
      " micro-batches has Programs of ",
      FormatCount(static_cast<double>(count)), " instructions, and more than ",
      kMostInstructions,
      " take too much memory and time to make: set training.global_batch to ",
      most * layout.micro_batch * layout.data,
      " or less, use more devices as data replicas, or larger micro-batches "
      "(layout.micro_batch)"));
}

}  // namespace millrace
