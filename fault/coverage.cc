#include "fault/coverage.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// A run is at most three boxes: a part of its first row, whole rows, a part of
// its last row.
void AppendBoxes(const BoxRun& run, std::vector<ParameterBox>& boxes) {
  const int64_t width = run.box.col_end - run.box.col_begin;
  int64_t begin = run.begin;
  while (begin < run.end) {
    const int64_t row = begin / width;
    const int64_t col = begin % width;
    const bool whole_rows = col == 0 && run.end - begin >= width;
    const int64_t num_rows = whole_rows ? (run.end - begin) / width : 1;
    const int64_t num_cols =
        whole_rows ? width : std::min(width - col, run.end - begin);
    boxes.push_back({.row_begin = run.box.row_begin + row,
                     .row_end = run.box.row_begin + row + num_rows,
                     .col_begin = run.box.col_begin + col,
                     .col_end = run.box.col_begin + col + num_cols});
    begin += num_rows * num_cols;
  }
}

}  // namespace

bool IsValidRun(const BoxRun& run, int64_t rows, int64_t cols) {
  const ParameterBox& box = run.box;
  return 0 <= box.row_begin && box.row_begin <= box.row_end &&
         box.row_end <= rows && 0 <= box.col_begin &&
         box.col_begin <= box.col_end && box.col_end <= cols &&
         0 <= run.begin && run.begin <= run.end &&
         run.end <= box.num_elements();
}

absl::Status CheckExactCover(const std::string& tensor, int64_t rows,
                             int64_t cols, const std::vector<BoxRun>& runs) {
  std::vector<ParameterBox> boxes;
  for (const BoxRun& run : runs) AppendBoxes(run, boxes);
  std::sort(boxes.begin(), boxes.end(),
            [](const ParameterBox& a, const ParameterBox& b) {
              return a.row_begin < b.row_begin;
            });

  // A sweep down the rows. The boxes that the current row crosses are disjoint
  // column intervals, so a new one can only meet its two neighbours.
  struct Interval {
    int64_t col_end;
    int64_t row_end;
  };
  std::map<int64_t, Interval> active;             // By first column.
  std::multimap<int64_t, int64_t> column_at_end;  // Row end -> first column.
  int64_t num_covered = 0;
  for (const ParameterBox& box : boxes) {
    while (!column_at_end.empty() &&
           column_at_end.begin()->first <= box.row_begin) {
      active.erase(column_at_end.begin()->second);
      column_at_end.erase(column_at_end.begin());
    }
    const auto next = active.lower_bound(box.col_begin);
    const bool meets_next = next != active.end() && next->first < box.col_end;
    const bool meets_previous = next != active.begin() &&
                                std::prev(next)->second.col_end > box.col_begin;
    if (meets_next || meets_previous) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", tensor, ": elements of row ", box.row_begin,
                       " from column ", box.col_begin, " are there twice"));
    }
    active[box.col_begin] = {box.col_end, box.row_end};
    column_at_end.emplace(box.row_end, box.col_begin);
    num_covered += box.num_elements();
  }
  if (num_covered != rows * cols) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor, ": ", rows * cols - num_covered, " of ",
                     rows * cols, " elements are missing"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
