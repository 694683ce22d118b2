#include "coordinator/succession/keepers.h"

#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kChecksumDigits = 16;
constexpr char kKeepersRecord[] = "keepers";

std::string Checksum(absl::string_view record) {
  return absl::StrFormat("%016x", XXH3_64bits(record.data(), record.size()));
}

}  // namespace

std::string KeepersRecord(const std::vector<Keeper>& keepers) {
  Json list = Json::array();
  for (const Keeper& keeper : keepers) {
    list.push_back({{"id", keeper.id},
                    {"agent", keeper.agent_idx},
                    {"host", keeper.host},
                    {"address", keeper.address},
                    {"port", keeper.port},
                    {"coordinator_address", keeper.coordinator_address}});
  }
  return JsonText(Json{{"record", kKeepersRecord}, {"keepers", list}});
}

absl::StatusOr<std::vector<Keeper>> KeepersIn(
    const std::vector<std::string>& records) {
  std::vector<Keeper> keepers;
  for (const std::string& record : records) {
    ASSIGN_OR_RETURN(const Json json, ParseJson(record));
    try {
      if (json.at("record") != kKeepersRecord) continue;
      keepers.clear();
      for (const Json& entry : json.at("keepers")) {
        keepers.push_back(
            {.id = entry.at("id"),
             .agent_idx = entry.at("agent"),
             .host = entry.at("host"),
             .address = entry.at("address"),
             .port = entry.at("port"),
             .coordinator_address = entry.at("coordinator_address")});
      }
    } catch (const Json::exception& error) {
      return absl::DataLossError(absl::StrCat(
          "record ", record, " of the coordinator's log: ", error.what()));
    }
  }
  return keepers;
}

std::string CoordinatorAddresses(const std::vector<Keeper>& keepers) {
  return absl::StrJoin(keepers, ",",
                       [](std::string* out, const Keeper& keeper) {
                         absl::StrAppend(out, keeper.coordinator_address);
                       });
}

std::string LogLine(absl::string_view record) {
  return absl::StrCat(Checksum(record), " ", record, "\n");
}

absl::StatusOr<std::string> RecordOfLine(absl::string_view line) {
  if (line.size() <= kChecksumDigits + 1 || line[kChecksumDigits] != ' ' ||
      line.substr(0, kChecksumDigits) !=
          Checksum(line.substr(kChecksumDigits + 1))) {
    return absl::DataLossError("damaged record");
  }
  return std::string(line.substr(kChecksumDigits + 1));
}

}  // namespace millrace
