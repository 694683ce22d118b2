#include "worker/doctor/pair_findings.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/statistics.h"
#include "base/units.h"

namespace millrace {
namespace {

// A way below this share of the median speed is named, and one with so many
// times the median's round trip.
constexpr double kSlowShare = 0.7;
constexpr double kLongRoundTrip = 3;
constexpr double kShortRoundTrip_s = 200e-6;  // Below, differences are noise.
constexpr size_t kMaxPairLines = 12;

struct PairNames {
  explicit PairNames(const ExaminationResult& result) {
    for (const HostFacts& host : result.hosts) {
      names[host.agent_idx] = host.host;
    }
  }
  std::string Of(int32_t agent_idx) const {
    const auto found = names.find(agent_idx);
    return found == names.end() ? absl::StrCat("agent ", agent_idx)
                                : found->second;
  }
  std::map<int32_t, std::string> names;
};

struct Way {
  std::vector<const ReachedAddress*> tries;
  bool works = false;
};

// By who tried and whom.
std::map<std::pair<int32_t, int32_t>, Way> WaysOf(
    const ExaminationResult& result) {
  std::map<std::pair<int32_t, int32_t>, Way> ways;
  for (const ReachedAddress& reached : result.reached) {
    Way& way = ways[{reached.from, reached.to}];
    way.tries.push_back(&reached);
    way.works = way.works || reached.error.empty();
  }
  return ways;
}

std::string TriesText(const Way& way) {
  // An address that led elsewhere is worth a word only where there is no other.
  const bool only_elsewhere = std::all_of(
      way.tries.begin(), way.tries.end(),
      [](const ReachedAddress* tried) { return tried->led_elsewhere; });
  std::vector<std::string> texts;
  for (const ReachedAddress* tried : way.tries) {
    if (tried->led_elsewhere && !only_elsewhere) continue;
    texts.push_back(absl::StrCat(tried->address, " (", tried->error, ")"));
  }
  return absl::StrJoin(texts, ", ");
}

// A list that stops after so many lines of one kind and says how many remain.
void AddSome(std::vector<Finding> some, const char* what,
             std::vector<Finding>* all) {
  const size_t shown = std::min(some.size(), kMaxPairLines);
  for (size_t i = 0; i < shown; ++i) all->push_back(std::move(some[i]));
  if (shown == some.size()) return;
  all->push_back({some.back().severity, some.back().host,
                  absl::StrCat("and ", some.size() - shown, " more ", what,
                               "; --json lists them")});
}

constexpr char kOpenPorts[] =
    "; open the ports of net.ipv4.ip_local_port_range between the hosts, or "
    "name another network by network.interface or network.subnet";

// Hosts with more broken pairs than whole ones, of several: one line says so.
std::set<int32_t> CutOffHosts(const ExaminationResult& result) {
  std::map<int32_t, std::set<int32_t>> peers;
  std::map<int32_t, std::set<int32_t>> broken;
  for (const auto& [ends, way] : WaysOf(result)) {
    const auto& [from, to] = ends;
    peers[from].insert(to);
    peers[to].insert(from);
    if (way.works) continue;
    broken[from].insert(to);
    broken[to].insert(from);
  }
  std::set<int32_t> cut_off;
  for (const auto& [host, others] : broken) {
    if (others.size() > 2 && 2 * others.size() > peers[host].size()) {
      cut_off.insert(host);
    }
  }
  return cut_off;
}

void AddUnreachable(const ExaminationResult& result, const PairNames& names,
                    std::vector<Finding>* all) {
  const std::set<int32_t> cut_off = CutOffHosts(result);
  std::map<int32_t, std::set<int32_t>> lost;  // By host that is cut off.
  std::map<int32_t, std::string> examples;
  std::vector<Finding> found;
  for (const auto& [ends, way] : WaysOf(result)) {
    const auto& [from, to] = ends;
    if (way.works) continue;
    const std::string text = absl::StrCat(names.Of(from), " does not reach ",
                                          names.Of(to), " at ", TriesText(way));
    for (const auto& [host, other] : {std::pair(from, to), {to, from}}) {
      if (!cut_off.contains(host)) continue;
      lost[host].insert(other);
      examples.try_emplace(host, text);
    }
    if (cut_off.contains(from) || cut_off.contains(to)) continue;
    found.push_back({Severity::kFailure, names.Of(from),
                     absl::StrCat("does not reach ", names.Of(to), " at ",
                                  TriesText(way), kOpenPorts)});
  }
  for (const auto& [host, others] : lost) {
    all->push_back(
        {Severity::kFailure, names.Of(host),
         absl::StrCat("is cut off from ", others.size(),
                      " hosts: for example, ", examples.at(host), kOpenPorts)});
  }
  AddSome(std::move(found), "pairs that do not reach each other", all);
}

// An address that most hosts reach and one does not, although it reaches
// another address of the same host.
void AddLostAddresses(const ExaminationResult& result, const PairNames& names,
                      std::vector<Finding>* all) {
  std::map<std::pair<int32_t, std::string>, std::pair<int, int>> counts;
  for (const ReachedAddress& reached : result.reached) {
    auto& [good, tried] = counts[{reached.to, reached.address}];
    ++tried;
    if (reached.error.empty()) ++good;
  }
  const auto ways = WaysOf(result);
  std::vector<Finding> found;
  for (const ReachedAddress& reached : result.reached) {
    const auto [good, tried] = counts[{reached.to, reached.address}];
    // An address that every host has says nothing about the other.
    if (reached.error.empty() || reached.led_elsewhere || 2 * good <= tried ||
        !ways.at({reached.from, reached.to}).works) {
      continue;
    }
    found.push_back(
        {Severity::kWarning, names.Of(reached.from),
         absl::StrCat("does not reach ", names.Of(reached.to), " at ",
                      reached.address, " of its ", reached.interface, " (",
                      reached.error, "), ", good, " other hosts do; see to ",
                      "the cable and the switch of that network")});
  }
  AddSome(std::move(found), "addresses that only some hosts reach", all);
}

std::string SpeedText(double bytes_s) {
  return absl::StrFormat("%.3g Gbit/s", bytes_s * 8e-9);
}

void AddSlow(const ExaminationResult& result, const PairNames& names,
             std::vector<Finding>* all) {
  std::vector<Finding> found;
  std::map<std::pair<std::string, std::string>, std::vector<const RailFacts*>>
      rails;
  for (const RailFacts& rail : result.rails) {
    if (!rail.error.empty()) {
      found.push_back({Severity::kWarning, names.Of(rail.from),
                       absl::StrCat("to ", names.Of(rail.to), " at ",
                                    rail.address, ": ", rail.error,
                                    "; run millrace doctor again, and see what "
                                    "loads this network")});
    } else {
      rails[std::minmax(rail.own_interface, rail.interface)].push_back(&rail);
    }
  }
  for (const auto& [interfaces, of_kind] : rails) {
    std::vector<double> speeds;
    std::vector<double> round_trips;
    for (const RailFacts* rail : of_kind) {
      speeds.push_back(rail->BytesPerSecond());
      round_trips.push_back(rail->round_trip_s);
    }
    const double speed = MedianOf(speeds);
    const double round_trip = MedianOf(round_trips);
    for (const RailFacts* rail : of_kind) {
      const std::string way = absl::StrCat("to ", names.Of(rail->to), " over ",
                                           rail->own_interface, ": ");
      if (rail->BytesPerSecond() < kSlowShare * speed) {
        const bool there = rail->there_bytes_s <= rail->back_bytes_s;
        found.push_back(
            {Severity::kWarning, names.Of(rail->from),
             absl::StrCat(way, SpeedText(rail->BytesPerSecond()),
                          there ? " there" : " back", ", others have ",
                          SpeedText(speed),
                          "; see to the cable and the port of both hosts")});
      }
      if (rail->round_trip_s >
          kLongRoundTrip * round_trip + kShortRoundTrip_s) {
        found.push_back(
            {Severity::kWarning, names.Of(rail->from),
             absl::StrCat(way, "round trip ", FormatSeconds(rail->round_trip_s),
                          ", others have ", FormatSeconds(round_trip),
                          "; see how both are connected")});
      }
    }
  }
  AddSome(std::move(found), "slow ways", all);
}

}  // namespace

std::map<int32_t, double> ClockOffsets(const ExaminationResult& result) {
  std::map<int32_t, double> offsets;
  if (result.hosts.empty()) return offsets;
  const int32_t first = result.hosts[0].agent_idx;
  std::map<int32_t, double> uncertainties;
  for (const RailFacts& rail : result.rails) {
    if (!rail.error.empty() || (rail.from != first && rail.to != first)) {
      continue;
    }
    const bool from_first = rail.from == first;
    const int32_t other = from_first ? rail.to : rail.from;
    const auto known = uncertainties.find(other);
    if (known != uncertainties.end() &&
        known->second <= rail.clock_uncertainty_s) {
      continue;
    }
    uncertainties[other] = rail.clock_uncertainty_s;
    offsets[other] = from_first ? rail.clock_offset_s : -rail.clock_offset_s;
  }
  offsets[first] = 0;
  std::vector<double> all;
  for (const auto& [agent_idx, offset] : offsets) all.push_back(offset);
  // With two hosts, the first has the right time.
  const double median = all.size() < 3 ? 0 : MedianOf(all);
  for (auto& [agent_idx, offset] : offsets) offset -= median;
  return offsets;
}

std::vector<Finding> PairFindings(const ExaminationResult& result) {
  const PairNames names(result);
  std::vector<Finding> all;
  AddUnreachable(result, names, &all);
  AddLostAddresses(result, names, &all);
  AddSlow(result, names, &all);
  return all;
}

}  // namespace millrace
