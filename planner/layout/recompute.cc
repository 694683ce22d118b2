#include "planner/layout/recompute.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr absl::string_view kAutoRecompute = "auto";
constexpr absl::string_view kSelective = "selective";
constexpr const char* kOpNames[] = {
    "norm", "activation", "qkv", "gate_up", "output", "attention", "dispatch"};

// By op of kRecomputeOps.
const char* OpName(size_t op) { return kOpNames[op]; }

std::vector<absl::string_view> StagesOf(absl::string_view key) {
  std::vector<absl::string_view> stages = absl::StrSplit(key, ',');
  for (absl::string_view& name : stages) {
    name = absl::StripAsciiWhitespace(name);
  }
  return stages;
}

// The sets of a ladder that "selective" allows: all between its ends. A ladder
// with nothing between its ends gives the cheapest set.
std::vector<Recompute> SelectiveSets(std::span<const Recompute> ladder) {
  std::vector<Recompute> sets;
  for (const Recompute set : ladder) {
    if (set != Recompute::kNone && set != Recompute::kFull) sets.push_back(set);
  }
  if (sets.empty()) sets.push_back(Recompute::kCheap);
  return sets;
}

Recompute MustParse(absl::string_view name) {
  const absl::StatusOr<Recompute> parsed = ParseRecompute(name);
  CHECK(parsed.ok()) << parsed.status().message();
  return *parsed;
}

}  // namespace

std::string RecomputeName(Recompute recompute) {
  if (recompute == Recompute::kNone) return "none";
  if (recompute == Recompute::kFull) return "full";
  if (recompute == Recompute::kPolicy) return std::string(kSelective);
  std::vector<const char*> names;
  for (size_t op = 0; op < std::size(kRecomputeOps); ++op) {
    if (Has(recompute, kRecomputeOps[op])) names.push_back(OpName(op));
  }
  return absl::StrJoin(names, "+");
}

std::string RecomputeOpNames() { return absl::StrJoin(kOpNames, ", "); }

absl::StatusOr<Recompute> ParseRecompute(absl::string_view name) {
  if (name == "none") return Recompute::kNone;
  if (name == "full") return Recompute::kFull;
  if (name == kSelective) return Recompute::kCheap;
  Recompute recompute = Recompute::kNone;
  for (absl::string_view word : absl::StrSplit(name, '+')) {
    word = absl::StripAsciiWhitespace(word);
    const auto* const found =
        std::find(std::begin(kOpNames), std::end(kOpNames), word);
    if (found == std::end(kOpNames)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", word, "' is nothing that can be computed again; the ops are ",
          RecomputeOpNames(),
          ", joined as in norm+activation, and beside them there are none, "
          "selective and full"));
    }
    recompute = recompute | kRecomputeOps[found - std::begin(kOpNames)];
  }
  if (Has(recompute, Recompute::kOutput) && !Has(recompute, Recompute::kNorm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        " computes output again, which the norm after it adds to the stream, "
        "but not that norm; write norm+",
        name));
  }
  return recompute;
}

std::vector<RecomputeCandidate> RecomputeCandidates(
    const std::function<RecomputeCandidate(Recompute set)>& with) {
  const RecomputeCandidate none = with(Recompute::kNone);
  const RecomputeCandidate norm = with(Recompute::kNorm);
  std::vector<RecomputeCandidate> candidates;
  for (const Recompute op : kRecomputeOps) {
    const bool needs_norm = op == Recompute::kOutput;
    const RecomputeCandidate& before = needs_norm ? norm : none;
    const RecomputeCandidate after =
        op == Recompute::kNorm ? norm
                               : with(needs_norm ? op | Recompute::kNorm : op);
    candidates.push_back({.op = op,
                          .bytes = before.bytes - after.bytes,
                          .seconds = after.seconds - before.seconds});
  }
  return candidates;
}

std::vector<RecomputeCandidate> BestFirst(
    std::span<const RecomputeCandidate> candidates) {
  std::vector<RecomputeCandidate> order;
  for (const RecomputeCandidate& candidate : candidates) {
    if (candidate.bytes > 0) order.push_back(candidate);
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const RecomputeCandidate& a, const RecomputeCandidate& b) {
        return a.bytes * b.seconds > b.bytes * a.seconds;
      });
  const auto find = [&](Recompute op) {
    return std::find_if(
        order.begin(), order.end(),
        [&](const RecomputeCandidate& c) { return c.op == op; });
  };
  const auto norm = find(Recompute::kNorm);
  const auto output = find(Recompute::kOutput);
  if (output != order.end() && norm > output) {
    std::rotate(output, norm, norm == order.end() ? norm : norm + 1);
  }
  return order;
}

std::vector<Recompute> RecomputeLadder(
    std::span<const RecomputeCandidate> candidates) {
  const std::vector<RecomputeCandidate> order = BestFirst(candidates);
  std::vector<Recompute> ladder = {Recompute::kNone};
  Recompute all = Recompute::kNone;
  for (size_t i = 0; i < order.size(); ++i) {
    // A layout that is short of only a little memory need not recompute a whole
    // large op.
    constexpr double kLarge = 2;
    const RecomputeCandidate* smaller = nullptr;
    for (size_t later = i + 1; later < order.size(); ++later) {
      const RecomputeCandidate& other = order[later];
      if (kLarge * other.seconds <= order[i].seconds &&
          kLarge * other.bytes <= order[i].bytes &&
          (other.op != Recompute::kOutput || Has(all, Recompute::kNorm)) &&
          (smaller == nullptr || other.bytes > smaller->bytes)) {
        smaller = &other;
      }
    }
    if (smaller != nullptr) ladder.push_back(all | smaller->op);
    all = all | order[i].op;
    // The last makes it full.
    ladder.push_back(i + 1 < order.size() ? all : Recompute::kFull);
  }
  if (order.empty()) ladder.push_back(Recompute::kFull);
  return ladder;
}

std::vector<Recompute> UnpricedRecomputes() {
  return {Recompute::kNone, Recompute::kCheap, Recompute::kFull};
}

std::vector<StageRecomputes> AllowedRecomputes(
    absl::string_view key, std::span<const Recompute> ladder) {
  std::vector<StageRecomputes> allowed;
  if (key == kAutoRecompute) {
    for (const Recompute set : ladder)
      allowed.push_back({.recompute = set, .by_stage = {}});
    return allowed;
  }
  const std::vector<absl::string_view> stages = StagesOf(key);
  const bool is_open =
      std::find(stages.begin(), stages.end(), kSelective) != stages.end();
  // One without a choice.
  std::vector<Recompute> sets = {Recompute::kNone};
  if (is_open) sets = SelectiveSets(ladder);
  for (const Recompute set : sets) {
    StageRecomputes choice;
    for (const absl::string_view name : stages) {
      choice.by_stage.push_back(name == kSelective ? set : MustParse(name));
      choice.recompute = choice.recompute | choice.by_stage.back();
    }
    if (stages.size() == 1) choice.by_stage.clear();
    allowed.push_back(choice);
  }
  return allowed;
}

bool LeavesStagesOpen(absl::string_view key) {
  return key == kAutoRecompute || key == kSelective;
}

absl::Status CheckRecomputeKey(absl::string_view key) {
  if (key == kAutoRecompute) return absl::OkStatus();
  for (const absl::string_view name : StagesOf(key)) {
    RETURN_IF_ERROR(ParseRecompute(name).status());
  }
  return absl::OkStatus();
}

}  // namespace millrace
