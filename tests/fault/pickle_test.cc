#include "fault/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fault/torch_files.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kNames[] = {"torch Size", "torch float32"};

std::string ErrorOf(const std::string& content) {
  const auto pickle = Pickle::Parse(content, "f", kNames);
  if (pickle.ok()) return "no error";
  EXPECT_EQ(pickle.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(pickle.status().message());
}

// Goal: values come out as Python would see them. Method: one of each kind, by
// the opcodes of protocol 2 and of protocol 4.
TEST(PickleTest, ReadsValues) {
  const std::string value = PickledTuple(
      {"N", "\x88", std::string("K\x07", 2), std::string("M\x01\x02", 3),
       std::string("J\xff\xff\xff\xff", 5), PickledInt(int64_t{1} << 40),
       PickledText("text"), "\x8c\x02hi\x94", std::string("h\x00", 2),
       std::string("\x8c\x05torch\x8c\x04Size\x93", 14),
       PickledList({PickledInt(3)}),
       PickledMap({{PickledText("key"), PickledInt(4)}}), PickledSize({2, 3})});
  const auto pickle = Pickle::Parse(PickleFile(value), "f", kNames);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const PickleValue root = pickle->root();
  ASSERT_EQ(root.kind(), PickleKind::kTuple);
  ASSERT_EQ(root.size(), 13u);
  EXPECT_TRUE(root.item(0).IsNone());
  EXPECT_EQ(root.item(1).kind(), PickleKind::kBool);
  EXPECT_EQ(root.item(2).number(), 7);
  EXPECT_EQ(root.item(3).number(), 513);
  EXPECT_EQ(root.item(4).number(), -1);
  EXPECT_EQ(root.item(5).number(), int64_t{1} << 40);
  EXPECT_EQ(root.item(6).text(), "text");
  EXPECT_EQ(root.item(7).text(), "hi");
  EXPECT_EQ(root.item(8).text(), "hi");
  EXPECT_TRUE(root.item(9).IsGlobal("torch Size"));
  EXPECT_EQ(root.item(10).item(0).number(), 3);
  EXPECT_EQ(root.item(11).Find("key")->number(), 4);
  EXPECT_FALSE(root.item(11).Find("other").has_value());
  EXPECT_TRUE(root.item(12).IsObjectOf("torch Size"));
  EXPECT_EQ(root.item(12).item(1).item(0).item(1).number(), 3);
}

// Goal: what could run code, and what no checkpoint has, is refused by place
// and name. Method: the pickles that exploits are made of.
TEST(PickleTest, RefusesWhatRunsCode) {
  EXPECT_THAT(ErrorOf(PickleFile(PickledGlobal("os", "system") +
                                 PickledTuple({PickledText("id")}) + "R")),
              AllOf(HasSubstr("f: byte 2: the name 'os system'"),
                    HasSubstr("nothing of it was executed")));
  EXPECT_THAT(ErrorOf("\x80\x04\x8c\x02os\x8c\x06system\x93."),
              HasSubstr("byte 14: the name 'os system'"));
  // Modules are compared whole, dots in names open no door.
  EXPECT_THAT(ErrorOf(PickleFile(PickledGlobal("torch", "Size.__class__"))),
              HasSubstr("the name 'torch Size.__class__'"));
  EXPECT_THAT(ErrorOf(PickleFile(PickledGlobal("torch\x01", "Size"))),
              HasSubstr("the name 'torch? Size'"));
  for (const char code :
       {'i',    'o',    'I',    'L',    'F',    'P',    '0',    '1',
        '2',    'd',    'l',    '\x82', '\x83', '\x84', '\x8b', '\x8d',
        '\x92', '\x8e', '\x96', '\x97', '\x98', '\xff', '\0'}) {
    EXPECT_THAT(
        ErrorOf(absl::StrCat("\x80\x04", std::string(1, code), ".")),
        AllOf(HasSubstr("f: byte 2: opcode 0x"), HasSubstr("copy it again")));
  }
}

// Goal: files that lie about lengths, end early or nest endlessly are refused
// with little memory. Method: one of each.
TEST(PickleTest, RefusesDamage) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("ends within an opcode"));
  EXPECT_THAT(ErrorOf("\x80\x04"), HasSubstr("ends within an opcode"));
  EXPECT_THAT(ErrorOf(std::string("\x80\x00.", 3)), HasSubstr("protocol 0"));
  EXPECT_THAT(ErrorOf("\x80\x06."), HasSubstr("protocol 6"));
  EXPECT_THAT(ErrorOf("\x80\x04X\xff\xff\xff\xffxy."),
              HasSubstr("a text of 4294967295 bytes where 3 are left"));
  EXPECT_THAT(ErrorOf("\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f"
                      "N."),
              HasSubstr("a frame of 9223372036854775807 bytes"));
  EXPECT_THAT(ErrorOf(PickleFile("\x8a\x09"
                                 "123456789")),
              HasSubstr("an integer of 9 bytes"));
  EXPECT_THAT(ErrorOf(PickleFile("NN")), HasSubstr("other than one value"));
  EXPECT_THAT(ErrorOf(PickleFile("N") + "x"),
              HasSubstr("1 bytes follow the end"));
  EXPECT_THAT(ErrorOf(PickleFile("t")), HasSubstr("never began"));
  EXPECT_THAT(ErrorOf(PickleFile("\x86")), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf(PickleFile("N(\x86")), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf(PickleFile("Na")), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf(PickleFile("NNa")), HasSubstr("neither a list nor"));
  EXPECT_THAT(ErrorOf(PickleFile("}(Nu")), HasSubstr("neither a list nor"));
  EXPECT_THAT(ErrorOf(PickleFile("NN\x81")), HasSubstr("class is no name"));
  EXPECT_THAT(ErrorOf(PickleFile("N}b")), HasSubstr("what is no object"));
  EXPECT_THAT(ErrorOf(PickleFile("NN\x93")), HasSubstr("a name that is no"));
  EXPECT_THAT(ErrorOf(PickleFile("h\x01")), HasSubstr("value 1 is recalled"));
  EXPECT_THAT(ErrorOf(PickleFile(std::string("Nr\xff\xff\xff\x7f", 6))),
              HasSubstr("the number 2147483647 for value 0"));
  EXPECT_THAT(ErrorOf(PickleFile(PickledGlobal(std::string(300, 'x'), "y"))),
              HasSubstr("a name of more than 256 bytes"));
  std::string nested = "N";
  for (int i = 0; i < 65; ++i) nested += "\x85";
  EXPECT_THAT(ErrorOf(PickleFile(nested)), HasSubstr("more than 64 deep"));
  EXPECT_THAT(ErrorOf(PickleFile(std::string(1000, '('))),
              HasSubstr("lists that do not end"));
  // A list in itself is no loop for who reads to a fixed depth.
  EXPECT_EQ(ErrorOf(PickleFile(std::string("]\x94h\x00"
                                           "a",
                                           5))),
            "no error");
}

// Goal: no bytes crash the reader. Method: a good pickle, damaged at random,
// seeded; the sanitizers watch.
TEST(PickleTest, SurvivesAnyBytes) {
  const std::string good = PickleFile(PickledObject(
      "torch", "Size",
      {{"a", PickledList({PickledInt(1), PickledSize({1, 2})})},
       {"b", PickledTuple({PickledText("x"), "\x8c\x01y\x94q\x01h\x01"})}}));
  std::mt19937_64 random(7);
  int64_t num_read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = good;
    for (uint64_t j = 0; j <= random() % 3; ++j) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    num_read += Pickle::Parse(damaged, "f", kNames).ok();
  }
  // Damage within texts and numbers is not seen here.
  EXPECT_GT(num_read, 0);
  EXPECT_LT(num_read, 20000);
}

}  // namespace
}  // namespace millrace
