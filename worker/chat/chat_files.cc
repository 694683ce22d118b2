#include "worker/chat/chat_files.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// An empty object if there is no such file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  if (!FileExists(path)) return Json::object();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<Json> json = ParseOrderedJson(text);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", json.status().message()));
  }
  if (!json->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected an object"));
  }
  return json;
}

// Keys such as bos_token: a text, or an object with a text in `content`.
void AddSpecialTokens(const Json& settings, Json* variables) {
  for (const auto& [key, value] : settings.items()) {
    if (!absl::EndsWith(key, "_token") || variables->contains(key)) continue;
    if (value.is_string()) {
      (*variables)[key] = value;
    } else if (value.is_object() && value.contains("content") &&
               value["content"].is_string()) {
      (*variables)[key] = value["content"];
    }
  }
}

// The template in tokenizer_config.json; empty if it has none.
absl::StatusOr<std::string> TemplateIn(const Json& config,
                                       const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array()) {
    for (const Json& named : *found) {
      if (named.is_object() && named.value("name", Json()) == "default" &&
          named.contains("template") && named["template"].is_string()) {
        return named["template"].get<std::string>();
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": chat_template: expected a text, or a list of objects with "
      "`name` and `template`, one of them named default"));
}

}  // namespace

absl::StatusOr<ChatFiles> ReadChatFiles(const std::string& folder,
                                        const std::string& template_path) {
  const std::string config_path = folder + "/tokenizer_config.json";
  ASSIGN_OR_RETURN(const Json config, ReadObject(config_path));
  ASSIGN_OR_RETURN(const Json tokens,
                   ReadObject(folder + "/special_tokens_map.json"));
  ChatFiles files;
  AddSpecialTokens(config, &files.variables);
  AddSpecialTokens(tokens, &files.variables);
  std::string name =
      template_path.empty() ? folder + "/chat_template.jinja" : template_path;
  std::string source;
  if (!template_path.empty() || FileExists(name)) {
    ASSIGN_OR_RETURN(source, ReadFile(name));
  } else {
    name = config_path + ", chat_template";
    ASSIGN_OR_RETURN(source, TemplateIn(config, config_path));
  }
  files.content = absl::StrCat(JsonText(files.variables), "\n", source);
  if (source.empty()) return files;
  ASSIGN_OR_RETURN(ChatTemplate chat_template,
                   ChatTemplate::Parse(source, name));
  files.chat_template =
      std::make_unique<ChatTemplate>(std::move(chat_template));
  return files;
}

}  // namespace millrace
