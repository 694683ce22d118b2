#include "planner/evaluate/framework_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/run_devices.h"
#include "planner/text/yaml_map.h"

namespace millrace {
namespace {

using Need = YamlMap::Need;

bool IsOneOf(const std::vector<std::string>& all, const std::string& word) {
  return std::ranges::find(all, word) != all.end();
}

// Returns PlainModelName() of a filter's model. An empty one is refused, since
// it would match every model.
std::string PlainNameOf(const std::string& model, absl::string_view key,
                        YamlMap& map) {
  std::string name = PlainModelName(model);
  if (name.empty()) {
    map.Error(
        key, absl::StrCat("expected the name of a model, found '", model, "'"));
  }
  return name;
}

// Reads the keys of a RunFilter, which stand beside the keys that it selects
// for.
RunFilter ReadFilter(YamlMap& map) {
  RunFilter filter;
  std::string text;
  if (map.Text("model", Need::kOptional, &text)) {
    filter.model = PlainNameOf(text, "model", map);
  }
  map.Words("gpu", Need::kOptional, &filter.gpus);
  for (const std::string& gpu : filter.gpus) {
    if (IsOneOf(DeviceWords(), gpu)) continue;
    map.Error("gpu", absl::StrCat("unknown gpu '", gpu, "'; known are ",
                                  absl::StrJoin(DeviceWords(), ", ")));
  }
  map.Text("source", Need::kOptional, &filter.source);
  if (map.Text("from", Need::kOptional, &text)) {
    const std::optional<int32_t> version = ParseVersion(text);
    if (!version) {
      map.Error("from", absl::StrCat("expected a version such as 26.04 or "
                                     "26.04.01, found '",
                                     text, "'"));
    }
    filter.first_version = version.value_or(0);
  }
  bool flag = false;
  if (map.Flag("low_precision", Need::kOptional, &flag)) {
    filter.low_precision = flag;
  }
  if (map.Flag("latent_attention", Need::kOptional, &flag)) {
    filter.latent_attention = flag;
  }
  map.Integer("tensor_ranks", Need::kOptional, 1, &filter.tensor_ranks);
  return filter;
}

// The settings of one part of a recipe.
struct Part {
  std::string says;
  BehaviourSettings set;
};
using Parts = std::map<std::string, Part>;

void ReadDefaults(YamlMap& map, FrameworkRule* rule) {
  int64_t zero = 0;
  if (map.Integer("zero", Need::kOptional, 0, &zero)) {
    rule->zero = static_cast<int32_t>(std::min<int64_t>(zero, 3));
    if (zero > 3) map.Error("zero", "ZeRO has the stages 0 to 3");
  }
  map.Choice<Recompute>("recompute", Need::kOptional,
                        {{"none", Recompute::kNone},
                         {"selective", Recompute::kPolicy},
                         {"full", Recompute::kFull}},
                        &rule->recompute);
  map.Section("gelu_models", Need::kOptional, [&](YamlMap& models) {
    models.Flag("ties_embedding", Need::kRequired, &rule->ties_embedding);
    models.Integer("vocab", Need::kRequired, 1, &rule->vocab);
  });
  map.Flag("logs_first_rank", Need::kOptional, &rule->logs_first_rank);
  map.Number("reserved_per_allocated", Need::kOptional,
             &rule->reserved_per_allocated);
  map.Flag("one_micro_batch_a_stage", Need::kOptional,
           &rule->one_micro_batch_a_stage);
}

BehaviourCase ReadCase(YamlMap& map) {
  BehaviourCase read{.filter = ReadFilter(map)};
  map.Section("set", Need::kRequired,
              [&](YamlMap& set) { read.set = ReadBehaviour(set); });
  map.Text("says", Need::kOptional, &read.says);
  return read;
}

MoreLayers ReadMoreLayers(YamlMap& map) {
  MoreLayers more;
  if (map.Text("model", Need::kRequired, &more.model)) {
    more.model = PlainNameOf(more.model, "model", map);
  }
  map.Integer("layers", Need::kRequired, 1, &more.layers);
  map.Text("says", Need::kRequired, &more.says);
  return more;
}

void ReadProfiles(YamlMap& by_device,
                  std::map<std::string, OtherProfile>* profiles) {
  for (const std::string& device : DeviceProfiles()) {
    by_device.Section(device, Need::kOptional, [&](YamlMap& map) {
      OtherProfile& other = (*profiles)[device];
      map.Text("use", Need::kRequired, &other.name);
      map.Text("says", Need::kRequired, &other.says);
    });
  }
}

void AddParts(YamlMap& map, const Parts& parts, Recipe* recipe) {
  std::vector<std::string> words;
  map.Words("use", Need::kRequired, &words);
  std::vector<std::string> says;
  for (const std::string& word : words) {
    const auto part = parts.find(word);
    if (part == parts.end()) {
      map.Error(
          "use",
          absl::StrCat("there is no part '", word, "'; parts are ",
                       absl::StrJoin(parts, ", ",
                                     [](std::string* out, const auto& known) {
                                       out->append(known.first);
                                     })));
      continue;
    }
    const BehaviourSettings& set = part->second.set;
    recipe->set.insert(recipe->set.end(), set.begin(), set.end());
    if (!part->second.says.empty()) says.push_back(part->second.says);
  }
  recipe->says = absl::StrJoin(says, ", ");
}

Recipe ReadRecipe(YamlMap& map, const Parts& parts, const std::string& model) {
  Recipe recipe{.filter = ReadFilter(map)};
  if (!recipe.filter.model.empty()) {
    map.Error("model", "the recipe stands below its model; remove it");
  }
  recipe.filter.model = model;
  AddParts(map, parts, &recipe);
  std::vector<std::string> words;
  if (map.Words("recompute", Need::kOptional, &words)) {
    SelectionText selected = ReadSelection(words, "recompute", &map);
    recipe.recompute = selected.selection;
    recipe.recompute_says = std::move(selected.says);
  }
  return recipe;
}

void ReadRecipes(YamlMap& map, FrameworkRule* rule) {
  map.Text("says", Need::kRequired, &rule->recipes_say);
  Parts parts;
  map.Named(
      "parts", Need::kRequired, [&](const std::string& name, YamlMap& entry) {
        Part& part = parts[name];
        entry.Text("says", Need::kOptional, &part.says);
        entry.Section("set", Need::kRequired,
                      [&](YamlMap& set) { part.set = ReadBehaviour(set); });
      });
  map.Section("models", Need::kRequired, [&](YamlMap& models) {
    for (const YamlTree& model : models.entries()) {
      const std::string name = PlainNameOf(model.key, model.key, models);
      models.Items(model.key, Need::kOptional, [&](YamlMap& recipe) {
        rule->recipes.push_back(ReadRecipe(recipe, parts, name));
      });
    }
  });
}

// Reads one framework's entry into the rule that it started from.
void ReadRule(YamlMap& map, FrameworkRule* rule) {
  map.Entry("like", Need::kOptional, "");  // StartOf() has followed it.
  map.Words("groups", Need::kRequired, &rule->groups);
  map.Text("says", Need::kRequired, &rule->says);
  ReadDefaults(map, rule);
  map.Section("behaviour", Need::kOptional, [&](YamlMap& behaviour) {
    Apply(ReadBehaviour(behaviour), &rule->implementation);
  });
  map.Items("cases", Need::kOptional,
            [&](YamlMap& entry) { rule->cases.push_back(ReadCase(entry)); });
  map.Items("more_layers", Need::kOptional, [&](YamlMap& entry) {
    rule->more_layers.push_back(ReadMoreLayers(entry));
  });
  map.Section("recipes", Need::kOptional,
              [&](YamlMap& recipes) { ReadRecipes(recipes, rule); });
  map.Section("profiles", Need::kOptional, [&](YamlMap& profiles) {
    ReadProfiles(profiles, &rule->profiles);
  });
}

const FrameworkRule* RuleNamed(const std::vector<FrameworkRule>& rules,
                               absl::string_view name) {
  const auto found = std::ranges::find(rules, name, &FrameworkRule::name);
  return found == rules.end() ? nullptr : &*found;
}

std::string NamesOf(const std::vector<FrameworkRule>& rules) {
  return absl::StrJoin(rules, ", ",
                       [](std::string* out, const FrameworkRule& rule) {
                         out->append(rule.name);
                       });
}

// Returns the rule that an entry starts from: the framework named by `like`, or
// our own workers.
FrameworkRule StartOf(const std::string& name, YamlMap& map,
                      const std::vector<FrameworkRule>& earlier) {
  FrameworkRule rule;
  if (const YamlTree* like = map.Find("like")) {
    const FrameworkRule* start = RuleNamed(earlier, like->scalar);
    if (start != nullptr) {
      rule = *start;
    } else {
      map.Expected(
          *like, "like",
          absl::StrCat("a framework above this one (", NamesOf(earlier), ")"));
    }
  }
  rule.name = name;
  rule.groups.clear();
  return rule;
}

// Refuses a group that two frameworks name, since only the first would get it.
void RefuseSharedGroup(YamlMap& map, const FrameworkRule& rule,
                       const std::vector<FrameworkRule>& earlier) {
  for (const FrameworkRule& other : earlier) {
    for (const std::string& group : rule.groups) {
      if (!IsOneOf(other.groups, group)) continue;
      map.Error("groups",
                absl::StrCat(group, " is a group of ", other.name, ", too"));
    }
  }
}

}  // namespace

absl::StatusOr<FrameworkRules> ParseFrameworkRules(
    absl::string_view yaml, const std::string& file_name) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  YamlErrors errors(file_name);
  YamlMap file(tree, "", &errors);
  FrameworkRules rules;
  file.Text("fallback", Need::kRequired, &rules.fallback);
  file.Number("rate_with_row_scales", Need::kRequired,
              &rules.rate_with_row_scales);
  file.Named("frameworks", Need::kRequired,
             [&](const std::string& name, YamlMap& map) {
               FrameworkRule rule = StartOf(name, map, rules.frameworks);
               ReadRule(map, &rule);
               RefuseSharedGroup(map, rule, rules.frameworks);
               rules.frameworks.push_back(std::move(rule));
             });
  if (!rules.fallback.empty() &&
      RuleNamed(rules.frameworks, rules.fallback) == nullptr) {
    file.Error("fallback", absl::StrCat("expected one of the frameworks (",
                                        NamesOf(rules.frameworks), "), found '",
                                        rules.fallback, "'"));
  }
  file.Finish();
  RETURN_IF_ERROR(errors.status());
  return rules;
}

FrameworkChoice FrameworkOf(const FrameworkRules& rules,
                            const PublishedRun& run) {
  const FrameworkRule* found = nullptr;
  size_t longest = 0;
  for (const FrameworkRule& rule : rules.frameworks) {
    for (const std::string& group : rule.groups) {
      if (group.size() <= longest || !absl::StartsWith(run.group, group)) {
        continue;
      }
      found = &rule;
      longest = group.size();
    }
  }
  if (found != nullptr) return {found, true};
  found = RuleNamed(rules.frameworks, rules.fallback);
  CHECK(found != nullptr) << "no framework " << rules.fallback;
  return {found, false};
}

std::optional<int32_t> ParseVersion(absl::string_view text) {
  constexpr int kMaxParts = 3;
  constexpr int32_t kPerPart = 100;
  int32_t number = 0;
  int num_parts = 0;
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    int32_t value = 0;
    if (++num_parts > kMaxParts || !absl::SimpleAtoi(part, &value) ||
        value < 0 || value >= kPerPart) {
      return std::nullopt;
    }
    number = kPerPart * number + value;
  }
  if (num_parts < kMaxParts - 1) return std::nullopt;
  return num_parts == kMaxParts ? number : kPerPart * number;
}

}  // namespace millrace
