#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "planner/importer.h"

namespace millrace {
namespace {

void CheckArchitecture(Importer& importer) {
  const std::string ours = "ours is of the Llama family; add ";
  for (const char* key : {"swiglu", "untie-embeddings-and-output-weights",
                          "disable-bias-linear"}) {
    importer.RefuseUnless(key, {"True"}, absl::StrCat(ours, "--", key));
  }
  importer.RefuseUnless("normalization", {"RMSNorm"},
                        absl::StrCat(ours, "--normalization RMSNorm"));
  importer.RefuseUnless("position-embedding-type", {"rope"},
                        absl::StrCat(ours, "--position-embedding-type rope"));
  importer.RefuseUnless("rotary-percent", {"", "1", "1.0"},
                        "ours rotates the whole of a head");
  for (const char* key :
       {"num-experts", "multi-latent-attention", "qk-layernorm", "add-qkv-bias",
        "use-rope-scaling", "rotary-interleaved",
        "rotary-seq-len-interpolation-factor", "apply-layernorm-1p",
        "apply-residual-connection-post-layernorm", "squared-relu",
        "mtp-num-layers", "window-size", "heterogeneous-layers-config-path"}) {
    importer.RefuseUnless(key, {""}, "our model has nothing of the kind");
  }
}

// Rows of the embedding: the size given, an end-of-document id for the null
// tokenizer, padding to a multiple that depends on the tensor axis.
void SetVocabulary(Importer& importer) {
  const Setting* padded = importer.Look("padded-vocab-size");
  const Setting* size = importer.Look("vocab-size");
  const int64_t multiple =
      importer.Integer("make-vocab-size-divisible-by", 1, 128) *
      importer.job().layout.tensor.value_or(1);
  const Setting* tokenizer = importer.Look("tokenizer-type");
  if (padded != nullptr) {
    importer.Set("model.vocab_size", padded->value, padded->key, padded);
    return;
  }
  if (size == nullptr) {
    importer.Error(nullptr, "vocab-size",
                   "missing; Megatron-LM takes it from the tokenizer, which "
                   "is not at hand: give --vocab-size N");
    return;
  }
  int64_t rows = importer.Integer("vocab-size", 1, 1);
  if (tokenizer != nullptr && tokenizer->value == "NullTokenizer") ++rows;
  rows = (rows + multiple - 1) / multiple * multiple;
  importer.Set("model.vocab_size", absl::StrCat(rows),
               absl::StrCat("vocab-size, padded to a multiple of ", multiple),
               size);
}

void SetModel(Importer& importer) {
  if (!importer.IsOn("group-query-attention") &&
      importer.Look("num-attention-heads") != nullptr) {
    importer.Set("model.kv_heads", importer.Look("num-attention-heads")->value,
                 "num-attention-heads, as without --group-query-attention",
                 importer.Look("num-attention-heads"));
    (void)importer.Look("num-query-groups");
  }
  importer.TakeTable();
  if (!importer.IsSet("model.kv_heads")) {
    importer.Set("model.kv_heads", "1", "default of Megatron-LM");
  }
  const int64_t hidden = importer.job().model.hidden;
  if (!importer.IsSet("model.ffn_hidden") && hidden > 0) {
    importer.Set("model.ffn_hidden", absl::StrCat(8 * hidden / 3 / 64 * 64),
                 "default of Megatron-LM: 8/3 of hidden-size");
  }
  SetVocabulary(importer);
  const int64_t length = importer.job().model.sequence_length;
  const int64_t longest =
      importer.Integer("max-position-embeddings", 1, length);
  if (longest < length) {
    importer.Error(importer.Look("max-position-embeddings"),
                   "max-position-embeddings",
                   absl::StrCat(longest, " is below seq-length ", length));
  }
  for (const char* key : {"attention-dropout", "hidden-dropout"}) {
    const Setting* dropout = importer.Look(key);
    double rate = 0.1;  // Its default.
    if (dropout != nullptr && absl::SimpleAtod(dropout->value, &rate) &&
        rate == 0) {
      continue;
    }
    importer.Note(absl::StrCat(key, " ", rate, ": ours has none"));
  }
}

// Devices, from what starts the command or from a dump; 0: not said.
int64_t NumDevices(Importer& importer) {
  const int64_t dumped = importer.Integer("world-size", 1, 0);
  const int64_t nodes = importer.Integer("nnodes", 1, 1);
  const int64_t each = importer.Integer("nproc-per-node", 1, 0);
  for (const char* key : {"node-rank", "master-addr", "master-port"}) {
    (void)importer.Look(key);
  }
  return dumped > 0 ? dumped : nodes * each;
}

void SetData(Importer& importer, int64_t num_devices) {
  const JobSpec& job = importer.job();
  const int64_t unit =
      int64_t{job.layout.tensor.value_or(1)} * job.layout.pipeline.value_or(1);
  if (num_devices == 0) {
    importer.Note(
        "the number of devices: it was not given with the flags, so the data "
        "axis is left to the planner");
    return;
  }
  if (num_devices % unit != 0) {
    importer.Error(
        importer.Look("tensor-model-parallel-size"),
        "tensor-model-parallel-size",
        absl::StrCat(job.layout.tensor.value_or(1),
                     " x pipeline-model-parallel-size ",
                     job.layout.pipeline.value_or(1), " = ", unit,
                     " does not divide the ", num_devices, " devices"));
    return;
  }
  const int64_t data = num_devices / unit;
  if (const int64_t said = importer.Integer("data-parallel-size", 1, data);
      said != data) {
    importer.Error(
        importer.Look("data-parallel-size"), "data-parallel-size",
        absl::StrCat(said, ", but the ", num_devices,
                     " devices over tensor x pipeline ", unit, " make ", data));
    return;
  }
  importer.Set("layout.data", absl::StrCat(data), "devices / the other axes");
}

void SetLayout(Importer& importer) {
  const int64_t num_devices = NumDevices(importer);
  if (importer.Integer("context-parallel-size", 1, 1) > 1) {
    importer.LeaveLayout(
        "context-parallel-size: this version has no context axis");
    return;
  }
  importer.Require("layout.micro_batch");
  SetData(importer, num_devices);
  importer.Set("layout.zero",
               importer.IsOn("use-distributed-optimizer") ? "1" : "0",
               "use-distributed-optimizer");
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
      {"num-layers-per-virtual-pipeline-stage",
       "num-virtual-stages-per-pipeline-rank"},
      "this version runs one stage a rank, one forward one backward");
  importer.NoteIfThere(
      {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
       "pipeline-model-parallel-layout"},
      "ours cuts the layers as evenly as can be, the last stage the smallest");
  const Setting* recompute = importer.Look("recompute-granularity");
  if (recompute != nullptr && recompute->value == "full") {
    importer.Set("layout.recompute", "full", "recompute-granularity",
                 recompute);
    (void)importer.Look("recompute-method");
    (void)importer.Look("recompute-num-layers");
  } else {
    importer.NoteIfThere(
        {"recompute-granularity", "recompute-modules", "recompute-activations"},
        "layout.recompute is left to the planner, which computes again what "
        "memory asks for");
  }
  // What ours does in any case.
  for (const char* key : {"overlap-grad-reduce", "overlap-param-gather",
                          "use-tp-pp-dp-mapping", "use-mcore-models"}) {
    (void)importer.Look(key);
  }
}

void SetSchedule(Importer& importer) {
  JobSpec& job = importer.job();
  const int64_t samples = importer.Integer("train-samples", 1, 0);
  if (!importer.IsSet("training.steps") && samples > 0 &&
      job.training.global_batch > 0) {
    importer.Set("training.steps",
                 absl::StrCat((samples + job.training.global_batch - 1) /
                              job.training.global_batch),
                 "train-samples / global-batch-size");
  }
  const Setting* style = importer.Look("lr-decay-style");
  importer.RefuseUnless("lr-decay-style", {"", "constant", "linear", "cosine"},
                        "ours decays by none, linear or cosine");
  if (style == nullptr || style->value != "WSD") {
    const std::string decay = style == nullptr             ? "linear"
                              : style->value == "constant" ? "none"
                                                           : style->value;
    if (!importer.has_errors()) {
      importer.Set(
          "training.optimizer.decay", decay,
          style == nullptr ? "default of Megatron-LM" : "lr-decay-style",
          style);
    }
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
  const int64_t num_evaluations = importer.Integer("eval-iters", 0, 100);
  if (num_evaluations > 0) {
    importer.Set("training.validation_interval_steps",
                 absl::StrCat(importer.Integer("eval-interval", 1, 1000)),
                 "eval-interval");
    importer.Set("training.validation_steps", absl::StrCat(num_evaluations),
                 "eval-iters");
  }
  const char* precision = importer.IsOn("bf16")   ? "bf16"
                          : importer.IsOn("fp16") ? "fp16"
                                                  : "fp32";
  importer.SetPrecision(precision, precision, importer.Look(precision));
}

// Prefixes, or weights and prefixes by turns.
void SetPaths(Importer& importer) {
  (void)importer.Look("mock-data");
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

void ImportMegatron(const ImportOptions&, Importer& importer) {
  CheckArchitecture(importer);
  if (importer.has_errors()) return;
  SetModel(importer);
  SetLayout(importer);
  SetSchedule(importer);
  SetPaths(importer);
}

}  // namespace millrace
