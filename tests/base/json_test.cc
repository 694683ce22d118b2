#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Nested(int depth, const std::string& open,
                   const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

// Goal: what is read is what was written, keys in either order. Method: one
// document through both parsers and back.
TEST(JsonTest, ReadsAndWrites) {
  const std::string text = R"({"b":[1,2.5,null],"a":"\u00e9"})";
  const auto sorted = ParseJson(text);
  ASSERT_TRUE(sorted.ok()) << sorted.status();
  EXPECT_EQ(JsonText(*sorted), "{\"a\":\"\u00e9\",\"b\":[1,2.5,null]}");
  const auto ordered = ParseOrderedJson(text);
  ASSERT_TRUE(ordered.ok()) << ordered.status();
  EXPECT_EQ(JsonText(*ordered), "{\"b\":[1,2.5,null],\"a\":\"\u00e9\"}");
}

// Goal: text that is no JSON is an error that names the line, never an
// exception. Method: one mistake of each kind on the third line.
TEST(JsonTest, MistakesNameTheirLine) {
  for (const std::string mistake :
       {"", "]", "nul", "\"open", "\"\xff\"", "1e", "[1,]", "{\"a\":1"}) {
    const absl::Status status =
        ParseJson(absl::StrCat("[\n1,\n", mistake)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << mistake;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 3: not valid"))
        << mistake;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("json.exception")))
        << mistake;
  }
  EXPECT_EQ(ParseJson("[\n1e3,\n1e999]").status().message(),
            "line 3: not valid JSON: number overflow parsing '1e999'");
}

// Goal: a key that is there twice in one object is told where asked for, and
// only then. Method: twice in one object, deep inside; once each in two.
TEST(JsonTest, RepeatedKeysAreTold) {
  const std::string twice = "{\"a\": 1,\n\"b\": [{\"c\": 1,\n\"c\": 2}]}";
  EXPECT_TRUE(ParseJson(twice).ok());
  EXPECT_EQ(ParseJsonOnce(twice).status().message(),
            "line 3: \"c\" is there twice in one object");
  const auto once = ParseJsonOnce(R"({"a": {"a": 1}, "b": [{"a": 2}]})");
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(JsonText(*once), R"({"a":{"a":1},"b":[{"a":2}]})");
}

// Goal: depth is bounded whatever opens it, at exactly the documented depth.
// Method: lists and objects at the limit and one beyond, and a million deep.
TEST(JsonTest, DepthIsBounded) {
  const std::pair<std::string, std::string> kinds[] = {{"[", "]"},
                                                       {"{\"a\":", "}"}};
  for (const auto& [open, close] : kinds) {
    EXPECT_TRUE(ParseJson(Nested(kMaxNesting, open, close)).ok());
    for (const int depth : {kMaxNesting + 1, 1'000'000}) {
      const absl::Status status =
          ParseJson(absl::StrCat("\n", Nested(depth, open, close))).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status));
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("line 2: lists and objects are nested deeper"));
    }
  }
}

// Goal: brackets in texts do not count. Method: many of them, behind quotes and
// backslashes that are escaped.
TEST(JsonTest, BracketsInTextsAreText) {
  const std::string text = absl::StrCat(
      R"(["\\", "\"[[", ")", std::string(1000, '['), R"(", "\\\"{{"])");
  const auto json = ParseJson(text);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->size(), 4u);
}

// Goal: printing never fails. Method: bytes that are not UTF-8, as a folder's
// name may have.
TEST(JsonTest, PrintsAnyBytes) {
  EXPECT_EQ(JsonText(nlohmann::json{{"path", "a\xff/b"}}),
            "{\"path\":\"a\uFFFD/b\"}");
  EXPECT_EQ(JsonText(nlohmann::ordered_json{{"path", "\xc3"}}, 1),
            "{\n \"path\": \"\uFFFD\"\n}");
}

}  // namespace
}  // namespace millrace
