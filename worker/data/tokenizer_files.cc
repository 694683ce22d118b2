#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "worker/data/tokenizer.h"

namespace millrace {
namespace {

// The file's object, null if there is no such file.
absl::StatusOr<nlohmann::json> ReadSettings(const std::string& path) {
  if (!FileExists(path)) return nlohmann::json();
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<nlohmann::json> json = ParseJson(text);
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

// The text of eos_token: "</s>" or {"content": "</s>"}. Empty if there is none.
absl::StatusOr<std::string> EndTokenIn(const std::string& path) {
  ASSIGN_OR_RETURN(const nlohmann::json settings, ReadSettings(path));
  if (settings.is_null()) return "";
  const auto found = settings.find("eos_token");
  if (found == settings.end() || found->is_null()) return "";
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") &&
      (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": eos_token: ", JsonText(*found),
      " is neither a text nor an object with a text in `content`"));
}

// The token whose id config.json names. Empty if it names none.
absl::StatusOr<std::string> EndTokenByConfig(const std::string& path,
                                             const std::string& content) {
  ASSIGN_OR_RETURN(const nlohmann::json config, ReadSettings(path));
  if (config.is_null()) return "";
  const auto id = config.find("eos_token_id");
  if (id == config.end() || id->is_null()) return "";
  if (!id->is_number_integer()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": eos_token_id: ", JsonText(*id),
                     " is not one id: say in data.end_of_document which token "
                     "ends a document"));
  }
  // The content was not checked yet; what is wrong with it is said later.
  const absl::StatusOr<nlohmann::json> tokenizer = ParseJson(content);
  if (!tokenizer.ok() || !tokenizer->is_object()) return "";
  const auto added = tokenizer->find("added_tokens");
  if (added != tokenizer->end() && added->is_array()) {
    for (const nlohmann::json& token : *added) {
      if (token.is_object() && token.contains("id") && token["id"] == *id &&
          token.contains("content") && token["content"].is_string()) {
        return token["content"].get<std::string>();
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": eos_token_id: ", JsonText(*id),
      " is no added token of the tokenizer: say in data.end_of_document which "
      "token ends a document"));
}

absl::StatusOr<std::string> EndTokenBeside(const std::string& path,
                                           const std::string& content) {
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json"}) {
    ASSIGN_OR_RETURN(std::string token, EndTokenIn((folder / name).string()));
    if (!token.empty()) return token;
  }
  ASSIGN_OR_RETURN(
      std::string token,
      EndTokenByConfig((folder / "config.json").string(), content));
  if (!token.empty()) return token;
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": nothing says which token ends a document: neither "
      "tokenizer_config.json nor special_tokens_map.json (eos_token) nor "
      "config.json (eos_token_id) beside it. Name it in the job, as in "
      "`data.end_of_document: \"<|endoftext|>\"`"));
}

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(
    const std::string& path, const std::string& end_of_document) {
  TokenizerFiles files{.name = path, .end_of_document = end_of_document};
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const std::filesystem::path folder = path;
    files.name = (folder / "tokenizer.json").string();
    if (!FileExists(files.name)) {
      files.name = (folder / "tokenizer.model").string();
    }
    if (!FileExists(files.name)) {
      return absl::NotFoundError(absl::StrCat(
          "data.tokenizer: the folder ", path,
          " holds neither tokenizer.json nor tokenizer.model; copy the model's "
          "tokenizer there, or name another"));
    }
  }
  ASSIGN_OR_RETURN(files.content, ReadFile(files.name));
  if (files.content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.tokenizer: ", files.name,
        " is empty; expected a SentencePiece model, a tokenizer.json, or "
        "`auto`"));
  }
  if (files.end_of_document.empty() && IsTokenizerJson(files.content)) {
    ASSIGN_OR_RETURN(files.end_of_document,
                     EndTokenBeside(files.name, files.content));
  }
  return files;
}

}  // namespace millrace
