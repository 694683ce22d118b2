#include "planner/frameworks/settings.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "planner/text/yaml_tree.h"

namespace millrace {
namespace {

absl::Status ErrorAt(const Settings& settings, int line,
                     const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(settings.file_name, ":", line, ": ", what));
}

absl::Status Add(Setting setting, Settings* settings) {
  if (const Setting* first = settings->Find(setting.key); first != nullptr) {
    return ErrorAt(*settings, setting.line,
                   absl::StrCat(setting.key, ": given twice, first on line ",
                                first->line, "; remove one"));
  }
  // Each setting is searched for among all before it, so the time is quadratic.
  constexpr size_t kMaxSettings = 20'000;
  if (settings->entries.size() == kMaxSettings) {
    return ErrorAt(*settings, setting.line,
                   absl::StrCat("more than ", kMaxSettings,
                                " settings; is it the right file?"));
  }
  settings->entries.push_back(std::move(setting));
  return absl::OkStatus();
}

// Adds the scalars and lists of a map. Keys of nested maps are joined by dots.
absl::Status AddTree(const YamlTree& map, const std::string& prefix,
                     Settings* settings) {
  for (const YamlTree& entry : map.children) {
    const std::string key = prefix + entry.key;
    switch (entry.kind) {
      case YamlTree::Kind::kNull:
        settings->empty_keys.push_back(key);
        break;
      case YamlTree::Kind::kMap:
        RETURN_IF_ERROR(AddTree(entry, key + ".", settings));
        break;
      case YamlTree::Kind::kScalar:
        RETURN_IF_ERROR(Add({key, entry.scalar, entry.line}, settings));
        break;
      case YamlTree::Kind::kList: {
        std::vector<std::string> items;
        for (const YamlTree& item : entry.children) {
          items.push_back(item.scalar);
        }
        RETURN_IF_ERROR(
            Add({key, absl::StrJoin(items, " "), entry.line}, settings));
        break;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status AddMap(const YamlTree& tree, Settings* settings) {
  if (tree.kind != YamlTree::Kind::kMap) {
    return ErrorAt(
        *settings, tree.line,
        absl::StrCat("expected keys with values, found ", DescribeYaml(tree)));
  }
  return AddTree(tree, "", settings);
}

// --- Megatron-LM ---

struct Word {
  std::string text;
  int line;
};

// Splits shell text into words. Quotes group, a backslash keeps the next
// character or joins lines, and # at the start of a word starts a comment.
absl::StatusOr<std::vector<Word>> ShellWords(absl::string_view text,
                                             const Settings& settings) {
  std::vector<Word> words;
  std::string word;
  bool in_word = false;
  char quote = 0;
  int line = 1;
  int quote_line = 1;
  auto finish = [&] {
    if (in_word) words.push_back({std::exchange(word, ""), line});
    in_word = false;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word.push_back(c);
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      quote_line = line;
      in_word = true;
    } else if (c == '\\' && i + 1 < text.size()) {
      if (text[++i] == '\n') {
        finish();
        ++line;
      } else {
        word.push_back(text[i]);
        in_word = true;
      }
    } else if (c == '#' && !in_word) {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    } else if (absl::ascii_isspace(static_cast<unsigned char>(c))) {
      finish();
    } else {
      word.push_back(c);
      in_word = true;
    }
    if (c == '\n') ++line;
  }
  if (quote != 0) {
    return ErrorAt(settings, quote_line, "a quote that is never closed");
  }
  finish();
  return words;
}

absl::Status RefuseVariable(const Setting& setting, const Settings& settings) {
  if (!absl::StrContains(setting.value, '$')) return absl::OkStatus();
  return ErrorAt(settings, setting.line,
                 absl::StrCat(setting.key, ": '", setting.value,
                              "' is a shell variable; write its value"));
}

bool IsFlag(absl::string_view word) {
  return word.size() > 2 && absl::StartsWith(word, "--") &&
         absl::ascii_isalpha(static_cast<unsigned char>(word[2]));
}

// Adds one argument under the name of its flag. Leaves out false values, which
// mean the same as an absent flag.
absl::Status AddArgument(Setting setting, Settings* settings) {
  setting.key = absl::StrReplaceAll(setting.key, {{"_", "-"}});
  const std::string lower = absl::AsciiStrToLower(setting.value);
  if (setting.key == "add-bias-linear") {
    if (lower != "false") return absl::OkStatus();
    setting.key = "disable-bias-linear";
    setting.value = "True";
  } else if (lower == "none" || lower == "false" || lower == "null") {
    return absl::OkStatus();
  } else if (lower == "true") {
    setting.value = "True";
  }
  return Add(std::move(setting), settings);
}

absl::Status AddCommandLine(absl::string_view text, Settings* settings) {
  ASSIGN_OR_RETURN(const std::vector<Word> words, ShellWords(text, *settings));
  for (size_t i = 0; i < words.size(); ++i) {
    if (!IsFlag(words[i].text)) continue;  // The launcher's words.
    const std::vector<std::string> parts =
        absl::StrSplit(words[i].text.substr(2), absl::MaxSplits('=', 1));
    Setting setting{parts[0], "", words[i].line};
    std::vector<std::string> values(parts.begin() + 1, parts.end());
    while (i + 1 < words.size() && !IsFlag(words[i + 1].text)) {
      values.push_back(words[++i].text);
      // The launcher's last flag may be followed by the script's name.
      if (absl::EndsWith(values.back(), ".py")) values.pop_back();
    }
    setting.value = values.empty() ? "True" : absl::StrJoin(values, " ");
    RETURN_IF_ERROR(RefuseVariable(setting, *settings));
    RETURN_IF_ERROR(AddArgument(std::move(setting), settings));
  }
  return absl::OkStatus();
}

// Reads lines "  num_layers ........... 32". A colon or an equals sign may
// stand for the dots.
absl::Status AddPrintedArguments(absl::string_view text, Settings* settings) {
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    // Titles stand between dashes.
    if (line.empty() || line[0] == '#' || absl::StartsWith(line, "--"))
      continue;
    const size_t end = line.find_first_of(" \t:=");
    if (end == 0 || end == absl::string_view::npos) {
      return ErrorAt(*settings, number,
                     absl::StrCat("expected a flag such as --num-layers 32, or "
                                  "an argument such as num_layers ... 32, "
                                  "found '",
                                  line, "'"));
    }
    absl::string_view value =
        absl::StripLeadingAsciiWhitespace(line.substr(end));
    if (absl::StartsWith(value, ":") || absl::StartsWith(value, "=")) {
      value.remove_prefix(1);
    } else if (absl::StartsWith(value, "..")) {
      value.remove_prefix(std::min(value.find_first_not_of('.'), value.size()));
    }
    RETURN_IF_ERROR(
        AddArgument({std::string(line.substr(0, end)),
                     std::string(absl::StripAsciiWhitespace(value)), number},
                    settings));
  }
  settings->is_complete = true;
  return absl::OkStatus();
}

// --- Megatron-Bridge and NeMo ---

// Whether the word is an override: "model.num_layers=32". Hydra puts a plus
// before keys that it adds. Variables of the environment are in capitals.
bool IsOverride(absl::string_view word) {
  const size_t end = word.find('=');
  if (end == absl::string_view::npos) return false;
  const absl::string_view key = absl::StripPrefix(word.substr(0, end), "+");
  return !key.empty() &&
         absl::ascii_islower(static_cast<unsigned char>(key[0])) &&
         std::ranges::all_of(key, [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '.';
         });
}

bool IsNothing(absl::string_view value) {
  return absl::EqualsIgnoreCase(value, "null") ||
         absl::EqualsIgnoreCase(value, "none");
}

absl::Status AddOverrides(const std::vector<Word>& words, Settings* settings) {
  for (size_t i = 0; i < words.size(); ++i) {
    Setting setting{"", "", words[i].line};
    if (IsFlag(words[i].text)) {
      const std::vector<std::string> parts =
          absl::StrSplit(words[i].text.substr(2), absl::MaxSplits('=', 1));
      setting.key = absl::StrReplaceAll(parts[0], {{"_", "-"}});
      const bool has_next = i + 1 < words.size() &&
                            !IsFlag(words[i + 1].text) &&
                            !IsOverride(words[i + 1].text);
      setting.value = parts.size() > 1 ? parts[1]
                      : has_next       ? words[++i].text
                                       : "True";
    } else if (IsOverride(words[i].text)) {
      const std::vector<std::string> parts =
          absl::StrSplit(words[i].text, absl::MaxSplits('=', 1));
      setting.key =
          std::string(absl::StripPrefix(absl::StripPrefix(parts[0], "+"), "+"));
      setting.value = parts[1];
    } else {
      continue;  // The launcher's words.
    }
    RETURN_IF_ERROR(RefuseVariable(setting, *settings));
    if (IsNothing(setting.value)) continue;
    RETURN_IF_ERROR(Add(std::move(setting), settings));
  }
  return absl::OkStatus();
}

bool HasFlags(absl::string_view text) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty());
  return std::any_of(words.begin(), words.end(), IsFlag);
}

}  // namespace

const Setting* Settings::Find(absl::string_view key) const {
  const auto found = std::ranges::find(entries, key, &Setting::key);
  return found == entries.end() ? nullptr : &*found;
}

absl::StatusOr<Settings> ReadJsonSettings(absl::string_view json,
                                          const std::string& file_name) {
  Settings settings{.file_name = file_name};
  // The JSON library checks the syntax. The YAML reader gives the line of each
  // value: JSON is YAML except for tabs, which JSON allows only between values.
  const absl::Status parsed = ParseJson(json).status();
  if (!parsed.ok()) {
    // Turns "line 3: ..." into "FILE:3: ...".
    absl::string_view message = parsed.message();
    absl::ConsumePrefix(&message, "line ");
    return absl::InvalidArgumentError(absl::StrCat(file_name, ":", message));
  }
  ASSIGN_OR_RETURN(
      const YamlTree tree,
      ParseYaml(absl::StrReplaceAll(json, {{"\t", " "}}), file_name));
  RETURN_IF_ERROR(AddMap(tree, &settings));
  return settings;
}

absl::StatusOr<Settings> ReadMegatronSettings(absl::string_view text,
                                              const std::string& file_name) {
  Settings settings{.file_name = file_name};
  if (absl::EndsWith(file_name, ".yaml") || absl::EndsWith(file_name, ".yml")) {
    ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(text, file_name));
    Settings raw{.file_name = file_name};
    RETURN_IF_ERROR(AddMap(tree, &raw));
    for (Setting& entry : raw.entries) {
      RETURN_IF_ERROR(AddArgument(std::move(entry), &settings));
    }
  } else if (HasFlags(text)) {
    RETURN_IF_ERROR(AddCommandLine(text, &settings));
  } else {
    RETURN_IF_ERROR(AddPrintedArguments(text, &settings));
  }
  return settings;
}

absl::StatusOr<Settings> ReadOverrideSettings(absl::string_view text,
                                              const std::string& file_name) {
  Settings settings{.file_name = file_name};
  const bool is_yaml =
      absl::EndsWith(file_name, ".yaml") || absl::EndsWith(file_name, ".yml");
  if (!is_yaml) {
    ASSIGN_OR_RETURN(const std::vector<Word> words, ShellWords(text, settings));
    RETURN_IF_ERROR(AddOverrides(words, &settings));
    return settings;
  }
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(text, file_name));
  RETURN_IF_ERROR(AddMap(tree, &settings));
  settings.is_complete = true;
  return settings;
}

}  // namespace millrace
