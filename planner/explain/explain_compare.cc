#include "planner/explain/explain_compare.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "planner/explain/layout_name.h"
#include "planner/job/job_file.h"
#include "planner/search/prediction.h"
#include "planner/text/nearest_word.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

constexpr char kSection[] = "layout.";
// The number of causes in a verdict.
constexpr size_t kShownCauses = 3;
// Parts that differ by less than this share of the step are not named as
// causes.
constexpr double kShownCause = 5e-4;
// The number of comparisons that fit a page beside the choice. More comparisons
// get another table.
constexpr size_t kColumnsOfATable = 2;
// A memory size with which any layout fits. It is exact as a double, so a job
// file can hold it.
constexpr int64_t kUnlimitedMemory = int64_t{1} << 52;

std::vector<std::string> LayoutNames() {
  std::vector<std::string> names;
  for (const JobKey& key : JobKeys()) {
    absl::string_view name = key.path;
    if (absl::ConsumePrefix(&name, kSection)) names.emplace_back(name);
  }
  for (const LayoutSize& row : LayoutSizes()) {
    names.emplace_back(row.short_name);
  }
  return names;
}

std::string FullName(absl::string_view name) {
  for (const LayoutSize& row : LayoutSizes()) {
    if (name == row.short_name) return row.name;
  }
  return std::string(name);
}

absl::Status AskedError(const std::string& asked, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--compare ", asked, ": ", what));
}

absl::Status PinOne(const std::string& asked, absl::string_view assignment,
                    JobSpec* job, std::set<std::string>* names) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(assignment, absl::MaxSplits('=', 1));
  const JobKey* key = FindJobKey(absl::StrCat(kSection, FullName(parts.first)));
  if (key == nullptr) {
    const std::vector<std::string> names = LayoutNames();
    const std::optional<std::string> nearest = NearestWord(parts.first, names);
    return AskedError(
        asked,
        absl::StrCat(
            "unknown name '", parts.first, "'; ",
            nearest ? absl::StrCat("did you mean ", *nearest, "?")
                    : absl::StrCat("known: ", absl::StrJoin(names, ", "))));
  }
  if (!SetJobValue(*key, parts.second, job)) {
    return AskedError(
        asked, absl::StrCat(parts.first, ": expected ", DescribeExpected(*key),
                            ", found '", parts.second, "'"));
  }
  if (!names->insert(FullName(parts.first)).second) {
    return AskedError(asked, absl::StrCat(FullName(parts.first),
                                          " is given twice; keep one"));
  }
  return absl::OkStatus();
}

// Returns jobs from the closest to the loosest reading of the question: with
// all of the job's other pins; without pins on axes, which may contradict the
// question; and both again with unlimited memory, to find layouts that only
// memory forbids.
std::vector<JobSpec> JobsToTry(const JobSpec& pinned,
                               const std::set<std::string>& names) {
  std::vector<JobSpec> jobs = {pinned};
  JobSpec freed = pinned;
  for (const LayoutSize& row : LayoutSizes()) {
    if (row.axis.has_value() && !names.contains(row.name)) {
      (freed.layout.*row.pinned).reset();
    }
  }
  if (freed != pinned) jobs.push_back(freed);
  const size_t num_limited = jobs.size();
  for (size_t i = 0; i < num_limited; ++i) {
    jobs.push_back(jobs[i]);
    jobs.back().resources.memory_per_device_bytes = kUnlimitedMemory;
  }
  return jobs;
}

template <typename Value>
Value Total(const std::vector<Part<Value>>& parts) {
  Value sum = 0;
  for (const Part<Value>& part : parts) sum += part.value;
  return sum;
}

template <typename Value>
Value ValueOf(const std::vector<Part<Value>>& parts, absl::string_view name) {
  Value value = 0;
  for (const Part<Value>& part : parts) {
    if (part.name == name) value += part.value;
  }
  return value;
}

// Returns all names of both lists, in the order of the first.
template <typename Value>
std::vector<std::string> NamesOf(
    const std::vector<const std::vector<Part<Value>>*>& columns) {
  std::vector<std::string> names;
  for (const std::vector<Part<Value>>* parts : columns) {
    for (const Part<Value>& part : *parts) {
      if (std::ranges::find(names, part.name) == names.end()) {
        names.push_back(part.name);
      }
    }
  }
  return names;
}

std::string Signed(double seconds) {
  return absl::StrCat(seconds < 0 ? "-" : "+",
                      FormatStepTime(std::abs(seconds)));
}

// Names the largest differences: "compute +1.20 s, bubble -300 ms".
std::string CausesText(const LayoutParts& parts, const LayoutParts& chosen) {
  std::vector<Part<double>> differences;
  for (const std::string& name : NamesOf<double>({&chosen.time, &parts.time})) {
    differences.push_back(
        {name, ValueOf(parts.time, name) - ValueOf(chosen.time, name)});
  }
  std::ranges::stable_sort(
      differences, std::greater<>(),
      [](const Part<double>& part) { return std::abs(part.value); });
  const double step = Total(chosen.time);
  std::vector<std::string> texts;
  for (const Part<double>& difference : differences) {
    if (texts.size() == kShownCauses ||
        std::abs(difference.value) < kShownCause * step) {
      break;
    }
    texts.push_back(
        absl::StrCat(difference.name, " ", Signed(difference.value)));
  }
  return absl::StrJoin(texts, ", ");
}

// Names the job's pins that `tried` gave up: "; without the job's tensor 8".
std::string GivenUpText(const JobSpec& job, const JobSpec& tried) {
  std::vector<const JobKey*> keys = PinnedKeys(job);
  std::erase_if(keys, [&](const JobKey* key) {
    return JobValueToYaml(*key, job) == JobValueToYaml(*key, tried);
  });
  if (keys.empty()) return "";
  return absl::StrCat("; without the job's ", PinsText(keys, job));
}

// `obstacle` says why the layout is impossible; empty if it is possible.
std::string Verdict(const LayoutComparison& comparison, const Plan& chosen,
                    const LayoutParts& chosen_parts,
                    const std::string& obstacle) {
  if (!comparison.plan.has_value()) {
    return absl::StrCat("cannot be: ", obstacle);
  }
  if (comparison.plan->layout == chosen.layout) return "the chosen layout";
  const std::string causes = CausesText(comparison.parts, chosen_parts);
  const std::string speed =
      absl::StrCat(SpeedText(comparison.plan->prediction.step_time_s /
                             chosen.prediction.step_time_s),
                   causes.empty() ? "" : ": ", causes);
  if (comparison.fits) return speed;
  return absl::StrCat("cannot be: ", obstacle, "; with memory for it, ", speed);
}

struct Column {
  std::string title;
  const LayoutParts* parts;
};

// Writes rows of values and of their differences to the first column.
template <typename Value, typename Format>
std::string Rows(const std::vector<Column>& columns,
                 std::vector<Part<Value>> LayoutParts::*member,
                 const Format& format) {
  std::vector<const std::vector<Part<Value>>*> parts;
  for (const Column& column : columns)
    parts.push_back(&(column.parts->*member));
  std::string text;
  const auto append_row = [&](absl::string_view name, const auto& value_of) {
    absl::StrAppendFormat(&text, "  %-30s", name);
    for (size_t i = 0; i < columns.size(); ++i) {
      const Value value = value_of(i);
      absl::StrAppendFormat(&text, " %11s", format(value));
      if (i > 0) {
        const Value more = value - value_of(0);
        absl::StrAppendFormat(
            &text, " %12s",
            more == 0 ? ""
                      : absl::StrCat(more < 0 ? "-" : "+",
                                     format(more < 0 ? -more : more)));
      }
    }
    absl::StrAppend(&text, "\n");
  };
  for (const std::string& name : NamesOf<Value>(parts)) {
    const bool is_anywhere = std::ranges::any_of(
        parts, [&](const auto* part) { return ValueOf(*part, name) != 0; });
    if (!is_anywhere) continue;
    append_row(name, [&](size_t i) { return ValueOf(*parts[i], name); });
  }
  append_row("together", [&](size_t i) { return Total(*parts[i]); });
  return text;
}

// Writes the parts of time and memory of each column. Lines end with \n.
std::string PartsTable(const std::vector<Column>& columns) {
  std::string text =
      absl::StrFormat("\n  %-30s %11s", "a part of the step", "chosen");
  for (size_t i = 1; i < columns.size(); ++i) {
    absl::StrAppendFormat(&text, " %24s", columns[i].title);
  }
  absl::StrAppend(
      &text, "\n",
      Rows<double>(columns, &LayoutParts::time,
                   [](double seconds) { return FormatStepTime(seconds); }),
      "\n  bytes of the most loaded rank\n",
      Rows<int64_t>(columns, &LayoutParts::memory,
                    [](int64_t bytes) { return FormatBytes(bytes); }));
  return text;
}

}  // namespace

std::vector<const JobKey*> PinnedKeys(const JobSpec& job) {
  std::vector<const JobKey*> keys;
  for (const JobKey& key : JobKeys()) {
    if (absl::StartsWith(key.path, kSection) &&
        JobValueToYaml(key, job) != "auto") {
      keys.push_back(&key);
    }
  }
  return keys;
}

std::string PinsText(const std::vector<const JobKey*>& keys,
                     const JobSpec& job) {
  return absl::StrJoin(keys, ", ", [&](std::string* out, const JobKey* key) {
    absl::StrAppend(out, absl::StripPrefix(key->path, kSection), " ",
                    JobValueToYaml(*key, job));
  });
}

absl::StatusOr<LayoutComparison> CompareLayout(const std::string& asked,
                                               const PlanningCase& planned,
                                               const Plan& chosen,
                                               const LayoutParts& chosen_parts,
                                               const Planner& planner) {
  JobSpec pinned = planned.job;
  std::set<std::string> names;
  for (const absl::string_view assignment : absl::StrSplit(asked, ',')) {
    RETURN_IF_ERROR(PinOne(asked, assignment, &pinned, &names));
  }
  LayoutComparison comparison{.asked = asked};
  std::string obstacle;
  std::string given_up;
  for (const JobSpec& job : JobsToTry(pinned, names)) {
    PlanningCase tried = planned;
    tried.job = job;
    absl::StatusOr<Plan> plan = planner(tried);
    if (plan.ok()) {
      ASSIGN_OR_RETURN(comparison.parts, PartsOf(*plan));
      comparison.plan = *std::move(plan);
      comparison.fits = job.resources == planned.job.resources;
      given_up = GivenUpText(planned.job, job);
      break;
    }
    if (!absl::IsInvalidArgument(plan.status())) return plan.status();
    // The last job with the real memory comes closest to the question.
    if (job.resources == planned.job.resources) {
      obstacle = std::string(plan.status().message());
    }
  }
  comparison.verdict = absl::StrCat(
      Verdict(comparison, chosen, chosen_parts, obstacle), given_up);
  return comparison;
}

std::string ComparisonsTable(const Plan& chosen,
                             const LayoutParts& chosen_parts,
                             const std::vector<LayoutComparison>& comparisons) {
  std::string text =
      absl::StrCat("\n  compared with the chosen ", NameOf(chosen), "\n");
  std::vector<Column> others;
  for (const LayoutComparison& comparison : comparisons) {
    absl::StrAppend(
        &text,
        WrapLine(absl::StrCat("  ", comparison.asked, ": ",
                              comparison.plan.has_value()
                                  ? absl::StrCat(NameOf(*comparison.plan), ": ")
                                  : "",
                              comparison.verdict),
                 4),
        "\n");
    if (comparison.plan.has_value()) {
      others.push_back({comparison.asked, &comparison.parts});
    }
  }
  for (size_t begin = 0; begin < others.size(); begin += kColumnsOfATable) {
    std::vector<Column> columns = {{"chosen", &chosen_parts}};
    for (size_t i = begin;
         i < std::min(others.size(), begin + kColumnsOfATable); ++i) {
      columns.push_back(others[i]);
    }
    absl::StrAppend(&text, PartsTable(columns));
  }
  return text;
}

}  // namespace millrace
