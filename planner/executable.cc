#include "planner/executable.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

// "layout.context is 2, workers execute 1".
std::string Against(const char* key, const std::string& value,
                    const char* executable) {
  return absl::StrCat(key, " is ", value, ", workers execute ", executable);
}

void AddModelKeys(const ModelSpec& model, std::vector<std::string>* keys) {
  if (model.feed_forward != FeedForward::kSwiglu) {
    keys->push_back(Against("model.feed_forward",
                            FeedForwardName(model.feed_forward), "swiglu"));
  }
  if (model.ties_embedding) {
    keys->push_back(Against("model.ties_embedding", "true", "false"));
  }
  if (model.moe.num_experts > 0) {
    keys->push_back(Against("model.moe.num_experts",
                            absl::StrCat(model.moe.num_experts), "0"));
  }
  if (model.mla.kv_rank > 0) {
    keys->push_back(
        Against("model.mla.kv_rank", absl::StrCat(model.mla.kv_rank), "0"));
  }
}

void AddLayoutKeys(const Layout& layout, std::vector<std::string>* keys) {
  if (layout.gemm_format != GemmFormat::kAsStored) {
    keys->push_back(
        Against("training.precision", PrecisionName(layout), "fp32 and bf16"));
  }
  const struct {
    const char* key;
    int32_t size;
  } axes[] = {{"layout.context", layout.context},
              {"layout.expert", layout.expert},
              {"layout.expert_tensor", layout.expert_tensor},
              {"layout.interleave", layout.interleave}};
  for (const auto& [key, size] : axes) {
    if (size > 1) keys->push_back(Against(key, absl::StrCat(size), "1"));
  }
  if (layout.schedule == Schedule::kInterleaved) {
    keys->push_back(Against("layout.schedule", ScheduleName(layout.schedule),
                            "1f1b, zero_bubble and list"));
  }
}

}  // namespace

absl::Status CheckExecutable(const JobSpec& job) {
  Layout pinned;
  pinned.precision = PrecisionOf(job.training.precision);
  pinned.gemm_format = GemmFormatOf(job.training.precision);
  pinned.context = job.layout.context.value_or(1);
  pinned.expert = job.layout.expert.value_or(1);
  pinned.expert_tensor = job.layout.expert_tensor.value_or(1);
  pinned.interleave = job.layout.interleave.value_or(1);
  if (job.layout.schedule != "auto") {
    pinned.schedule = ScheduleOf(job.layout.schedule);
  }
  return CheckExecutable(job.model, pinned);
}

absl::Status CheckExecutable(const ModelSpec& model, const Layout& layout) {
  std::vector<std::string> keys;
  AddModelKeys(model, &keys);
  AddLayoutKeys(layout, &keys);
  if (keys.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no worker can execute this yet, it can only be planned "
                   "(millrace plan): ",
                   absl::StrJoin(keys, "; ")));
}

}  // namespace millrace
