#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/json.h"
#include "planner/frameworks/export_parts.h"

namespace millrace {
namespace {

nlohmann::ordered_json DeepSpeedScheduler(Export& out) {
  const TrainingSpec& training = out.job.training;
  const OptimizerSpec& optimizer = training.optimizer;
  // Newer versions refuse fewer.
  const int64_t warmup_steps = std::max<int64_t>(2, optimizer.warmup_steps);
  nlohmann::ordered_json parameters = {{"warmup_num_steps", warmup_steps},
                                       {"warmup_type", "linear"}};
  if (optimizer.warmup_steps < warmup_steps) {
    out.differences.push_back(absl::StrCat(
        "training.optimizer.warmup_steps ", optimizer.warmup_steps,
        ": DeepSpeed's schedulers warm up for two steps at least"));
  }
  if (optimizer.decay == LearningRateDecay::kCosine) {
    parameters["total_num_steps"] = training.num_steps;
    parameters["warmup_min_ratio"] = 0.0;
    parameters["cos_min_ratio"] =
        optimizer.min_learning_rate / optimizer.learning_rate;
    return {{"type", "WarmupCosineLR"}, {"params", parameters}};
  }
  parameters["warmup_min_lr"] = 0.0;
  parameters["warmup_max_lr"] = optimizer.learning_rate;
  if (optimizer.decay == LearningRateDecay::kNone) {
    return {{"type", "WarmupLR"}, {"params", parameters}};
  }
  parameters["total_num_steps"] = training.num_steps;
  if (optimizer.min_learning_rate > 0) {
    out.differences.push_back(
        "training.optimizer.min_learning_rate: WarmupDecayLR decays to zero");
  }
  return {{"type", "WarmupDecayLR"}, {"params", parameters}};
}

// Sets the value at a dotted path, as the number it is.
void SetJson(nlohmann::ordered_json& json, const std::string& path,
             const std::string& value) {
  nlohmann::ordered_json* node = &json;
  for (const auto word : absl::StrSplit(path, '.')) {
    node = &(*node)[std::string(word)];
  }
  absl::StatusOr<nlohmann::ordered_json> parsed = ParseOrderedJson(value);
  CHECK(parsed.ok()) << path << ": " << value;  // A number of a valid job.
  *node = *std::move(parsed);
}

void NoteDeepSpeedAxes(Export& out, nlohmann::ordered_json& json) {
  const Layout& layout = out.layout;
  if (layout.pipeline > 1) {
    std::vector<int64_t> sizes(layout.pipeline, 0);
    const std::vector<LayerRange> chunks = out.Chunks();
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      sizes[chunk % sizes.size()] += chunks[chunk].end - chunks[chunk].begin;
    }
    out.differences.push_back(absl::StrCat(
        "the pipeline axis: it is made in code, by PipelineModule(layers, "
        "topology=PipeModelDataParallelTopology(num_pp=",
        layout.pipeline, ", num_mp=", layout.tensor, ", num_dp=", layout.data,
        ")); the plan's stages have ", absl::StrJoin(sizes, ", "), " layers"));
    if (layout.zero > 1) {
      json["zero_optimization"]["stage"] = 1;
      out.differences.push_back(absl::StrCat(
          "ZeRO ", layout.zero,
          ": PipelineModule takes ZeRO 0 and 1 alone, and 1 needs more "
          "memory"));
    }
  }
  if (layout.interleave > 1) {
    out.differences.push_back(absl::StrCat(
        "the schedule interleaved with ", layout.interleave,
        " chunks a stage: PipelineModule runs one chunk a stage, whose bubble "
        "is as many times longer"));
  }
  if (layout.context > 1) {
    out.differences.push_back(absl::StrCat(
        "the context axis of ", layout.context,
        ": sequences are cut in code, by DistributedAttention (Ulysses), which "
        "exchanges heads and not keys and values; initialize DeepSpeed with "
        "that many ranks of one sequence as mpu, so that the data axis stays ",
        layout.data));
  }
  if (out.job.model.moe.num_experts > 0) {
    const MixtureOfExperts& moe = out.job.model.moe;
    out.differences.push_back(absl::StrCat(
        "experts: they are made in code, by deepspeed.moe.layer.MoE("
        "num_experts=",
        moe.num_experts, ", ep_size=", layout.expert,
        ", k=", moe.experts_per_token,
        "), whose gate knows k of 1 and 2 and drops tokens over capacity"));
  }
  if (layout.gemm_format != GemmFormat::kAsStored) {
    out.differences.push_back(absl::StrCat(
        PrecisionName(layout),
        ": 8- and 4-bit products are the training script's, by "
        "TransformerEngine; without them bf16 ones run, slower than planned"));
  }
  if (layout.recompute != Recompute::kNone) {
    out.differences.push_back(absl::StrCat(
        "recompute ", RecomputeName(layout.recompute),
        ": which activations are computed again is the training script's"));
  }
  if (layout.tensor == 1) return;
  if (layout.pipeline == 1) {
    json["tensor_parallel"] = {{"autotp_size", layout.tensor}};
    out.differences.push_back(
        "sequence parallelism beside the tensor axis: AutoTP keeps norms whole "
        "on every rank");
    if (layout.zero == 3) {
      out.assumptions.push_back(
          "DeepSpeed 0.19.4 or later: earlier ones refuse ZeRO 3 beside "
          "AutoTP");
    }
  } else {
    out.differences.push_back(absl::StrCat(
        "the tensor axis of ", layout.tensor,
        ": beside a pipeline it is made by the layers themselves"));
  }
}

}  // namespace

absl::StatusOr<std::string> ExportDeepSpeed(Export out) {
  nlohmann::ordered_json json;
  json["_comment"] = nullptr;  // Comes first; filled last.
  const OptimizerSpec& optimizer = out.job.training.optimizer;
  json["train_batch_size"] = nullptr;
  json["train_micro_batch_size_per_gpu"] = nullptr;
  json["gradient_accumulation_steps"] = out.layout.num_microbatches;
  json["gradient_clipping"] = nullptr;
  json["optimizer"]["type"] = "AdamW";
  for (const FrameworkKey& key : FrameworkKeys(Framework::kDeepSpeed)) {
    SetJson(json, key.name, out.Value(key.job_path));
  }
  json["optimizer"]["params"]["betas"] = {optimizer.beta1, optimizer.beta2};
  json["scheduler"] = DeepSpeedScheduler(out);
  json["zero_optimization"]["overlap_comm"] = true;
  json["bf16"]["enabled"] = out.layout.precision == Precision::kBfloat16;
  NoteDeepSpeedAxes(out, json);
  out.differences.push_back(
      "the model section, training.steps and the data: they are the training "
      "script's");
  out.differences.push_back(
      "weight decay of all but the norm weights: the training script makes the "
      "parameter groups");
  out.assumptions.push_back(absl::StrCat(
      "start: deepspeed ",
      out.num_hosts > 1
          ? absl::StrCat("--hostfile HOSTS --num_nodes ", out.num_hosts, " ")
          : "",
      "--num_gpus ", out.devices_per_host,
      " TRAIN.py --deepspeed --deepspeed_config THIS_FILE"));
  json["_comment"] = CommentLines(out);
  return JsonText(json, 2) + "\n";
}

}  // namespace millrace
