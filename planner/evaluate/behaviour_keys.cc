#include "planner/evaluate/behaviour_keys.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {
namespace {

using Need = YamlMap::Need;

struct BehaviourKey {
  const char* name;
  BehaviourField field;
};

constexpr BehaviourKey kBehaviourKeys[] = {
    {"flash_attention", &Implementation::flash_attention},
    {"fused_elementwise", &Implementation::fused_elementwise},
    {"dropout", &Implementation::dropout},
    {"sequence_parallel", &Implementation::sequence_parallel},
    {"context_ring", &Implementation::context_ring},
    {"selective", &Implementation::selective},
    {"recomputes_whole_layer", &Implementation::recomputes_whole_layer},
    {"recomputes_stream", &Implementation::recomputes_stream},
    {"keeps_gathered", &Implementation::keeps_gathered},
    {"quantizes_by_op", &Implementation::quantizes_by_op},
    {"keeps_quantized", &Implementation::keeps_quantized},
    {"sends_tokens_once", &Implementation::sends_tokens_once},
    {"chunks_logits", &Implementation::chunks_logits},
    {"logit_bytes", &Implementation::logit_bytes},
    {"balances_stages", &Implementation::balances_stages},
    {"overlaps_data", &Implementation::overlaps_data},
    {"overlaps_tensor", &Implementation::overlaps_tensor},
    {"overlaps_transfers", &Implementation::overlaps_transfers},
    {"overlaps_experts", &Implementation::overlaps_experts},
    {"pipeline_outermost", &Implementation::pipeline_outermost},
    {"relays_to_ports", &Implementation::relays_to_ports},
    {"launches_from_host", &Implementation::launches_from_host},
    {"adds_tensor_to_launches", &Implementation::adds_tensor_to_launches},
    {"graphs_attention", &Implementation::graphs_attention},
    {"graphs_router", &Implementation::graphs_router},
    {"fuses_experts", &Implementation::fuses_experts},
    {"adds_expert_biases", &Implementation::adds_expert_biases},
    {"attention_rate", &Implementation::attention_rate},
    {"low_precision_rate", &Implementation::low_precision_rate},
    {"gradient_bytes", &Implementation::gradient_bytes},
    {"weight_bytes", &Implementation::weight_bytes},
    {"optimizer_bytes", &Implementation::optimizer_bytes},
    {"slices_are_masters", &Implementation::slices_are_masters},
};

struct SelectionPart {
  const char* name;
  bool SelectiveRecompute::*field;
  const char* says;
};

constexpr SelectionPart kSelectionParts[] = {
    {"norms", &SelectiveRecompute::norms, "norms"},
    {"activation", &SelectiveRecompute::activation, "activations"},
    {"attention", &SelectiveRecompute::attention, "attention"},
    {"latent_projections", &SelectiveRecompute::latent_projections,
     "latent attention's projections"},
    {"experts", &SelectiveRecompute::experts, "experts"},
    {"every_second_product", &SelectiveRecompute::every_second_product,
     "every second product"},
};

// Reads the key's value as the type of its field.
struct SettingReader {
  const char* name;
  YamlMap& map;
  BehaviourSettings& settings;

  void operator()(bool Implementation::*field) const {
    bool value = false;
    if (map.Flag(name, Need::kOptional, &value)) Add(field, value);
  }
  void operator()(double Implementation::*field) const {
    double value = 0;
    if (map.Number(name, Need::kOptional, &value)) Add(field, value);
  }
  void operator()(int32_t Implementation::*field) const {
    int64_t value = 0;
    if (map.Integer(name, Need::kOptional, 1, &value)) {
      Add(field, static_cast<int32_t>(value));
    }
  }
  void operator()(SelectiveRecompute Implementation::*field) const {
    std::vector<std::string> words;
    if (!map.Words(name, Need::kOptional, &words)) return;
    Add(field, ReadSelection(words, name, &map).selection);
  }

 private:
  template <typename Field, typename Value>
  void Add(Field field, Value value) const {
    settings.push_back({.field = field, .value = value});
  }
};

}  // namespace

void Apply(const BehaviourSettings& settings, Implementation* implementation) {
  for (const BehaviourSetting& setting : settings) {
    std::visit(
        [&](auto field) {
          auto& target = implementation->*field;
          target = std::get<std::decay_t<decltype(target)>>(setting.value);
        },
        setting.field);
  }
}

BehaviourSettings ReadBehaviour(YamlMap& map) {
  BehaviourSettings settings;
  for (const BehaviourKey& key : kBehaviourKeys) {
    std::visit(
        SettingReader{.name = key.name, .map = map, .settings = settings},
        key.field);
  }
  return settings;
}

SelectionText ReadSelection(const std::vector<std::string>& words,
                            const std::string& key, YamlMap* map) {
  SelectionText selected{.selection = {.norms = false, .activation = false}};
  std::vector<std::string> says;
  for (const std::string& word : words) {
    const auto* const part =
        std::ranges::find(kSelectionParts, word, &SelectionPart::name);
    if (part == std::end(kSelectionParts)) {
      map->Error(key, absl::StrCat("unknown part '", word, "'; known are ",
                                   absl::StrJoin(SelectionNames(), ", ")));
      continue;
    }
    selected.selection.*(part->field) = true;
    says.emplace_back(part->says);
  }
  selected.says = absl::StrJoin(says, " and ");
  return selected;
}

std::vector<std::string> BehaviourKeyNames() {
  std::vector<std::string> names;
  for (const BehaviourKey& key : kBehaviourKeys) names.emplace_back(key.name);
  return names;
}

std::vector<std::string> SelectionNames() {
  std::vector<std::string> names;
  for (const SelectionPart& part : kSelectionParts) {
    names.emplace_back(part.name);
  }
  return names;
}

}  // namespace millrace
