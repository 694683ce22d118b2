// The families of Hugging Face models that a ModelSpec can describe: a family
// is a row of options. Reading and writing config.json walk these tables.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_HUGGINGFACE_FAMILIES_H_
#define MILLRACE_PLANNER_FRAMEWORKS_HUGGINGFACE_FAMILIES_H_

#include <cstdint>
#include <span>

#include "planner/frameworks/adapter.h"
#include "planner/frameworks/stored_names.h"
#include "planner/layout/model.h"

namespace millrace {

// A key that ours can only take with its usual value.
struct UsualValue {
  const char* key;
  const char* usual;
  const char* why;
};
// A family of models that a ModelSpec can describe: what Transformers takes its
// config.json to mean.
struct Family {
  const char* type;          // model_type.
  const char* architecture;  // The class that trains it.
  FeedForward feed_forward = FeedForward::kSwiglu;
  std::span<const FrameworkKey> keys = {};
  std::span<const UsualValue> usual = {};
  const char* length = "max_position_embeddings";
  const char* default_length = nullptr;
  // The key of the feed-forward block's width that is `default_ffn` times the
  // hidden width where it is left out.
  const char* ffn_hidden = nullptr;
  int64_t default_ffn = 0;
  const char* activation = "hidden_act";
  const char* theta = "10000";
  bool ties_embedding = false;
  bool qkv_bias = false;
  bool linear_bias = false;
  bool qk_norm = false;
  NormKind norm = NormKind::kRms;
  // Positions are learned, `length` of them.
  bool learns_positions = false;
  // How its files name tensors.
  TensorNaming naming = TensorNaming::kPlain;
  // sliding_window where the key is left out; empty: none.
  const char* window = "";
  // The window counts only where use_sliding_window says so.
  bool window_is_optional = false;
  // Every so many-th layer has no window, unless keys of the file say something
  // else; 0: all layers are alike.
  int64_t global_period = 0;
  // rope_local_base_freq, of layers with a window; empty: the family has none.
  const char* sliding_theta = "";
  // Only a part of each head may be rotated: partial_rotary_factor.
  bool rotates_part = false;
  bool norm_adds_one = false;
  bool output_norms = false;
  bool scales_embedding = false;
  // The parts that it has and ModelSpec lacks, or empty.
  const char* approximation = "";
};

// The keys that most families share.
std::span<const FrameworkKey> HuggingFaceKeys();
std::span<const Family> HuggingFaceFamilies();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_HUGGINGFACE_FAMILIES_H_
