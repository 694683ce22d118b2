#include "fault/weight_naming.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace millrace {
namespace {

// Parts of names that wrappers of modules add; left out wherever they are.
constexpr const char* kWrappers[] = {"_orig_mod", "_fsdp_wrapped_module",
                                     "_checkpoint_wrapped_module", "module"};
// First parts of the model's names in checkpoints that hold other things too.
constexpr const char* kModelKeys[] = {"app", "state_dict", "model_state_dict",
                                      "model"};
// The first part of names of what is no weight.
constexpr const char* kTrainingState[] = {"args",
                                          "checkpoint_version",
                                          "dataloader",
                                          "iteration",
                                          "loss_scaler",
                                          "lr_scheduler",
                                          "optim",
                                          "opt_param_scheduler",
                                          "optimizer",
                                          "optimizers",
                                          "rerun_state_machine_state",
                                          "rng_state",
                                          "scheduler",
                                          "train_state"};
constexpr const char* kTrainingStatePrefixes[] = {"chained_", "rng_state"};
// Tensors that models keep although they follow from their configuration.
constexpr const char* kDerivedEnds[] = {"inv_freq", "freqs_cis", "masked_bias",
                                        "_extra_state"};

constexpr OtherName kMegatronNames[] = {
    {kEmbeddingName, "embedding.word_embeddings.weight", Fused::kPadded},
    {"model.norm.weight", "decoder.final_layernorm.weight"},
    {"model.norm.weight", "decoder.final_norm.weight"},
    {kHeadName, "output_layer.weight", Fused::kPadded},
};
constexpr OtherName kMegatronLayerNames[] = {
    {"input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight"},
    {"input_layernorm.weight", "input_layernorm.weight"},
    {"self_attn.q_proj.weight", "self_attention.linear_qkv.weight",
     Fused::kQuery},
    {"self_attn.k_proj.weight", "self_attention.linear_qkv.weight",
     Fused::kKey},
    {"self_attn.v_proj.weight", "self_attention.linear_qkv.weight",
     Fused::kValue},
    {"self_attn.q_proj.bias", "self_attention.linear_qkv.bias", Fused::kQuery},
    {"self_attn.k_proj.bias", "self_attention.linear_qkv.bias", Fused::kKey},
    {"self_attn.v_proj.bias", "self_attention.linear_qkv.bias", Fused::kValue},
    {"self_attn.q_norm.weight", "self_attention.q_layernorm.weight"},
    {"self_attn.k_norm.weight", "self_attention.k_layernorm.weight"},
    {"self_attn.o_proj.weight", "self_attention.linear_proj.weight"},
    {"post_attention_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"},
    {"post_attention_layernorm.weight", "pre_mlp_layernorm.weight"},
    {"mlp.gate_proj.weight", "mlp.linear_fc1.weight", Fused::kGate},
    {"mlp.gate_proj.weight", "mlp.linear_fc1.weight_w"},
    {"mlp.up_proj.weight", "mlp.linear_fc1.weight", Fused::kUp},
    {"mlp.up_proj.weight", "mlp.linear_fc1.weight_v"},
    {"mlp.down_proj.weight", "mlp.linear_fc2.weight"},
};
constexpr OtherName kTorchtitanNames[] = {
    {kEmbeddingName, "tok_embeddings.weight"},
    {"model.norm.weight", "norm.weight"},
    {kHeadName, "output.weight"},
};
constexpr OtherName kTorchtitanLayerNames[] = {
    {"input_layernorm.weight", "attention_norm.weight"},
    {"self_attn.q_proj.weight", "attention.wq.weight", Fused::kInterleaved},
    {"self_attn.k_proj.weight", "attention.wk.weight", Fused::kInterleaved},
    {"self_attn.v_proj.weight", "attention.wv.weight"},
    {"self_attn.o_proj.weight", "attention.wo.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "feed_forward.w1.weight"},
    {"mlp.up_proj.weight", "feed_forward.w3.weight"},
    {"mlp.down_proj.weight", "feed_forward.w2.weight"},
};

constexpr Naming kNamings[] = {
    {"Megatron-Core", "embedding.word_embeddings.weight", kMegatronNames,
     "decoder.layers.", kMegatronLayerNames},
    {"torchtitan", "tok_embeddings.weight", kTorchtitanNames, "layers.",
     kTorchtitanLayerNames},
};

bool IsWrapper(absl::string_view part) {
  return std::ranges::find(kWrappers, part) != std::end(kWrappers);
}

}  // namespace

std::span<const Naming> WeightNamings() { return kNamings; }

std::span<const char* const> OuterKeys() { return kModelKeys; }

std::string WithoutWrappers(const std::string& name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  std::erase_if(parts, IsWrapper);
  return absl::StrJoin(parts, ".");
}

bool IsNoWeight(absl::string_view name) {
  const absl::string_view first =
      name.substr(0, std::min(name.find('.'), name.find('/')));
  return std::ranges::find(kTrainingState, first) != std::end(kTrainingState) ||
         std::ranges::any_of(kTrainingStatePrefixes,
                             [&](const char* begin) {
                               return absl::StartsWith(name, begin);
                             }) ||
         std::ranges::any_of(kDerivedEnds, [&](const char* end) {
           return absl::EndsWith(name, end) ||
                  absl::StrContains(name, absl::StrCat(end, "/"));
         });
}

}  // namespace millrace
