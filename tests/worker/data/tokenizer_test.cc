#include "worker/data/tokenizer.h"

#include <random>
#include <string>
#include <vector>

#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/sample_text.h"
#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Sentences(const std::string& text) {
  std::vector<std::string> sentences;
  absl::string_view rest = text;
  while (!rest.empty()) {
    const size_t size = FirstChunkBytes(rest, 2048);
    sentences.emplace_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return sentences;
}

// Goal: any UTF-8 text survives encoding and decoding, whether or not training
// saw it. Method: odd texts, among them tabs, spaces at every place, letters
// never seen, and one longer than a chunk without a line end.
TEST(TokenizerTest, EncodesWithoutLoss) {
  const auto model = TrainTokenizer(Sentences(SampleLines(1, 2000)), 600);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto tokenizer = Tokenizer::FromModel(*model, "trained", 600);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->num_pieces(), 600);

  std::string long_line;
  for (int i = 0; i < 20000; ++i) long_line += "\xC3\xA4\xE2\x82\xAC";
  for (const std::string& text :
       {std::string("abc def;\n"), std::string("  two  spaces  \n\n\n x "),
        std::string("\ttab\t\tend"), std::string("Z\xC3\x84 \xF0\x9F\x98\x80"),
        SampleLines(9, 3000), std::string("a"), long_line}) {
    std::vector<int32_t> tokens;
    ASSERT_TRUE((*tokenizer)->EncodeDocument(text, &tokens).ok());
    ASSERT_EQ(tokens.back(), (*tokenizer)->end_of_document());
    tokens.pop_back();
    for (const int32_t token : tokens) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, 600);
    }
    const auto decoded = (*tokenizer)->Decode(tokens);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, text);
  }
}

// Goal: training is repeatable, or ranks of different nodes would disagree.
TEST(TokenizerTest, EqualTextGivesEqualModels) {
  const auto first = TrainTokenizer(Sentences(SampleLines(2, 1000)), 400);
  const auto second = TrainTokenizer(Sentences(SampleLines(2, 1000)), 400);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*first, *second);
}

// Goal: a text too small for the vocabulary is refused with the largest size
// that works. Method: take the number from the message and train with it.
TEST(TokenizerTest, SaysTheLargestPossibleVocabulary) {
  const std::vector<std::string> sample = {"a bc abc\n", "bca cab\n"};
  const auto refused = TrainTokenizer(sample, 5000);
  ASSERT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(refused.status().message());
  const std::string before = "lower model.vocab_size to ";
  const size_t at = message.find(before);
  ASSERT_NE(at, std::string::npos) << message;
  const int64_t largest = std::stoll(message.substr(at + before.size()));
  EXPECT_GT(largest, 259);
  const auto accepted = TrainTokenizer(sample, largest);
  EXPECT_TRUE(accepted.ok()) << accepted.status();
}

TEST(TokenizerTest, RefusesWhatCannotBe) {
  EXPECT_THAT(std::string(TrainTokenizer({}, 400).status().message()),
              HasSubstr("no text"));
  EXPECT_THAT(std::string(TrainTokenizer({"abc"}, 259).status().message()),
              HasSubstr("reserved pieces"));
  EXPECT_THAT(std::string(Tokenizer::FromModel("not a model", "x.model", 400)
                              .status()
                              .message()),
              HasSubstr("x.model: not a SentencePiece model"));
  const auto model = TrainTokenizer(Sentences(SampleLines(3, 500)), 400);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(
      std::string(
          Tokenizer::FromModel(*model, "x.model", 399).status().message()),
      HasSubstr("has 400 pieces, but model.vocab_size is 399"));
  const auto tokenizer = Tokenizer::FromModel(*model, "x.model", 400);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_FALSE((*tokenizer)->Decode({400}).ok());
  EXPECT_FALSE((*tokenizer)->Decode({-1}).ok());
}

// Goal: a damaged model is refused by its name, or works as a model; it never
// ends the process. Method: change a byte at many places, cut the model at
// many.
TEST(TokenizerTest, SurvivesDamagedModels) {
  const auto model = TrainTokenizer(Sentences(SampleLines(1, 500)), 400);
  ASSERT_TRUE(model.ok()) << model.status();
  std::mt19937_64 random(7);
  int num_refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = *model;
    const size_t at = random() % damaged.size();
    if (i % 4 == 0) {
      damaged.resize(at);
    } else {
      damaged[at] = static_cast<char>(random());
    }
    const auto tokenizer = Tokenizer::FromModel(damaged, "x.model", 100'000);
    if (!tokenizer.ok()) {
      ++num_refused;
      EXPECT_THAT(std::string(tokenizer.status().message()),
                  HasSubstr("x.model: "));
      continue;
    }
    std::vector<int32_t> tokens;
    ASSERT_TRUE((*tokenizer)->EncodeDocument("a \xC3\xA4\n\xFF", &tokens).ok());
    ASSERT_FALSE(tokens.empty());
  }
  EXPECT_GT(num_refused, 50);
}

// Goal: chunks end after a line, never inside a character.
TEST(FirstChunkBytesTest, CutsAtLinesThenCharacters) {
  EXPECT_EQ(FirstChunkBytes("short", 8), 5u);
  EXPECT_EQ(FirstChunkBytes("ab\ncd\nefghij", 8), 6u);
  EXPECT_EQ(FirstChunkBytes("abcdefgh\n", 8), 8u);
  EXPECT_EQ(FirstChunkBytes("abcdefg\xC3\xA4xx", 8), 7u);
  EXPECT_EQ(FirstChunkBytes("abcde\xF0\x9F\x98\x80xx", 8), 5u);
}

std::string FilesError(const std::string& path, const std::string& end) {
  const auto files = ReadTokenizerFiles(path, end);
  if (!files.ok()) return std::string(files.status().message());
  const auto tokenizer = Tokenizer::FromFiles(*files, 1000);
  return tokenizer.ok() ? "none" : std::string(tokenizer.status().message());
}

// Goal: a tokenizer.json is told from a SentencePiece model by its content, the
// job or a file beside it says which token ends a document, and nothing comes
// before the text. Method: each place that can say it, the stronger ones added
// one by one.
TEST(TokenizerTest, ReadsTokenizerJson) {
  TemporaryFolder folder;
  folder.Write("m/tokenizer.json",
               *ReadFile("tests/data/tokenizers/llama3.json"));
  EXPECT_THAT(FilesError(folder / "m", ""),
              HasSubstr("nothing says which token ends a document"));
  const auto end_of = [&](const std::string& given) {
    const auto files = ReadTokenizerFiles(folder / "m", given);
    return files.ok() ? files->end_of_document
                      : std::string(files.status().message());
  };
  folder.Write("m/config.json", R"({"eos_token_id": [700, 701]})");
  EXPECT_THAT(end_of(""), HasSubstr("eos_token_id: [700,701] is not one id"));
  folder.Write("m/config.json", R"({"eos_token_id": 3})");
  EXPECT_THAT(end_of(""), HasSubstr("is no added token"));
  folder.Write("m/config.json", R"({"eos_token_id": 701})");
  EXPECT_EQ(end_of(""), "<|end_of_text|>");
  folder.Write("m/special_tokens_map.json",
               R"({"eos_token": {"content": "<|reserved_special_token_1|>"}})");
  EXPECT_EQ(end_of(""), "<|reserved_special_token_1|>");
  folder.Write("m/tokenizer_config.json", R"({"eos_token": 3})");
  EXPECT_THAT(end_of(""), HasSubstr("tokenizer_config.json: eos_token: 3"));
  folder.Write("m/tokenizer_config.json",
               R"({"eos_token": "<|reserved_special_token_2|>"})");
  EXPECT_EQ(end_of(""), "<|reserved_special_token_2|>");
  EXPECT_EQ(end_of("<|end_of_text|>"), "<|end_of_text|>");
  EXPECT_THAT(FilesError(folder / "m/tokenizer.json", "<nope>"),
              HasSubstr("has no token `<nope>`"));
  EXPECT_THAT(FilesError(folder / ".", ""),
              HasSubstr("neither tokenizer.json nor tokenizer.model"));
  folder.Write("sp/tokenizer.model", "any");
  const auto model = ReadTokenizerFiles(folder / "sp", "");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, folder / "sp/tokenizer.model");

  const auto files = ReadTokenizerFiles(folder / "m/tokenizer.json", "");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(std::string(Tokenizer::FromFiles(*files, 955).status().message()),
              HasSubstr("has 956 pieces, but model.vocab_size is 955"));
  const auto tokenizer = Tokenizer::FromFiles(*files, 1000);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->num_pieces(), 956);
  std::vector<int32_t> tokens;
  ASSERT_TRUE((*tokenizer)->EncodeDocument("Hello world", &tokens).ok());
  EXPECT_EQ(tokens.back(), 704);
  EXPECT_NE(tokens.front(), 700);  // No begin token.
  tokens.pop_back();
  EXPECT_EQ(*(*tokenizer)->Decode(tokens), "Hello world");
  EXPECT_FALSE((*tokenizer)->Decode({956}).ok());
}

// Goal: a SentencePiece model may end documents with another piece of its own.
TEST(TokenizerTest, EndsDocumentsWithTheNamedPiece) {
  const auto model = TrainTokenizer(Sentences(SampleLines(3, 500)), 400);
  ASSERT_TRUE(model.ok()) << model.status();
  TokenizerFiles files{.name = "x.model", .content = *model};
  files.end_of_document = "<s>";
  const auto tokenizer = Tokenizer::FromFiles(files, 400);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->end_of_document(), 1);
  files.end_of_document = "<nope>";
  EXPECT_THAT(std::string(Tokenizer::FromFiles(files, 400).status().message()),
              HasSubstr("has no token `<nope>`"));
}

}  // namespace
}  // namespace millrace
