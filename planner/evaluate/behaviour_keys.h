// The keys by which a file says how a framework computes. Each field of
// Implementation (planner/graph/style.h) has one key, under the same name.

#ifndef MILLRACE_PLANNER_EVALUATE_BEHAVIOUR_KEYS_H_
#define MILLRACE_PLANNER_EVALUATE_BEHAVIOUR_KEYS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "planner/graph/style.h"
#include "planner/text/yaml_map.h"

namespace millrace {

using BehaviourField =
    std::variant<bool Implementation::*, double Implementation::*,
                 int32_t Implementation::*,
                 SelectiveRecompute Implementation::*>;

// One field and its value, which have the same type.
struct BehaviourSetting {
  BehaviourField field;
  std::variant<bool, double, int32_t, SelectiveRecompute> value;
};
using BehaviourSettings = std::vector<BehaviourSetting>;

void Apply(const BehaviourSettings& settings, Implementation* implementation);

// The keys of a map that has no others. Each may be left out.
BehaviourSettings ReadBehaviour(YamlMap& map);

// The parts that selective recompute covers: those listed and no others.
struct SelectionText {
  SelectiveRecompute selection;
  std::string says;  // "norms and activations"
};
SelectionText ReadSelection(const std::vector<std::string>& words,
                            const std::string& key, YamlMap* map);

// The names of all keys, and of all parts that selective recompute can cover.
std::vector<std::string> BehaviourKeyNames();
std::vector<std::string> SelectionNames();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_BEHAVIOUR_KEYS_H_
