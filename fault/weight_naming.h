// Names that other frameworks give the parameters of a model, and how they fuse
// them. Hugging Face's names are those of ModelParameters().

#ifndef MILLRACE_FAULT_WEIGHT_NAMING_H_
#define MILLRACE_FAULT_WEIGHT_NAMING_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
inline constexpr char kHeadName[] = "lm_head.weight";

// How the rows of a parameter lie in the tensor of another naming.
enum class Fused : uint8_t {
  kNo,
  kQuery,  // In linear_qkv, by group: queries, key, value.
  kKey,
  kValue,
  kGate,  // First and second half of linear_fc1.
  kUp,
  kPadded,       // May have more rows than the vocabulary.
  kInterleaved,  // Pairs that rotate together are neighbours.
};

struct OtherName {
  const char* ours;    // For a layer: without "model.layers.N.".
  const char* theirs;  // For a layer: without prefix and number.
  Fused fused = Fused::kNo;
};

// Names of one framework. With is_stacked, a layer's tensor may be a row of one
// that has all layers.
struct Naming {
  const char* whose;
  const char* mark;  // A tensor that only this naming has.
  std::span<const OtherName> names;
  const char* layer_prefix;
  std::span<const OtherName> layer_names;
};
std::span<const Naming> WeightNamings();

// Keys that a model's names begin with where a checkpoint holds other things
// too.
std::span<const char* const> OuterKeys();

// The name without what wrappers of modules added, wherever they did.
std::string WithoutWrappers(const std::string& name);

// Whether the tensor is no weight: state of optimizer, data or schedule, or
// what follows from the model's configuration.
bool IsNoWeight(absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_FAULT_WEIGHT_NAMING_H_
