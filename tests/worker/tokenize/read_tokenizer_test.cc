#include "worker/tokenize/read_tokenizer.h"

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sweep.h"
#include "worker/tokenize/json_tokenizer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using FileJson = nlohmann::json;

FileJson CommittedTokenizer(const std::string& family) {
  return *ParseJson(*ReadFile("tests/data/tokenizers/" + family + ".json"));
}

std::string MakeError(const FileJson& file) {
  const auto tokenizer = JsonTokenizer::Make(JsonText(file));
  return tokenizer.ok() ? "none" : std::string(tokenizer.status().message());
}

// Goal: what is not supported or cannot be is refused by its key and value, and
// nothing is read over. Method: change one thing of a good file at a time.
TEST(ReadTokenizerTest, RefusesByKeyAndValue) {
  struct Case {
    std::function<void(FileJson*)> change;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {[](FileJson* f) { (*f)["model"]["type"] = "Unigram"; },
       {"model.type", "\"Unigram\" is not supported"}},
      {[](FileJson* f) { (*f)["version"] = "2.0"; }, {"version", "2.0"}},
      {[](FileJson* f) {
         (*f)["truncation"] = {{"max_length", 8}};
       },
       {"truncation", "null"}},
      {[](FileJson* f) { (*f)["padding"] = FileJson::object(); }, {"padding"}},
      {[](FileJson* f) { (*f)["surprise"] = 1; },
       {"surprise: 1 is not supported"}},
      {[](FileJson* f) { (*f)["model"]["surprise"] = true; },
       {"model.surprise: true"}},
      {[](FileJson* f) { (*f)["model"]["dropout"] = 0.1; },
       {"model.dropout: 0.1"}},
      {[](FileJson* f) { (*f)["model"]["end_of_word_suffix"] = "</w>"; },
       {"model.end_of_word_suffix: \"</w>\""}},
      {[](FileJson* f) { (*f)["model"]["byte_fallback"] = "yes"; },
       {"model.byte_fallback: \"yes\" is not true or false"}},
      {[](FileJson* f) { (*f)["model"]["vocab"]["a"] = -3; },
       {"model.vocab.a: -3 is not a whole number"}},
      {[](FileJson* f) { (*f)["model"]["vocab"]["a"] = 1e300; },
       {"model.vocab.a", "is not a whole number"}},
      {[](FileJson* f) { (*f)["model"]["vocab"]["a"] = int64_t{1} << 40; },
       {"model.vocab.a", "is not a whole number"}},
      {[](FileJson* f) { (*f)["model"]["vocab"]["new"] = 5; },
       {"5 is the id of the piece"}},
      {[](FileJson* f) { (*f)["model"]["vocab"] = FileJson::array(); },
       {"model.vocab: a list of 0 is not an object"}},
      {[](FileJson* f) { (*f)["model"].erase("merges"); },
       {"model.merges: is missing"}},
      {[](FileJson* f) {
         (*f)["model"]["merges"][3] = {"a", "\xE4\xB8\xAD"};
       },
       {"model.merges[3]", "which model.vocab does not have"}},
      {[](FileJson* f) { (*f)["model"]["merges"][3] = "a b"; },
       {"model.merges[3]: \"a b\" has another form than the first"}},
      {[](FileJson* f) {
         (*f)["model"]["merges"][0] = {"a", "b", "c"};
       },
       {"model.merges[0]: a list of 3"}},
      {[](FileJson* f) { (*f)["added_tokens"][1]["id"] = 9999; },
       {"added_tokens[1].id: 9999 for `<|end_of_text|>`", "701"}},
      {[](FileJson* f) { (*f)["added_tokens"][1].erase("lstrip"); },
       {"added_tokens[1].lstrip: is missing"}},
      {[](FileJson* f) {
         (*f)["added_tokens"][255]["content"] = std::string(2000, 'x');
       },
       {"added_tokens[255]", "2000 bytes"}},
      {[](FileJson* f) {
         (*f)["normalizer"] = {{"type", "Nmt"}};
       },
       {"normalizer.type: \"Nmt\" is not supported"}},
      {[](FileJson* f) { (*f)["normalizer"] = 7; },
       {"normalizer: 7 is not an object"}},
      {[](FileJson* f) { (*f)["pre_tokenizer"]["type"] = "Whitespace"; },
       {"pre_tokenizer.type: \"Whitespace\""}},
      {[](FileJson* f) {
         (*f)["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Glued";
       },
       {"pre_tokenizer.pretokenizers[0].behavior: \"Glued\""}},
      {[](FileJson* f) {
         (*f)["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a";
       },
       {"pre_tokenizer.pattern.Regex `(a`", "does not compile"}},
      {[](FileJson* f) {
         auto& steps = (*f)["pre_tokenizer"]["pretokenizers"];
         steps.push_back(steps[0]);
       },
       {"pre_tokenizer.pretokenizers[2]", "after ByteLevel"}},
      {[](FileJson* f) {
         auto& steps = (*f)["pre_tokenizer"]["pretokenizers"];
         const FileJson step = steps[0];
         for (int i = 0; i < 100; ++i) steps.insert(steps.begin(), step);
       },
       {"one step too many"}},
      {[](FileJson* f) {
         (*f)["post_processor"]["processors"][1]["single"] = FileJson::array();
       },
       {"has no $A in `single`"}},
      {[](FileJson* f) {
         (*f)["post_processor"]["processors"][1]["special_tokens"]
             ["<|begin_of_text|>"]["ids"][0] = 5000;
       },
       {"post_processor.special_tokens: the id 5000"}},
      {[](FileJson* f) { (*f)["decoder"]["type"] = "CTC"; },
       {"decoder.type: \"CTC\""}},
  };
  const FileJson good = CommittedTokenizer("llama3");
  EXPECT_EQ(MakeError(good), "none");
  for (const Case& item : cases) {
    FileJson file = good;
    item.change(&file);
    const std::string error = MakeError(file);
    for (const std::string& part : item.parts) {
      EXPECT_THAT(error, HasSubstr(part));
    }
  }
  FileJson unknown = CommittedTokenizer("llama2");
  unknown["model"]["byte_fallback"] = false;
  unknown["model"]["unk_token"] = "[none]";
  EXPECT_THAT(MakeError(unknown), HasSubstr("model.unk_token: `[none]`"));
}

// Goal: merges as texts and as lists mean the same.
TEST(ReadTokenizerTest, ReadsBothFormsOfMerges) {
  FileJson lists = CommittedTokenizer("llama3");
  FileJson texts = lists;
  for (FileJson& merge : texts["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  texts["model"]["merges"].insert(texts["model"]["merges"].begin(),
                                  "#version: 0.2");
  const auto from_lists = ReadTokenizerSpec(JsonText(lists));
  const auto from_texts = ReadTokenizerSpec(JsonText(texts));
  ASSERT_TRUE(from_lists.ok() && from_texts.ok()) << from_texts.status();
  EXPECT_EQ(from_lists->model.merges, from_texts->model.merges);
}

// Goal: no file ends the process or hangs. Method: nesting without end, then
// cut and changed bytes, and values of a wrong type at every key.
TEST(ReadTokenizerTest, SurvivesHostileFiles) {
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("3"),
        std::string("{\"model\":{\"vocab\":{\"a\":1e999},\"merges\":[]}}"),
        std::string(100000, '['), "{\"model\":" + std::string(1000, '{')}) {
    EXPECT_FALSE(JsonTokenizer::Make(text).ok());
  }
  std::mt19937_64 random(4);
  std::vector<int32_t> ids;
  for (const std::string family : {"gpt2", "llama2", "phi3"}) {
    const FileJson good = CommittedTokenizer(family);
    const std::string text = JsonText(good);
    for (int i = 0; i < 150; i += SweepStep(5)) {
      std::string damaged = text;
      const size_t at = random() % damaged.size();
      if (i % 4 == 0) {
        damaged.resize(at);
      } else {
        damaged[at] = static_cast<char>(random());
      }
      const auto tokenizer = JsonTokenizer::Make(damaged);
      if (tokenizer.ok()) {
        (void)(*tokenizer)->Encode("a \xC3\xA4<s>\n\xFF 12", true, &ids);
        (void)(*tokenizer)->Decode(ids);
      }
    }
    const FileJson flat = good.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      const bool is_one_of_many = pointer.rfind("/model/vocab", 0) == 0 ||
                                  pointer.rfind("/model/merges", 0) == 0;
      if (is_one_of_many && random() % (100 * SweepStep(5)) != 0) continue;
      for (const FileJson& other :
           {FileJson(nullptr), FileJson(-1), FileJson("x"), FileJson::array(),
            FileJson::object(), FileJson(true), FileJson(1e308)}) {
        FileJson changed = good;
        changed[FileJson::json_pointer(pointer)] = other;
        const auto tokenizer = JsonTokenizer::Make(JsonText(changed));
        if (tokenizer.ok()) (void)(*tokenizer)->Encode("a <s> b", true, &ids);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
