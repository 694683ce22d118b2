#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/frameworks/torchtitan.h"
#include "planner/job/job_keys.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

// A flavor names a model that torchtitan's source defines.
void TakeModel(const ImportOptions& options, Importer& importer) {
  importer.RefuseUnless("model.name", {"", "llama3", "qwen3", "deepseek_v3"},
                        "only torchtitan's llama3, qwen3 and deepseek_v3 can "
                        "be ours");
  if (importer.has_errors()) return;
  const Setting* flavor = importer.Look("model.flavor");
  if (options.model.has_value()) {
    importer.TakeModelOf(*options.model,
                         importer.Integer("training.seq_len", 1, 2048), flavor);
    return;
  }
  if (const Setting* family = importer.Look("model.name");
      family != nullptr && family->value != "llama3") {
    importer.Error(family, "model.name",
                   absl::StrCat("the flavors of ", family->value,
                                " are not known here; give the model's Hugging "
                                "Face configuration with --model config.json"));
    return;
  }
  const std::string name = flavor == nullptr ? "debugmodel" : flavor->value;
  std::vector<std::string> names;
  for (const TorchtitanFlavor& known : TorchtitanFlavors()) {
    names.push_back(known.name);
    if (name != known.name) continue;
    importer.SetModel(known.model, "model.flavor");
    importer.Note(
        "rotary positions: torchtitan scales them as Llama 3.1 does, ours are "
        "plain");
    return;
  }
  importer.Error(
      flavor, "model.flavor",
      absl::StrCat("'", name, "' is none of ", absl::StrJoin(names, ", "),
                   "; give its Hugging Face configuration with --model "
                   "config.json"));
}

// Returns the number of devices for each shard of the data axis.
int64_t DevicesOfOthers(Importer& importer) {
  int64_t devices = 1;
  for (const char* key : {"parallelism.tensor_parallel_degree",
                          "parallelism.pipeline_parallel_degree",
                          "parallelism.context_parallel_degree",
                          "parallelism.data_parallel_replicate_degree"}) {
    // Stops multiplying above the largest possible count, to avoid overflow.
    if (devices <= std::numeric_limits<int32_t>::max()) {
      devices *= importer.Integer(key, 1, 1);
    }
  }
  return devices;
}

// Returns the number of shards as the file gives it. The value -1 means all
// remaining devices; it becomes their number if that is known.
int64_t NumShards(const ImportOptions& options, Importer& importer) {
  const char* key = "parallelism.data_parallel_shard_degree";
  const int64_t shards = importer.Integer(key, -1, -1);
  if (!options.num_devices.has_value()) return shards;
  const int64_t others = DevicesOfOthers(importer);
  const int64_t said = shards == -1 ? 1 : shards;
  if (*options.num_devices % others != 0 ||
      (shards != -1 && others * said != *options.num_devices)) {
    importer.Error(
        key, absl::StrCat("the degrees take ",
                          shards == -1 ? "multiples of " : "", others * said,
                          " devices, but --devices is ", *options.num_devices));
    return shards;
  }
  return *options.num_devices / others;
}

// Whether parameters are gathered for each pass. Torchtitan's default is to do
// so unless there is a pipeline, whose stages would gather them for each
// micro-batch.
bool ReshardsParameters(const Setting* reshard, Importer& importer) {
  if (reshard != nullptr && reshard->value != "default") {
    return reshard->value == "always";
  }
  return importer.Integer("parallelism.pipeline_parallel_degree", 1, 1) == 1;
}

// Sets one local batch for each replica if the file does not set the global
// batch.
void SetGlobalBatch(int64_t replicas, Importer& importer) {
  if (importer.IsSet("training.global_batch")) return;
  importer.Set(
      "training.global_batch",
      absl::StrCat(importer.Integer("training.local_batch_size", 1, 8) *
                   replicas),
      "local_batch_size x data axis");
}

// Replicates over the data axis, shards over it, or shards inside its groups.
void SetData(const ImportOptions& options, Importer& importer) {
  const int64_t replicas =
      importer.Integer("parallelism.data_parallel_replicate_degree", 1, 1);
  const int64_t shards = NumShards(options, importer);
  const Setting* sharding =
      importer.Look("parallelism.data_parallel_shard_degree");
  const Setting* reshard =
      importer.Look("parallelism.fsdp_reshard_after_forward");
  if (shards == 0) {
    importer.Error(sharding, "parallelism.data_parallel_shard_degree",
                   "expected -1 or an integer of at least 1, found '0'");
    return;
  }
  if (replicas > 1 && shards != 1) {
    importer.Set("layout.data_groups", absl::StrCat(replicas),
                 "data_parallel_replicate_degree");
  }
  if (shards == 1) {
    importer.Set("layout.zero", "0", "data_parallel_shard_degree");
  } else if (ReshardsParameters(reshard, importer)) {
    importer.Set("layout.zero", "3", "fsdp_reshard_after_forward");
  } else {
    importer.Set("layout.zero", "1", "fsdp_reshard_after_forward");
    importer.Note(
        "FSDP shards gradients too; ZeRO 1 shards the optimizer state alone "
        "and needs more memory");
  }
  if (shards == -1) {
    importer.Note(
        "data_parallel_shard_degree -1 means all devices that are left: the "
        "data axis is auto, which means the same");
    return;
  }
  const int64_t data = replicas * shards;
  importer.Set("layout.data", absl::StrCat(data),
               "data_parallel_replicate_degree, data_parallel_shard_degree");
  SetGlobalBatch(data, importer);
}

void SetBatches(Importer& importer) {
  const int64_t local = importer.Integer("training.local_batch_size", 1, 8);
  const int64_t micro =
      importer.Integer("parallelism.pipeline_parallel_microbatch_size", 1, 1);
  const LayoutConstraints& layout = importer.job().layout;
  const bool has_pipeline = layout.pipeline.value_or(1) > 1;
  if (has_pipeline && local % micro != 0) {
    importer.Error("training.local_batch_size",
                   absl::StrCat(local,
                                " is not divisible by "
                                "pipeline_parallel_microbatch_size ",
                                micro));
    return;
  }
  importer.Set(
      "layout.micro_batch", absl::StrCat(has_pipeline ? micro : local),
      has_pipeline ? "pipeline_parallel_microbatch_size" : "local_batch_size");
  if (importer.IsSet("training.global_batch")) return;
  importer.Missing("training.global_batch", "training.global_batch_size",
                   "missing; it follows from the number of devices, which the "
                   "file does not say: give --devices");
}

void SetTorchtitanSchedule(Importer& importer) {
  const Setting* ratio = importer.Look("lr_scheduler.decay_ratio");
  const Setting* type = importer.Look("lr_scheduler.decay_type");
  double decayed = 1;
  if (ratio != nullptr && !absl::SimpleAtod(ratio->value, &decayed)) {
    decayed = -1;
  }
  if (decayed != 0 && decayed != 1) {
    importer.Error(ratio, "lr_scheduler.decay_ratio",
                   absl::StrCat("found '", ratio->value,
                                "'; ours decays from the warmup on or not at "
                                "all: leave it out, or set it to 0.0"));
  }
  importer.RefuseUnless("lr_scheduler.decay_type", {"", "linear", "cosine"},
                        "ours decays by none, linear or cosine");
  if (importer.has_errors()) return;
  importer.Set("training.optimizer.decay",
               decayed == 0      ? "none"
               : type == nullptr ? "linear"
                                 : type->value,
               "lr_scheduler", type);
  OptimizerSpec& optimizer = importer.job().training.optimizer;
  if (const Setting* minimum = importer.Look("lr_scheduler.min_lr_factor");
      minimum != nullptr) {
    double factor = 0;
    if (absl::SimpleAtod(minimum->value, &factor) && factor >= 0 &&
        factor <= 1) {
      importer.Set("training.optimizer.min_learning_rate",
                   NumberToText(optimizer.learning_rate * factor),
                   "optimizer.lr x min_lr_factor", minimum);
    } else {
      importer.Error(minimum, minimum->key,
                     absl::StrCat("expected a number from 0 to 1, found '",
                                  minimum->value, "'"));
    }
  }
  const int64_t steps = importer.job().training.num_steps;
  if (optimizer.warmup_steps > steps) {
    importer.Note(absl::StrCat("warmup_steps ", optimizer.warmup_steps,
                               ": cut to the ", steps,
                               " steps there are, as torchtitan does"));
    optimizer.warmup_steps = steps;
  }
}

// Sets the order of passes and the number of chunks of a stage.
void SetOrder(Importer& importer) {
  const char* key = "parallelism.pipeline_parallel_schedule";
  const char* by_layers = "parallelism.pipeline_parallel_layers_per_stage";
  const char* parts = "parallelism.module_fqns_per_model_part";
  const Setting* schedule = importer.Look(key);
  const Setting* modules = importer.Look(parts);
  const int64_t each = importer.Integer(by_layers, 1, 0);
  // The embedding and the head count as this many layers of a chunk.
  int64_t ends = 0;
  for (const char* end :
       {"parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers"}) {
    ends += importer.Integer(end, 0, 1);
  }
  if (schedule == nullptr || schedule->value == "1F1B") return;
  if (schedule->value != "Interleaved1F1B") {
    importer.Note(absl::StrCat(key, " '", schedule->value,
                               "': ours are 1F1B, Interleaved1F1B and zero "
                               "bubble, of which the planner chooses"));
    return;
  }
  const JobSpec& job = importer.job();
  const int64_t pipeline = job.layout.pipeline.value_or(1);
  if (pipeline == 1) return;
  importer.Set("layout.schedule", "interleaved", key, schedule);
  int64_t chunks = 2 * pipeline;
  const char* source = "default of torchtitan";
  std::string makes;
  if (each > 0) {
    chunks = (job.model.num_layers + ends + each - 1) / each;
    source = by_layers;
    makes = absl::StrCat(each, " layers a chunk make ", chunks, " chunks of ",
                         job.model.num_layers, " layers and ", ends,
                         " for embedding and head");
  } else if (modules != nullptr) {
    chunks = 1 + std::count(modules->value.begin(), modules->value.end(), '|');
    source = parts;
    makes = absl::StrCat("names the modules of ", chunks, " chunks");
  }
  if (chunks % pipeline != 0 || chunks == pipeline) {
    importer.Error(
        source,
        absl::StrCat(makes, ", which ", pipeline,
                     " stages cannot hold in equal numbers of two or more"));
    return;
  }
  importer.Set("layout.interleave", absl::StrCat(chunks / pipeline), source);
}

void SetTorchtitanPrecision(Importer& importer) {
  const Setting* precision = importer.Look("training.mixed_precision_param");
  const Setting* converters = importer.Look("model.converters");
  importer.Ignore({"quantize.linear.float8.recipe_name",
                   "quantize.linear.float8.filter_fqns",
                   "quantize.linear.mx.recipe_name",
                   "quantize.grouped_mm.float8.fqns", "compile.enable"});
  if (converters != nullptr &&
      (absl::StrContains(converters->value, "float8") ||
       absl::StrContains(converters->value, ".mx"))) {
    importer.SetPrecision("fp8", "model.converters", converters);
    return;
  }
  importer.SetPrecision(
      precision == nullptr || precision->value == "bfloat16" ? "bf16" : "fp32",
      "mixed_precision_param", precision);
}

}  // namespace

void ImportTorchtitan(const ImportOptions& options, Importer& importer) {
  TakeModel(options, importer);
  importer.RefuseUnless("optimizer.name", {"", "AdamW"}, "ours is AdamW");
  if (importer.has_errors()) {
    importer.LeaveModel();
    return;
  }
  // Torchtitan turns clipping off by an infinite norm.
  if (const Setting* norm = importer.Look("training.max_norm");
      norm != nullptr && norm->value == "inf") {
    importer.Set("training.gradient_clip_norm", "0", norm->key, norm);
  }
  if (const Setting* batch = importer.Look("training.global_batch_size");
      batch != nullptr && batch->value == "-1") {
    // -1 is torchtitan's default. The table must not take it as a number.
    importer.Note("global_batch_size -1: one local batch a replica");
    SetData(options, importer);
    importer.Set("layout.pipeline",
                 absl::StrCat(importer.Integer(
                     "parallelism.pipeline_parallel_degree", 1, 1)),
                 "parallelism.pipeline_parallel_degree");
    SetBatches(importer);
    importer.TakeTable();
  } else {
    importer.TakeTable();
    SetData(options, importer);
    SetBatches(importer);
  }
  SetTorchtitanSchedule(importer);
  SetOrder(importer);
  SetTorchtitanPrecision(importer);
  if (importer.IsOn("checkpoint.enable")) {
    importer.Set("checkpoint.interval_steps",
                 absl::StrCat(importer.Integer("checkpoint.interval", 1, 500)),
                 "checkpoint.interval");
  }
  // Torchtitan's selective mode chooses among other ops than ours.
  importer.Ignore({"activation_checkpoint.selective_ac_option"});
  if (const Setting* mode = importer.Look("activation_checkpoint.mode");
      mode != nullptr) {
    importer.Set("layout.recompute", mode->value, "activation_checkpoint.mode",
                 mode);
  }
  if (const Setting* dtype = importer.Look("training.dtype");
      dtype != nullptr && dtype->value != "float32") {
    importer.Note(absl::StrCat("training.dtype '", dtype->value,
                               "': our master weights are float32"));
  }
  importer.NoteIfThere(
      {"parallelism.module_fqns_per_model_part"},
      "ours cuts the layers as evenly as can be, the last stage the smallest");
}

}  // namespace millrace
