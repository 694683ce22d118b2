// JSON that holds a list of rows, and on which lines these and their keys
// stand: for messages that name the place of a mistake.

#ifndef MILLRACE_PLANNER_EVALUATE_ROW_LINES_H_
#define MILLRACE_PLANNER_EVALUATE_ROW_LINES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace millrace {

// Where a row and its keys stand, from 1.
struct RowLines {
  int line = 1;
  // Keys of objects within the row are joined by dots: "arch_extra.moe.topk".
  std::map<std::string, int> line_by_key;
  std::string repeated;  // A key that is given twice; empty if none is.

  // Of a key; of the row for one that it does not have.
  int Of(const std::string& key) const;
};

struct RowDocument {
  nlohmann::json rows;  // A list.
  std::vector<RowLines> lines;
};

// Reads {"rows": [...], ...}, or the list alone. InvalidArgument starting
// "FILE:LINE: " for text that is neither, and for a second list "rows".
absl::StatusOr<RowDocument> ParseRows(absl::string_view json,
                                      const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_ROW_LINES_H_
