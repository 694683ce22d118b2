#include "planner/evaluate/framework_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "tests/planner/shipped_rules.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kRules[] = R"(fallback: core
rate_with_row_scales: 0.5
frameworks:
  core:
    groups: [core, old]
    says: the first one
    zero: 1
    behaviour: {chunks_logits: false, gradient_bytes: 2}
    cases:
      - {gpu: B200, low_precision: true, set: {weight_bytes: 1}, says: eight}
  child:
    like: core
    groups: core_child
    says: the second one
    recompute: selective
    behaviour: {gradient_bytes: 4, selective: [norms, experts]}
    profiles:
      a100-80gb: {use: other, says: another fabric}
    recipes:
      says: by the book
      parts:
        slow: {says: slowly, set: {overlaps_data: false}}
        quiet: {set: {dropout: true}}
      models:
        Ours 2B:
          - {use: quiet}
          - {from: 26.04, use: [slow, quiet], recompute: [norms, activation]}
)";

FrameworkRules Parsed() {
  auto rules = ParseFrameworkRules(kRules, "f.yaml");
  EXPECT_TRUE(rules.ok()) << rules.status();
  return rules.ok() ? *std::move(rules) : FrameworkRules{};
}

std::string ErrorOfRules(const std::string& from, const std::string& to) {
  const std::string yaml = absl::StrReplaceAll(kRules, {{from, to}});
  EXPECT_NE(yaml, kRules) << from;
  return std::string(ParseFrameworkRules(yaml, "f.yaml").status().message());
}

PublishedRun OfGroup(const std::string& group) {
  PublishedRun run;
  run.group = group;
  return run;
}

// Goal: a framework takes what it does not say from the one that it is like,
// and from our workers what neither says. Method: two frameworks.
TEST(FrameworkRulesTest, TakesTheRestFromAnother) {
  const FrameworkRules rules = Parsed();
  EXPECT_EQ(rules.rate_with_row_scales, 0.5);
  ASSERT_EQ(rules.frameworks.size(), 2u);
  const FrameworkRule& core = rules.frameworks[0];
  EXPECT_FALSE(core.implementation.chunks_logits);
  EXPECT_EQ(core.implementation.gradient_bytes, 2);
  EXPECT_EQ(core.implementation.logit_bytes, Implementation{}.logit_bytes);
  ASSERT_EQ(core.cases.size(), 1u);
  EXPECT_THAT(core.cases[0].filter.gpus, ElementsAre("B200"));

  const FrameworkRule& child = rules.frameworks[1];
  EXPECT_FALSE(child.implementation.chunks_logits);
  EXPECT_EQ(child.implementation.gradient_bytes, 4);
  EXPECT_TRUE(child.implementation.selective.norms);
  EXPECT_FALSE(child.implementation.selective.activation);
  EXPECT_TRUE(child.implementation.selective.experts);
  EXPECT_EQ(child.zero, 1);
  EXPECT_EQ(child.recompute, Recompute::kPolicy);
  EXPECT_EQ(child.cases.size(), 1u);
  EXPECT_EQ(child.profiles.at("a100-80gb").name, "other");
  ASSERT_EQ(child.recipes.size(), 2u);
  EXPECT_EQ(child.recipes[1].filter.first_version, 260400);
  EXPECT_EQ(child.recipes[1].says, "slowly");
  EXPECT_EQ(child.recipes[1].recompute_says, "norms and activations");
}

// Goal: a run belongs to the framework whose group fits it best, and one of no
// framework to the fallback. Method: groups that begin alike.
TEST(FrameworkRulesTest, FindsTheFrameworkOfAGroup) {
  const FrameworkRules rules = Parsed();
  const auto name = [&](const char* group) {
    const FrameworkChoice choice = FrameworkOf(rules, OfGroup(group));
    return absl::StrCat(choice.rule->name, choice.is_known ? "" : "?");
  };
  EXPECT_EQ(name("core_2"), "core");
  EXPECT_EQ(name("old"), "core");
  EXPECT_EQ(name("core_child_2"), "child");
  EXPECT_EQ(name("new"), "core?");
}

// Goal: a mistake in the file is named with its line, its key and what would be
// right. Method: one each.
TEST(FrameworkRulesTest, RefusesMistakes) {
  EXPECT_EQ(ErrorOfRules("gradient_bytes: 2", "gradient_bytse: 2"),
            "f.yaml:8: frameworks.core.behaviour.gradient_bytse: unknown key; "
            "did you mean 'gradient_bytes'?");
  EXPECT_EQ(ErrorOfRules("chunks_logits: false", "chunks_logits: 0"),
            "f.yaml:8: frameworks.core.behaviour.chunks_logits: expected true "
            "or false, found '0'");
  EXPECT_THAT(
      ErrorOfRules("gradient_bytes: 2", "gradient_bytes: 4294967298"),
      HasSubstr("gradient_bytes: expected an integer from 1 to 2147483647"));
  EXPECT_THAT(ErrorOfRules("[norms, experts]", "[norms, heads]"),
              HasSubstr("unknown part 'heads'; known are norms, activation"));
  EXPECT_THAT(ErrorOfRules("    says: the first one\n", ""),
              HasSubstr("frameworks.core.says: missing; expected text"));
  EXPECT_THAT(ErrorOfRules("zero: 1", "zero: 4"),
              HasSubstr("frameworks.core.zero: ZeRO has the stages 0 to 3"));
  EXPECT_THAT(ErrorOfRules("recompute: selective", "recompute: some"),
              HasSubstr("expected none, selective or full, found 'some'"));
  EXPECT_THAT(ErrorOfRules("gpu: B200", "gpu: B20"),
              HasSubstr("cases[0].gpu: unknown gpu 'B20'; known are GB300"));
  EXPECT_THAT(ErrorOfRules("a100-80gb", "a100-80gp"),
              HasSubstr("profiles.a100-80gp: unknown key; did you mean"));
  EXPECT_THAT(ErrorOfRules("like: core", "like: cord"),
              HasSubstr("child.like: expected a framework above this one "
                        "(core), found 'cord'"));
  EXPECT_THAT(ErrorOfRules("groups: core_child", "groups: old"),
              HasSubstr("child.groups: old is a group of core, too"));
  EXPECT_THAT(ErrorOfRules("fallback: core", "fallback: nobody"),
              HasSubstr("f.yaml:1: fallback: expected one of the frameworks "
                        "(core, child), found 'nobody'"));
  EXPECT_THAT(ErrorOfRules("from: 26.04", "from: April"),
              HasSubstr("models.Ours 2B[1].from: expected a version such as"));
  EXPECT_THAT(ErrorOfRules("[slow, quiet]", "[slow, loud]"),
              HasSubstr("use: there is no part 'loud'; parts are quiet, slow"));
  EXPECT_THAT(ErrorOfRules("Ours 2B:\n          - {use: quiet}",
                           "Ours 2B: []\n        Ours 2B:"),
              HasSubstr("recipes.models.Ours 2B: given twice; remove one"));
  EXPECT_THAT(ErrorOfRules("Ours 2B", "'-'"),
              HasSubstr("models.-: expected the name of a model, found '-'"));
  EXPECT_THAT(ErrorOfRules("- {use: quiet}", "- {model: Ours, use: quiet}"),
              HasSubstr("the recipe stands below its model; remove it"));
}

// The implementation with one key set; ours where the value is not the key's.
Implementation With(const std::string& key, const char* value) {
  const auto tree = ParseYaml(absl::StrCat(key, ": ", value), "f.yaml");
  EXPECT_TRUE(tree.ok()) << tree.status();
  YamlErrors errors("f.yaml");
  Implementation implementation;
  YamlMap map(*tree, "", &errors);
  Apply(ReadBehaviour(map), &implementation);
  map.Finish();
  return implementation;
}

// Goal: every key of a behaviour sets a field, and no two keys the same one.
// Method: set each alone to a value that our workers do not have.
TEST(FrameworkRulesTest, EveryKeySetsItsOwnField) {
  std::vector<Implementation> seen;
  for (const std::string& key : BehaviourKeyNames()) {
    Implementation changed;
    for (const char* value : {"true", "false", "3", "[experts]"}) {
      if (changed == Implementation{}) changed = With(key, value);
    }
    EXPECT_FALSE(changed == Implementation{}) << key;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), changed), 0) << key;
    seen.push_back(changed);
  }
}

// Goal: versions grow with time, and nothing else is a version. Method: some.
TEST(FrameworkRulesTest, ReadsVersions) {
  EXPECT_EQ(ParseVersion("26.04"), 260400);
  EXPECT_EQ(ParseVersion("26.04.01"), 260401);
  for (const char* text : {"", "26", "26.", "26.04.01.2", "a.b", "26.-4",
                           "26.100", "26.04 NeMo"}) {
    EXPECT_EQ(ParseVersion(text), std::nullopt) << text;
  }
}

// Goal: somebody can describe a framework by the guide alone. Method: look for
// every key in it.
TEST(FrameworkRulesTest, GuideListsEveryKey) {
  const auto guide = ReadFile("docs/evaluate.md");
  ASSERT_TRUE(guide.ok()) << guide.status();
  for (const std::string& key : BehaviourKeyNames()) {
    EXPECT_THAT(*guide, HasSubstr(absl::StrCat("| `", key, "` |")));
  }
  for (const std::string& part : SelectionNames()) {
    EXPECT_THAT(*guide, HasSubstr(absl::StrCat("`", part, "`")));
  }
}

// Goal: every framework that comes with Millrace says something of its own.
// Method: compare with our workers.
TEST(FrameworkRulesTest, ShippedFrameworksDifferFromOurWorkers) {
  for (const FrameworkRule& rule : ShippedRules().frameworks.frameworks) {
    EXPECT_FALSE(rule.implementation == Implementation{}) << rule.name;
  }
}

}  // namespace
}  // namespace millrace
