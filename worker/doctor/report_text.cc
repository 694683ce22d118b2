#include "worker/doctor/report_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/statistics.h"
#include "base/units.h"
#include "worker/doctor/pair_findings.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// All pairs are listed up to so many; of more, only the slowest.
constexpr size_t kMaxListedPairs = 28;
constexpr size_t kSlowestPairs = 5;

// Columns as wide as their widest text; the first to the left, the others to
// the right.
std::string TableText(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, "  ", i == 0 ? row[i] : space,
                      i == 0 ? space : row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string FreeText(const HostFacts& host, const char* purpose) {
  for (const FolderFacts& folder : host.folders) {
    if (folder.purpose == purpose) {
      return folder.error.empty() ? FormatBytes(folder.free_bytes) : "?";
    }
  }
  return "-";
}

std::string GpusText(const HostFacts& host) {
  if (!host.gpu_error.empty()) return "not usable";
  if (host.gpus.empty()) return "-";
  return absl::StrCat(host.gpus.size(), " x ", host.gpus[0].name);
}

std::string HottestText(const HostFacts& host) {
  int64_t hottest = -1;
  for (const GpuFacts& gpu : host.gpus) {
    hottest = std::max(hottest, gpu.temperature_c);
  }
  return hottest < 0 ? "-" : absl::StrCat(hottest, " C");
}

std::string ClockText(const std::map<int32_t, double>& offsets,
                      int32_t agent_idx) {
  const auto found = offsets.find(agent_idx);
  if (offsets.size() < 2) return "-";
  if (found == offsets.end()) return "?";
  return absl::StrCat(found->second < 0 ? "-" : "+",
                      FormatSeconds(std::abs(found->second)));
}

std::string HostTable(const ExaminationResult& result) {
  const bool any_gpus = std::any_of(
      result.hosts.begin(), result.hosts.end(),
      [](const auto& h) { return !h.gpus.empty() || !h.gpu_error.empty(); });
  std::vector<std::string> head = {"host",       "agents",   "cores",
                                   "memory",     "/dev/shm", "disk",
                                   "open files", "memlock"};
  if (any_gpus) {
    head.insert(head.end(), {"GPUs", "hottest", "driver", "NCCL"});
  }
  head.insert(head.end(), {"clock", "build"});
  std::vector<std::vector<std::string>> rows = {head};
  const std::map<int32_t, double> offsets = ClockOffsets(result);
  for (const size_t i : FirstAgents(result.hosts)) {
    const HostFacts& host = result.hosts[i];
    const auto agents = std::count_if(
        result.hosts.begin(), result.hosts.end(), [&](const HostFacts& other) {
          return other.host_identity == host.host_identity;
        });
    const auto limit = [](int64_t value, const std::string& text) {
      return value == kUnlimited ? std::string("unlimited") : text;
    };
    std::vector<std::string> row = {
        host.host,
        absl::StrCat(agents),
        absl::StrCat(host.cores),
        FormatBytes(host.memory_bytes),
        FreeText(host, kSharedMemory),
        FreeText(host, kRunFolder),
        limit(host.open_files, absl::StrCat(host.open_files)),
        limit(host.locked_memory_bytes, FormatBytes(host.locked_memory_bytes))};
    if (any_gpus) {
      const auto dash = [](const std::string& t) {
        return t.empty() ? "-" : t;
      };
      row.insert(row.end(), {GpusText(host), HottestText(host),
                             dash(host.driver), dash(host.nccl)});
    }
    row.push_back(ClockText(offsets, host.agent_idx));
    row.push_back(host.build_id.empty() ? "unknown"
                                        : host.build_id.substr(0, 12));
    rows.push_back(std::move(row));
  }
  return TableText(rows);
}

std::string GbitText(double bytes_s) {
  return absl::StrFormat("%.3g", bytes_s * 8e-9);
}

std::string PairTable(const ExaminationResult& result) {
  std::map<int32_t, std::string> names;
  for (const HostFacts& host : result.hosts) names[host.agent_idx] = host.host;
  std::vector<const RailFacts*> rails;
  std::vector<double> speeds;
  std::vector<double> round_trips;
  for (const RailFacts& rail : result.rails) {
    if (!rail.error.empty()) continue;
    rails.push_back(&rail);
    speeds.push_back(rail.BytesPerSecond());
    round_trips.push_back(rail.round_trip_s);
  }
  if (rails.empty()) return "";
  std::stable_sort(rails.begin(), rails.end(),
                   [](const auto* a, const auto* b) {
                     return a->BytesPerSecond() < b->BytesPerSecond();
                   });
  const bool all = rails.size() <= kMaxListedPairs;
  std::string text =
      absl::StrCat(rails.size(), rails.size() == 1 ? " way" : " ways",
                   " between hosts, each over one TCP connection; median ",
                   GbitText(MedianOf(speeds)), " Gbit/s, round trip ",
                   FormatSeconds(MedianOf(round_trips)),
                   all ? ", the slowest first:\n" : ", the slowest:\n");
  if (!all) rails.resize(kSlowestPairs);
  std::vector<std::vector<std::string>> rows = {
      {"from", "to", "over", "Gbit/s there", "back", "round trip"}};
  for (const RailFacts* rail : rails) {
    rows.push_back({names[rail->from], names[rail->to],
                    rail->own_interface == rail->interface
                        ? rail->interface
                        : absl::StrCat(rail->own_interface, "-",
                                       rail->interface),
                    GbitText(rail->there_bytes_s),
                    GbitText(rail->back_bytes_s),
                    FormatSeconds(rail->round_trip_s)});
  }
  return absl::StrCat(text, TableText(rows));
}

std::string SharedText(const ExaminationResult& result) {
  const std::vector<size_t> firsts = FirstAgents(result.hosts);
  if (firsts.size() < 2) return "";
  std::string text;
  for (size_t k = 0; k < result.hosts[0].folders.size(); ++k) {
    const FolderFacts& own = result.hosts[0].folders[k];
    if (!own.probed) continue;
    size_t seeing = 0;
    for (const size_t i : firsts) {
      for (const FolderFacts& folder : result.hosts[i].folders) {
        if (folder.purpose == own.purpose && folder.sees_probe) ++seeing;
      }
    }
    absl::StrAppend(&text, own.purpose, " ", own.path, ": ",
                    seeing == firsts.size() ? "shared by all hosts"
                    : seeing <= 1           ? "not shared"
                                  : absl::StrCat("seen by ", seeing, " of ",
                                                 firsts.size(), " hosts"),
                    "\n");
  }
  return text;
}

std::string BucketTable(const ExaminationResult& result) {
  std::vector<std::vector<std::string>> rows = {
      {"host", "writes", "reads", "a request"}};
  std::string path;
  const auto rate = [](double bytes_s) {
    return absl::StrCat(FormatBytes(static_cast<int64_t>(bytes_s)), "/s");
  };
  for (const size_t i : FirstAgents(result.hosts)) {
    const HostFacts& host = result.hosts[i];
    for (const BucketFacts& bucket : host.buckets) {
      if (!bucket.error.empty()) continue;
      path = bucket.path;
      rows.push_back({host.host, rate(bucket.write_bytes_s),
                      rate(bucket.read_bytes_s),
                      FormatSeconds(bucket.request_s)});
    }
  }
  if (path.empty()) return "";
  return absl::StrCat("bucket ", path, ", an object of ",
                      FormatBytes(kProbedObjectBytes),
                      " on each host at the same time:\n", TableText(rows));
}

std::string CountOf(size_t number, const char* one, const char* many) {
  return absl::StrCat(number, " ", number == 1 ? one : many);
}

}  // namespace

bool WouldFail(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.severity == Severity::kFailure;
  });
}

std::string ReportText(const ExaminationResult& result,
                       const std::vector<Finding>& findings) {
  std::string text = HostTable(result);
  if (const std::string shared = SharedText(result); !shared.empty()) {
    absl::StrAppend(&text, "\n", shared);
  }
  if (const std::string buckets = BucketTable(result); !buckets.empty()) {
    absl::StrAppend(&text, "\n", buckets);
  }
  if (const std::string pairs = PairTable(result); !pairs.empty()) {
    absl::StrAppend(&text, "\n", pairs);
  }
  if (!findings.empty()) absl::StrAppend(&text, "\n");
  size_t failures = 0;
  for (const Finding& finding : findings) {
    const bool fails = finding.severity == Severity::kFailure;
    if (fails) ++failures;
    absl::StrAppend(&text, fails ? "FAILS    " : "warning  ", finding.host,
                    ": ", finding.text, "\n");
  }
  const size_t warnings = findings.size() - failures;
  const std::string hosts =
      CountOf(FirstAgents(result.hosts).size(), "host", "hosts");
  absl::StrAppend(&text, "\n");
  if (failures > 0) {
    absl::StrAppend(&text, hosts, ": a job would fail; ",
                    CountOf(failures, "reason", "reasons"), " and ",
                    CountOf(warnings, "warning", "warnings"), "\n");
  } else if (warnings > 0) {
    absl::StrAppend(&text, hosts, ": a job would run, with ",
                    CountOf(warnings, "warning", "warnings"), "\n");
  } else {
    absl::StrAppend(&text, hosts, ": all well\n");
  }
  return text;
}

Json ReportJson(const ExaminationResult& result,
                const std::vector<Finding>& findings) {
  Json hosts = Json::array();
  const std::map<int32_t, double> offsets = ClockOffsets(result);
  for (const HostFacts& host : result.hosts) {
    Json json = ToJson(host);
    const auto offset = offsets.find(host.agent_idx);
    json["clock_offset_s"] =
        offset == offsets.end() ? Json(nullptr) : Json(offset->second);
    hosts.push_back(std::move(json));
  }
  Json reached = Json::array();
  for (const ReachedAddress& way : result.reached) {
    reached.push_back(ToJson(way));
  }
  Json rails = Json::array();
  for (const RailFacts& rail : result.rails) rails.push_back(ToJson(rail));
  Json found = Json::array();
  for (const Finding& finding : findings) {
    found.push_back({{"fails", finding.severity == Severity::kFailure},
                     {"host", finding.host},
                     {"text", finding.text}});
  }
  return {{"would_fail", WouldFail(findings)},
          {"findings", std::move(found)},
          {"hosts", std::move(hosts)},
          {"reached", std::move(reached)},
          {"rails", std::move(rails)}};
}

}  // namespace millrace
