#include "worker/data/converted_shard.h"

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "worker/data/indexed_dataset.h"
#include "worker/data/sample_batches.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

Json SkipsToJson(const TextSkips& skips) {
  return {{"unreadable", skips.unreadable},
          {"binary", skips.binary},
          {"invalid_utf8", skips.invalid_utf8},
          {"empty", skips.empty},
          {"example", skips.example}};
}

TextSkips SkipsFromJson(const Json& json) {
  return {.unreadable = json.at("unreadable").get<int64_t>(),
          .binary = json.at("binary").get<int64_t>(),
          .invalid_utf8 = json.at("invalid_utf8").get<int64_t>(),
          .empty = json.at("empty").get<int64_t>(),
          .example = json.at("example").get<std::string>()};
}

Json BrokenToJson(const BrokenRecords& broken) {
  return {{"count", broken.count},
          {"path", broken.first.path},
          {"format", static_cast<int>(broken.first.format)},
          {"first_byte", broken.first.first_byte},
          {"number", broken.first.number},
          {"why", broken.why}};
}

BrokenRecords BrokenFromJson(const Json& json) {
  return {.count = json.at("count").get<int64_t>(),
          .first = {.path = json.at("path").get<std::string>(),
                    .format =
                        static_cast<RecordFormat>(json.at("format").get<int>()),
                    .first_byte = json.at("first_byte").get<int64_t>(),
                    .number = json.at("number").get<int64_t>()},
          .why = json.at("why").get<std::string>()};
}

// The counts that a shard and a whole source have in common.
template <typename Summary>
Json CountsToJson(const Summary& summary) {
  Json json = {{"num_tokens", summary.num_tokens},
               {"num_documents", summary.num_documents},
               {"num_empty", summary.num_empty},
               {"fingerprint", summary.fingerprint},
               {"skipped", SkipsToJson(summary.skips)},
               {"broken", BrokenToJson(summary.broken)}};
  if (summary.num_trained_tokens.has_value()) {
    json["num_trained_tokens"] = *summary.num_trained_tokens;
  }
  return json;
}

template <typename Summary>
void CountsFromJson(const Json& json, Summary* summary) {
  json.at("num_tokens").get_to(summary->num_tokens);
  json.at("num_documents").get_to(summary->num_documents);
  json.at("num_empty").get_to(summary->num_empty);
  json.at("fingerprint").get_to(summary->fingerprint);
  summary->skips = SkipsFromJson(json.at("skipped"));
  summary->broken = BrokenFromJson(json.at("broken"));
  if (json.contains("num_trained_tokens")) {
    summary->num_trained_tokens = json["num_trained_tokens"].get<int64_t>();
  }
}

absl::StatusOr<Json> ParseSummary(const std::string& path,
                                  absl::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text);
  if (json.ok()) return json;
  return absl::DataLossError(absl::StrCat(path, ": ", json.status().message()));
}

}  // namespace

absl::Status SaveShard(const std::string& prefix, const ConvertedShard& shard) {
  return WriteFileAtomically(absl::StrCat(prefix, ".json"),
                             JsonText(CountsToJson(shard), 2) + "\n");
}

absl::StatusOr<ConvertedShard> LoadShard(const std::string& prefix) {
  const std::string path = absl::StrCat(prefix, ".json");
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  ASSIGN_OR_RETURN(const Json json, ParseSummary(path, text));
  ConvertedShard shard;
  try {
    CountsFromJson(json, &shard);
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  std::vector<std::string> files = {prefix};
  if (shard.num_trained_tokens.has_value()) {
    files.push_back(TrainedPrefix(prefix));
  }
  for (const std::string& file : files) {
    ASSIGN_OR_RETURN(const IndexedDataset tokens, IndexedDataset::Open(file));
    if (tokens.num_tokens() != shard.num_tokens) {
      return absl::DataLossError(
          absl::StrCat(path, ": does not fit the files beside it"));
    }
  }
  return shard;
}

std::string ConvertedToText(const Converted& converted) {
  Json json = CountsToJson(converted);
  for (const std::string& prefix : converted.prefixes) {
    json["shards"].push_back(std::filesystem::path(prefix).filename().string());
  }
  return JsonText(json, 2) + "\n";
}

absl::StatusOr<Converted> ConvertedFromText(const std::string& path,
                                            absl::string_view text) {
  ASSIGN_OR_RETURN(const Json json, ParseSummary(path, text));
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  Converted converted;
  try {
    CountsFromJson(json, &converted);
    for (const Json& shard : json.at("shards")) {
      converted.prefixes.push_back(
          (folder / shard.get<std::string>()).string());
    }
  } catch (const Json::exception& error) {
    return absl::DataLossError(absl::StrCat(path, ": ", error.what()));
  }
  return converted;
}

}  // namespace millrace
