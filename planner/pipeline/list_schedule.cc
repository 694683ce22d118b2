#include "planner/pipeline/list_schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "planner/pipeline/greedy_order.h"
#include "planner/pipeline/improved_order.h"
#include "planner/pipeline/order_bound.h"
#include "planner/pipeline/pass_order.h"

namespace millrace {
namespace {

// Passes that are put in order or timed, over all policies, in improving and in
// trying policies on fewer micro-batches.
constexpr int64_t kPolicyWork = 600'000;
constexpr int64_t kFinalWork = 300'000;
constexpr int64_t kImproveWork = 400'000;
constexpr size_t kNumImproved = 4;

// A greedy policy relative to the pipeline's shape, so that it can be tried on
// fewer micro-batches.
struct ListRecipe {
  Preference preference;
  ChunkPriority chunks;
  double ahead;        // Times what 1F1B runs ahead; 0: no limit.
  int32_t ahead_more;  // Added to it.
  enum class PutOff : uint8_t { kNone, kStage, kAll } put_off;
  double overrun;
  double patience;
};

bool Holds(const ListLimits& limits, const std::vector<int64_t>& peak_bytes) {
  for (size_t s = 0; s < limits.memory_bytes.size(); ++s) {
    if (peak_bytes[s] > limits.memory_bytes[s]) return false;
  }
  return true;
}

// The number of passes with both gradients apart.
int64_t NumPasses(const PipelineCosts& costs) {
  return 3 * static_cast<int64_t>(costs.chunks.size()) * costs.num_microbatches;
}

// Both gradients as passes of their own.
PassOrder Apart(const PassOrder& order) {
  PassOrder apart(order.size());
  for (size_t s = 0; s < order.size(); ++s) {
    for (ChunkPass pass : order[s]) {
      if (pass.kind != ChunkPassKind::kBackward) {
        apart[s].push_back(pass);
        continue;
      }
      pass.kind = ChunkPassKind::kInputGradient;
      apart[s].push_back(pass);
      pass.kind = ChunkPassKind::kWeightGradient;
      apart[s].push_back(pass);
    }
  }
  return apart;
}

// Forward passes that a stage runs before its first backward pass could come,
// were all chunks alike.
std::vector<double> DepthOfStages(const PipelineCosts& costs) {
  const auto num_chunks = static_cast<double>(costs.chunks.size());
  const double per_stage = num_chunks / costs.num_stages;
  std::vector<double> depth(costs.num_stages);
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    depth[costs.stage_of_chunk[c]] +=
        (num_chunks - static_cast<double>(c)) / per_stage;
  }
  return depth;
}

ListPolicy PolicyOf(const PipelineCosts& costs, const ListRecipe& recipe) {
  ListPolicy policy{.preference = recipe.preference,
                    .chunks = recipe.chunks,
                    .most_ahead = {},
                    .most_put_off = {},
                    .overrun = recipe.overrun,
                    .patience = recipe.patience};
  const std::vector<double> depth = DepthOfStages(costs);
  std::vector<int32_t> num_chunks(costs.num_stages);
  for (const int32_t s : costs.stage_of_chunk) ++num_chunks[s];
  for (int32_t s = 0; s < costs.num_stages; ++s) {
    const int32_t all = std::max(1, costs.num_microbatches * num_chunks[s]);
    const double ahead =
        recipe.ahead == 0
            ? all
            : std::ceil(recipe.ahead * depth[s] - 1e-9) + recipe.ahead_more;
    policy.most_ahead.push_back(static_cast<int32_t>(
        std::clamp<double>(ahead, std::max(1, num_chunks[s]), all)));
    policy.most_put_off.push_back(
        recipe.put_off == ListRecipe::PutOff::kNone    ? 0
        : recipe.put_off == ListRecipe::PutOff::kStage ? s
                                                       : all);
  }
  return policy;
}

// The likeliest to be good come first, since not all may be tried.
std::vector<ListRecipe> Recipes(bool has_several_chunks) {
  std::vector<ListRecipe> recipes;
  for (const double overrun : {0.5, 0.0, 1e9}) {
    for (const double patience : {0.0, 0.6}) {
      for (const auto put_off :
           {ListRecipe::PutOff::kAll, ListRecipe::PutOff::kStage,
            ListRecipe::PutOff::kNone}) {
        for (const double ahead : {0.0, 1.0, 1.5, 2.0}) {
          for (const int32_t more : {0, 1, 2}) {
            if (ahead == 0 && more > 0) continue;
            for (const Preference preference :
                 {Preference::kBackward, Preference::kAlternate,
                  Preference::kForward}) {
              for (const ChunkPriority chunks :
                   {ChunkPriority::kDeepest, ChunkPriority::kGroups,
                    ChunkPriority::kOldest}) {
                if (!has_several_chunks && chunks != ChunkPriority::kDeepest) {
                  continue;
                }
                recipes.push_back({preference, chunks, ahead, more, put_off,
                                   overrun, patience});
              }
            }
          }
        }
      }
    }
  }
  return recipes;
}

// The greedy orders of one pipeline. Many recipes come to the same policy,
// above all on small pipelines: its order is made once.
class GreedyOrders {
 public:
  struct Made {
    PassOrder order;
    double makespan_s;
  };

  // Borrows its arguments.
  GreedyOrders(const PipelineCosts& costs, const ListLimits& limits)
      : costs_(costs),
        limits_(limits),
        timer_(costs, limits.transfer_buffers) {}

  const PipelineCosts& costs() const { return costs_; }

  const Made& Of(const ListRecipe& recipe) {
    const auto [made, is_new] =
        by_policy_.try_emplace(PolicyOf(costs_, recipe));
    if (is_new) {
      PassOrder order = GreedyOrder(costs_, limits_.memory_bytes,
                                    limits_.transfer_buffers, made->first);
      timer_.Run(order);
      made->second = {.order = std::move(order),
                      .makespan_s = timer_.times().makespan_s};
    }
    return made->second;
  }

 private:
  const PipelineCosts& costs_;
  const ListLimits& limits_;
  OrderTimer timer_;
  std::map<ListPolicy, Made> by_policy_;
};

class Scheduler {
 public:
  Scheduler(const PipelineCosts& costs, const ListLimits& limits)
      : costs_(costs),
        limits_(limits),
        timer_(costs, limits.transfer_buffers),
        lower_bound_s_(LowerBoundOfMakespan(costs, limits.memory_bytes)) {}

  ListedSchedule Run() && {
    for (const Schedule schedule :
         {Schedule::kOneForwardOneBackward, Schedule::kInterleaved,
          Schedule::kZeroBubble}) {
      const absl::StatusOr<PassOrder> known = OrderOf(schedule, costs_);
      if (!known.ok()) continue;
      const PassOrder order = Apart(*known);
      if (timer_.Run(order)) Consider(order, timer_.times().makespan_s);
    }
    ConsiderGreedyOrders();
    for (auto& [makespan_s, order] : best_) {
      if (IsOptimal()) break;
      ImproveOrder(costs_, limits_.memory_bytes, limits_.transfer_buffers,
                   lower_bound_s_,
                   kImproveWork / static_cast<int64_t>(kNumImproved), &order);
      timer_.Run(order);
      makespan_s = timer_.times().makespan_s;
    }
    const auto best = std::ranges::min_element(
        best_, {}, &std::pair<double, PassOrder>::first);
    ListedSchedule result{.order = std::move(best->second),
                          .times = {},
                          .lower_bound_s = lower_bound_s_};
    result.times = *TimeOrder(costs_, result.order, limits_.transfer_buffers);
    return result;
  }

 private:
  bool IsOptimal() const {
    return !best_.empty() && best_.front().first <= lower_bound_s_ * (1 + 1e-9);
  }

  void ConsiderGreedyOrders() {
    PipelineCosts fewer = costs_;
    fewer.num_microbatches =
        std::min(costs_.num_microbatches, 3 * costs_.num_stages);
    const bool are_all = fewer.num_microbatches == costs_.num_microbatches;
    GreedyOrders orders(costs_, limits_), orders_of_fewer(fewer, limits_);
    for (const ListRecipe& recipe :
         Finalists(are_all ? orders : orders_of_fewer)) {
      const GreedyOrders::Made& made = orders.Of(recipe);
      Consider(made.order, made.makespan_s);
    }
  }

  // The recipes whose orders end soonest, of as many as the work allowed lets
  // be tried.
  std::vector<ListRecipe> Finalists(GreedyOrders& orders) const {
    std::vector<ListRecipe> recipes =
        Recipes(costs_.chunks.size() > static_cast<size_t>(costs_.num_stages));
    const size_t num_tried = std::clamp<size_t>(
        static_cast<size_t>(kPolicyWork / NumPasses(orders.costs())), 12,
        recipes.size());
    std::vector<std::pair<double, size_t>> ends;
    for (size_t i = 0; i < num_tried; ++i) {
      ends.push_back({orders.Of(recipes[i]).makespan_s, i});
    }
    std::sort(ends.begin(), ends.end());
    ends.resize(
        std::clamp<size_t>(static_cast<size_t>(kFinalWork / NumPasses(costs_)),
                           kNumImproved, ends.size()));
    std::vector<ListRecipe> finalists;
    for (const auto& [makespan_s, i] : ends) finalists.push_back(recipes[i]);
    return finalists;
  }

  // Keeps the best few, best first; of those that end at the same time the one
  // that holds least.
  void Consider(const PassOrder& order, double makespan_s) {
    const auto place = std::find_if(
        best_.begin(), best_.end(),
        [&](const auto& other) { return makespan_s <= other.first; });
    if (place == best_.end() && best_.size() == kNumImproved) return;
    const bool is_tie = place != best_.end() && place->first == makespan_s;
    if (is_tie && order == place->second) return;
    const std::vector<int64_t> peaks = PeaksOf(order);
    if (!Holds(limits_, peaks)) return;
    if (!is_tie) {
      best_.insert(place, {makespan_s, order});
      if (best_.size() > kNumImproved) best_.pop_back();
    } else if (Sum(peaks) < Sum(PeaksOf(place->second))) {
      place->second = order;
    }
  }

  std::vector<int64_t> PeaksOf(const PassOrder& order) const {
    std::vector<int64_t> peaks;
    for (const auto& passes : order) {
      peaks.push_back(PeakBytes(costs_, passes));
    }
    return peaks;
  }
  static int64_t Sum(const std::vector<int64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  }

  const PipelineCosts& costs_;
  const ListLimits& limits_;
  OrderTimer timer_;
  double lower_bound_s_;
  std::vector<std::pair<double, PassOrder>> best_;
};

}  // namespace

absl::StatusOr<ListedSchedule> ListSchedule(const PipelineCosts& costs,
                                            const ListLimits& limits) {
  RETURN_IF_ERROR(CheckCosts(costs));
  if (!limits.memory_bytes.empty() &&
      limits.memory_bytes.size() != static_cast<size_t>(costs.num_stages)) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory limits of ", limits.memory_bytes.size(),
                     " stages for a pipeline of ", costs.num_stages));
  }
  for (size_t s = 0; s < limits.memory_bytes.size(); ++s) {
    const int64_t least = LeastBytes(costs, static_cast<int32_t>(s));
    if (limits.memory_bytes[s] >= least) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", s, " may hold ", limits.memory_bytes[s],
                     " bytes, but one micro-batch needs ", least, " of it"));
  }
  return Scheduler(costs, limits).Run();
}

int64_t LeastBytes(const PipelineCosts& costs, int32_t stage) {
  int64_t bytes = 0, margin = 0;
  for (size_t c = 0; c < costs.chunks.size(); ++c) {
    if (costs.stage_of_chunk[c] != stage) continue;
    const ChunkCosts& chunk = costs.chunks[c];
    bytes += chunk.activation_bytes;
    margin =
        std::max(margin, chunk.weight_gradient_bytes - chunk.activation_bytes);
  }
  return bytes + margin;
}

}  // namespace millrace
