#include "planner/text/quantity.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/units.h"

namespace millrace {
namespace {

struct Unit {
  const char* name;
  double factor;
  bool is_usual;  // FormatQuantity() chooses among these.
};

constexpr double kBit = 0.125;

// Each from the smallest up.
constexpr Unit kBytes[] = {{"B", 1, true},      {"kB", 1e3, false},
                           {"KB", 1e3, false},  {"MB", 1e6, false},
                           {"GB", 1e9, false},  {"TB", 1e12, false},
                           {"KiB", kKiB, true}, {"MiB", kMiB, true},
                           {"GiB", kGiB, true}, {"TiB", 1024.0 * kGiB, true}};
constexpr Unit kBytesPerSecond[] = {
    {"b/s", kBit, false},         {"kb/s", 1e3 * kBit, false},
    {"Mb/s", 1e6 * kBit, false},  {"Gb/s", 1e9 * kBit, false},
    {"Tb/s", 1e12 * kBit, false}, {"B/s", 1, true},
    {"kB/s", 1e3, true},          {"MB/s", 1e6, true},
    {"GB/s", 1e9, true},          {"TB/s", 1e12, true},
    {"KiB/s", kKiB, false},       {"MiB/s", kMiB, false},
    {"GiB/s", kGiB, false},       {"TiB/s", 1024.0 * kGiB, false}};
constexpr Unit kFlopsPerSecond[] = {{"FLOP/s", 1, true},
                                    {"MFLOP/s", 1e6, true},
                                    {"GFLOP/s", 1e9, true},
                                    {"TFLOP/s", 1e12, true},
                                    {"PFLOP/s", 1e15, true}};
constexpr Unit kSeconds[] = {
    {"ns", 1e-9, true}, {"us", 1e-6, true}, {"ms", 1e-3, true}, {"s", 1, true}};

std::span<const Unit> UnitsOf(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes:
      return kBytes;
    case Dimension::kBytesPerSecond:
      return kBytesPerSecond;
    case Dimension::kFlopsPerSecond:
      return kFlopsPerSecond;
    case Dimension::kSeconds:
      return kSeconds;
  }
  CHECK(false) << "unknown dimension " << static_cast<int>(dimension);
  return kBytes;
}

const char* ExampleOf(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes:
      return "a size such as 141GB or 80GiB";
    case Dimension::kBytesPerSecond:
      return "a rate such as 800Gb/s (bits) or 100GB/s (bytes)";
    case Dimension::kFlopsPerSecond:
      return "a rate such as 989TFLOP/s";
    case Dimension::kSeconds:
      return "a duration such as 2us";
  }
  return "";
}

// Returns the text after the number.
absl::string_view UnitText(absl::string_view text) {
  const size_t end = text.find_first_not_of("0123456789.");
  return end == absl::string_view::npos
             ? absl::string_view()
             : absl::StripAsciiWhitespace(text.substr(end));
}

std::string UnitHint(absl::string_view unit, Dimension dimension) {
  std::vector<std::string> alike;
  std::vector<std::string> all;
  for (const Unit& known : UnitsOf(dimension)) {
    all.emplace_back(known.name);
    if (absl::EqualsIgnoreCase(unit, known.name)) alike.push_back(all.back());
  }
  return alike.empty()
             ? absl::StrCat("units: ", absl::StrJoin(all, ", "))
             : absl::StrCat("did you mean ", absl::StrJoin(alike, " or "), "?");
}

// Writes "800", "1.8" or "0.125": four digits suffice for what people type.
std::string NumberText(double number) {
  return absl::StrFormat("%.*g", number >= 1e4 ? 6 : 4, number);
}

}  // namespace

absl::StatusOr<Quantity> ParseQuantity(absl::string_view text,
                                       Dimension dimension) {
  const absl::string_view unit = UnitText(text);
  const absl::string_view number =
      absl::StripTrailingAsciiWhitespace(absl::StripSuffix(text, unit));
  double value = 0;
  const bool is_number =
      absl::SimpleAtod(number, &value) && std::isfinite(value) &&
      (value > 0 || (value == 0 && dimension == Dimension::kSeconds));
  if (!is_number) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", ExampleOf(dimension), ", found '", text, "'"));
  }
  for (const Unit& known : UnitsOf(dimension)) {
    if (unit == known.name) {
      return Quantity{.value = value * known.factor, .unit = known.name};
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", ExampleOf(dimension), ", found '", text, "'; ",
                   UnitHint(unit, dimension)));
}

std::optional<double> ParseFactor(absl::string_view text) {
  double factor = 0;
  if (!absl::ConsumeSuffix(&text, "x") || !absl::SimpleAtod(text, &factor) ||
      !std::isfinite(factor) || factor <= 0) {
    return std::nullopt;
  }
  return factor;
}

std::string FormatQuantity(double value, Dimension dimension,
                           absl::string_view unit) {
  const Unit* chosen = nullptr;
  for (const Unit& known : UnitsOf(dimension)) {
    const bool fits = unit.empty() ? known.is_usual && (chosen == nullptr ||
                                                        value >= known.factor)
                                   : unit == known.name;
    if (fits) chosen = &known;
  }
  CHECK(chosen != nullptr) << "unknown unit " << unit;
  return absl::StrCat(NumberText(value / chosen->factor), " ", chosen->name);
}

}  // namespace millrace
