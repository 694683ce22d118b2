// The set of a layer's ops that the backward pass recomputes instead of keeping
// their outputs since the forward pass (Chen et al., "Training Deep Nets with
// Sublinear Memory Cost", 2016; by ops, Korthikanti et al., 2022).

#ifndef MILLRACE_PLANNER_LAYOUT_RECOMPUTE_H_
#define MILLRACE_PLANNER_LAYOUT_RECOMPUTE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// A set of ops whose outputs are dropped after the forward pass. They are
// recomputed before the layer's gradients need them, from outputs that were
// kept or recomputed before. A layer's input is always kept. The values are
// bits, so a superset is a greater number.
enum class Recompute : uint8_t {
  kNone = 0,
  kNorm = 1,        // Both norms.
  kActivation = 2,  // The feed-forward block's, or experts'.
  kQkv = 4,         // The product, and the rotation; latent attention's
                    // products from its latent vectors.
  kGateUp = 8,      // The feed-forward block's first products, or experts'.
  // The product after attention and its sum over tensor ranks, which the second
  // norm adds to the stream. The norm then recomputes the stream, so kOutput
  // needs kNorm.
  kOutput = 16,
  kAttention = 32,  // Its output and the statistics of its scores.
  kDispatch = 64,   // To experts: from the router to their inputs.
  kFull = 127,      // Everything between the inputs of layers.
  // No GEMM, no attention, no communication: two or three bytes moved for one
  // saved. It is the choice where nothing has a price.
  kCheap = kNorm | kActivation,
  // The set of Implementation::selective. Only runs of frameworks have it.
  kPolicy = 128,
};
inline constexpr int kNumRecomputes = 129;  // Values, of which kPolicy is last.

constexpr Recompute operator|(Recompute a, Recompute b) {
  return static_cast<Recompute>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr Recompute operator&(Recompute a, Recompute b) {
  return static_cast<Recompute>(static_cast<int>(a) & static_cast<int>(b));
}
// Whether `set` has all of `ops`.
constexpr bool Has(Recompute set, Recompute ops) { return (set & ops) == ops; }

// The ops by themselves, in the order of their bits; kDispatch last, which
// models without experts do not have.
inline constexpr Recompute kRecomputeOps[] = {
    Recompute::kNorm,    Recompute::kActivation, Recompute::kQkv,
    Recompute::kGateUp,  Recompute::kOutput,     Recompute::kAttention,
    Recompute::kDispatch};

// "none", "norm+activation", "full"; "selective" for kPolicy.
std::string RecomputeName(Recompute recompute);
// "norm, activation, ...": the ops.
std::string RecomputeOpNames();
// Parses a RecomputeName(); the ops may be in any order. "selective" gives
// kCheap, not kPolicy. Returns InvalidArgument naming the known ops for other
// words, and for output without norm.
absl::StatusOr<Recompute> ParseRecompute(absl::string_view name);

// The savings and costs of one op of a set, for one layer and micro-batch.
struct RecomputeCandidate {
  Recompute op;
  double bytes = 0;    // No longer kept between the passes.
  double seconds = 0;  // Time of recomputing it.
};
// Returns the candidates of all ops. `with(set)` gives the bytes that are still
// kept with that set and the seconds that recomputing it takes.
std::vector<RecomputeCandidate> RecomputeCandidates(
    const std::function<RecomputeCandidate(Recompute set)>& with);
// Sorts by bytes saved a second, the most first; output comes after norm.
std::vector<RecomputeCandidate> BestFirst(
    std::span<const RecomputeCandidate> candidates);
// The sets worth having; each saves and takes more than the one before. The
// first is none, then ops are added one by one as BestFirst() orders them, and
// the last is full. Before a large op is added, a later op that saves and takes
// half as much at most stands in for it. Ops that save nothing are left out.
std::vector<Recompute> RecomputeLadder(
    std::span<const RecomputeCandidate> candidates);

// Where nothing has a price: none, cheap, full.
std::vector<Recompute> UnpricedRecomputes();

// The ops that stages recompute. With an empty `by_stage` all stages recompute
// `recompute`. Otherwise each stage has its own entry there, and `recompute` is
// the union of the entries.
struct StageRecomputes {
  Recompute recompute = Recompute::kNone;
  std::vector<Recompute> by_stage;
  friend bool operator==(const StageRecomputes&,
                         const StageRecomputes&) = default;
};

// The choices that a job's `layout.recompute` leaves of a ladder, the least
// first. "auto" leaves all of it. "selective" leaves all but none and full. A
// set leaves that set alone. A list of these, one for each stage, leaves one
// choice for each set that "selective" leaves, the same set for all stages that
// say so. The job's key must be one that CheckRecomputeKey() accepts.
std::vector<StageRecomputes> AllowedRecomputes(
    absl::string_view key, std::span<const Recompute> ladder);

// Whether the key leaves open what each stage recomputes.
bool LeavesStagesOpen(absl::string_view key);

// Accepts "auto", "selective", a name of ParseRecompute(), or a list of the
// last two separated by commas. InvalidArgument with the reason otherwise.
absl::Status CheckRecomputeKey(absl::string_view key);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_RECOMPUTE_H_
