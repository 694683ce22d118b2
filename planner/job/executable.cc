#include "planner/job/executable.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

// Axes that workers know with one rank or chunk only.
struct PlanOnlyAxis {
  const char* key;
  int32_t Layout::*size;
  std::optional<int32_t> LayoutConstraints::*pinned;
};
constexpr PlanOnlyAxis kPlanOnlyAxes[] = {
    {"layout.context", &Layout::context, &LayoutConstraints::context},
    {"layout.expert", &Layout::expert, &LayoutConstraints::expert},
    {"layout.expert_tensor", &Layout::expert_tensor,
     &LayoutConstraints::expert_tensor},
    {"layout.interleave", &Layout::interleave, &LayoutConstraints::interleave}};

Layout LayoutOfPinned(const LayoutConstraints& pinned) {
  Layout layout;
  for (const PlanOnlyAxis& axis : kPlanOnlyAxes) {
    layout.*axis.size = (pinned.*axis.pinned).value_or(1);
  }
  if (pinned.schedule != "auto") layout.schedule = ScheduleOf(pinned.schedule);
  return layout;
}

}  // namespace

std::vector<PlanOnlyKey> PlanOnlyKeys(const ModelSpec& model) {
  std::vector<PlanOnlyKey> keys;
  if (model.feed_forward != FeedForward::kSwiglu) {
    keys.push_back(
        {"model.feed_forward", FeedForwardName(model.feed_forward), "swiglu"});
  }
  if (model.ties_embedding) {
    keys.push_back({"model.ties_embedding", "true", "false"});
  }
  if (model.moe.num_experts > 0) {
    keys.push_back(
        {"model.moe.num_experts", absl::StrCat(model.moe.num_experts), "0"});
  }
  if (model.mla.kv_rank > 0) {
    keys.push_back({"model.mla.kv_rank", absl::StrCat(model.mla.kv_rank), "0"});
  }
  return keys;
}

std::vector<PlanOnlyKey> PlanOnlyKeys(const Layout& layout) {
  std::vector<PlanOnlyKey> keys;
  if (layout.gemm_format != GemmFormat::kAsStored) {
    keys.push_back(
        {"training.precision", PrecisionName(layout), "fp32 and bf16"});
  }
  for (const PlanOnlyAxis& axis : kPlanOnlyAxes) {
    const int32_t size = layout.*axis.size;
    if (size > 1) keys.push_back({axis.key, absl::StrCat(size), "1"});
  }
  if (layout.schedule == Schedule::kInterleaved) {
    keys.push_back({"layout.schedule", ScheduleName(layout.schedule),
                    "1f1b, zero_bubble and list"});
  }
  return keys;
}

std::vector<PlanOnlyKey> PlanOnlyKeys(const LayoutConstraints& pinned) {
  return PlanOnlyKeys(LayoutOfPinned(pinned));
}

void PinExecutableAxes(LayoutConstraints* constraints) {
  for (const PlanOnlyAxis& axis : kPlanOnlyAxes) {
    constraints->*axis.pinned = 1;
  }
}

absl::Status CheckExecutable(const JobSpec& job) {
  Layout pinned = LayoutOfPinned(job.layout);
  pinned.precision = PrecisionOf(job.training.precision);
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
