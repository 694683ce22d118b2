// A DeepSpeed configuration beside the model's config.json. It says batch
// sizes, ZeRO and the optimizer; the script has the rest.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "planner/frameworks/job_importer.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// What the trainer of Hugging Face Transformers fills in.
constexpr char kFilledLater[] = "auto";

// The setting, unless it is filled in later.
const Setting* LookSaid(Importer& importer, const char* key) {
  const Setting* setting = importer.Look(key);
  const bool is_said = setting != nullptr && setting->value != kFilledLater;
  return is_said ? setting : nullptr;
}

// 0: not said.
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

// Sequences of a step over all replicas, of a micro-batch, and micro-batches of
// a replica: two of these and the replicas give the third.
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
          importer.Look("train_batch_size"), "train_batch_size",
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
  (void)importer.Look("optimizer.params.torch_adam");
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

// Course of the learning rate.
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

}  // namespace

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
  for (const char* key : {"zero_optimization.overlap_comm", "_comment"}) {
    (void)importer.Look(key);
  }
  importer.NoteIfThere({"zero_optimization.offload_optimizer.device",
                        "zero_optimization.offload_param.device"},
                       "ours keeps all state on the device");
  importer.NoteIfThere({"activation_checkpointing.partition_activations",
                        "activation_checkpointing.number_checkpoints"},
                       "layout.recompute is left to the planner");
}

}  // namespace millrace
