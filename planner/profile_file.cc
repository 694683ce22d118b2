#include "planner/profile_file.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "planner/nearest_word.h"
#include "planner/profile_fields.h"
#include "planner/yaml_tree.h"

namespace millrace {
namespace {

// Writes records; tables get one row a line.
class Writer {
 public:
  // `omits_empty_tables`: where device and network price what no table has.
  explicit Writer(int depth, bool omits_empty_tables = false)
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
  void FromZero(const char* key, int32_t& value) { (*this)(key, value); }
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
    Writer section(1);
    VisitFields(section, value);
    absl::StrAppend(&text_, key, ":\n", absl::StrJoin(section.lines_, "\n"),
                    "\n");
  }
  template <OptionalSection Part>
  void operator()(const char* key, Part& value) {
    if (value == Part{}) return;
    Writer fields(0);
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
    if (rows.empty() && (OptionalRow<Row> || omits_empty_tables_)) return;
    Flush();
    absl::StrAppend(&text_, key, rows.empty() ? ": []\n" : ":\n");
    for (Row& row : rows) {
      Writer fields(0);
      VisitFields(fields, row);
      absl::StrAppend(&text_, "  - {", absl::StrJoin(fields.lines_, ", "),
                      "}\n");
    }
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

// Reads one map; every key but the optional ones is required, none may be
// unknown or given twice.
class Reader {
 public:
  Reader(const YamlTree& tree, const std::string& file_name, std::string path,
         std::vector<std::string>* errors)
      : tree_(tree),
        file_name_(file_name),
        path_(std::move(path)),
        errors_(errors) {}

  template <typename Record>
  void Read(Record& record) {
    if (tree_.kind != YamlTree::Kind::kMap) {
      Error(tree_, "",
            absl::StrCat("expected a map, found ", DescribeYaml(tree_)));
      return;
    }
    needs_tables_ = Given("device") == nullptr || Given("network") == nullptr;
    VisitFields(*this, record);
    std::set<std::string> seen;
    for (const YamlTree& entry : tree_.children) {
      if (!seen.insert(entry.key).second) {
        Error(entry, entry.key, "given twice; remove one");
      }
      if (std::find(keys_.begin(), keys_.end(), entry.key) != keys_.end()) {
        continue;
      }
      const auto nearest = NearestWord(entry.key, keys_);
      Error(entry, entry.key,
            nearest.has_value()
                ? absl::StrCat("unknown key; did you mean '", *nearest, "'?")
                : absl::StrCat("unknown key; known keys here: ",
                               absl::StrJoin(keys_, ", ")));
    }
  }

  void operator()(const char* key, std::string& value) {
    if (const YamlTree* entry = FindScalar(key, "text")) value = entry->scalar;
  }
  void operator()(const char* key, double& value) { Number(key, &value); }
  void operator()(const char* key, int32_t& value) { Integer(key, &value); }
  void operator()(const char* key, int64_t& value) { Integer(key, &value); }
  void FromZero(const char* key, int32_t& value) { Integer(key, &value, 0); }
  void operator()(const char* key, bool& value) {
    const YamlTree* entry = FindScalar(key, "true or false");
    if (entry == nullptr) return;
    if (entry->scalar != "true" && entry->scalar != "false") {
      Expected(*entry, key, "true or false");
    }
    value = entry->scalar == "true";
  }
  void operator()(const char* key, OpKind& value) {
    const YamlTree* entry = FindScalar(key, "an op kind");
    if (entry == nullptr) return;
    std::vector<std::string> names;
    for (int i = 0; i < kNumOpKinds; ++i) {
      names.emplace_back(OpKindName(static_cast<OpKind>(i)));
      if (names.back() != entry->scalar) continue;
      value = static_cast<OpKind>(i);
      return;
    }
    const auto nearest = NearestWord(entry->scalar, names);
    Error(*entry, key,
          absl::StrCat(
              "unknown op kind '", entry->scalar, "'; ",
              nearest.has_value()
                  ? absl::StrCat("did you mean '", *nearest, "'?")
                  : absl::StrCat("known: ", absl::StrJoin(names, ", "))));
  }
  // May be left out: profiles were of fp32 before they said so.
  void operator()(const char* key, Precision& value) {
    keys_.emplace_back(key);
    const YamlTree* given = Given(key);
    if (given == nullptr) return;
    for (const Precision precision :
         {Precision::kFloat32, Precision::kBfloat16}) {
      if (given->kind == YamlTree::Kind::kScalar &&
          given->scalar == PrecisionName(precision)) {
        value = precision;
        return;
      }
    }
    Expected(*given, key, "fp32 or bf16");
  }
  void operator()(const char* key, ProfileProvenance& value) {
    if (const YamlTree* entry = Find(key)) Section(*entry, key).Read(value);
  }
  template <OptionalSection Part>
  void operator()(const char* key, Part& value) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry != nullptr) Section(*entry, key).Read(value);
  }
  void operator()(const char* key, std::vector<double>& values) {
    const YamlTree* entry = FindTable(key);
    if (entry == nullptr) return;
    for (const YamlTree& item : entry->children) {
      values.push_back(0);
      if (item.kind != YamlTree::Kind::kScalar ||
          !ParseNumber(item.scalar, &values.back())) {
        Expected(item, key, "numbers of at least 0");
      }
    }
  }
  template <typename Row>
  void operator()(const char* key, std::vector<Row>& rows) {
    const YamlTree* entry =
        OptionalRow<Row> ? FindGivenList(key) : FindTable(key);
    if (entry == nullptr) return;
    for (const YamlTree& item : entry->children) {
      rows.emplace_back();
      Section(item, absl::StrCat(key, "[", rows.size() - 1, "]"))
          .Read(rows.back());
    }
  }

 private:
  Reader Section(const YamlTree& tree, const std::string& key) const {
    return Reader(tree, file_name_, absl::StrCat(path_, key, "."), errors_);
  }

  const YamlTree* Given(absl::string_view key) const {
    const auto given =
        std::find_if(tree_.children.begin(), tree_.children.end(),
                     [&](const YamlTree& entry) { return entry.key == key; });
    return given == tree_.children.end() ? nullptr : &*given;
  }
  const YamlTree* Find(const char* key) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry == nullptr) Error(tree_, key, "missing");
    return entry;
  }
  const YamlTree* FindScalar(const char* key, absl::string_view expected) {
    const YamlTree* entry = Find(key);
    if (entry == nullptr) return nullptr;
    if (entry->kind == YamlTree::Kind::kScalar) return entry;
    Expected(*entry, key, expected);
    return nullptr;
  }
  const YamlTree* FindGivenList(const char* key) {
    keys_.emplace_back(key);
    const YamlTree* entry = Given(key);
    if (entry == nullptr || entry->kind == YamlTree::Kind::kList) return entry;
    Expected(*entry, key, "a list");
    return nullptr;
  }
  const YamlTree* FindTable(const char* key) {
    if (needs_tables_ && Given(key) == nullptr) {
      Error(tree_, key,
            "missing, as are device and network, which would price what no "
            "table has; measure the tables with millrace profile JOB");
    }
    return FindGivenList(key);
  }

  static bool ParseNumber(const std::string& text, double* value) {
    return absl::SimpleAtod(text, value) && std::isfinite(*value) &&
           *value >= 0;
  }
  void Number(const char* key, double* value) {
    const YamlTree* entry = FindScalar(key, "a number of at least 0");
    if (entry != nullptr && !ParseNumber(entry->scalar, value)) {
      Expected(*entry, key, "a number of at least 0");
    }
  }
  template <typename Value>
  void Integer(const char* key, Value* value, Value least = 1) {
    const std::string expected = absl::StrCat("an integer of at least ", least);
    const YamlTree* entry = FindScalar(key, expected);
    if (entry != nullptr &&
        (!absl::SimpleAtoi(entry->scalar, value) || *value < least)) {
      Expected(*entry, key, expected);
    }
  }

  void Expected(const YamlTree& tree, absl::string_view key,
                absl::string_view expected) {
    Error(tree, key,
          absl::StrCat("expected ", expected, ", found ", DescribeYaml(tree)));
  }
  void Error(const YamlTree& tree, absl::string_view key,
             absl::string_view what) {
    errors_->push_back(absl::StrCat(file_name_, ":", tree.line, ": ", path_,
                                    key, key.empty() ? "" : ": ", what));
  }

  const YamlTree& tree_;
  const std::string& file_name_;
  const std::string path_;
  std::vector<std::string>* const errors_;
  std::vector<std::string> keys_;  // Asked for so far.
  bool needs_tables_ = true;
};

// What is wrong with the constants; empty: nothing. Whether they are all there
// is for those to say who use them (planner/device_cost.h).
std::string WrongConstant(const std::vector<ModelConstant>& constants) {
  std::set<std::string> seen;
  for (const ModelConstant& constant : constants) {
    if (!seen.insert(constant.name).second) {
      return absl::StrCat("constants: ", constant.name,
                          " is given twice; remove one");
    }
    if (!absl::EndsWith(constant.name, "_share")) continue;
    // Hiding nothing takes its time; reaching nothing would take forever.
    const bool may_be_zero = absl::EndsWith(constant.name, "_hidden_share");
    if (constant.value > 1 || (constant.value == 0 && !may_be_zero)) {
      return absl::StrCat("constants: ", constant.name, ": expected ",
                          may_be_zero ? "0 to 1" : "more than 0, 1 at most",
                          ", found ", constant.value);
    }
  }
  return "";
}

// What is wrong between the fields of a profile that reads well; empty: none.
std::string InconsistencyOf(const HardwareProfile& profile) {
  if (!profile.network.empty() && !profile.device.is_given()) {
    return "device: missing beside network, or without bf16_flops_per_s; the "
           "data sheet of the device gives it";
  }
  if (profile.compute_contention.size() !=
          static_cast<size_t>(profile.ranks_per_host) ||
      profile.compute_contention.front() != 1) {
    return absl::StrCat("compute_contention: expected ranks_per_host = ",
                        profile.ranks_per_host, " factors, the first 1");
  }
  if (profile.overlap.compute < 1 || profile.overlap.communication < 1) {
    return absl::StrCat("overlap: expected factors of at least 1, found ",
                        profile.overlap.compute, " and ",
                        profile.overlap.communication);
  }
  const std::string wrong_constant = WrongConstant(profile.constants);
  if (!wrong_constant.empty()) return wrong_constant;
  const StepError& error = profile.step_error;
  if (error != StepError{} && (error.low <= 0 || error.high < error.low)) {
    return absl::StrCat(
        "step_error: expected 0 < low <= high, measured over predicted, found ",
        error.low, " and ", error.high);
  }
  const ProfileProvenance& provenance = profile.provenance;
  if (provenance.machine.empty() || provenance.version.empty() ||
      provenance.date.empty()) {
    return "provenance: expected machine, version and date; a profile that "
           "does not say where it comes from is not used";
  }
  int32_t inner = 1;
  for (size_t i = 0; i < profile.network.size(); ++i) {
    const NetworkLevel& level = profile.network[i];
    const bool is_last = i + 1 == profile.network.size();
    if (level.bytes_per_s <= 0) {
      return absl::StrCat("network[", i, "].bytes_per_s: expected more than 0");
    }
    if (level.devices == 0 ? !is_last : level.devices % inner != 0) {
      return absl::StrCat(
          "network[", i, "].devices: expected a multiple of the ", inner,
          " of the level before it", is_last ? ", or 0 for all there are" : "",
          ", found ", level.devices);
    }
    inner = level.devices;
  }
  return "";
}

std::string CleanForFileName(absl::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                       c == '.' || c == '-';
    if (!plain) c = '_';
  }
  return clean;
}

}  // namespace

absl::StatusOr<HardwareProfile> ParseProfile(absl::string_view yaml,
                                             const std::string& file_name) {
  ASSIGN_OR_RETURN(const YamlTree tree, ParseYaml(yaml, file_name));
  HardwareProfile profile;
  std::vector<std::string> errors;
  Reader(tree, file_name, "", &errors).Read(profile);
  // As many factors are made below; no host has nearly as many.
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
  if (errors.empty()) {
    const std::string inconsistency = InconsistencyOf(profile);
    if (!inconsistency.empty()) {
      errors.push_back(absl::StrCat(file_name, ":1: ", inconsistency));
    }
  }
  if (!errors.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  }
  return profile;
}

absl::StatusOr<HardwareProfile> LoadProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string yaml, ReadFile(path));
  return ParseProfile(yaml, path);
}

std::string ProfileToYaml(const HardwareProfile& profile) {
  // The field lists give mutable members, so that reading can share them.
  HardwareProfile copy = profile;
  Writer writer(0, profile.device.is_given() && !profile.network.empty());
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
      "-threads", identity.threads_per_device, ".yaml");
}

std::vector<std::string> CachedProfilePaths(const ProfileIdentity& identity) {
  std::vector<std::string> paths;
  const absl::StatusOr<std::string> own = DefaultProfilePath(identity);
  if (!own.ok()) return paths;
  const std::string prefix = own->substr(0, own->rfind("-ranks") + 6);
  std::error_code error;  // No folder means no profiles.
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
    warnings.push_back(absl::StrCat("stale profile: measured with ",
                                    provenance.num_ranks,
                                    " ranks, planned for ", identity.num_ranks,
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
