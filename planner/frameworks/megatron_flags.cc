#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/frameworks/megatron.h"

namespace millrace {
namespace {

// A switch has the value "".
void Switch(const char* name, KeyValues& flags) { flags.Set(name, ""); }

// Keys that would say nothing, or for which Megatron-LM has no value.
bool IsLeftOut(const Export& out, absl::string_view job_path) {
  const ModelSpec& model = out.job.model;
  const bool latent = model.mla.kv_rank > 0;
  const bool all_experts =
      model.moe.num_experts > 0 && model.moe.num_dense_layers == 0;
  return (job_path == "model.kv_heads" &&
          (latent || model.num_kv_heads == model.num_heads)) ||
         (job_path == "model.head_dim" && latent) ||
         // With the default, experts have as many data ranks as the layers.
         // Megatron-LM refuses some other values even if there are no experts.
         (job_path == "layout.expert_tensor" && model.moe.num_experts == 0) ||
         (job_path == "model.ffn_hidden" && all_experts) ||
         (job_path == "training.seed" && out.job.training.seed == 0) ||
         (job_path == "checkpoint.interval_steps" &&
          out.job.checkpoint.interval_steps == 0);
}

void AddTable(const Export& out, KeyValues& flags) {
  for (const FrameworkKey& key : MegatronAdapter()->keys) {
    if (IsLeftOut(out, key.job_path)) continue;
    if (key.name == "rotary-base") {  // Must be an integer.
      flags.Set(key.name, std::llround(out.job.model.rope_theta));
    } else {
      flags.Set(key.name, out.Value(key.job_path));
    }
  }
}

void AddAttention(const ModelSpec& model, KeyValues& flags) {
  if (model.mla.kv_rank == 0) {
    if (model.num_kv_heads != model.num_heads) {
      Switch("group-query-attention", flags);
    }
    if (model.qk_norm) Switch("qk-layernorm", flags);
    if (model.qkv_bias && !model.linear_bias) Switch("add-qkv-bias", flags);
    return;
  }
  Switch("multi-latent-attention", flags);
  if (model.mla.query_rank > 0) flags.Set("q-lora-rank", model.mla.query_rank);
  flags.Set("kv-lora-rank", model.mla.kv_rank);
  flags.Set("qk-head-dim", model.mla.nope_head_dim);
  flags.Set("qk-pos-emb-head-dim", model.mla.rope_head_dim);
  flags.Set("v-head-dim", model.mla.value_head_dim);
  Switch("qk-layernorm", flags);  // Norms of the latent vectors.
  // Megatron-LM's latent attention stretches positions unless the factor is
  // one.
  flags.Set("rotary-scaling-factor", "1.0");
}

// Whether one product computes all experts of a rank. Megatron-LM has it only
// in bf16.
bool HasGroupedExperts(const Export& out) {
  return out.job.model.moe.num_experts > 0 &&
         out.layout.precision == Precision::kBfloat16;
}

void AddExperts(const Export& out, KeyValues& flags) {
  const MixtureOfExperts& moe = out.job.model.moe;
  if (moe.num_experts == 0) return;
  flags.Set("num-experts", moe.num_experts);
  flags.Set("moe-router-topk", moe.experts_per_token);
  flags.Set("moe-ffn-hidden-size", moe.expert_hidden);
  if (moe.num_shared_experts > 0) {
    flags.Set("moe-shared-expert-intermediate-size",
              moe.num_shared_experts * moe.expert_hidden);
  }
  if (moe.num_dense_layers > 0) {
    flags.Set(
        "moe-layer-freq",
        absl::StrCat("([0]*", moe.num_dense_layers, "+[1]*",
                     out.job.model.num_layers - moe.num_dense_layers, ")"));
  }
  if (HasGroupedExperts(out)) Switch("moe-grouped-gemm", flags);
  flags.Set("moe-token-dispatcher-type", "alltoall");
}

void AddModel(const Export& out, KeyValues& flags) {
  const ModelSpec& model = out.job.model;
  AddAttention(model, flags);
  const bool has_table = model.learned_positions > 0;
  flags.Set("max-position-embeddings",
            has_table ? model.learned_positions : model.sequence_length);
  flags.Set("position-embedding-type", has_table ? "learned_absolute" : "rope");
  flags.Set("normalization",
            model.norm == NormKind::kLayer ? "LayerNorm" : "RMSNorm");
  switch (model.feed_forward) {
    case FeedForward::kSwiglu:
      Switch("swiglu", flags);
      break;
    case FeedForward::kSquaredRelu:
      Switch("squared-relu", flags);
      break;
    case FeedForward::kGelu:
      break;  // Its default.
    case FeedForward::kGeglu:
    case FeedForward::kGeluErf:
      break;  // Refused before; see export.cc.
  }
  if (!model.ties_embedding) {
    Switch("untie-embeddings-and-output-weights", flags);
  }
  if (!model.linear_bias) Switch("disable-bias-linear", flags);
  flags.Set("attention-dropout", "0.0");
  flags.Set("hidden-dropout", "0.0");
  AddExperts(out, flags);
}

// Adds flags for stages of unequal size. Two flags give the first and the last
// stage; only newer cores take the size of each. Returns whether the flags name
// every chunk.
bool AddStageSizes(Export& out, KeyValues& flags) {
  const std::vector<LayerRange> chunks = out.Chunks();
  auto layers_of = [&](size_t chunk) {
    return chunks[chunk].end - chunks[chunk].begin;
  };
  const size_t last = chunks.size() - 1;
  bool inner_equal = true;
  for (size_t chunk = 2; chunk < last; ++chunk) {
    inner_equal &= layers_of(chunk) == layers_of(1);
  }
  if (inner_equal && layers_of(0) == layers_of(1) &&
      layers_of(1) == layers_of(last)) {
    return false;  // Equal stages need no flag.
  }
  inner_equal &= out.layout.interleave == 1;
  if (inner_equal) {
    if (last > 1) flags.Set("decoder-first-pipeline-num-layers", layers_of(0));
    flags.Set("decoder-last-pipeline-num-layers", layers_of(last));
    return false;
  }
  std::vector<std::string> parts;
  for (size_t chunk = 0; chunk <= last; ++chunk) {
    parts.push_back(absl::StrCat(chunk == 0 ? "E" : "",
                                 std::string(layers_of(chunk), 't'),
                                 chunk == last ? "L" : ""));
  }
  flags.Set("pipeline-model-parallel-layout", absl::StrJoin(parts, "|"));
  out.assumptions.push_back(
      "core 0.13 or later: the pipeline layout, which cuts the layers into "
      "stages of unequal size, is not in 0.12");
  return true;
}

// Asks for the plan's order of ranks. Megatron-LM accepts it only if experts
// have as many data ranks as the layers.
void AddRankOrder(Export& out, KeyValues& flags) {
  const Layout& layout = out.layout;
  if (layout.data == 1) return;
  const int64_t expert_ranks = out.job.model.moe.num_experts > 0
                                   ? layout.expert * layout.expert_tensor
                                   : layout.tensor;
  if (expert_ranks == layout.tensor * layout.context) {
    Switch("use-tp-pp-dp-mapping", flags);
    return;
  }
  out.differences.push_back(absl::StrCat(
      "rank order: ", out.title(),
      " puts the pipeline axis outermost, the plan the data axis; on several "
      "hosts that moves traffic to other links"));
}

void AddPipeline(Export& out, KeyValues& flags) {
  const Layout& layout = out.layout;
  if (layout.pipeline == 1) return;
  const bool names_chunks = AddStageSizes(out, flags);
  if (layout.interleave > 1) {
    // Megatron-LM accepts only one of the two flags; frameworks on its core
    // take both.
    if (!names_chunks || out.framework != MegatronAdapter()) {
      flags.Set("num-virtual-stages-per-pipeline-rank", layout.interleave);
    }
    if (layout.num_microbatches % layout.pipeline != 0) {
      out.differences.push_back(absl::StrCat(
          layout.num_microbatches, " micro-batches on ", layout.pipeline,
          " stages: interleaved schedules want a multiple of the stages; older "
          "cores refuse any other number"));
    }
  }
  AddRankOrder(out, flags);
}

void AddRecomputeModules(Export& out, KeyValues& flags) {
  const ModelSpec& model = out.job.model;
  const Recompute set = out.layout.recompute;
  const bool has_grouped = HasGroupedExperts(out);
  std::vector<std::string> modules;
  Recompute unsaid = Recompute::kNone;
  const auto add = [&](Recompute op, const char* module, bool is_all) {
    if (!Has(set, op)) return;
    if (module != nullptr) modules.push_back(module);
    if (!is_all) unsaid = unsaid | op;
  };
  add(Recompute::kNorm, "layernorm", true);
  add(Recompute::kActivation, has_grouped ? "moe_act" : nullptr,
      has_grouped && model.num_dense_layers() == 0);
  const bool is_latent = model.mla.kv_rank > 0;
  add(Recompute::kQkv, is_latent ? "mla_up_proj" : nullptr, is_latent);
  add(Recompute::kAttention, "core_attn", false);
  for (const Recompute op :
       {Recompute::kGateUp, Recompute::kOutput, Recompute::kDispatch}) {
    add(op, nullptr, false);
  }
  if (!modules.empty()) {
    flags.Set("recompute-granularity", "selective");
    flags.Set("recompute-modules", absl::StrJoin(modules, " "));
  }
  if (unsaid == Recompute::kNone) return;
  out.differences.push_back(absl::StrCat(
      "recompute ", RecomputeName(set), ": no words are there for all of ",
      RecomputeName(unsaid),
      Has(unsaid, Recompute::kAttention) ? " (core_attn keeps its output)" : "",
      Has(unsaid, Recompute::kActivation) && model.num_expert_layers() > 0 &&
              !has_grouped
          ? " (none for experts in fp32)"
          : "",
      ", so more is kept, which needs more memory"));
}

void AddRecompute(Export& out, KeyValues& flags) {
  if (out.layout.recompute == Recompute::kFull) {
    flags.Set("recompute-granularity", "full");
    flags.Set("recompute-method", "uniform");
    flags.Set("recompute-num-layers", 1);
  } else if (out.layout.recompute != Recompute::kNone) {
    AddRecomputeModules(out, flags);
  }
}

void AddLayout(Export& out, KeyValues& flags) {
  const Layout& layout = out.layout;
  if (layout.tensor > 1) Switch("sequence-parallel", flags);
  AddPipeline(out, flags);
  if (layout.data > 1) Switch("overlap-grad-reduce", flags);
  if (layout.zero >= 1) Switch("use-distributed-optimizer", flags);
  if (layout.zero >= 1 && layout.data_groups > 1) {
    flags.Set("num-distributed-optimizer-instances", layout.data_groups);
  }
  if (layout.shards_optimizer()) Switch("overlap-param-gather", flags);
  if (layout.shards_gradients()) {
    out.differences.push_back(absl::StrCat(
        "ZeRO ", layout.zero, ": ", out.title(),
        "'s distributed optimizer shards the optimizer state alone and needs "
        "more memory"));
  }
  AddRecompute(out, flags);
}

void AddSchedule(const Export& out, KeyValues& flags) {
  const TrainingSpec& training = out.job.training;
  const bool decays = training.optimizer.decay != LearningRateDecay::kNone;
  flags.Set("lr-decay-style",
            decays ? out.Value("training.optimizer.decay") : "constant");
  // Megatron-LM requires the decay to end after the warmup.
  flags.Set("lr-decay-iters",
            std::max<int64_t>(training.num_steps,
                              training.optimizer.warmup_steps + 1));
  if (training.validation_interval_steps > 0) {
    flags.Set("eval-interval", training.validation_interval_steps);
    flags.Set("eval-iters", training.validation_steps);
  } else {
    flags.Set("eval-iters", 0);
  }
}

void NoteModel(Export& out) {
  const ModelSpec& model = out.job.model;
  out.differences.push_back(absl::StrCat(
      "initial weights: ", out.title(),
      " divides the standard deviation of the two projections back into the "
      "residual stream by the root of twice the number of layers"));
  if (out.job.training.seed == 0) {
    out.differences.push_back(
        absl::StrCat("training.seed 0: ", out.title(),
                     " wants a positive seed, its own default 1234 applies"));
  }
  if (model.mla.kv_rank > 0) {
    out.assumptions.push_back(
        "latent attention normalizes its latent vectors, as DeepSeek's does");
  }
  if (out.layout.gemm_format == GemmFormat::kFloat8) {
    out.assumptions.push_back(
        "8-bit products scale each tensor by its present maximum (tensorwise); "
        "Blackwell has mxfp8, which scales blocks");
  }
}

}  // namespace

absl::StatusOr<KeyValues> MegatronFlagsOf(Export& out) {
  const double theta = out.job.model.rope_theta;
  if (theta != std::floor(theta)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.rope_theta: ", out.Value("model.rope_theta"),
                     " is not an integer, and the rotary base of ", out.title(),
                     " takes nothing else; use ", std::llround(theta)));
  }
  const ModelSpec& model = out.job.model;
  if (model.linear_bias && !model.qkv_bias) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.linear_bias: true, but model.qkv_bias is false; ",
                     out.title(), " has biases in all products or in none"));
  }
  if (model.learned_positions > 0 && out.framework != MegatronAdapter() &&
      model.learned_positions != model.sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.learned_positions: ", model.learned_positions, ", but ",
        out.title(), " has as many as model.sequence_length, which is ",
        model.sequence_length));
  }
  KeyValues flags;
  AddTable(out, flags);
  AddModel(out, flags);
  AddLayout(out, flags);
  AddSchedule(out, flags);
  NoteModel(out);
  return flags;
}

}  // namespace millrace
