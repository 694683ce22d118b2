#include "worker/chat/chat_sample.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

ChatTemplate TemplateOf(const std::string& name) {
  const std::string path = "tests/data/chat_templates/" + name + ".jinja";
  auto chat_template = ChatTemplate::Parse(*ReadFile(path), path);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return *std::move(chat_template);
}

std::unique_ptr<JsonTokenizer> TokenizerOf(const std::string& family) {
  return *JsonTokenizer::Make(
      *ReadFile("tests/data/tokenizers/" + family + ".json"));
}

ordered_json Message(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

ordered_json TwoTurns() {
  return {{"messages",
           {Message("system", "Be brief."), Message("user", "2+2?"),
            Message("assistant", "4"), Message("user", "And 3+3?"),
            Message("assistant", "6, of course.")}}};
}

struct ChatSetUp {
  ChatTemplate chat_template;
  std::unique_ptr<JsonTokenizer> tokenizer;
  ChatSampleOptions options;
};

std::unique_ptr<ChatSetUp> SetUpOf(const std::string& name,
                                   const std::string& family,
                                   TrainOn train_on = TrainOn::kAssistant) {
  auto set_up = std::make_unique<ChatSetUp>(
      ChatSetUp{TemplateOf(name), TokenizerOf(family), {}});
  set_up->options = {.tokenizer = set_up->tokenizer.get(),
                     .chat_template = &set_up->chat_template,
                     .variables = {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
                     .train_on = train_on};
  return set_up;
}

// The trained bytes, runs apart by '|'.
std::string TrainedText(const RenderedChat& chat) {
  std::string text;
  for (const auto& [begin, end] : chat.generated) {
    text += chat.text.substr(begin, end - begin) + "|";
  }
  return text;
}

// The text of the trained tokens.
std::string TrainedTokens(const ChatSample& sample,
                          const JsonTokenizer& tokenizer) {
  EXPECT_EQ(sample.tokens.size(), sample.trained.size());
  std::vector<int32_t> ids;
  for (size_t i = 0; i < sample.tokens.size(); ++i) {
    if (sample.trained[i] == 1) ids.push_back(sample.tokens[i]);
  }
  return *tokenizer.Decode(ids);
}

// Goal: what assistants say is trained, with the token that ends their turns,
// and nothing else. Method: templates in the styles of families, that mark it
// and that do not.
TEST(ChatSampleTest, TrainsAssistantsTurns) {
  const struct {
    const char* name;
    bool has_system;
    std::string first;
    std::string last;
  } cases[] = {
      {"chatml", true, "4<|im_end|>|", "6, of course.<|im_end|>|"},
      {"qwen25_style", true, "4<|im_end|>|", "6, of course.<|im_end|>|"},
      {"llama3_style", true, "4<|eot_id|>|", "6, of course.<|eot_id|>|"},
      {"gemma_style", false, "4<end_of_turn>|", "6, of course.<end_of_turn>|"},
      {"mistral_style", false, " 4</s>|", " 6, of course.</s>|"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    auto set_up = SetUpOf(c.name, "qwen2");
    ordered_json record = TwoTurns();
    if (!c.has_system) record["messages"].erase(0);
    const auto chat = RenderTrained(record, set_up->options);
    ASSERT_TRUE(chat.ok()) << chat.status();
    EXPECT_EQ(TrainedText(*chat), c.first + c.last);
    set_up->options.train_on = TrainOn::kCompletion;
    EXPECT_EQ(TrainedText(*RenderTrained(record, set_up->options)), c.last);
    set_up->options.train_on = TrainOn::kAll;
    EXPECT_EQ(TrainedText(*RenderTrained(record, set_up->options)),
              chat->text + "|");
  }
}

// Goal: a template that writes a turn differently once another follows is
// refused with what to do, and its last turn can be trained alone.
TEST(ChatSampleTest, TurnsThatChangeAreRefused) {
  auto set_up = SetUpOf("qwen3_style", "qwen2");
  const auto refused = RenderTrained(TwoTurns(), set_up->options);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("writes message 3 in another way when more messages "
                        "follow"));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("{% generation %}"));
  set_up->options.train_on = TrainOn::kCompletion;
  const auto last = RenderTrained(TwoTurns(), set_up->options);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(TrainedText(*last),
            "<think>\n\n</think>\n\n6, of course.<|im_end|>|");
}

// Goal: tokens are those of the whole text, and the trained ones are those of
// the trained text, with byte-level and with Metaspace tokenizers.
TEST(ChatSampleTest, TokensAreTrainedWhereTheTextIs) {
  for (const char* family : {"qwen2", "llama3", "llama2", "gemma"}) {
    SCOPED_TRACE(family);
    auto set_up = SetUpOf("chatml", family);
    const auto chat = RenderTrained(TwoTurns(), set_up->options);
    const auto sample = MakeChatSample(TwoTurns(), set_up->options);
    ASSERT_TRUE(sample.ok()) << sample.status();
    std::vector<int32_t> whole;
    ASSERT_TRUE(set_up->tokenizer->Encode(chat->text, false, &whole).ok());
    EXPECT_EQ(sample->tokens, whole);
    const std::string trained = TrainedTokens(*sample, *set_up->tokenizer);
    EXPECT_THAT(trained, HasSubstr("4"));
    EXPECT_THAT(trained, HasSubstr("6, of course."));
    EXPECT_THAT(trained, testing::Not(HasSubstr("brief")));
    EXPECT_THAT(trained, testing::Not(HasSubstr("2+2")));
  }
  auto set_up = SetUpOf("chatml", "qwen2");
  const auto sample = MakeChatSample(TwoTurns(), set_up->options);
  EXPECT_EQ(TrainedTokens(*sample, *set_up->tokenizer),
            "4<|im_end|>6, of course.<|im_end|>");
}

// Goal: prompts and completions, as texts and as messages, and ShareGPT's form.
TEST(ChatSampleTest, OtherForms) {
  auto set_up = SetUpOf("chatml", "qwen2");
  set_up->options.end_of_text = set_up->tokenizer->FindToken("<|endoftext|>");
  const auto texts = MakeChatSample(
      {{"prompt", "one two"}, {"completion", " three"}}, set_up->options);
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_EQ(*set_up->tokenizer->Decode(texts->tokens),
            "one two three<|endoftext|>");
  EXPECT_EQ(TrainedTokens(*texts, *set_up->tokenizer), " three<|endoftext|>");
  const ordered_json turns = TwoTurns()["messages"];
  const auto messages =
      RenderTrained({{"prompt", {turns[0], turns[1], turns[2], turns[3]}},
                     {"completion", {turns[4]}}},
                    set_up->options);
  ASSERT_TRUE(messages.ok()) << messages.status();
  EXPECT_EQ(TrainedText(*messages), "6, of course.<|im_end|>|");
  const auto shared = RenderTrained({{"conversations",
                                      {{{"from", "human"}, {"value", "Hi"}},
                                       {{"from", "gpt"}, {"value", "Hello"}}}}},
                                    set_up->options);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(TrainedText(*shared), "Hello<|im_end|>|");
}

// Goal: broken records say what was expected.
TEST(ChatSampleTest, BrokenRecords) {
  auto set_up = SetUpOf("mistral_style", "qwen2");
  const auto error = [&](const ordered_json& record) {
    const auto sample = MakeChatSample(record, set_up->options);
    EXPECT_FALSE(sample.ok());
    return std::string(sample.status().message());
  };
  EXPECT_THAT(error({{"text", "a"}}), HasSubstr("found none of them"));
  EXPECT_THAT(error({{"messages", "a"}}), HasSubstr("list of messages"));
  EXPECT_THAT(error({{"messages", {{{"content", "a"}}}}}),
              HasSubstr("messages[0]: expected an object with a text in "
                        "`role`"));
  EXPECT_THAT(error({{"conversations", {{{"from", "alien"}, {"value", "a"}}}}}),
              HasSubstr("found 'alien'"));
  EXPECT_THAT(
      error({{"messages", {Message("user", "a"), Message("user", "b")}}}),
      HasSubstr("mistral_style.jinja:13: the template raises: Roles "
                "must alternate"));
  set_up->options.chat_template = nullptr;
  EXPECT_THAT(error(TwoTurns()), HasSubstr("need a chat template"));
}

}  // namespace
}  // namespace millrace
