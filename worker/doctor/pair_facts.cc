#include "worker/doctor/pair_facts.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/doctor/json_fields.h"

namespace millrace {
namespace {

template <typename Facts, typename Visitor>
void VisitReached(Facts& f, Visitor&& visit) {
  visit("from", f.from);
  visit("to", f.to);
  visit("interface", f.interface);
  visit("address", f.address);
  visit("own_interface", f.own_interface);
  visit("error", f.error);
  visit("led_elsewhere", f.led_elsewhere);
}

template <typename Facts, typename Visitor>
void VisitRail(Facts& f, Visitor&& visit) {
  visit("from", f.from);
  visit("to", f.to);
  visit("own_interface", f.own_interface);
  visit("interface", f.interface);
  visit("address", f.address);
  visit("error", f.error);
  visit("there_bytes_s", f.there_bytes_s);
  visit("back_bytes_s", f.back_bytes_s);
  visit("round_trip_s", f.round_trip_s);
  visit("clock_offset_s", f.clock_offset_s);
  visit("clock_uncertainty_s", f.clock_uncertainty_s);
}

template <typename Item, typename Visit>
absl::StatusOr<std::vector<Item>> PairListFrom(const nlohmann::json& list,
                                               const char* what,
                                               const Visit& visit) {
  std::vector<Item> items;
  std::string wrong_key;
  ReadList(list, what, &items, &wrong_key, visit);
  if (wrong_key.empty()) return items;
  return absl::InvalidArgumentError(
      absl::StrCat("answer about a pair of hosts: the value of ", wrong_key,
                   " is of the wrong kind"));
}

}  // namespace

double RailFacts::BytesPerSecond() const {
  return std::min(there_bytes_s, back_bytes_s);
}

nlohmann::json ToJson(const ReachedAddress& reached) {
  nlohmann::json json = nlohmann::json::object();
  VisitReached(reached, FieldWriter{json});
  return json;
}

nlohmann::json ToJson(const RailFacts& rail) {
  nlohmann::json json = nlohmann::json::object();
  VisitRail(rail, FieldWriter{json});
  return json;
}

absl::StatusOr<std::vector<ReachedAddress>> ReachedFromJson(
    const nlohmann::json& list) {
  return PairListFrom<ReachedAddress>(
      list, "reached",
      [](auto& item, FieldReader reader) { VisitReached(item, reader); });
}

absl::StatusOr<std::vector<RailFacts>> RailsFromJson(
    const nlohmann::json& list) {
  return PairListFrom<RailFacts>(
      list, "rails",
      [](auto& item, FieldReader reader) { VisitRail(item, reader); });
}

}  // namespace millrace
