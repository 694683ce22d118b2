#include "coordinator/report/report_program.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "planner/program/program.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int kNumPhases = static_cast<int>(Phase::kParameterGather) + 1;

std::vector<absl::string_view> LaneNames() {
  std::vector<absl::string_view> names;
  for (int i = 0; i < kNumLanes; ++i) {
    names.push_back(LaneName(static_cast<Lane>(i)));
  }
  return names;
}

std::vector<absl::string_view> PhaseNames() {
  std::vector<absl::string_view> names;
  for (int i = 0; i < kNumPhases; ++i) {
    names.push_back(PhaseName(static_cast<Phase>(i)));
  }
  return names;
}

// The index of `name`, or -1.
int Find(const std::vector<absl::string_view>& names, absl::string_view name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<int>(i);
  }
  return -1;
}

Json ToJsonArray(const std::vector<absl::string_view>& names) {
  Json array = Json::array();
  for (absl::string_view name : names) array.push_back(std::string(name));
  return array;
}

}  // namespace

absl::StatusOr<Json> ParseProgramText(absl::string_view text,
                                      const std::string& file) {
  const std::vector<absl::string_view> lanes = LaneNames();
  const std::vector<absl::string_view> phases = PhaseNames();
  Json instructions = Json::array();
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    // id lane phase micro-batch name operation...; other lines (the header, the
    // buffers) do not have a lane second.
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() < 6) continue;
    const int lane = Find(lanes, words[1]);
    const int phase = Find(phases, words[2]);
    int64_t id = 0;
    if (lane < 0 || phase < 0 || !absl::SimpleAtoi(words[0], &id)) continue;
    if (id != static_cast<int64_t>(instructions.size())) {
      return absl::DataLossError(
          absl::StrCat(file, ":", line_number, ": instruction ", id, " where ",
                       instructions.size(), " was expected"));
    }
    std::vector<absl::string_view> operation;
    for (size_t i = 5; i < words.size() && words[i] != "in:"; ++i) {
      operation.push_back(words[i]);
    }
    instructions.push_back({lane, phase, std::string(words[3]),
                            std::string(words[4]),
                            absl::StrJoin(operation, " ")});
  }
  if (instructions.empty()) {
    return absl::DataLossError(absl::StrCat(file, " names no instruction"));
  }
  return Json{{"lanes", ToJsonArray(lanes)},
              {"phases", ToJsonArray(phases)},
              {"instructions", std::move(instructions)}};
}

}  // namespace millrace
