#include "worker/chat/chat_files.h"

#include <string>

#include "base/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/data/temporary_folder.h"

namespace millrace {
namespace {

using testing::HasSubstr;

void Write(const TemporaryFolder& folder, const std::string& name,
           const std::string& text) {
  ASSERT_TRUE(WriteFileAtomically(folder.path() + "/" + name, text).ok());
}

std::string RenderedBy(const ChatFiles& files) {
  const auto rendered = files.chat_template->Render(files.variables, "");
  EXPECT_TRUE(rendered.ok()) << rendered.status();
  return rendered->text;
}

// Goal: the template comes from its own file, else from the tokenizer's
// settings in either form, and sees the special tokens.
TEST(ChatFilesTest, FindsTemplateAndTokens) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadChatFiles(folder.path())->chat_template, nullptr);
  Write(folder, "special_tokens_map.json",
        R"({"bos_token": "<x>", "eos_token": {"content": "</s>"}})");
  Write(folder, "tokenizer_config.json",
        R"({"bos_token": {"content": "<s>"},
            "chat_template": "a{{ bos_token }}{{ eos_token }}"})");
  EXPECT_EQ(RenderedBy(*ReadChatFiles(folder.path())), "a<s></s>");
  Write(folder, "tokenizer_config.json",
        R"({"chat_template": [{"name": "tools", "template": "b"},
                              {"name": "default", "template": "c"}]})");
  EXPECT_EQ(RenderedBy(*ReadChatFiles(folder.path())), "c");
  Write(folder, "chat_template.jinja", "d{{ bos_token }}");
  EXPECT_EQ(RenderedBy(*ReadChatFiles(folder.path())), "d<x>");
}

TEST(ChatFilesTest, NamesWhatIsWrong) {
  const TemporaryFolder folder;
  const auto error = [&] {
    return std::string(ReadChatFiles(folder.path()).status().message());
  };
  Write(folder, "tokenizer_config.json", R"({"chat_template": 3})");
  EXPECT_THAT(error(),
              HasSubstr("tokenizer_config.json: chat_template: expected"));
  Write(folder, "tokenizer_config.json", R"({"chat_template": "\n{{ x"})");
  EXPECT_THAT(error(),
              HasSubstr("tokenizer_config.json, chat_template:2: a tag"));
  Write(folder, "tokenizer_config.json", "[");
  EXPECT_THAT(error(), HasSubstr("tokenizer_config.json: line 1"));
}

}  // namespace
}  // namespace millrace
