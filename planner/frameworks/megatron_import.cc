#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "planner/frameworks/megatron.h"
#include "planner/layout/recompute.h"

namespace millrace {
namespace {

// Returns the number of devices from the launcher's flags or from a dump of all
// arguments; 0 if neither has it.
int64_t NumDevices(const ImportOptions& options, Importer& importer) {
  const int64_t dumped = importer.Integer("world-size", 1, 0);
  const int64_t nodes = importer.Integer("nnodes", 1, 1);
  const int64_t each = importer.Integer("nproc-per-node", 1, 0);
  importer.Ignore({"node-rank", "master-addr", "master-port", "rdzv-backend",
                   "rdzv-endpoint", "rdzv-id"});
  const int64_t said = dumped > 0 ? dumped : nodes * each;
  if (said > 0 && said != options.num_devices.value_or(said)) {
    importer.Error(
        importer.Look(dumped > 0 ? "world-size" : "nproc-per-node"),
        dumped > 0 ? "world-size" : "nproc-per-node",
        absl::StrCat("the configuration is for ", said,
                     " devices, but --devices is ", *options.num_devices));
    return 0;
  }
  const int64_t devices = options.num_devices.value_or(said);
  if (devices <= std::numeric_limits<int32_t>::max()) return devices;
  importer.Error(
      "nnodes",
      absl::StrCat(nodes, " times ", importer.OwnKey("nproc-per-node"), " ",
                   each, " are ", devices, " devices; expected fewer"));
  return 0;
}

void SetData(Importer& importer, int64_t num_devices) {
  const JobSpec& job = importer.job();
  const int64_t context = job.layout.context.value_or(1);
  if (num_devices == 0) {
    importer.Note(
        "the number of devices: it was not given with the flags (--devices "
        "would do), so the data axis is left to the planner");
    return;
  }
  // Stops multiplying above the number of devices, to avoid overflow.
  int64_t unit = 1;
  for (const int64_t axis :
       {int64_t{job.layout.tensor.value_or(1)},
        int64_t{job.layout.pipeline.value_or(1)}, context}) {
    if (unit <= num_devices) unit *= axis;
  }
  if (num_devices % unit != 0) {
    importer.Error(
        "tensor-model-parallel-size",
        absl::StrCat(
            job.layout.tensor.value_or(1), " x ",
            importer.OwnKey("pipeline-model-parallel-size"), " ",
            job.layout.pipeline.value_or(1),
            context > 1
                ? absl::StrCat(" x ", importer.OwnKey("context-parallel-size"),
                               " ", context)
                : "",
            " = ", unit, " does not divide the ", num_devices, " devices"));
    return;
  }
  const int64_t data = num_devices / unit;
  if (const int64_t said = importer.Integer("data-parallel-size", 1, data);
      said != data) {
    importer.Error(
        "data-parallel-size",
        absl::StrCat(said, ", but the ", num_devices,
                     " devices over the other axes, ", unit, " make ", data));
    return;
  }
  importer.Set("layout.data", absl::StrCat(data), "devices / the other axes");
}

// Counts the bars '|' between the chunks of a pipeline layout such as
// "Et*3|(tt|)*6t*3L". Returns nothing for text that is no such layout.
std::optional<int64_t> NumBars(absl::string_view layout) {
  constexpr int64_t kMost = 100000;
  int64_t bars = 0;
  while (!layout.empty()) {
    int64_t of_unit = layout[0] == '|' ? 1 : 0;
    size_t length = 1;
    if (layout[0] == '(') {
      const size_t end = layout.find(')');
      if (end == layout.npos) return std::nullopt;
      const auto inner = NumBars(layout.substr(1, end - 1));
      if (!inner.has_value()) return std::nullopt;
      of_unit = *inner;
      length = end + 1;
    } else if (!absl::StrContains("EtmL|,", layout.substr(0, 1))) {
      return std::nullopt;
    }
    layout.remove_prefix(length);
    int64_t times = 1;
    if (absl::ConsumePrefix(&layout, "*")) {
      const size_t digits =
          std::min(layout.find_first_not_of("0123456789"), layout.size());
      if (!absl::SimpleAtoi(layout.substr(0, digits), &times) ||
          times > kMost) {
        return std::nullopt;
      }
      layout.remove_prefix(digits);
    }
    bars += of_unit * times;
    if (bars > kMost) return std::nullopt;
  }
  return bars;
}

// Finds the number of chunks of a stage: as given, from the layers of a chunk,
// or from the pipeline layout.
void SetInterleave(Importer& importer) {
  const char* by_layers = "num-layers-per-virtual-pipeline-stage";
  const JobSpec& job = importer.job();
  const int64_t pipeline = job.layout.pipeline.value_or(1);
  const Setting* dumped = importer.Look("virtual-pipeline-model-parallel-size");
  const Setting* given = importer.Look("num-virtual-stages-per-pipeline-rank");
  const Setting* layers = importer.Look(by_layers);
  const Setting* layout = importer.Look("pipeline-model-parallel-layout");
  int64_t chunks = 1;
  const Setting* source = nullptr;
  if (given != nullptr) {
    source = given;
    chunks = importer.Integer("num-virtual-stages-per-pipeline-rank", 1, 1);
  } else if (dumped != nullptr) {
    source = dumped;
    chunks = importer.Integer("virtual-pipeline-model-parallel-size", 1, 1);
  } else if (layers != nullptr) {
    source = layers;
    const int64_t each = importer.Integer(by_layers, 1, 1);
    if (job.model.num_layers % (pipeline * each) != 0) {
      importer.Error(layers, by_layers,
                     absl::StrCat(each, " layers a chunk do not divide the ",
                                  job.model.num_layers, " layers of ", pipeline,
                                  " stages equally; change one of them"));
      return;
    }
    chunks = job.model.num_layers / (pipeline * each);
  } else if (layout != nullptr) {
    const std::optional<int64_t> bars = NumBars(layout->value);
    if (!bars.has_value()) {
      // Recipes may have a list here. A note says so, and nothing is set.
      if (importer.framework() == MegatronAdapter()) {
        importer.Error(layout, "pipeline-model-parallel-layout",
                       absl::StrCat("expected text such as 'Et*3|(t|)*2tL', "
                                    "found '",
                                    layout->value, "'"));
      }
      return;
    }
    source = layout;
    if ((*bars + 1) % pipeline != 0) {
      importer.Error(layout, "pipeline-model-parallel-layout",
                     absl::StrCat("has ", *bars + 1, " parts, which ", pipeline,
                                  " stages cannot hold in equal numbers; "
                                  "change one of them"));
      return;
    }
    chunks = (*bars + 1) / pipeline;
  }
  if (chunks == 1) return;
  if (pipeline == 1) {
    importer.Error(source, source->key,
                   absl::StrCat("asks for ", chunks,
                                " chunks a stage, but there is one stage, "
                                "which has no bubble to fill; remove it"));
    return;
  }
  importer.Set("layout.interleave", absl::StrCat(chunks), source->key);
  importer.Set("layout.schedule", "interleaved", source->key);
}

void SetRecompute(Importer& importer) {
  const Setting* granularity = importer.Look("recompute-granularity");
  const Setting* modules = importer.Look("recompute-modules");
  if (granularity != nullptr && granularity->value == "full") {
    importer.Set("layout.recompute", "full", "recompute-granularity",
                 granularity);
    importer.Ignore({"recompute-method", "recompute-num-layers"});
    return;
  }
  const std::set<std::string> names =
      absl::StrSplit(modules == nullptr ? "" : modules->value,
                     absl::ByAnyChar(" ,"), absl::SkipEmpty());
  const std::set<std::string> ours = {"layernorm", "moe_act"};
  if (granularity != nullptr && granularity->value == "selective" &&
      !names.empty() &&
      std::includes(ours.begin(), ours.end(), names.begin(), names.end())) {
    Recompute set = Recompute::kNone;
    if (names.count("layernorm") > 0) set = set | Recompute::kNorm;
    if (names.count("moe_act") > 0) set = set | Recompute::kActivation;
    importer.Set("layout.recompute", RecomputeName(set), "recompute-modules",
                 modules);
    return;
  }
  importer.NoteIfThere(
      {"recompute-granularity", "recompute-modules", "recompute-activations"},
      "layout.recompute is left to the planner, which computes again what "
      "memory asks for");
}

void SetLayout(const ImportOptions& options, Importer& importer) {
  importer.Require("layout.micro_batch");
  SetData(importer, NumDevices(options, importer));
  SetInterleave(importer);
  if (importer.job().model.moe.num_experts == 0) {
    importer.Set("layout.expert_tensor", "1", "there are no experts");
  } else if (!importer.IsSet("layout.expert_tensor") &&
             importer.framework() == MegatronAdapter()) {
    importer.Set("layout.expert_tensor",
                 absl::StrCat(importer.job().layout.tensor.value_or(1)),
                 "default of Megatron-LM: as tensor-model-parallel-size");
  }
  importer.Set("layout.zero",
               importer.IsOn("use-distributed-optimizer") ? "1" : "0",
               "use-distributed-optimizer");
  const int64_t groups =
      importer.Integer("num-distributed-optimizer-instances", 1, 1);
  if (groups > 1) {
    importer.Set("layout.data_groups", absl::StrCat(groups),
                 "num-distributed-optimizer-instances");
  }
  if (!importer.IsSet("training.global_batch") &&
      importer.job().layout.data.has_value()) {
    importer.Set("training.global_batch",
                 absl::StrCat(importer.job().layout.micro_batch.value_or(1) *
                              *importer.job().layout.data),
                 "default of Megatron-LM: one micro-batch a replica");
  }
  if (!importer.IsOn("sequence-parallel") &&
      importer.job().layout.tensor.value_or(1) > 1) {
    importer.Note(
        "sequence-parallel is off: ours is on wherever the tensor axis is");
  }
  importer.NoteIfThere(
      {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
       "pipeline-model-parallel-layout"},
      "ours cuts the layers as evenly as can be, the last stage the smallest");
  SetRecompute(importer);
  // Our workers do this in any case.
  importer.Ignore({"overlap-grad-reduce", "overlap-param-gather",
                   "use-tp-pp-dp-mapping", "use-mcore-models"});
}

void SetMegatronSchedule(Importer& importer) {
  JobSpec& job = importer.job();
  const int64_t samples = importer.Integer(
      "train-samples", 1, 0, std::numeric_limits<int64_t>::max() / 2);
  if (!importer.IsSet("training.steps") && samples > 0 &&
      job.training.global_batch > 0) {
    importer.Set("training.steps",
                 absl::StrCat((samples + job.training.global_batch - 1) /
                              job.training.global_batch),
                 "train-samples / global-batch-size");
  }
  const bool has_defaults = importer.framework() == MegatronAdapter();
  const Setting* style = importer.Look("lr-decay-style");
  importer.RefuseUnless("lr-decay-style", {"", "constant", "linear", "cosine"},
                        "ours decays by none, linear or cosine");
  // Schedulers of recipes use a cosine.
  const char* usual = has_defaults ? "linear" : "cosine";
  const std::string decay = style == nullptr             ? usual
                            : style->value == "constant" ? "none"
                                                         : style->value;
  if (!importer.has_errors()) {
    importer.Set("training.optimizer.decay", decay,
                 style == nullptr
                     ? absl::StrCat("default of ", importer.framework()->title)
                     : "lr-decay-style",
                 style);
  }
  if (const Setting* decay = importer.Look("lr-decay-iters");
      decay != nullptr &&
      decay->value != absl::StrCat(job.training.num_steps)) {
    importer.Note(absl::StrCat("lr-decay-iters ", decay->value,
                               ": ours decays until the last step"));
  }
  importer.NoteIfThere({"lr-warmup-fraction", "lr-warmup-samples"},
                       "give training.optimizer.warmup_steps");
  importer.NoteIfThere({"rampup-batch-size"},
                       "ours has one batch size for all steps");
  const int64_t num_evaluations =
      importer.Integer("eval-iters", 0, has_defaults ? 100 : 0);
  if (num_evaluations > 0) {
    importer.Set("training.validation_interval_steps",
                 absl::StrCat(importer.Integer("eval-interval", 1, 1000)),
                 "eval-interval");
    importer.Set("training.validation_steps", absl::StrCat(num_evaluations),
                 "eval-iters");
  }
}

void SetMegatronPrecision(Importer& importer) {
  const Setting* fp8 = importer.Look("fp8-format");
  const Setting* fp4 = importer.Look("fp4-format");
  importer.Ignore({"fp8-recipe", "fp4-recipe"});
  const bool bf16 = importer.IsOn("bf16");
  const bool fp16 = importer.IsOn("fp16");
  if (bf16 && fp16) {
    importer.Error("fp16", "contradicts bf16; remove one");
    return;
  }
  if (fp4 != nullptr) {
    importer.SetPrecision("fp4", "fp4-format", fp4);
  } else if (fp8 != nullptr) {
    importer.SetPrecision("fp8", "fp8-format", fp8);
  } else {
    const char* precision = bf16 ? "bf16" : fp16 ? "fp16" : "fp32";
    importer.SetPrecision(precision, precision, importer.Look(precision));
  }
}

// Notes the keys that name a recipe, whose own values are not known here.
void NoteRecipe(Importer& importer) {
  for (const char* key : {"recipe", "model", "factory"}) {
    const Setting* recipe = importer.Look(key);
    if (recipe == nullptr) continue;
    importer.Note(absl::StrCat(
        key, " ", recipe->value,
        ": its own values are not known here; keys that are not overridden are "
        "assumed, or left to the planner"));
  }
  importer.Ignore(
      {"mode", "dataset", "yes", "optimizer.use_distributed_optimizer"});
}

// Recognizes the named recipes of Megatron-Bridge:
// "bf16_with_fp8_current_scaling_mixed".
void SetBridgePrecision(Importer& importer) {
  const Setting* named = importer.Look("mixed_precision");
  const Setting* fp8 = importer.Look("mixed_precision.fp8");
  const Setting* fp4 = importer.Look("mixed_precision.fp4");
  const std::string name = named == nullptr ? "" : named->value;
  if (fp4 != nullptr || absl::StrContains(name, "fp4")) {
    importer.SetPrecision("fp4", "mixed_precision", named);
  } else if (fp8 != nullptr || absl::StrContains(name, "fp8")) {
    importer.SetPrecision("fp8", "mixed_precision", named);
  } else if (absl::StrContains(name, "bf16") ||
             importer.IsOn("mixed_precision.bf16")) {
    importer.SetPrecision("bf16", "mixed_precision", named);
  } else if (!name.empty() || importer.IsOn("mixed_precision.fp16")) {
    importer.SetPrecision("fp16", "mixed_precision", named);
  } else {
    importer.SetPrecision("fp32", "mixed_precision", nullptr);
  }
}

// NeMo's recipes compute in bf16. Removing their plugin would change that, but
// leaves no key to read.
void SetNemoPrecision(Importer& importer) {
  const Setting* fp8 = importer.Look("trainer.plugins.fp8");
  importer.Ignore({"trainer.plugins.fp8_recipe"});
  if (fp8 != nullptr) {
    importer.SetPrecision("fp8", "trainer.plugins.fp8", fp8);
  } else {
    importer.SetPrecision("bf16", "what NeMo's recipes compute in", nullptr);
  }
}

// Reads prefixes, or weights and prefixes in turns.
void SetPaths(Importer& importer) {
  importer.Ignore({"mock-data"});
  const Setting* paths = importer.Look("data-path");
  if (paths == nullptr) return;
  bool has_weights = false;
  for (const auto word : absl::StrSplit(paths->value, ' ', absl::SkipEmpty())) {
    if (double weight = 0; absl::SimpleAtod(word, &weight)) {
      has_weights = true;
    } else {
      importer.job().data.indexed.emplace_back(word);
    }
  }
  importer.Note(absl::StrCat(
      "data-path: data.tokenizer and the share held out are yours to set",
      has_weights ? "; the weights are dropped" : ""));
}

}  // namespace

void ImportMegatron(const ImportOptions& options, Importer& importer) {
  ImportMegatronModel(importer);
  if (importer.has_errors()) return;
  SetLayout(options, importer);
  SetMegatronSchedule(importer);
  if (importer.framework() != MegatronAdapter()) NoteRecipe(importer);
  if (importer.framework() == MegatronBridgeAdapter()) {
    SetBridgePrecision(importer);
  } else if (importer.framework() == NemoAdapter()) {
    SetNemoPrecision(importer);
  } else {
    SetMegatronPrecision(importer);
  }
  SetPaths(importer);
}

}  // namespace millrace
