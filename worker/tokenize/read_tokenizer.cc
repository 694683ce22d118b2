#include "worker/tokenize/read_tokenizer.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "worker/tokenize/json_value.h"
#include "worker/tokenize/read_steps.h"

namespace millrace {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max() - 1;
// Trying each added token at each place costs their length.
constexpr size_t kMaxAddedTokenBytes = 1024;

absl::Status ReadPieces(const JsonValue& model, BytePairSpec* spec) {
  ASSIGN_OR_RETURN(const JsonValue vocab, model.Get("vocab"));
  if (!vocab.json().is_object()) return vocab.Refused("is not an object");
  if (vocab.json().empty()) return vocab.Refused("has no piece");
  absl::flat_hash_map<int64_t, absl::string_view> piece_of;
  piece_of.reserve(vocab.json().size());
  spec->pieces.reserve(vocab.json().size());
  for (const auto& [piece, id] : vocab.json().items()) {
    const JsonValue value(id, absl::StrCat("model.vocab.", piece));
    ASSIGN_OR_RETURN(const int64_t number, value.AsWhole(kMaxId));
    const auto [other, is_new] = piece_of.emplace(number, piece);
    if (!is_new) {
      return value.Refused(
          absl::StrCat("is the id of the piece `", other->second, "` too"));
    }
    spec->pieces.emplace_back(piece, static_cast<int32_t>(number));
  }
  return absl::OkStatus();
}

// "a b", or ["a", "b"].
absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(
    const nlohmann::json& json, const std::string& path) {
  const JsonValue value(json, path);
  if (json.is_array() && json.size() == 2 && json[0].is_string() &&
      json[1].is_string()) {
    return std::make_pair(json[0].get<std::string>(),
                          json[1].get<std::string>());
  }
  if (!json.is_string()) {
    return value.Refused("is not a text \"a b\" or a list [\"a\", \"b\"]");
  }
  const auto& text = json.get_ref<const std::string&>();
  const size_t space = text.find(' ');
  if (space == std::string::npos ||
      text.find(' ', space + 1) != std::string::npos) {
    return value.Refused("is not two pieces with one space between them");
  }
  return std::make_pair(text.substr(0, space), text.substr(space + 1));
}

absl::Status ReadMerges(const JsonValue& model, BytePairSpec* spec) {
  ASSIGN_OR_RETURN(const JsonValue merges, model.Get("merges"));
  if (!merges.json().is_array()) return merges.Refused("is not a list");
  absl::flat_hash_set<absl::string_view> pieces;
  pieces.reserve(spec->pieces.size());
  for (const auto& [piece, id] : spec->pieces) pieces.insert(piece);
  spec->merges.reserve(merges.json().size());
  const bool are_lists = !merges.json().empty() && merges.json()[0].is_array();
  for (size_t i = 0; i < merges.json().size(); ++i) {
    const nlohmann::json& json = merges.json()[i];
    const std::string path = absl::StrCat("model.merges[", i, "]");
    if (json.is_array() != are_lists) {
      return JsonValue(json, path).Refused("has another form than the first");
    }
    // A first line of the file that merges once were in.
    if (json.is_string() &&
        json.get_ref<const std::string&>().rfind("#version", 0) == 0) {
      continue;
    }
    ASSIGN_OR_RETURN(auto merge, ReadMerge(json, path));
    for (const std::string& piece :
         {merge.first, merge.second, merge.first + merge.second}) {
      if (!pieces.contains(piece)) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": `", merge.first, "` and `", merge.second,
            "` need the piece `", piece, "`, which model.vocab does not have"));
      }
    }
    if (merge.first.empty() || merge.second.empty()) {
      return JsonValue(json, path).Refused("merges an empty piece");
    }
    spec->merges.push_back(std::move(merge));
  }
  return absl::OkStatus();
}

absl::StatusOr<BytePairSpec> ReadModel(const JsonValue& model) {
  if (!model.json().is_object()) return model.Refused("is not an object");
  // Files of early versions have no type.
  if (model.Has("type") || !model.Has("merges")) {
    ASSIGN_OR_RETURN(const JsonValue type, model.Get("type"));
    ASSIGN_OR_RETURN(const std::string name, type.AsText());
    if (name != "BPE") {
      return type.Refused("is not supported; the only model is \"BPE\"");
    }
  }
  RETURN_IF_ERROR(model.CheckKeys(
      {"type", "dropout", "unk_token", "continuing_subword_prefix",
       "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
       "vocab", "merges"}));
  if (model.Has("dropout") && model.json()["dropout"] != 0) {
    return JsonValue(model.json()["dropout"], "model.dropout")
        .Refused("is not supported: ids would be random; set it to null");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.Has(key) && model.json()[key] != "") {
      return JsonValue(model.json()[key], absl::StrCat("model.", key))
          .Refused("is not supported; expected null or \"\"");
    }
  }
  BytePairSpec spec;
  ASSIGN_OR_RETURN(spec.fuse_unknown, model.BoolOr("fuse_unk", false));
  ASSIGN_OR_RETURN(spec.byte_fallback, model.BoolOr("byte_fallback", false));
  ASSIGN_OR_RETURN(spec.ignore_merges, model.BoolOr("ignore_merges", false));
  RETURN_IF_ERROR(ReadPieces(model, &spec));
  RETURN_IF_ERROR(ReadMerges(model, &spec));
  spec.has_unknown = model.Has("unk_token");
  if (spec.has_unknown) {
    ASSIGN_OR_RETURN(spec.unknown, model.Text("unk_token"));
  }
  return spec;
}

absl::StatusOr<AddedToken> ReadAddedToken(const JsonValue& value) {
  RETURN_IF_ERROR(value.CheckKeys({"id", "content", "single_word", "lstrip",
                                   "rstrip", "normalized", "special"}));
  AddedToken token;
  ASSIGN_OR_RETURN(const int64_t id, value.Whole("id", kMaxId));
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.content, value.Text("content"));
  ASSIGN_OR_RETURN(token.single_word, value.Bool("single_word"));
  ASSIGN_OR_RETURN(token.lstrip, value.Bool("lstrip"));
  ASSIGN_OR_RETURN(token.rstrip, value.Bool("rstrip"));
  ASSIGN_OR_RETURN(token.normalized, value.Bool("normalized"));
  ASSIGN_OR_RETURN(token.special, value.Bool("special"));
  if (token.content.size() > kMaxAddedTokenBytes) {
    return value.Refused(absl::StrCat("has a content of ", token.content.size(),
                                      " bytes; at most ", kMaxAddedTokenBytes,
                                      " are supported"));
  }
  return token;
}

// Hugging Face's library does not use the ids in the list: a token that is a
// piece has the piece's id, others are numbered on from the pieces. A file
// where that differs from what it says means two things at once.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const JsonValue& file, const BytePairSpec& model) {
  std::vector<AddedToken> tokens;
  if (!file.Has("added_tokens")) return tokens;
  ASSIGN_OR_RETURN(const std::vector<JsonValue> list,
                   file.List("added_tokens"));
  absl::flat_hash_map<std::string, int32_t> id_of(model.pieces.begin(),
                                                  model.pieces.end());
  auto next_id = static_cast<int32_t>(model.pieces.size());
  for (const JsonValue& value : list) {
    ASSIGN_OR_RETURN(AddedToken token, ReadAddedToken(value));
    if (token.content.empty()) continue;
    const auto [found, is_new] = id_of.emplace(token.content, next_id);
    if (is_new) ++next_id;
    if (found->second != token.id) {
      return absl::InvalidArgumentError(absl::StrCat(
          value.path(), ".id: ", token.id, " for `", token.content,
          "`, but Hugging Face's library takes ", found->second,
          is_new ? ", the next after the pieces and tokens before it"
                 : ", as the same text has elsewhere in the file",
          ": mend the file so that both agree"));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ReadTokenizerSpec(absl::string_view json) {
  ASSIGN_OR_RETURN(const nlohmann::json parsed, ParseJson(json));
  const JsonValue file(parsed, "");
  RETURN_IF_ERROR(file.CheckKeys({"version", "truncation", "padding",
                                  "added_tokens", "normalizer", "pre_tokenizer",
                                  "post_processor", "decoder", "model"}));
  if (file.Has("version") && parsed["version"] != "1.0") {
    return JsonValue(parsed["version"], "version")
        .Refused("is not supported; expected \"1.0\"");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (file.Has(key)) {
      return JsonValue(parsed[key], key)
          .Refused("would change the length of texts: set it to null");
    }
  }
  TokenizerSpec spec;
  ASSIGN_OR_RETURN(const JsonValue model, file.Get("model"));
  ASSIGN_OR_RETURN(spec.model, ReadModel(model));
  ASSIGN_OR_RETURN(spec.added_tokens, ReadAddedTokens(file, spec.model));
  RETURN_IF_ERROR(ReadNormalizer(file, &spec));
  RETURN_IF_ERROR(ReadPreTokenizer(file, &spec));
  RETURN_IF_ERROR(ReadPostProcessor(file, &spec));
  RETURN_IF_ERROR(ReadDecoder(file, &spec));
  return spec;
}

}  // namespace millrace
