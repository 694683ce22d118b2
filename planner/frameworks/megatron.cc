#include "planner/frameworks/megatron.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr FrameworkKey kMegatronKeys[] = {
    {"layout.tensor", "tensor-model-parallel-size", "1"},
    {"layout.pipeline", "pipeline-model-parallel-size", "1"},
    {"layout.context", "context-parallel-size", "1"},
    {"layout.expert", "expert-model-parallel-size", "1"},
    {"layout.expert_tensor", "expert-tensor-parallel-size"},
    {"layout.micro_batch", "micro-batch-size"},
    {"training.global_batch", "global-batch-size"},
    {"model.layers", "num-layers"},
    {"model.hidden", "hidden-size"},
    {"model.ffn_hidden", "ffn-hidden-size"},
    {"model.heads", "num-attention-heads"},
    {"model.kv_heads", "num-query-groups"},
    {"model.head_dim", "kv-channels"},
    {"model.sequence_length", "seq-length"},
    {"model.rope_theta", "rotary-base", "10000"},
    {"model.norm_epsilon", "norm-epsilon", "1e-05"},
    {"model.init_std", "init-method-std", "0.02"},
    {"training.steps", "train-iters"},
    {"training.optimizer.learning_rate", "lr"},
    {"training.optimizer.min_learning_rate", "min-lr", "0"},
    {"training.optimizer.warmup_steps", "lr-warmup-iters", "0"},
    {"training.optimizer.beta1", "adam-beta1", "0.9"},
    {"training.optimizer.beta2", "adam-beta2", "0.999"},
    {"training.optimizer.epsilon", "adam-eps", "1e-08"},
    {"training.optimizer.weight_decay", "weight-decay", "0.01"},
    {"training.gradient_clip_norm", "clip-grad", "1"},
    {"training.seed", "seed", "1234"},
    {"checkpoint.interval_steps", "save-interval", "0"},
};

void AddData(Export& out, std::vector<MegatronFlag>& flags) {
  if (out.job.checkpoint.interval_steps > 0) {
    flags.push_back({"save", out.checkpoint_folder()});
  }
  // Before core 0.18, Megatron's null tokenizer adds one id, the end of a
  // document, to the given size. Padding makes the size the same for all
  // versions.
  const int64_t rows = out.job.model.vocab_size;
  flags.push_back({"tokenizer-type", "NullTokenizer"});
  flags.push_back({"vocab-size", absl::StrCat(rows - 1)});
  flags.push_back(
      {"make-vocab-size-divisible-by", absl::StrCat(rows / out.layout.tensor)});
  if (out.job.data.indexed.empty()) {
    flags.push_back({"mock-data", ""});
    out.differences.push_back(
        "data.text: Megatron-LM reads tokens prepared beforehand; replace "
        "--mock-data by --data-path PREFIX");
  }
}

void AddPrecision(Export& out, std::vector<MegatronFlag>& flags) {
  if (out.layout.precision == Precision::kBfloat16) {
    flags.push_back({"bf16", ""});
  }
  switch (out.layout.gemm_format) {
    case GemmFormat::kAsStored:
      break;
    case GemmFormat::kFloat8:
      flags.push_back({"fp8-format", "hybrid"});
      flags.push_back({"fp8-recipe", "tensorwise"});
      break;
    case GemmFormat::kFloat4:
      flags.push_back({"fp4-format", "e2m1"});
      flags.push_back({"fp4-recipe", "nvfp4"});
      out.assumptions.push_back(
          "core 0.15 or later on Blackwell: 4-bit products are not in earlier "
          "ones");
      break;
  }
}

// Quotes words that the shell would split or expand.
std::string FlagText(const MegatronFlag& flag) {
  if (flag.value.empty()) return absl::StrCat("--", flag.name);
  // A list of modules is several words.
  const bool special =
      flag.name == "save" ||
      flag.value.find_first_of("()[]*|'\"$&;<>`\\") != std::string::npos;
  return absl::StrCat("--", flag.name, " ",
                      special ? ShellQuoted(flag.value) : flag.value);
}

// Quotes each of several arguments by itself.
std::string DataPathText(const Export& out) {
  std::string text = "--data-path";
  for (const std::string& prefix : out.indexed_prefixes()) {
    absl::StrAppend(&text, " ", ShellQuoted(prefix));
  }
  return text;
}

absl::StatusOr<std::string> ExportMegatron(Export out) {
  ASSIGN_OR_RETURN(std::vector<MegatronFlag> flags, MegatronFlagsOf(out));
  AddData(out, flags);
  AddPrecision(out, flags);
  std::vector<std::string> words;
  for (const MegatronFlag& flag : flags) words.push_back(FlagText(flag));
  if (!out.job.data.indexed.empty()) words.push_back(DataPathText(out));
  const std::string environment =
      out.layout.tensor > 1 || out.layout.context > 1
          ? "CUDA_DEVICE_MAX_CONNECTIONS=1 "
          : "";
  return absl::StrCat(HashComment(out), environment, TorchrunCommand(out),
                      " pretrain_gpt.py \\\n  ",
                      absl::StrJoin(words, " \\\n  "), "\n");
}

constexpr FrameworkAdapter kMegatron = {
    .name = "megatron",
    .title = "Megatron-LM",
    .version = "core 0.12 and later",
    .configuration = "flags or printed arguments",
    .keys = kMegatronKeys,
    .read = ReadMegatronSettings,
    .take = ImportMegatron,
    .write = ExportMegatron,
};

}  // namespace

Framework MegatronAdapter() { return &kMegatron; }

}  // namespace millrace
