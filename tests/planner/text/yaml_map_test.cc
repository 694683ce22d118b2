#include "planner/text/yaml_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using Need = YamlMap::Need;

struct Read {
  std::string name = "none";
  int64_t count = 7;
  double rate = 0.5;
  bool is_on = false;
  std::vector<std::string> words;
  std::string errors;  // One a line; empty: none.
};

Read ReadAll(const std::string& yaml) {
  const auto tree = ParseYaml(yaml, "f.yaml");
  EXPECT_TRUE(tree.ok()) << tree.status();
  Read read;
  YamlErrors errors("f.yaml");
  YamlMap map(*tree, "part", &errors);
  map.Text("name", Need::kRequired, &read.name);
  map.Integer("count", Need::kOptional, 1, &read.count);
  map.Number("rate", Need::kOptional, &read.rate);
  map.Flag("on", Need::kOptional, &read.is_on);
  map.Words("words", Need::kOptional, &read.words);
  map.Finish();
  read.errors = std::string(errors.status().message());
  return read;
}

// Goal: values of the right type are read, and absent ones stay as they were.
// Method: a map with all keys, and one with the required key alone.
TEST(YamlMapTest, ReadsValues) {
  const Read all =
      ReadAll("{name: a b, count: 3, rate: 0.25, on: true, words: [x, y]}");
  EXPECT_EQ(all.errors, "");
  EXPECT_EQ(all.name, "a b");
  EXPECT_EQ(all.count, 3);
  EXPECT_EQ(all.rate, 0.25);
  EXPECT_TRUE(all.is_on);
  EXPECT_THAT(all.words, ElementsAre("x", "y"));
  EXPECT_THAT(ReadAll("{name: a, words: x}").words, ElementsAre("x"));
  const Read bare = ReadAll("name: a");
  EXPECT_EQ(bare.errors, "");
  EXPECT_EQ(bare.count, 7);
  EXPECT_EQ(bare.rate, 0.5);
}

// Goal: every mistake is named with file, line, key and what was expected.
// Method: one mistake each, and two at once.
TEST(YamlMapTest, NamesEveryMistake) {
  const std::pair<const char*, const char*> cases[] = {
      {"count: 1", "f.yaml:1: part.name: missing; expected text"},
      {"name: [a]", "f.yaml:1: part.name: expected text, found a list"},
      {"name: ''", "f.yaml:1: part.name: expected text, found ''"},
      {"name: a\ncount: 0",
       "f.yaml:2: part.count: expected an integer from 1 to 2147483647, found "
       "'0'"},
      {"name: a\ncount: 1.5",
       "f.yaml:2: part.count: expected an integer from 1 to 2147483647, found "
       "'1.5'"},
      {"name: a\nrate: fast",
       "f.yaml:2: part.rate: expected a number above 0, found 'fast'"},
      {"name: a\nrate: inf",
       "f.yaml:2: part.rate: expected a number above 0, found 'inf'"},
      {"name: a\non: yes",
       "f.yaml:2: part.on: expected true or false, found 'yes'"},
      {"name: a\nwords: []",
       "f.yaml:2: part.words: expected a word or a list of words, found a "
       "list"},
      {"name: a\ncuont: 2",
       "f.yaml:2: part.cuont: unknown key; did you mean 'count'?"},
      {"name: a\nzzzzzz: 2",
       "f.yaml:2: part.zzzzzz: unknown key; known keys here: name, count, "
       "rate, on, words"},
      {"name: a\nname: b", "f.yaml:2: part.name: given twice; remove one"},
      {"[a]", "f.yaml:1: part: expected a map, found a list"},
      {"name: a\ncount: x\non: 1",
       "f.yaml:2: part.count: expected an integer from 1 to 2147483647, found "
       "'x'\n"
       "f.yaml:3: part.on: expected true or false, found '1'"}};
  for (const auto& [yaml, errors] : cases) {
    EXPECT_EQ(ReadAll(yaml).errors, errors) << yaml;
  }
}

// Goal: maps within the map are read and finished, and a choice is one of its
// words. Method: one of each kind, with an unknown key in a list and a word
// that is none.
TEST(YamlMapTest, ReadsMapsWithinAndChoices) {
  const auto tree = ParseYaml(
      "{one: {name: a}, all: [{name: b}, {nome: c}], by: {x: {name: d}}, "
      "way: up, other: sideways}",
      "f.yaml");
  ASSERT_TRUE(tree.ok()) << tree.status();
  YamlErrors errors("f.yaml");
  YamlMap map(*tree, "", &errors);
  std::vector<std::string> names;
  const auto read = [&](YamlMap& within) {
    within.Text("name", Need::kOptional, &names.emplace_back());
  };
  map.Section("one", Need::kRequired, read);
  map.Items("all", Need::kRequired, read);
  map.Named("by", Need::kRequired,
            [&](const std::string& name, YamlMap& within) {
              read(within);
              names.push_back(name);
            });
  map.Section("absent", Need::kOptional, read);
  int way = 0;
  for (const char* key : {"way", "other"}) {
    map.Choice<int>(key, Need::kRequired, {{"up", 1}, {"down", 2}}, &way);
  }
  map.Finish();
  EXPECT_THAT(names, ElementsAre("a", "b", "", "d", "x"));
  EXPECT_EQ(way, 1);
  EXPECT_EQ(errors.status().message(),
            "f.yaml:1: all[1].nome: unknown key; did you mean 'name'?\n"
            "f.yaml:1: other: expected up or down, found 'sideways'");
}

}  // namespace
}  // namespace millrace
