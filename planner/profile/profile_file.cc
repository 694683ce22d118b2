#include "planner/profile/profile_file.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/profile/profile_consistency.h"
#include "planner/profile/profile_fields.h"
#include "planner/text/nearest_word.h"
#include "planner/text/yaml_map.h"

namespace millrace {
namespace {

// Reads one map. VisitFields() says which keys it has; all others are errors.
class ProfileReader {
 public:
  explicit ProfileReader(YamlMap& map) : map_(map) {}

  template <typename Record>
  void Read(Record& record) {
    needs_tables_ =
        map_.Find("device") == nullptr || map_.Find("network") == nullptr;
    VisitFields(*this, record);
  }

  void operator()(const char* key, std::string& value) {
    if (const YamlTree* entry = Scalar(key, "text")) value = entry->scalar;
  }
  void operator()(const char* key, double& value) {
    const std::string expected =
        absl::StrCat("a number, ", Describe(RangeOf(key)));
    const YamlTree* entry = Scalar(key, expected);
    if (entry != nullptr && !ParseNumber(entry->scalar, RangeOf(key), &value)) {
      map_.Expected(*entry, key, expected);
    }
  }
  void operator()(const char* key, int32_t& value) { Integer(key, 1, &value); }
  void operator()(const char* key, int64_t& value) {
    Integer(key, int64_t{1}, &value);
  }
  template <typename Value>
  void FromZero(const char* key, Value& value) {
    Integer(key, Value{0}, &value);
  }
  void Later(const char* key, double& value) {
    if (map_.Find(key) != nullptr) return (*this)(key, value);
    map_.Entry(key, Need::kOptional, "");
  }
  void IfAbove(int64_t least, const char* key, int64_t& value) {
    if (map_.Find(key) != nullptr) return Integer(key, least, &value);
    map_.Entry(key, Need::kOptional, "");
  }
  void IfSet(const char* key, bool& value) {
    if (map_.Find(key) != nullptr) return (*this)(key, value);
    map_.Entry(key, Need::kOptional, "");
  }
  // Reads words such as "threads=256 stages=2".
  void Settings(const char* key, std::string& value) {
    constexpr absl::string_view kExpected = "words NAME=INTEGER";
    const YamlTree* entry = Scalar(key, kExpected);
    if (entry == nullptr) return;
    value = entry->scalar;
    for (const absl::string_view word : absl::StrSplit(value, ' ')) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      int64_t number = 0;
      if (!parts.first.empty() && absl::SimpleAtoi(parts.second, &number)) {
        continue;
      }
      return map_.Expected(*entry, key, kExpected);
    }
  }
  void operator()(const char* key, bool& value) {
    map_.Flag(key, Need::kRequired, &value);
  }
  void operator()(const char* key, OpKind& value) {
    const YamlTree* entry = Scalar(key, "an op kind");
    if (entry == nullptr) return;
    std::vector<std::string> names;
    for (int i = 0; i < kNumExecutedOpKinds; ++i) {
      names.emplace_back(OpKindName(static_cast<OpKind>(i)));
      if (names.back() != entry->scalar) continue;
      value = static_cast<OpKind>(i);
      return;
    }
    const auto nearest = NearestWord(entry->scalar, names);
    map_.Error(key,
               absl::StrCat(
                   "unknown op kind '", entry->scalar, "'; ",
                   nearest.has_value()
                       ? absl::StrCat("did you mean '", *nearest, "'?")
                       : absl::StrCat("known: ", absl::StrJoin(names, ", "))));
  }
  // Optional, since older profiles are all fp32.
  void operator()(const char* key, Precision& value) {
    map_.Choice<Precision>(
        key, Need::kOptional,
        {{"fp32", Precision::kFloat32}, {"bf16", Precision::kBfloat16}},
        &value);
  }
  void operator()(const char* key, ProfileProvenance& value) {
    Section(key, Need::kRequired, value);
  }
  void operator()(const char* key, std::vector<double>& values) {
    DemandTable(key);
    const YamlTree* list = map_.List(key, Need::kOptional);
    if (list == nullptr) return;
    for (const YamlTree& item : list->children) {
      values.push_back(0);
      if (item.kind != YamlTree::Kind::kScalar ||
          !ParseNumber(item.scalar, RangeOf(key), &values.back())) {
        map_.Expected(item, key,
                      absl::StrCat("numbers, ", Describe(RangeOf(key))));
      }
    }
  }
  template <typename Row>
  void operator()(const char* key, std::vector<Row>& rows) {
    DemandTable(key);
    Optional(key, rows);
  }
  template <typename Row>
  void Optional(const char* key, std::vector<Row>& rows) {
    map_.Items(key, Need::kOptional, [&](YamlMap& row) {
      ProfileReader(row).Read(rows.emplace_back());
    });
  }
  template <typename Part>
  void Optional(const char* key, Part& value) {
    Section(key, Need::kOptional, value);
  }

 private:
  using Need = YamlMap::Need;

  template <typename Part>
  void Section(const char* key, Need need, Part& value) {
    map_.Section(key, need,
                 [&](YamlMap& map) { ProfileReader(map).Read(value); });
  }
  const YamlTree* Scalar(const char* key, absl::string_view expected) {
    return map_.Scalar(key, Need::kRequired, expected);
  }
  void DemandTable(const char* key) {
    if (!needs_tables_ || map_.Find(key) != nullptr) return;
    map_.Error(key,
               "missing, as are device and network, which would price what no "
               "table has; measure the tables with millrace profile JOB");
  }

  // The range of all machines' figures. Sums and quotients of numbers in it are
  // finite.
  struct Range {
    double least;  // Or 0.
    double most;
  };
  static Range RangeOf(absl::string_view key) {
    const bool is_rate = absl::EndsWith(key, "_per_s");
    const bool is_time =
        key == "seconds" || (absl::EndsWith(key, "_s") && !is_rate);
    if (is_time) return {1e-12, 1e6};
    if (is_rate) return {1, 1e18};
    return {1e-15, 1e15};
  }
  static std::string Describe(Range range) {
    return absl::StrCat("0 or from ", range.least, " to ", range.most);
  }
  static bool ParseNumber(const std::string& text, Range range, double* value) {
    return absl::SimpleAtod(text, value) &&
           (*value == 0 || (*value >= range.least && *value <= range.most));
  }
  template <typename Value>
  void Integer(const char* key, Value least, Value* value) {
    const std::string expected = absl::StrCat("an integer of at least ", least);
    const YamlTree* entry = Scalar(key, expected);
    if (entry != nullptr &&
        (!absl::SimpleAtoi(entry->scalar, value) || *value < least)) {
      map_.Expected(*entry, key, expected);
    }
  }

  YamlMap& map_;
  bool needs_tables_ = true;
};

// Writes records. Tables get one row a line.
class ProfileWriter {
 public:
  // `omits_empty_tables` is for profiles whose device and network price all
  // ops.
  explicit ProfileWriter(int depth, bool omits_empty_tables = false)
      : indent_(static_cast<size_t>(depth) * 2, ' '),
        omits_empty_tables_(omits_empty_tables) {}

  void operator()(const char* key, std::string& value) {
    Line(key, QuoteYaml(value));
  }
  void operator()(const char* key, double& value) {
    Line(key, NumberToText(value));
  }
  void operator()(const char* key, int32_t& value) {
    Line(key, absl::StrCat(value));
  }
  void operator()(const char* key, int64_t& value) {
    Line(key, absl::StrCat(value));
  }
  template <typename Value>
  void FromZero(const char* key, Value& value) {
    (*this)(key, value);
  }
  void Later(const char* key, double& value) { (*this)(key, value); }
  void IfAbove(int64_t least, const char* key, int64_t& value) {
    if (value > least) (*this)(key, value);
  }
  void IfSet(const char* key, bool& value) {
    if (value) (*this)(key, value);
  }
  void Settings(const char* key, std::string& value) { (*this)(key, value); }
  void operator()(const char* key, bool& value) {
    Line(key, value ? "true" : "false");
  }
  void operator()(const char* key, OpKind& value) {
    Line(key, OpKindName(value));
  }
  void operator()(const char* key, Precision& value) {
    Line(key, PrecisionName(value));
  }
  void operator()(const char* key, ProfileProvenance& value) {
    ProfileWriter section(1);
    VisitFields(section, value);
    absl::StrAppend(&text_, key, ":\n", absl::StrJoin(section.lines_, "\n"),
                    "\n");
  }
  void Optional(const char* key, KernelTuning& value) {
    if (!value.is_given()) return;
    Flush();
    ProfileWriter section(1);
    VisitFields(section, value);
    absl::StrAppend(&text_, key, ":\n", section.Text());
  }
  template <typename Part>
  void Optional(const char* key, Part& value) {
    if (value == Part{}) return;
    ProfileWriter fields(0);
    VisitFields(fields, value);
    Line(key, absl::StrCat("{", absl::StrJoin(fields.lines_, ", "), "}"));
  }
  void operator()(const char* key, std::vector<double>& values) {
    Line(key, absl::StrCat("[",
                           absl::StrJoin(values, ", ",
                                         [](std::string* out, double value) {
                                           out->append(NumberToText(value));
                                         }),
                           "]"));
  }
  template <typename Row>
  void operator()(const char* key, std::vector<Row>& rows) {
    if (rows.empty() && omits_empty_tables_) return;
    Flush();
    absl::StrAppend(&text_, indent_, key, rows.empty() ? ": []\n" : ":\n");
    for (Row& row : rows) {
      ProfileWriter fields(0);
      VisitFields(fields, row);
      absl::StrAppend(&text_, indent_, "  - {",
                      absl::StrJoin(fields.lines_, ", "), "}\n");
    }
  }

  template <typename Row>
  void Optional(const char* key, std::vector<Row>& rows) {
    if (!rows.empty()) (*this)(key, rows);
  }

  std::string Text() {
    Flush();
    return std::move(text_);
  }

 private:
  void Line(const char* key, absl::string_view value) {
    lines_.push_back(absl::StrCat(indent_, key, ": ", value));
  }
  void Flush() {
    for (const std::string& line : lines_) absl::StrAppend(&text_, line, "\n");
    lines_.clear();
  }

  std::string indent_;
  bool omits_empty_tables_;
  std::string text_;
  std::vector<std::string> lines_;
};

std::string CleanForFileName(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return clean;
}

// Returns the line of the key that `what` begins with; 1 if the file lacks it.
int LineOf(const YamlTree& tree, absl::string_view what) {
  const absl::string_view key = what.substr(0, what.find_first_of(":.[ "));
  for (const YamlTree& entry : tree.children) {
    if (entry.key == key) return entry.line;
  }
  return 1;
}

}  // namespace

absl::StatusOr<HardwareProfile> ParseProfile(absl::string_view yaml,
                                             const std::string& file_name) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  HardwareProfile profile;
  YamlErrors errors(file_name);
  YamlMap map(tree, "", &errors);
  ProfileReader(map).Read(profile);
  map.Finish();
  // Below, so many factors are created. No host has nearly as many ranks.
  constexpr int32_t kMaxRanksPerHost = 1024;
  if (profile.ranks_per_host > kMaxRanksPerHost) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":1: ranks_per_host: expected ", kMaxRanksPerHost,
        " at most, found ", profile.ranks_per_host));
  }
  if (profile.compute_contention.empty() && !profile.network.empty()) {
    profile.compute_contention.assign(
        static_cast<size_t>(std::max(profile.ranks_per_host, 1)), 1.0);
  }
  RETURN_IF_ERROR(errors.status());
  // Files without hosts are of neighbours in rank order.
  for (CommunicationTime& time : profile.communication) {
    if (time.hosts == 1) {
      time.hosts = HostsOf(time.group_size, 1, profile.ranks_per_host);
    }
  }
  if (const std::string inconsistency = InconsistencyOf(profile);
      !inconsistency.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        file_name, ":", LineOf(tree, inconsistency), ": ", inconsistency));
  }
  return profile;
}

absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadFile(path));
  return ParseProfile(yaml, path);
}

std::string ProfileToYaml(const HardwareProfile& profile) {
  // Reading and writing share field lists that give mutable members, hence the
  // copy.
  HardwareProfile copy = profile;
  ProfileWriter writer(0,
                       profile.device.is_given() && !profile.network.empty());
  VisitFields(writer, copy);
  return absl::StrCat(
      profile.gemms.empty() ? "# " : "# Measured by `millrace profile`. ",
      "docs/profile.md explains each key.\n", writer.Text());
}

absl::Status SaveProfile(const HardwareProfile& profile,
                         const std::string& path) {
  if (const size_t slash = path.rfind('/');
      slash != std::string::npos && slash > 0) {
    RETURN_IF_ERROR(MakeDirectories(path.substr(0, slash)));
  }
  return WriteFileAtomically(path, ProfileToYaml(profile));
}

absl::StatusOr<std::string> DefaultProfilePath(
    const ProfileIdentity& identity) {
  std::string cache;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME");
      xdg != nullptr && xdg[0] == '/') {
    cache = xdg;
  } else if (const char* home = std::getenv("HOME");
             home != nullptr && home[0] == '/') {
    cache = absl::StrCat(home, "/.cache");
  } else {
    return absl::FailedPreconditionError(
        "no place to keep hardware profiles: neither XDG_CACHE_HOME nor HOME "
        "is set; set one, or give profile: PATH in the job file");
  }
  return absl::StrCat(
      cache, "/millrace/profiles/", CleanForFileName(identity.machine), "-",
      CleanForFileName(identity.shape), "-ranks", identity.num_ranks,
      identity.is_on_several_hosts()
          ? absl::StrCat("by", identity.ranks_per_host)
          : "",
      "-threads", identity.threads_per_device, ".yaml");
}

std::vector<std::string> CachedProfilePaths(const ProfileIdentity& identity) {
  std::vector<std::string> paths;
  const absl::StatusOr<std::string> own = DefaultProfilePath(identity);
  if (!own.ok()) return paths;
  const std::string prefix = own->substr(0, own->rfind("-ranks") + 6);
  std::error_code error;  // Without a folder there are no profiles.
  const std::filesystem::path folder =
      std::filesystem::path(prefix).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string path = entry.path().string();
    if (absl::StartsWith(path, prefix) && absl::EndsWith(path, ".yaml")) {
      paths.push_back(std::move(path));
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> ProfileWarnings(const HardwareProfile& profile,
                                         const ProfileIdentity& identity) {
  const ProfileProvenance& provenance = profile.provenance;
  std::vector<std::string> warnings;
  if (provenance.machine != identity.machine) {
    warnings.push_back(
        absl::StrCat("foreign profile: measured on ", provenance.description,
                     " (", provenance.machine, "), this machine is ",
                     identity.machine, "; run millrace profile here"));
  }
  if (provenance.num_ranks != identity.num_ranks) {
    // WithHostsOf() leaves num_ranks as it was.
    const bool is_of_larger_hosts =
        provenance.num_ranks < profile.ranks_per_host &&
        provenance.num_ranks < identity.num_ranks;
    warnings.push_back(absl::StrCat(
        "stale profile: measured with ", provenance.num_ranks,
        " ranks, planned for ", identity.num_ranks,
        is_of_larger_hosts
            ? ", so links to a host's other devices are taken to be like "
              "those that were measured"
            : "",
        "; run millrace profile again"));
  }
  const bool was_on_several_hosts =
      provenance.num_ranks > profile.ranks_per_host;
  if ((was_on_several_hosts || identity.is_on_several_hosts()) &&
      profile.ranks_per_host != identity.ranks_per_host) {
    warnings.push_back(
        absl::StrCat("stale profile: measured with ", profile.ranks_per_host,
                     " ranks a host, planned for ", identity.ranks_per_host,
                     "; run millrace profile again"));
  }
  if (provenance.threads_per_device != identity.threads_per_device) {
    warnings.push_back(absl::StrCat(
        "stale profile: measured with ", provenance.threads_per_device,
        " threads a device, planned for ", identity.threads_per_device,
        "; run millrace profile again"));
  }
  return warnings;
}

}  // namespace millrace
