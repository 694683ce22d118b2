// Writes the records of a profile file, whose keys
// planner/profile/profile_fields.h lists.

#ifndef MILLRACE_PLANNER_PROFILE_PROFILE_WRITER_H_
#define MILLRACE_PLANNER_PROFILE_PROFILE_WRITER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "planner/profile/profile_fields.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

// Writes records; tables get one row a line.
class ProfileWriter {
 public:
  // `omits_empty_tables`: where device and network price what no table has.
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
  void FromZero(const char* key, int32_t& value) { (*this)(key, value); }
  void FromZero(const char* key, int64_t& value) { (*this)(key, value); }
  void Later(const char* key, double& value) { (*this)(key, value); }
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
  void operator()(const char* key, KernelTuning& value) {
    if (!value.is_given()) return;
    Flush();
    ProfileWriter section(1);
    VisitFields(section, value);
    absl::StrAppend(&text_, key, ":\n", section.Text());
  }
  template <OptionalSection Part>
  void operator()(const char* key, Part& value) {
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
    if (rows.empty() && (OptionalRow<Row> || omits_empty_tables_)) return;
    Flush();
    absl::StrAppend(&text_, indent_, key, rows.empty() ? ": []\n" : ":\n");
    for (Row& row : rows) {
      ProfileWriter fields(0);
      VisitFields(fields, row);
      absl::StrAppend(&text_, indent_, "  - {",
                      absl::StrJoin(fields.lines_, ", "), "}\n");
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

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROFILE_PROFILE_WRITER_H_
