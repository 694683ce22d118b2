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
  return std::find(all.begin(), all.end(), word) != all.end();
}

// The PlainModelName(). An empty one would hold for every model, so it is
// refused.
std::string PlainNameOf(const std::string& model, absl::string_view key,
                        YamlMap& map) {
  std::string name = PlainModelName(model);
  if (name.empty()) {
    map.Error(
        key, absl::StrCat("expected the name of a model, found '", model, "'"));
  }
  return name;
}

// The keys of a RunFilter, which stand beside those of what it is for.
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

// Reads one framework's entry into the rule that it started from.
class RuleReader {
 public:
  RuleReader(const YamlTree& tree, const std::string& path, YamlErrors* errors,
             FrameworkRule* rule)
      : map_(tree, path, errors), errors_(*errors), rule_(*rule) {}

  void Read() {
    map_.Entry("like", Need::kOptional, "");  // StartOf() has followed it.
    map_.Words("groups", Need::kRequired, &rule_.groups);
    map_.Text("says", Need::kRequired, &rule_.says);
    ReadDefaults();
    if (const YamlTree* behaviour = map_.Map("behaviour", Need::kOptional)) {
      Apply(ReadBehaviour(*behaviour, map_.PathOf("behaviour"), &errors_),
            &rule_.implementation);
    }
    ReadCases();
    ReadMoreLayers();
    if (const YamlTree* recipes = map_.Map("recipes", Need::kOptional)) {
      ReadRecipes(*recipes, map_.PathOf("recipes"));
    }
    ReadProfiles();
    map_.Finish();
  }

 private:
  void ReadDefaults() {
    int64_t zero = 0;
    if (map_.Integer("zero", Need::kOptional, 0, &zero)) {
      rule_.zero = static_cast<int32_t>(std::min<int64_t>(zero, 3));
      if (zero > 3) map_.Error("zero", "ZeRO has the stages 0 to 3");
    }
    std::string recompute;
    if (map_.Text("recompute", Need::kOptional, &recompute)) {
      const std::map<std::string, Recompute> known = {
          {"none", Recompute::kNone},
          {"selective", Recompute::kPolicy},
          {"full", Recompute::kFull}};
      const auto found = known.find(recompute);
      if (found != known.end()) {
        rule_.recompute = found->second;
      } else {
        map_.Error("recompute",
                   absl::StrCat("expected none, selective or full, found '",
                                recompute, "'"));
      }
    }
    if (const YamlTree* gelu = map_.Map("gelu_models", Need::kOptional)) {
      YamlMap models(*gelu, map_.PathOf("gelu_models"), &errors_);
      models.Flag("ties_embedding", Need::kRequired, &rule_.ties_embedding);
      models.Integer("vocab", Need::kRequired, 1, &rule_.vocab);
      models.Finish();
    }
    map_.Flag("logs_first_rank", Need::kOptional, &rule_.logs_first_rank);
    map_.Number("reserved_per_allocated", Need::kOptional,
                &rule_.reserved_per_allocated);
    map_.Flag("one_micro_batch_a_stage", Need::kOptional,
              &rule_.one_micro_batch_a_stage);
  }

  void ReadCases() {
    const YamlTree* cases = map_.List("cases", Need::kOptional);
    if (cases == nullptr) return;
    for (size_t i = 0; i < cases->children.size(); ++i) {
      YamlMap map(cases->children[i],
                  map_.PathOf(absl::StrCat("cases[", i, "]")), &errors_);
      BehaviourCase read{.filter = ReadFilter(map)};
      if (const YamlTree* set = map.Map("set", Need::kRequired)) {
        read.set = ReadBehaviour(*set, map.PathOf("set"), &errors_);
      }
      map.Text("says", Need::kOptional, &read.says);
      map.Finish();
      rule_.cases.push_back(std::move(read));
    }
  }

  void ReadMoreLayers() {
    const YamlTree* models = map_.List("more_layers", Need::kOptional);
    if (models == nullptr) return;
    for (size_t i = 0; i < models->children.size(); ++i) {
      YamlMap map(models->children[i],
                  map_.PathOf(absl::StrCat("more_layers[", i, "]")), &errors_);
      MoreLayers more;
      if (map.Text("model", Need::kRequired, &more.model)) {
        more.model = PlainNameOf(more.model, "model", map);
      }
      map.Integer("layers", Need::kRequired, 1, &more.layers);
      map.Text("says", Need::kRequired, &more.says);
      map.Finish();
      rule_.more_layers.push_back(std::move(more));
    }
  }

  void ReadProfiles() {
    const YamlTree* profiles = map_.Map("profiles", Need::kOptional);
    if (profiles == nullptr) return;
    YamlMap by_device(*profiles, map_.PathOf("profiles"), &errors_);
    for (const std::string& device : DeviceProfiles()) {
      const YamlTree* entry = by_device.Map(device, Need::kOptional);
      if (entry == nullptr) continue;
      YamlMap map(*entry, by_device.PathOf(device), &errors_);
      OtherProfile& other = rule_.profiles[device];
      map.Text("use", Need::kRequired, &other.name);
      map.Text("says", Need::kRequired, &other.says);
      map.Finish();
    }
    by_device.Finish();
  }

  struct Part {
    std::string says;
    BehaviourSettings set;
  };
  using Parts = std::map<std::string, Part>;

  void ReadRecipes(const YamlTree& tree, const std::string& path) {
    YamlMap map(tree, path, &errors_);
    map.Text("says", Need::kRequired, &rule_.recipes_say);
    Parts parts;
    if (const YamlTree* entries = map.Map("parts", Need::kRequired)) {
      parts = ReadParts(*entries, map.PathOf("parts"));
    }
    if (const YamlTree* models = map.Map("models", Need::kRequired)) {
      YamlMap names(*models, map.PathOf("models"), &errors_);
      for (const YamlTree& model : models->children) {
        if (const YamlTree* recipes = names.List(model.key, Need::kOptional)) {
          ReadRecipesOf(*recipes, model.key, names, parts);
        }
      }
      names.Finish();
    }
    map.Finish();
  }

  Parts ReadParts(const YamlTree& tree, const std::string& path) {
    Parts parts;
    YamlMap names(tree, path, &errors_);
    for (const YamlTree& entry : tree.children) {
      names.Entry(entry.key, Need::kOptional, "");
      YamlMap map(entry, names.PathOf(entry.key), &errors_);
      Part& part = parts[entry.key];
      map.Text("says", Need::kOptional, &part.says);
      if (const YamlTree* set = map.Map("set", Need::kRequired)) {
        part.set = ReadBehaviour(*set, map.PathOf("set"), &errors_);
      }
      map.Finish();
    }
    names.Finish();
    return parts;
  }

  void ReadRecipesOf(const YamlTree& list, const std::string& model,
                     YamlMap& models, const Parts& parts) {
    const std::string name = PlainNameOf(model, model, models);
    for (size_t i = 0; i < list.children.size(); ++i) {
      YamlMap map(list.children[i],
                  models.PathOf(absl::StrCat(model, "[", i, "]")), &errors_);
      Recipe recipe{.filter = ReadFilter(map)};
      if (!recipe.filter.model.empty()) {
        map.Error("model", "the recipe stands below its model; remove it");
      }
      recipe.filter.model = name;
      AddParts(map, parts, &recipe);
      std::vector<std::string> words;
      if (map.Words("recompute", Need::kOptional, &words)) {
        SelectionText selected = ReadSelection(words, "recompute", &map);
        recipe.recompute = selected.selection;
        recipe.recompute_says = std::move(selected.says);
      }
      map.Finish();
      rule_.recipes.push_back(std::move(recipe));
    }
  }

  static void AddParts(YamlMap& map, const Parts& parts, Recipe* recipe) {
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

  YamlMap map_;
  YamlErrors& errors_;
  FrameworkRule& rule_;
};

const FrameworkRule* RuleNamed(const std::vector<FrameworkRule>& rules,
                               absl::string_view name) {
  const auto found = std::find_if(
      rules.begin(), rules.end(),
      [&](const FrameworkRule& rule) { return rule.name == name; });
  return found == rules.end() ? nullptr : &*found;
}

std::string NamesOf(const std::vector<FrameworkRule>& rules) {
  return absl::StrJoin(rules, ", ",
                       [](std::string* out, const FrameworkRule& rule) {
                         out->append(rule.name);
                       });
}

// The rule that an entry starts from: that of an earlier framework, or ours.
FrameworkRule StartOf(const YamlTree& entry, const std::string& path,
                      const std::vector<FrameworkRule>& earlier,
                      YamlErrors* errors) {
  FrameworkRule rule;
  for (const YamlTree& key : entry.children) {
    if (key.key != "like") continue;
    const FrameworkRule* start = RuleNamed(earlier, key.scalar);
    if (start != nullptr) {
      rule = *start;
    } else {
      errors->Add(
          key, absl::StrCat(path, ".like"),
          absl::StrCat("expected a framework above this one (",
                       NamesOf(earlier), "), found ", DescribeYaml(key)));
    }
  }
  rule.name = entry.key;
  rule.groups.clear();
  return rule;
}

// A group of two frameworks would be the first one's.
void RefuseSharedGroup(const YamlTree& entry, const std::string& path,
                       const FrameworkRule& rule,
                       const std::vector<FrameworkRule>& earlier,
                       YamlErrors* errors) {
  for (const FrameworkRule& other : earlier) {
    for (const std::string& group : rule.groups) {
      if (!IsOneOf(other.groups, group)) continue;
      errors->Add(entry, absl::StrCat(path, ".groups"),
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
  if (const YamlTree* entries = file.Map("frameworks", Need::kRequired)) {
    YamlMap names(*entries, "frameworks", &errors);
    for (const YamlTree& entry : entries->children) {
      names.Entry(entry.key, Need::kOptional, "");
      const std::string path = names.PathOf(entry.key);
      FrameworkRule rule = StartOf(entry, path, rules.frameworks, &errors);
      RuleReader(entry, path, &errors, &rule).Read();
      RefuseSharedGroup(entry, path, rule, rules.frameworks, &errors);
      rules.frameworks.push_back(std::move(rule));
    }
    names.Finish();
  }
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
