#include "kernels/tuning/tuning.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using ChoiceByClass = absl::flat_hash_map<TuningValues, TuningValues>;
using Installation = absl::flat_hash_map<std::string, ChoiceByClass>;

// The table that launchers read without a lock; null: none. Installations live
// as long as the process, since a launcher may still read an earlier one.
std::atomic<const Installation*> installed = nullptr;

thread_local ScopedTuningChoice* innermost = nullptr;

constexpr absl::string_view kHeader = "# chip=";

absl::Status LineError(int line, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("tuning table, line ", line, ": ", what));
}

// "name=value name=value", in the order of `names`.
absl::StatusOr<TuningValues> ParseValues(
    absl::string_view text, const std::vector<std::string>& names) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.size() != names.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' has ", words.size(), " values, expected ", names.size()));
  }
  TuningValues values = {};
  for (size_t i = 0; i < words.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (parts.first != names[i] ||
        !absl::SimpleAtoi(parts.second, &values[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", words[i], "' should be ", names[i], "=INTEGER"));
    }
  }
  return values;
}

std::string FormatValues(const TuningValues& values,
                         const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " ", names[i], "=", values[i]);
  }
  return text;
}

std::vector<std::string> KnobNames(const TuningFamily& family) {
  std::vector<std::string> names;
  for (const TuningKnob& knob : family.knobs) names.push_back(knob.name);
  return names;
}

const TuningFamily* FindFamily(absl::Span<const TuningFamily> families,
                               absl::string_view name) {
  for (const TuningFamily& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

// family | class | choice | seconds start_seconds
absl::StatusOr<TuningEntry> ParseEntry(
    absl::string_view text, int line, absl::Span<const TuningFamily> families) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, " | ");
  if (fields.size() != 4) {
    return LineError(line, absl::StrCat("'", text,
                                        "' should be FAMILY | CLASS | CHOICE | "
                                        "SECONDS START_SECONDS"));
  }
  absl::StatusOr<TuningEntry> read =
      TuningEntryOf({.family = std::string(fields[0]),
                     .shape_class = std::string(fields[1]),
                     .choice = std::string(fields[2])},
                    families);
  if (!read.ok()) return LineError(line, read.status().message());
  TuningEntry entry = *std::move(read);
  const std::vector<absl::string_view> times =
      absl::StrSplit(fields[3], ' ', absl::SkipEmpty());
  if (times.size() != 2 || !absl::SimpleAtod(times[0], &entry.seconds) ||
      !absl::SimpleAtod(times[1], &entry.start_seconds) ||
      !(entry.seconds > 0 && entry.start_seconds > 0)) {
    return LineError(
        line, absl::StrCat("'", fields[3], "' should be two positive times"));
  }
  return entry;
}

// One search: what was measured, by choice.
class Descent {
 public:
  Descent(const TuningFamily& family, const TuningMeasure& measure,
          double least_gain)
      : family_(family), measure_(measure), least_gain_(least_gain) {}

  absl::StatusOr<TuningResult> Run(const TuningValues& start) {
    std::vector<int> at;
    for (size_t i = 0; i < family_.knobs.size(); ++i) {
      const TuningKnob& knob = family_.knobs[i];
      const auto found =
          std::find(knob.values.begin(), knob.values.end(), start[i]);
      if (found == knob.values.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(family_.name, ": the start of ", knob.name, ", ",
                         start[i], ", is none of its values"));
      }
      at.push_back(static_cast<int>(found - knob.values.begin()));
    }
    ASSIGN_OR_RETURN(const std::optional<double> start_seconds, Seconds(at));
    if (!start_seconds.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(family_.name, ": its start does not run"));
    }
    double best = *start_seconds;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t knob = 0; knob < at.size(); ++knob) {
        for (const int direction : {+1, -1}) {
          ASSIGN_OR_RETURN(const bool gained, Slide(knob, direction, at, best));
          moved |= gained;
          if (gained) break;
        }
      }
    }
    return TuningResult{.choice = ChoiceAt(at),
                        .seconds = best,
                        .start_seconds = *start_seconds,
                        .num_measured = static_cast<int>(measured_.size())};
  }

 private:
  // Moves along one knob as long as it pays, in steps that double.
  absl::StatusOr<bool> Slide(size_t knob, int direction, std::vector<int>& at,
                             double& best) {
    bool gained = false;
    const int size = static_cast<int>(family_.knobs[knob].values.size());
    for (int step = 1;;) {
      std::vector<int> next = at;
      next[knob] += direction * step;
      const bool inside = next[knob] >= 0 && next[knob] < size;
      std::optional<double> seconds;
      if (inside) {
        ASSIGN_OR_RETURN(seconds, Seconds(next));
      }
      if (seconds.has_value() && *seconds < best * (1 - least_gain_)) {
        at = next;
        best = *seconds;
        gained = true;
        step *= 2;
      } else if (step > 1) {
        step = 1;  // It was too long: look at the neighbour before giving up.
      } else {
        return gained;
      }
    }
  }

  absl::StatusOr<std::optional<double>> Seconds(const std::vector<int>& at) {
    const auto known = measured_.find(at);
    if (known != measured_.end()) return known->second;
    std::optional<double> seconds;
    const absl::StatusOr<double> measured = measure_(ChoiceAt(at));
    if (measured.ok()) {
      seconds = *measured;
    } else if (!absl::IsInvalidArgument(measured.status()) &&
               !absl::IsResourceExhausted(measured.status())) {
      return measured.status();
    }
    measured_[at] = seconds;
    return seconds;
  }

  TuningValues ChoiceAt(const std::vector<int>& at) const {
    TuningValues choice = {};
    for (size_t i = 0; i < at.size(); ++i) {
      choice[i] = family_.knobs[i].values[at[i]];
    }
    return choice;
  }

  const TuningFamily& family_;
  const TuningMeasure& measure_;
  const double least_gain_;
  std::map<std::vector<int>, std::optional<double>> measured_;
};

}  // namespace

int64_t SizeClass(int64_t size) {
  int64_t bound = 1;
  while (bound < size) bound *= 2;
  return bound;
}

TuningWords WordsOf(const TuningEntry& entry, const TuningFamily& family) {
  return {.family = family.name,
          .shape_class = FormatValues(entry.shape_class, family.class_dims),
          .choice = FormatValues(entry.choice, KnobNames(family))};
}

absl::StatusOr<TuningEntry> TuningEntryOf(
    const TuningWords& words, absl::Span<const TuningFamily> families) {
  const TuningFamily* family = FindFamily(families, words.family);
  if (family == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no kernel family '", words.family, "'"));
  }
  TuningEntry entry = {.family = family->name};
  ASSIGN_OR_RETURN(entry.shape_class,
                   ParseValues(words.shape_class, family->class_dims));
  ASSIGN_OR_RETURN(entry.choice, ParseValues(words.choice, KnobNames(*family)));
  for (size_t i = 0; i < family->knobs.size(); ++i) {
    const std::vector<int>& values = family->knobs[i].values;
    if (std::find(values.begin(), values.end(), entry.choice[i]) ==
        values.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(family->knobs[i].name, "=", entry.choice[i],
                       " is no value of this knob"));
    }
  }
  return entry;
}

std::string FormatTuningTable(const TuningTable& table,
                              absl::Span<const TuningFamily> families) {
  std::string text =
      absl::StrCat(kHeader, table.chip, "\n# version=", table.version,
                   "\n# date=", table.date, "\n");
  for (const TuningEntry& entry : table.entries) {
    const TuningFamily* family = FindFamily(families, entry.family);
    if (family == nullptr) continue;
    const TuningWords words = WordsOf(entry, *family);
    absl::StrAppend(
        &text, words.family, " | ", words.shape_class, " | ", words.choice,
        " | ",
        absl::StrFormat("%.4g %.4g\n", entry.seconds, entry.start_seconds));
  }
  return text;
}

absl::StatusOr<TuningTable> ParseTuningTable(
    absl::string_view text, absl::Span<const TuningFamily> families) {
  TuningTable table;
  int line = 0;
  for (absl::string_view words : absl::StrSplit(text, '\n')) {
    ++line;
    if (words.empty()) continue;
    if (words[0] == '#') {
      for (const auto& [key, value] :
           {std::pair<absl::string_view, std::string*>{"# chip=", &table.chip},
            {"# version=", &table.version},
            {"# date=", &table.date}}) {
        if (words.substr(0, key.size()) == key) {
          *value = std::string(words.substr(key.size()));
        }
      }
      continue;
    }
    ASSIGN_OR_RETURN(TuningEntry entry, ParseEntry(words, line, families));
    table.entries.push_back(std::move(entry));
  }
  if (table.chip.empty()) {
    return absl::InvalidArgumentError(
        "tuning table: no line '# chip=NAME' says what it was measured on");
  }
  return table;
}

void InstallTuning(const TuningTable& table) {
  static absl::Mutex mutex(absl::kConstInit);
  static auto* all = new std::vector<std::unique_ptr<const Installation>>();
  Installation choices;
  for (const TuningEntry& entry : table.entries) {
    choices[entry.family][entry.shape_class] = entry.choice;
  }
  const absl::MutexLock lock(&mutex);
  const auto known =
      std::find_if(all->begin(), all->end(),
                   [&](const auto& one) { return *one == choices; });
  if (known != all->end()) {
    installed = known->get();
    return;
  }
  all->push_back(std::make_unique<const Installation>(std::move(choices)));
  installed = all->back().get();
}

TuningValues TunedChoice(const TuningFamily& family,
                         const TuningValues& shape_class,
                         const TuningValues& start) {
  for (ScopedTuningChoice* scope = innermost; scope != nullptr;
       scope = scope->outer_) {
    if (scope->family_.name != family.name) continue;
    scope->asked_ = {.shape_class = shape_class, .start = start};
    return scope->choice_.value_or(start);
  }
  const Installation* table = installed;
  if (table == nullptr) return start;
  const auto of_family = table->find(family.name);
  if (of_family == table->end()) return start;
  const auto found = of_family->second.find(shape_class);
  return found == of_family->second.end() ? start : found->second;
}

ScopedTuningChoice::ScopedTuningChoice(const TuningFamily& family)
    : outer_(innermost), family_(family) {
  innermost = this;
}

ScopedTuningChoice::ScopedTuningChoice(const TuningFamily& family,
                                       const TuningValues& choice)
    : ScopedTuningChoice(family) {
  choice_ = choice;
}

ScopedTuningChoice::~ScopedTuningChoice() { innermost = outer_; }

absl::StatusOr<TuningResult> Tune(const TuningFamily& family,
                                  const TuningValues& start,
                                  const TuningMeasure& measure,
                                  double least_gain) {
  return Descent(family, measure, least_gain).Run(start);
}

}  // namespace millrace
