// Times the search for plans on paper (planner/search/branch_and_bound.h) and
// planning again after a loss. First it proves itself: on 64 devices what it
// calls optimal is held against every layout of the space.
//
//   search_bench [configs/]
//
// Prints processor seconds of one thread, the least of three rounds; searches
// are cold: no costs of layers are known when one begins.

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/cost/closed_form.h"
#include "planner/fleet/plan_templates.h"
#include "planner/job/job_file.h"
#include "planner/profile/profile_file.h"
#include "planner/search/branch_and_bound.h"
#include "planner/search/closed_form_evaluator.h"
#include "planner/search/layout_tree.h"
#include "planner/search/search.h"
#include "tests/planner/search/tree_layouts.h"

namespace millrace {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

double LeastSeconds(const std::function<void()>& call) {
  double least = 1e9;
  for (int round = 0; round < 3; ++round) {
    const std::clock_t start = std::clock();
    call();
    least = std::min(
        least, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return least;
}

struct Case {
  std::string name;
  JobSpec job;
  HardwareProfile profile;
};

absl::StatusOr<StepModel> ModelOf(const Case& planned) {
  return StepModel::Create(planned.job.model, planned.profile, {});
}

// Calls `visit` with every layout of the space; they are too many to keep.
void ForEachLayout(const LayoutTree& space,
                   const std::function<void(const Layout&)>& visit) {
  for (const Layout& sharding : space.Shardings()) {
    for (const int32_t pipeline : space.Pipelines(sharding)) {
      for (const int32_t data : space.Replicas(sharding, pipeline)) {
        for (const Layout& order :
             space.Orders(space.Mesh(sharding, pipeline, data))) {
          for (const Layout& variant : space.Variants(order)) visit(variant);
        }
      }
    }
  }
}

// Proves that the search finds the best of all layouts, with memory to spare
// and without.
absl::Status Prove(const Case& planned, int32_t num_devices,
                   int64_t global_batch) {
  LayoutSpace narrow = LayoutSpaceOf(planned.job, num_devices);
  narrow.global_batch = global_batch;
  ASSIGN_OR_RETURN(StepModel model, ModelOf(planned));
  narrow.recomputes = [&](const Layout& layout) {
    return model.Recomputes(layout);
  };
  const LayoutTree space(narrow);
  StepEvaluator evaluator(space, model);
  const std::optional<RankedLayout> smallest =
      FindSmallestLayout(space, evaluator);
  if (!smallest.has_value()) return absl::NotFoundError("no layout");
  const int64_t least = smallest->prediction.memory.total();
  const int64_t limits[] = {least, least + least / 4, 2 * least, kNoLimit};
  double best_s[std::size(limits)];
  std::fill(std::begin(best_s), std::end(best_s),
            std::numeric_limits<double>::infinity());
  int64_t num_layouts = 0, least_of_all = kNoLimit;
  ForEachLayout(space, [&](const Layout& layout) {
    const StepPrediction step = model.Predict(layout);
    const int64_t bytes = step.memory.total();
    ++num_layouts;
    least_of_all = std::min(least_of_all, bytes);
    for (size_t i = 0; i < std::size(limits); ++i) {
      if (bytes <= limits[i]) {
        best_s[i] = std::min(best_s[i], step.time.step_time_s());
      } else if (layout.recompute == Recompute::kNone) {
        // Some layouts fit if each stage recomputes a set of its own.
        const auto fitted = evaluator.FitRecompute(layout, limits[i]);
        if (!fitted.has_value()) continue;
        best_s[i] =
            std::min(best_s[i], model.Predict(*fitted).time.step_time_s());
      }
    }
  });
  if (least != least_of_all) {
    return absl::InternalError(
        absl::StrCat(planned.name, ": the smallest of all takes ", least_of_all,
                     " bytes, the search says ",
                     LayoutToString(smallest->layout), " with ", least));
  }
  for (size_t i = 0; i < std::size(limits); ++i) {
    const FastestLayouts found =
        FindFastestLayouts(space, limits[i], {}, evaluator);
    if (found.best.empty() || found.optimality_gap != 0 ||
        found.best.front().prediction.time.step_time_s() != best_s[i]) {
      return absl::InternalError(absl::StrCat(
          planned.name, ", limit ", limits[i], ": the best of all takes ",
          best_s[i], " s, the search says ",
          found.best.empty() ? "nothing"
                             : LayoutToString(found.best.front().layout)));
    }
  }
  std::cout << absl::StrFormat(
      "%-12s %6d devices: the optimum of all %d layouts found, at 4 limits of "
      "memory\n",
      planned.name, num_devices, num_layouts);
  return absl::OkStatus();
}

// Times the evaluator on layouts whose layers' costs are known.
absl::Status TimeEvaluator(const Case& planned) {
  LayoutSpace narrow = LayoutSpaceOf(planned.job, 256);
  narrow.constraints.micro_batch = 1;
  ASSIGN_OR_RETURN(StepModel model, ModelOf(planned));
  narrow.recomputes = [&](const Layout& layout) {
    return model.Recomputes(layout);
  };
  const LayoutTree space(narrow);
  const std::vector<Layout> layouts = LayoutsOf(space);
  double sum = 0;
  const auto price_all = [&] {
    for (const Layout& layout : layouts) {
      sum += model.Predict(layout).time.step_time_s();
    }
  };
  price_all();
  const double seconds = LeastSeconds(price_all);
  if (!(sum > 0)) return absl::InternalError("steps that take no time");
  std::cout << absl::StrFormat(
      "%-12s %.2f M layouts/s priced (%d layouts)\n", planned.name,
      static_cast<double>(layouts.size()) / seconds / 1e6, layouts.size());
  return absl::OkStatus();
}

absl::Status TimeSearch(const Case& planned, int32_t num_devices) {
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(planned.profile));
  SearchInput input{
      .job = planned.job, .num_devices = num_devices, .allows_plan_only = true};
  absl::StatusOr<Plan> plan = absl::UnknownError("not run");
  double seconds = LeastSeconds([&] { plan = FindPlan(input, cost); });
  if (absl::IsInvalidArgument(plan.status())) {
    std::cout << absl::StrFormat("%-12s %6d devices: %.3f s to say that %s\n",
                                 planned.name, num_devices, seconds,
                                 std::string(plan.status().message()));
    // As if devices had the memory, to time a search of that size.
    input.job.resources.memory_per_device_bytes = int64_t{1} << 50;
    seconds = LeastSeconds([&] { plan = FindPlan(input, cost); });
  }
  RETURN_IF_ERROR(plan.status());
  std::cout << absl::StrFormat(
      "%-12s %6d devices: %.3f s, %d priced, gap %.2f %%, step %.4g s: %s\n",
      planned.name, num_devices, seconds, plan->layouts_considered,
      100 * *plan->optimality_gap, plan->prediction.step_time_s,
      LayoutToString(plan->layout));
  return absl::OkStatus();
}

absl::Status TimeReplan(const Case& planned, int32_t num_devices) {
  constexpr int32_t kNodeDevices = 8;
  constexpr int32_t kLostNodes = 4;
  ASSIGN_OR_RETURN(const CostModel cost, CostModel::Create(planned.profile));
  const SearchInput input{
      .job = planned.job, .num_devices = num_devices, .allows_plan_only = true};
  ASSIGN_OR_RETURN(const Plan whole, FindPlan(input, cost));
  absl::StatusOr<PlanTemplates> templates = absl::UnknownError("not run");
  const double made = LeastSeconds([&] {
    templates =
        PlanTemplates::Create(input, whole, cost, kNodeDevices, kLostNodes);
  });
  RETURN_IF_ERROR(templates.status());
  absl::StatusOr<Plan> plan = Replan(input, kNodeDevices, cost);
  RETURN_IF_ERROR(plan.status());
  const PlanTemplate* found = nullptr;
  const double looked_up = LeastSeconds([&] { found = templates->Find(1); });
  if (found == nullptr || !(found->layout == plan->layout)) {
    return absl::InternalError("the template is not what a fresh search says");
  }
  SearchInput quick = input;
  quick.simulates = false;
  const double fresh =
      LeastSeconds([&] { plan = Replan(quick, kNodeDevices, cost); });
  RETURN_IF_ERROR(plan.status());
  std::cout << absl::StrFormat(
      "%-12s %6d devices less a node: %.3f s anew, %.6f s by template (%d "
      "templates made in %.3f s): %s\n",
      planned.name, num_devices, fresh, looked_up, kLostNodes, made,
      LayoutToString(found->layout));
  return absl::OkStatus();
}

absl::Status Run(const std::string& configs) {
  ASSIGN_OR_RETURN(const HardwareProfile profile,
                   LoadProfile(configs + "hardware/h100-sxm.yaml"));
  std::vector<Case> cases;
  for (const char* name : {"llama3-405b", "deepseek-v3"}) {
    ASSIGN_OR_RETURN(JobSpec job,
                     LoadJob(absl::StrCat(configs, name, ".yaml")));
    job.layout = {};  // All axes open.
    cases.push_back({.name = name, .job = std::move(job), .profile = profile});
  }
  for (const Case& planned : cases) RETURN_IF_ERROR(Prove(planned, 64, 64));
  for (const Case& planned : cases) RETURN_IF_ERROR(TimeEvaluator(planned));
  for (const Case& planned : cases) {
    for (const int32_t num_devices : {8, 1024, 100'000}) {
      RETURN_IF_ERROR(TimeSearch(planned, num_devices));
    }
    RETURN_IF_ERROR(TimeReplan(planned, 1024));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const std::string configs = argc > 1 ? argv[1] : "configs/";
  const absl::Status status = millrace::Run(configs);
  if (!status.ok()) std::cerr << "search_bench: " << status << std::endl;
  return status.ok() ? 0 : 1;
}
