#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/export_parts.h"

namespace millrace {
namespace {

std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrJoin(absl::StrSplit(text, '\''), "'\\''"),
                      "'");
}

// Stages of unequal size. Two flags give the first and the last stage; only
// newer cores take the size of each.
void AddStageSizes(Export& out, std::vector<std::string>& flags) {
  const int32_t last = out.layout.pipeline - 1;
  bool inner_equal = true;
  for (int32_t stage = 2; stage < last; ++stage) {
    inner_equal &= out.NumLayersOf(stage) == out.NumLayersOf(1);
  }
  if (inner_equal) {
    if (last > 1) {
      flags.push_back(absl::StrCat("--decoder-first-pipeline-num-layers ",
                                   out.NumLayersOf(0)));
    }
    flags.push_back(absl::StrCat("--decoder-last-pipeline-num-layers ",
                                 out.NumLayersOf(last)));
    return;
  }
  std::vector<std::string> stages;
  for (int32_t stage = 0; stage <= last; ++stage) {
    stages.push_back(absl::StrCat(stage == 0 ? "E" : "",
                                  std::string(out.NumLayersOf(stage), 't'),
                                  stage == last ? "L" : ""));
  }
  flags.push_back(absl::StrCat("--pipeline-model-parallel-layout '",
                               absl::StrJoin(stages, "|"), "'"));
  out.assumptions.push_back(
      "core 0.13 or later: --pipeline-model-parallel-layout, which cuts the "
      "layers into stages of unequal size, is not in 0.12");
}

void AddMegatronData(Export& out, std::vector<std::string>& flags) {
  // Its null tokenizer adds one id, the end of a document, to the given size.
  flags.push_back("--tokenizer-type NullTokenizer");
  flags.push_back(absl::StrCat("--vocab-size ", out.job.model.vocab_size - 1));
  flags.push_back("--make-vocab-size-divisible-by 1");
  if (out.job.data.indexed.empty()) {
    flags.push_back("--mock-data");
    out.differences.push_back(
        "data.text: Megatron-LM reads tokens prepared beforehand; replace "
        "--mock-data by --data-path PREFIX");
    return;
  }
  std::string paths = "--data-path";
  for (std::string path : out.job.data.indexed) {
    if (absl::EndsWith(path, ".bin")) path.resize(path.size() - 4);
    absl::StrAppend(&paths, " ", ShellQuoted(path));
  }
  flags.push_back(paths);
}

void AddMegatronBatchAndSchedule(Export& out, std::vector<std::string>& flags) {
  const TrainingSpec& training = out.job.training;
  switch (training.optimizer.decay) {
    case LearningRateDecay::kNone:
      flags.push_back("--lr-decay-style constant");
      break;
    case LearningRateDecay::kLinear:
      flags.push_back("--lr-decay-style linear");
      break;
    case LearningRateDecay::kCosine:
      flags.push_back("--lr-decay-style cosine");
      break;
  }
  flags.push_back(absl::StrCat("--lr-decay-iters ", training.num_steps));
  if (training.validation_interval_steps > 0) {
    flags.push_back(
        absl::StrCat("--eval-interval ", training.validation_interval_steps));
    flags.push_back(absl::StrCat("--eval-iters ", training.validation_steps));
  } else {
    flags.push_back("--eval-iters 0");
  }
  if (out.job.checkpoint.interval_steps > 0) {
    flags.push_back(absl::StrCat(
        "--save ", ShellQuoted(out.job.checkpoint.directory.empty()
                                   ? "checkpoints"
                                   : out.job.checkpoint.directory)));
  }
}

void AddMegatronLayout(Export& out, std::vector<std::string>& flags) {
  const Layout& layout = out.layout;
  if (layout.tensor > 1) flags.push_back("--sequence-parallel");
  if (layout.pipeline > 1 && out.job.model.num_layers % layout.pipeline != 0)
    AddStageSizes(out, flags);
  // Its usual order has the data axis inside the pipeline's.
  if (layout.pipeline > 1 && layout.data > 1) {
    flags.push_back("--use-tp-pp-dp-mapping");
  }
  if (layout.data > 1) flags.push_back("--overlap-grad-reduce");
  if (layout.zero >= 1) flags.push_back("--use-distributed-optimizer");
  if (layout.shards_optimizer()) flags.push_back("--overlap-param-gather");
  if (layout.shards_gradients()) {
    out.differences.push_back(absl::StrCat(
        "ZeRO ", layout.zero,
        ": Megatron-LM's distributed optimizer shards the optimizer state "
        "alone and needs more memory"));
  }
  if (layout.recompute == Recompute::kFull) {
    flags.insert(flags.end(),
                 {"--recompute-granularity full", "--recompute-method uniform",
                  "--recompute-num-layers 1"});
  } else if (layout.recompute == Recompute::kSelective) {
    out.differences.push_back(
        "recompute selective (outputs of norms and SwiGLU): which modules "
        "--recompute-modules knows depends on Megatron-LM's version, so that "
        "nothing is computed again here, which needs more memory");
  }
}

// Keys that say nothing, or that Megatron-LM has no value for.
bool IsLeftOutForMegatron(const Export& out, absl::string_view job_path) {
  const ModelSpec& model = out.job.model;
  return (job_path == "model.kv_heads" &&
          model.num_kv_heads == model.num_heads) ||
         (job_path == "training.seed" && out.job.training.seed == 0) ||
         (job_path == "checkpoint.interval_steps" &&
          out.job.checkpoint.interval_steps == 0);
}

}  // namespace

absl::StatusOr<std::string> ExportMegatron(Export out) {
  const ModelSpec& model = out.job.model;
  if (model.rope_theta != std::floor(model.rope_theta)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.rope_theta: ", out.Value("model.rope_theta"),
        " is not an integer, and Megatron-LM's --rotary-base takes nothing "
        "else; use ",
        std::llround(model.rope_theta)));
  }
  std::vector<std::string> flags;
  for (const FrameworkKey& key : FrameworkKeys(Framework::kMegatron)) {
    if (IsLeftOutForMegatron(out, key.job_path)) continue;
    const bool is_integer_there = absl::string_view(key.name) == "rotary-base";
    flags.push_back(absl::StrCat(
        "--", key.name, " ",
        is_integer_there ? absl::StrCat(std::llround(model.rope_theta))
                         : out.Value(key.job_path)));
  }
  if (model.num_kv_heads != model.num_heads) {
    flags.push_back("--group-query-attention");
  }
  flags.push_back(
      absl::StrCat("--max-position-embeddings ", model.sequence_length));
  for (const char* flag :
       {"--position-embedding-type rope", "--normalization RMSNorm", "--swiglu",
        "--untie-embeddings-and-output-weights", "--disable-bias-linear",
        "--attention-dropout 0", "--hidden-dropout 0"}) {
    flags.push_back(flag);
  }
  AddMegatronLayout(out, flags);
  AddMegatronBatchAndSchedule(out, flags);
  AddMegatronData(out, flags);
  if (out.job.training.precision == "bf16") flags.push_back("--bf16");

  out.differences.push_back(
      "initial weights: Megatron-LM divides the standard deviation of the two "
      "projections back into the residual stream by the root of twice the "
      "number of layers");
  if (out.job.training.seed == 0) {
    out.differences.push_back(
        "training.seed 0: Megatron-LM wants a positive seed, its own default "
        "1234 applies");
  }
  const std::string environment =
      out.layout.tensor > 1 ? "CUDA_DEVICE_MAX_CONNECTIONS=1 " : "";
  return absl::StrCat(HashComment(out, Framework::kMegatron), environment,
                      "torchrun --nnodes 1 --nproc-per-node ",
                      out.layout.num_ranks(), " pretrain_gpt.py \\\n  ",
                      absl::StrJoin(flags, " \\\n  "), "\n");
}

}  // namespace millrace
