// DeepSpeed. Its configuration has batch sizes, ZeRO and the optimizer. The
// model's config.json stands beside it, and the training script has the rest.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/json.h"
#include "planner/frameworks/export_parts.h"
#include "planner/frameworks/job_importer.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

const FrameworkKey kDeepSpeedKeys[] = {
    {"training.global_batch", "train_batch_size"},
    {"layout.micro_batch", "train_micro_batch_size_per_gpu"},
    {"training.gradient_clip_norm", "gradient_clipping"},
    {"layout.zero", "zero_optimization.stage"},
    {"training.optimizer.learning_rate", "optimizer.params.lr"},
    {"training.optimizer.epsilon", "optimizer.params.eps"},
    {"training.optimizer.weight_decay", "optimizer.params.weight_decay"},
};

// --- Export ---

nlohmann::ordered_json DeepSpeedScheduler(Export& out) {
  const TrainingSpec& training = out.job.training;
  const OptimizerSpec& optimizer = training.optimizer;
  // Newer versions refuse fewer than two warmup steps.
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

// Sets the value at a dotted path as a JSON number.
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
  if (layout.data_groups > 1 && layout.shards_optimizer()) {
    out.differences.push_back(absl::StrCat(
        "ZeRO inside ", layout.data_groups,
        " groups of the data axis (layout.data_groups): ZeRO here shards over "
        "all of it, which takes less memory and more of the network"));
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

absl::StatusOr<std::string> ExportDeepSpeed(Export out) {
  nlohmann::ordered_json json;
  json["_comment"] = nullptr;  // First in the file; filled at the end.
  const OptimizerSpec& optimizer = out.job.training.optimizer;
  json["train_batch_size"] = nullptr;
  json["train_micro_batch_size_per_gpu"] = nullptr;
  json["gradient_accumulation_steps"] = out.layout.num_microbatches;
  json["gradient_clipping"] = nullptr;
  json["optimizer"]["type"] = "AdamW";
  for (const FrameworkKey& key : DeepSpeedAdapter()->keys) {
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

// --- Import ---

// The value that the trainer of Hugging Face Transformers replaces later.
constexpr char kFilledLater[] = "auto";

// Returns the setting, or null if it is absent or replaced later.
const Setting* LookSaid(Importer& importer, const char* key) {
  const Setting* setting = importer.Look(key);
  const bool is_said = setting != nullptr && setting->value != kFilledLater;
  return is_said ? setting : nullptr;
}

// Returns the count, or 0 if it is not given.
int64_t Count(Importer& importer, const char* key) {
  return LookSaid(importer, key) == nullptr ? 0 : importer.Integer(key, 1, 0);
}

void TakeSaid(Importer& importer, const char* job_path, const char* key,
              const char* fallback) {
  const Setting* setting = LookSaid(importer, key);
  if (setting != nullptr) {
    importer.Set(job_path, setting->value, key, setting);
  } else if (importer.Look(key) == nullptr && fallback != nullptr) {
    importer.Set(job_path, fallback, "default of DeepSpeed");
  }
}

// Three figures: sequences of a step over all replicas, sequences of a
// micro-batch, and micro-batches of a replica. Two of them and the number of
// replicas give the third.
void SetBatches(const ImportOptions& options, Importer& importer) {
  int64_t batch = Count(importer, "train_batch_size");
  const int64_t micro = Count(importer, "train_micro_batch_size_per_gpu");
  const int64_t steps = Count(importer, "gradient_accumulation_steps");
  const LayoutConstraints& layout = importer.job().layout;
  const int64_t others =
      int64_t{layout.tensor.value_or(1)} * layout.context.value_or(1);
  int64_t replicas = 0;
  if (batch > 0 && micro > 0 && steps > 0) {
    if (batch % micro != 0 || batch / micro % steps != 0) {
      importer.Error(
          "train_batch_size",
          absl::StrCat(batch, " is no multiple of micro-batches of ", micro,
                       " x gradient_accumulation_steps ", steps));
      return;
    }
    replicas = batch / micro / steps;
  } else if (options.num_devices.has_value()) {
    if (*options.num_devices % others != 0) {
      importer.Error(
          importer.Look("tensor_parallel.autotp_size"), "--devices",
          absl::StrCat(*options.num_devices, " devices are no multiple of the ",
                       others, " that tensor and context axis take"));
      return;
    }
    replicas = *options.num_devices / others;
    importer.Note(
        "the data axis: all devices that tensor and context axis leave, as "
        "without a pipeline, which would be made in code");
  }
  if (batch == 0 && micro > 0 && replicas > 0) {
    batch = micro * replicas * (steps > 0 ? steps : 1);
  }
  if (micro > 0) {
    importer.Set("layout.micro_batch", absl::StrCat(micro),
                 "train_micro_batch_size_per_gpu");
  }
  if (batch > 0) {
    importer.Set("training.global_batch", absl::StrCat(batch),
                 "train_batch_size");
  } else if (micro > 0) {
    importer.Missing("training.global_batch", "train_batch_size",
                     "missing; it follows from the number of devices, which "
                     "the file does not say: give --devices");
  }
  if (replicas > 0) {
    importer.Set("layout.data", absl::StrCat(replicas),
                 "replicas, as batch sizes or --devices say");
  }
}

void SetAxes(Importer& importer) {
  if (const int64_t tensor = Count(importer, "tensor_parallel.autotp_size");
      tensor > 0) {
    importer.Set("layout.tensor", absl::StrCat(tensor), "autotp_size");
  }
  if (const int64_t context = Count(importer, "sequence_parallel_size");
      context > 0) {
    importer.Set("layout.context", absl::StrCat(context),
                 "sequence_parallel_size");
    importer.Note(
        "sequence_parallel_size: Ulysses exchanges heads, ours keys and "
        "values");
  }
  importer.Note(
      "axes that the training script makes in code (a pipeline, experts, "
      "tensor ranks beside these) are left to the planner");
}

void SetOptimizer(Importer& importer) {
  importer.RefuseUnless("optimizer.type", {"", "Adam", "AdamW"},
                        "ours is AdamW");
  importer.RefuseUnless("optimizer.params.adam_w_mode", {"", "true"},
                        "ours decays weights by themselves");
  importer.Ignore({"optimizer.params.torch_adam"});
  const Setting* betas = LookSaid(importer, "optimizer.params.betas");
  if (betas == nullptr) return;
  const std::vector<std::string> values =
      absl::StrSplit(betas->value, ' ', absl::SkipEmpty());
  if (values.size() != 2) {
    importer.Error(
        betas, betas->key,
        absl::StrCat("expected a list of two, found '", betas->value, "'"));
    return;
  }
  importer.Set("training.optimizer.beta1", values[0], "betas", betas);
  importer.Set("training.optimizer.beta2", values[1], "betas", betas);
}

// Sets how the learning rate changes over the steps.
void SetScheduler(Importer& importer) {
  const Setting* type = importer.Look("scheduler.type");
  if (type == nullptr) {
    importer.Note(
        "scheduler: there is none, so the learning rate stays unless the "
        "training script makes one");
    importer.Set("training.optimizer.decay", "none", "no scheduler");
    return;
  }
  importer.RefuseUnless("scheduler.type",
                        {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"},
                        "ours warm up, then decay by none, linear or cosine");
  importer.Set("training.optimizer.decay",
               type->value == "WarmupCosineLR"  ? "cosine"
               : type->value == "WarmupDecayLR" ? "linear"
                                                : "none",
               "scheduler.type");
  TakeSaid(importer, "training.steps", "scheduler.params.total_num_steps",
           nullptr);
  TakeSaid(importer, "training.optimizer.warmup_steps",
           "scheduler.params.warmup_num_steps", "1000");
  TakeSaid(importer, "training.optimizer.learning_rate",
           "scheduler.params.warmup_max_lr", nullptr);
  for (const char* key : {"scheduler.params.warmup_min_lr",
                          "scheduler.params.warmup_min_ratio"}) {
    const Setting* least = LookSaid(importer, key);
    double value = 0;
    if (least == nullptr || !absl::SimpleAtod(least->value, &value) ||
        value == 0) {
      continue;
    }
    importer.Note(absl::StrCat(key, " ", least->value, ": ours starts at 0"));
  }
  const Setting* kind = importer.Look("scheduler.params.warmup_type");
  if (kind == nullptr || kind->value != "linear") {
    importer.Note("warmup_type log, the default: ours rises linearly");
  }
  const Setting* least = importer.Look("scheduler.params.cos_min_ratio");
  double ratio = 0;
  if (least != nullptr && absl::SimpleAtod(least->value, &ratio)) {
    importer.Set(
        "training.optimizer.min_learning_rate",
        NumberToText(importer.job().training.optimizer.learning_rate * ratio),
        "lr x cos_min_ratio", least);
  }
}

void SetDeepspeedPrecision(Importer& importer) {
  for (const char* key : {"bf16.enabled", "bfloat16.enabled"}) {
    const Setting* enabled = importer.Look(key);
    if (enabled == nullptr || enabled->value == "false") continue;
    importer.SetPrecision("bf16", key, enabled);
    return;
  }
  if (const Setting* enabled = importer.Look("fp16.enabled");
      enabled != nullptr && enabled->value != "false") {
    importer.SetPrecision("fp16", "fp16.enabled", enabled);
    return;
  }
  importer.SetPrecision("fp32", "neither bf16 nor fp16", nullptr);
}

void ImportDeepSpeed(const ImportOptions& options, Importer& importer) {
  if (!options.model.has_value()) {
    importer.Error(nullptr, "--model",
                   "missing; a DeepSpeed configuration has no model: give its "
                   "Hugging Face configuration with --model config.json");
    importer.LeaveModel();
    return;
  }
  importer.TakeModelOf(*options.model, options.sequence_length, nullptr);
  if (importer.has_errors()) {
    importer.LeaveModel();
    return;
  }
  SetAxes(importer);
  SetBatches(options, importer);
  TakeSaid(importer, "layout.zero", "zero_optimization.stage", "0");
  TakeSaid(importer, "training.gradient_clip_norm", "gradient_clipping", "0");
  TakeSaid(importer, "training.optimizer.learning_rate", "optimizer.params.lr",
           "0.001");
  TakeSaid(importer, "training.optimizer.epsilon", "optimizer.params.eps",
           "1e-08");
  TakeSaid(importer, "training.optimizer.weight_decay",
           "optimizer.params.weight_decay", "0");
  SetOptimizer(importer);
  SetScheduler(importer);
  SetDeepspeedPrecision(importer);
  importer.Ignore({"zero_optimization.overlap_comm", "_comment"});
  importer.NoteIfThere({"zero_optimization.offload_optimizer.device",
                        "zero_optimization.offload_param.device"},
                       "ours keeps all state on the device");
  importer.NoteIfThere({"activation_checkpointing.partition_activations",
                        "activation_checkpointing.number_checkpoints"},
                       "layout.recompute is left to the planner");
}

constexpr FrameworkAdapter kDeepSpeed = {
    .name = "deepspeed",
    .title = "DeepSpeed",
    .version = "0.16.4 and later",
    .configuration = "a configuration, beside the model's config.json",
    .keys = kDeepSpeedKeys,
    .read = ReadJsonSettings,
    .take = ImportDeepSpeed,
    .write = ExportDeepSpeed,
    .start_on_hosts = "the file HOSTS lists them",
};

}  // namespace

Framework DeepSpeedAdapter() { return &kDeepSpeed; }

}  // namespace millrace
