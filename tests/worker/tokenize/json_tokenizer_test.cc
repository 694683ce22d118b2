#include "worker/tokenize/json_tokenizer.h"

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/files.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kFamilies[] = {"gpt2",   "llama3", "qwen2", "phi4",
                                     "llama2", "gemma",  "phi3"};

std::string FamilyJson(const std::string& family) {
  return *ReadFile("tests/data/tokenizers/" + family + ".json");
}

std::unique_ptr<JsonTokenizer> Family(const std::string& family) {
  auto tokenizer = JsonTokenizer::Make(FamilyJson(family));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::vector<int32_t> Ids(const JsonTokenizer& tokenizer,
                         const std::string& text) {
  std::vector<int32_t> ids;
  const absl::Status status = tokenizer.Encode(text, false, &ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

// A text of characters of several scripts, with runs, spaces and line ends.
std::string RandomText(std::mt19937_64* random) {
  constexpr std::pair<int32_t, int32_t> kBlocks[] = {
      {0x20, 0x7F},      {0x20, 0x7F},     {0x61, 0x7B},     {0xA0, 0x250},
      {0x300, 0x370},    {0x400, 0x500},   {0x1100, 0x1200}, {0x2000, 0x2070},
      {0x3040, 0x3100},  {0x4E00, 0x4F00}, {0xAC00, 0xAD00}, {0x1F600, 0x1F650},
      {0x31350, 0x31360}};
  std::string text;
  const size_t length = (*random)() % 120;
  for (size_t i = 0; i < length; ++i) {
    const auto [low, high] = kBlocks[(*random)() % std::size(kBlocks)];
    const auto character = static_cast<int32_t>(
        low + (*random)() % static_cast<uint64_t>(high - low));
    const uint64_t repeats = (*random)() % 8 == 0 ? 40 : 1;
    for (uint64_t n = 0; n < repeats; ++n) AppendUtf8(character, &text);
    if ((*random)() % 4 == 0) text += " \n\t  "[(*random)() % 5];
  }
  return text;
}

// Goal: ids and decoded texts are those of Hugging Face's library. Method: the
// cases that it was asked, for the settings of seven families.
TEST(JsonTokenizerTest, GivesHuggingFacesIds) {
  for (const std::string family : kFamilies) {
    SCOPED_TRACE(family);
    const auto tokenizer = Family(family);
    const auto cases =
        ParseJson(*ReadFile("tests/data/tokenizers/" + family + ".cases.json"));
    ASSERT_TRUE(cases.ok()) << cases.status();
    ASSERT_GT(cases->size(), 30u);
    for (const Json& item : *cases) {
      const auto text = item["text"].get<std::string>();
      SCOPED_TRACE(JsonText(item["text"]));
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(Ids(*tokenizer, text), ids);
      std::vector<int32_t> with_special;
      ASSERT_TRUE(tokenizer->Encode(text, true, &with_special).ok());
      EXPECT_EQ(with_special, item["with_special"].get<std::vector<int32_t>>());
      const auto decoded = tokenizer->Decode(ids);
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded, item["decoded"].get<std::string>());
    }
  }
}

// Goal: byte-level ids keep every byte of the text. Method: random texts; for
// the family that composes characters, their composed form.
TEST(JsonTokenizerTest, ByteLevelDecodesToTheText) {
  std::mt19937_64 random(11);
  for (const std::string family : {"gpt2", "llama3", "qwen2", "phi4"}) {
    const auto tokenizer = Family(family);
    for (int i = 0; i < 200; ++i) {
      const std::string text = RandomText(&random);
      const auto decoded = tokenizer->Decode(Ids(*tokenizer, text));
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(*decoded,
                family == "qwen2" ? Normalize(NormalForm::kNfc, text) : text);
    }
  }
}

// Byte-pair encoding of a whole text in which each character is a piece, told
// as plainly as can be.
std::vector<std::string> SlowPieces(
    std::vector<std::string> pieces,
    const absl::flat_hash_map<std::string, int>& rank_of) {
  while (true) {
    int least = -1;
    size_t at = 0;
    for (size_t i = 1; i < pieces.size(); ++i) {
      const auto found = rank_of.find(pieces[i - 1] + "|" + pieces[i]);
      if (found != rank_of.end() && (least < 0 || found->second < least)) {
        least = found->second;
        at = i;
      }
    }
    if (least < 0) return pieces;
    pieces[at - 1] += pieces[at];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

// Goal: cutting words where nothing joins, the two ways to merge and the cache
// of words give what merging the whole text at once gives. Method: random
// merges over few letters, so that cuts, ties and long words are all frequent;
// some letters are not pieces. Each text is encoded twice: from the cache too.
TEST(JsonTokenizerTest, EqualsPlainByteMerging) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<std::string> pieces = {"a", "b", "c", "\xE2\x96\x81",
                                       "\xC3\xA9"};
    Json merges = Json::array();
    absl::flat_hash_map<std::string, int> rank_of;
    while (pieces.size() < 30) {
      const std::string left = pieces[random() % pieces.size()];
      const std::string right = pieces[random() % pieces.size()];
      if (std::count(pieces.begin(), pieces.end(), left + right) != 0) continue;
      rank_of.emplace(left + "|" + right, static_cast<int>(merges.size()));
      merges.push_back({left, right});
      pieces.push_back(left + right);
    }
    Json vocab = {{"?", 1000}};
    for (size_t i = 0; i < pieces.size(); ++i) vocab[pieces[i]] = i;
    const Json file = {{"model",
                        {{"type", "BPE"},
                         {"unk_token", "?"},
                         {"vocab", vocab},
                         {"merges", merges}}}};
    const auto tokenizer = JsonTokenizer::Make(JsonText(file));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (int i = 0; i < 30; ++i) {
      std::string text;
      std::vector<std::string> characters;
      const size_t length = random() % 90;
      for (size_t n = 0; n < length; ++n) {
        const size_t letter = random() % 6;
        characters.push_back(letter == 5 ? "?" : pieces[letter]);
        text += letter == 5 ? "z" : pieces[letter];
      }
      std::vector<int32_t> wanted;
      for (const std::string& piece : SlowPieces(characters, rank_of)) {
        wanted.push_back(vocab[piece].get<int32_t>());
      }
      EXPECT_EQ(Ids(**tokenizer, text), wanted) << text;
      EXPECT_EQ(Ids(**tokenizer, text), wanted) << text;
    }
  }
}

// Goal: text that is not UTF-8 gives the ids of its repaired form, as a decoder
// before Hugging Face's library makes it.
TEST(JsonTokenizerTest, ReadsIllFormedTextAsReplacements) {
  const std::string bad = "\xFF";
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(RepairUtf8("a" + bad + "b"), "a" + mark + "b");
  // One for a character cut short, one for each byte that begins none.
  EXPECT_EQ(RepairUtf8("\xE2\x82x"), mark + "x");
  EXPECT_EQ(RepairUtf8("\xF0\x9F\x98"), mark);
  EXPECT_EQ(RepairUtf8("\xED\xA0\x80"), mark + mark + mark);
  EXPECT_EQ(RepairUtf8("\xC0\xAF"), mark + mark);
  std::mt19937_64 random(8);
  for (const std::string family : kFamilies) {
    const auto tokenizer = Family(family);
    for (int i = 0; i < 50; ++i) {
      std::string text = RandomText(&random);
      for (size_t n = 0; n < 1 + text.size() / 10; ++n) {
        text.insert(random() % (text.size() + 1), 1,
                    static_cast<char>(random()));
      }
      EXPECT_EQ(Ids(*tokenizer, text), Ids(*tokenizer, RepairUtf8(text)));
    }
  }
}

// Goal: threads that share a tokenizer get the ids of one thread.
TEST(JsonTokenizerTest, EncodesOnSeveralThreads) {
  const auto tokenizer = Family("qwen2");
  std::mt19937_64 random(21);
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> wanted;
  for (int i = 0; i < 60; ++i) {
    texts.push_back(RandomText(&random));
    wanted.push_back(Ids(*tokenizer, texts.back()));
  }
  std::vector<std::vector<int32_t>> got[3];
  std::vector<std::thread> threads;
  for (auto& list : got) {
    threads.emplace_back([&texts, &tokenizer, &list] {
      for (const std::string& text : texts) {
        list.emplace_back();
        (void)tokenizer->Encode(text, false, &list.back());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& list : got) EXPECT_EQ(list, wanted);
}

// Goal: a regular expression that backtracks without end is stopped with an
// error, and the same tokenizer goes on with other texts.
TEST(JsonTokenizerTest, StopsRunawayRegex) {
  Json file = *ParseJson(FamilyJson("llama3"));
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a|aa)+$";
  const auto tokenizer = JsonTokenizer::Make(JsonText(file));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::vector<int32_t> ids;
  const absl::Status status =
      (*tokenizer)->Encode(std::string(200, 'a') + "b", false, &ids);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("gives up at byte 0"));
  EXPECT_FALSE(Ids(**tokenizer, "abc").empty());
}

TEST(JsonTokenizerTest, KnowsItsTokens) {
  const auto tokenizer = Family("llama3");
  EXPECT_EQ(tokenizer->num_tokens(), 956);
  EXPECT_EQ(tokenizer->id_limit(), 956);
  EXPECT_EQ(tokenizer->FindToken("<|end_of_text|>"), 701);
  EXPECT_EQ(tokenizer->FindToken("no such token"), -1);
}

}  // namespace
}  // namespace millrace
