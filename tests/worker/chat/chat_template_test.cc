#include "worker/chat/chat_template.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::StartsWith;

absl::StatusOr<RenderedChat> Render(const std::string& source,
                                    const ordered_json& variables,
                                    const std::string& date = "") {
  absl::StatusOr<ChatTemplate> chat_template =
      ChatTemplate::Parse(source, "chat.jinja");
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(variables, date);
}

std::string ErrorOf(const std::string& source,
                    const ordered_json& variables = ordered_json::object()) {
  const auto rendered = Render(source, variables);
  EXPECT_FALSE(rendered.ok()) << source << ": " << rendered->text;
  return std::string(rendered.status().message());
}

const ordered_json& Greeting() {
  static const auto& greeting =
      *new ordered_json({{"messages",
                          {{{"role", "user"}, {"content", "Hi"}},
                           {{"role", "assistant"}, {"content", "Hello"}},
                           {{"role", "user"}, {"content", "More"}},
                           {{"role", "assistant"}, {"content", "No"}}}}});
  return greeting;
}

// Goal: a template gives the text, and says which of it a model is to write.
// (tests/oracle/chat_template_test.py compares texts with Jinja's own.)
TEST(ChatTemplateTest, RendersAndMarksGeneration) {
  const std::string source =
      "{% for m in messages %}\n"
      "<{{ m.role }}>\n"
      "{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.content }}</s>{% endgeneration %}\n"
      "{% else %}{{ m.content }}{% endif %}\n"
      "{% endfor %}";
  const auto rendered = Render(source, Greeting());
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  std::string marked;
  for (const auto& [begin, end] : rendered->generated) {
    marked += rendered->text.substr(begin, end - begin) + "|";
  }
  EXPECT_EQ(marked, "Hello</s>|No</s>|");
  EXPECT_THAT(rendered->text, StartsWith("<user>\nHi"));
  EXPECT_TRUE(ChatTemplate::Parse(source, "t")->marks_generation());
  EXPECT_FALSE(ChatTemplate::Parse("a", "t")->marks_generation());
}

// Goal: a template that raises, or is none, is named with its line.
TEST(ChatTemplateTest, ErrorsNameTemplateAndLine) {
  EXPECT_EQ(ErrorOf("a\n{{ raise_exception('Roles must alternate') }}"),
            "chat.jinja:2: the template raises: Roles must alternate");
  EXPECT_THAT(ErrorOf("\n\n{{ x.y.z }}", {{"x", ordered_json::object()}}),
              HasSubstr("chat.jinja:3: 'y' is undefined"));
  EXPECT_THAT(ErrorOf("{{ 1 + 'a' }}"),
              HasSubstr("unsupported operand types for +: 'int' and 'str'"));
  EXPECT_THAT(ErrorOf("{% if x %}a"), HasSubstr("without its 'endif'"));
  EXPECT_THAT(ErrorOf("{{ x"), HasSubstr("a tag without '}}'"));
  EXPECT_THAT(ErrorOf("{{ x | sparkle }}"),
              HasSubstr("the filter 'sparkle' is not supported"));
  EXPECT_THAT(ErrorOf("{% include 'x' %}"),
              HasSubstr("the block 'include' is not supported"));
  EXPECT_THAT(ErrorOf("{{ f(*x) }}"), HasSubstr("not supported"));
}

std::string MarkedBy(const std::string& source) {
  const auto rendered = Render(source, ordered_json::object());
  if (!rendered.ok()) return std::string(rendered.status().message());
  std::string marked;
  for (const auto& [begin, end] : rendered->generated) {
    marked += rendered->text.substr(begin, end - begin) + "|";
  }
  return marked;
}

// Goal: what a macro generates is marked where the macro's text is printed,
// also through other macros, call blocks and recursive loops. Where the text is
// kept or changed first, it is an error.
TEST(ChatTemplateTest, MacrosMarkGeneration) {
  const std::string macro =
      "{% macro m(t) %}<{% generation %}{{ t }}{% endgeneration %}>"
      "{% endmacro %}";
  EXPECT_EQ(MarkedBy(macro + "x{{ m('a') }}y{{ m('bc') }}"), "a|bc|");
  EXPECT_EQ(MarkedBy(macro + "{% macro n() %}--{{ m('a') }}{{ m('b') }}"
                             "{% endmacro %}x{{ n() }}"),
            "a|b|");
  EXPECT_EQ(MarkedBy(macro + "{% macro n() %}-{{ caller() }}{% endmacro %}"
                             "x{% call n() %}yy{{ m('a') }}{% endcall %}"),
            "a|");
  EXPECT_EQ(MarkedBy("{% for i in [1, [2, [3]]] recursive %}"
                     "{% if i is iterable %}-{{ loop(i) }}{% else %}"
                     "{% generation %}{{ i }}{% endgeneration %}{% endif %}"
                     "{% endfor %}"),
            "1|2|3|");
  for (const char* kept :
       {"{{ m('a') | trim }}", "{{ 'x' + m('a') }}", "{% set t = m('a') %}",
        "{{ m(m('a')) }}", "{% set t %}{{ m('a') }}{% endset %}",
        "{% if m('a') %}{% endif %}", "{{ m('a')[0] }}"}) {
    EXPECT_THAT(MarkedBy(macro + kept),
                HasSubstr("where its text goes is not known"))
        << kept;
  }
}

// Goal: the date is given, not taken from a clock, so that all hosts render
// the same text.
TEST(ChatTemplateTest, DateIsGiven) {
  const std::string source =
      "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}"
      "{% else %}unknown{% endif %}";
  EXPECT_EQ(Render(source, ordered_json::object(), "2026-11-03")->text,
            "03 Nov 2026");
  EXPECT_EQ(Render(source, ordered_json::object())->text, "unknown");
  EXPECT_THAT(ErrorOf("{{ strftime_now('%Y') }}"),
              HasSubstr("'strftime_now' is undefined"));
}

// Goal: no template takes the machine down. Method: templates that would loop,
// recurse, nest or grow without end; each must end with an error.
TEST(ChatTemplateTest, HostileTemplatesEnd) {
  const std::string nested_loops =
      "{% for a in range(99999) %}{% for b in range(99999) %}"
      "{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}";
  const std::string doubling =
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}"
      "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
  const std::string nesting =
      "{% set ns = namespace(l=[]) %}"
      "{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}"
      "{{ ns.l }}";
  const std::string tree =
      "{% set ns = namespace(l=[]) %}"
      "{% for i in range(80) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}"
      "{{ ns.l == [ns.l] }}";
  std::string chain = "{{ 1";
  for (int i = 0; i < 100000; ++i) chain += "+1";
  chain += " }}";
  std::vector<std::string> sources = {
      doubling,
      nesting,
      chain,
      std::string("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
      std::string("{{ 'a' * 10 ** 12 }}"),
      std::string("{{ [[0] * 99999] * 99999 }}"),
      std::string("{{ range(10 ** 15)|list }}"),
      std::string("{{ 9 ** 99999999999 }}"),
      std::string("{{ ('a' * 999999)|replace('', 'b' * 99999) }}"),
      std::string("{{ 'a'|indent(10 ** 15, true) }}"),
      "{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}",
      "{{ " + std::string(100000, '-') + "1 }}",
      "{{ x" + std::string(100000, '[') + "}}"};
  if (!kSanitized) {  // They do all the work that is allowed.
    sources.push_back(nested_loops);
    sources.push_back(tree);
  }
  for (const std::string& source : sources) {
    const auto rendered = Render(source, ordered_json::object());
    EXPECT_FALSE(rendered.ok()) << source.substr(0, 60);
  }
}

}  // namespace
}  // namespace millrace
