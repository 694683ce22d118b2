#include "planner/job/executable.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/graph/layer_graph.h"

namespace millrace {
namespace {

// "1f1b, zero_bubble and list".
std::string JoinWithAnd(std::vector<std::string> words) {
  const std::string last = std::move(words.back());
  words.pop_back();
  return words.empty()
             ? last
             : absl::StrCat(absl::StrJoin(words, ", "), " and ", last);
}

std::string ExecutablePrecisions() {
  std::vector<std::string> names;
  for (const PrecisionRecipe& recipe : PrecisionRecipes()) {
    if (recipe.backends.empty()) continue;
    if (std::find(names.begin(), names.end(), recipe.name) == names.end()) {
      names.emplace_back(recipe.name);
    }
  }
  return JoinWithAnd(std::move(names));
}

std::string ExecutableSchedules() {
  std::vector<std::string> names;
  for (const ScheduleDescriptor& schedule : Schedules()) {
    if (schedule.is_lowered) names.emplace_back(schedule.name);
  }
  return JoinWithAnd(std::move(names));
}

Layout LayoutOfPinned(const LayoutConstraints& pinned) {
  Layout layout;
  for (const LayoutSize& row : LayoutSizes()) {
    layout.*row.size = (pinned.*row.pinned).value_or(1);
  }
  if (pinned.schedule != "auto") layout.schedule = ScheduleOf(pinned.schedule);
  return layout;
}

// A model of the Llama family.
ModelSpec SmallModel() {
  return {.vocab_size = 8,
          .hidden = 8,
          .num_layers = 1,
          .num_heads = 2,
          .num_kv_heads = 2,
          .head_dim = 2,
          .ffn_hidden = 8,
          .sequence_length = 8};
}

}  // namespace

std::vector<PlanOnlyKey> PlanOnlyKeys(const ModelSpec& model) {
  std::vector<PlanOnlyKey> keys;
  // One part of the model at a time, in a small model. The sizes that the job
  // states need not be valid yet.
  const auto add = [&](const char* key, std::string value,
                       const char* executable, const ModelSpec& with_part) {
    if (!HasPlanOnlyOps(with_part)) return;
    keys.push_back({key, std::move(value), executable});
  };
  ModelSpec with_part = SmallModel();
  with_part.feed_forward = model.feed_forward;
  add("model.feed_forward", FeedForwardName(model.feed_forward),
      "swiglu and gelu", with_part);
  if (model.moe.num_experts > 0) {
    with_part = SmallModel();
    with_part.moe = {
        .num_experts = 2, .experts_per_token = 1, .expert_hidden = 8};
    add("model.moe.num_experts", absl::StrCat(model.moe.num_experts), "0",
        with_part);
  }
  if (model.mla.kv_rank > 0) {
    with_part = SmallModel();
    with_part.mla = {.kv_rank = 4,
                     .nope_head_dim = 1,
                     .rope_head_dim = 1,
                     .value_head_dim = 1};
    add("model.mla.kv_rank", absl::StrCat(model.mla.kv_rank), "0", with_part);
  }
  return keys;
}

std::vector<PlanOnlyKey> PlanOnlyKeys(const Layout& layout) {
  std::vector<PlanOnlyKey> keys;
  const PrecisionRecipe& recipe = RecipeOf(layout);
  if (recipe.backends.empty()) {
    keys.push_back({"training.precision", recipe.name, ExecutablePrecisions()});
  }
  for (const LayoutSize& row : LayoutSizes()) {
    const int32_t size = layout.*row.size;
    if (size > 1 && row.execution == Execution::kNone) {
      keys.push_back(
          {absl::StrCat("layout.", row.name), absl::StrCat(size), "1"});
    }
  }
  if (!Describe(layout.schedule).is_lowered) {
    keys.push_back({"layout.schedule", ScheduleName(layout.schedule),
                    ExecutableSchedules()});
  }
  return keys;
}

std::vector<PlanOnlyKey> PlanOnlyKeys(const LayoutConstraints& pinned) {
  return PlanOnlyKeys(LayoutOfPinned(pinned));
}

void PinExecutableAxes(LayoutConstraints* constraints) {
  for (const LayoutSize& row : LayoutSizes()) {
    if (row.execution == Execution::kNone) constraints->*row.pinned = 1;
  }
}

absl::Status CheckExecutable(const JobSpec& job) {
  Layout pinned = LayoutOfPinned(job.layout);
  pinned.precision = job.precision();
  pinned.gemm_format = GemmFormatOf(job.training.precision);
  return CheckExecutable(job.model, pinned);
}

absl::Status CheckExecutable(const ModelSpec& model, const Layout& layout) {
  std::vector<PlanOnlyKey> keys = PlanOnlyKeys(model);
  for (PlanOnlyKey& key : PlanOnlyKeys(layout)) keys.push_back(std::move(key));
  if (keys.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "no worker can execute this yet, it can only be planned (millrace "
      "plan): ",
      absl::StrJoin(keys, "; ", [](std::string* out, const PlanOnlyKey& key) {
        absl::StrAppend(out, key.key, " is ", key.value, ", workers execute ",
                        key.executable);
      })));
}

}  // namespace millrace
