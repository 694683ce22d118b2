// Where Hugging Face's files keep a model's parameters. Most families keep each
// under the name that ours has. Others keep several in one tensor, or matrices
// transposed; a row of this table says which and where.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_STORED_NAMES_H_
#define MILLRACE_PLANNER_FRAMEWORKS_STORED_NAMES_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

enum class TensorNaming : uint8_t {
  kPlain,  // As ours.
  kFused,  // Phi-3: query, key and value in one tensor, and gate and up.
  kGpt2,   // GPT-2: its own names; products' matrices are [in, out].
};

struct StoredName {
  std::string tensor;
  // The tensor's rows, transposed back, are those of its parameters in turn.
  // This one's begin at the first row (0), or so many times their own number
  // before the end: 1 for the last parameter, 2 for the one before.
  int64_t from_end = 0;
  bool is_transposed = false;

  // The first row of a parameter of `rows` rows in a tensor of `total` rows.
  int64_t first_row(int64_t rows, int64_t total) const {
    return from_end == 0 ? 0 : total - from_end * rows;
  }
};
StoredName NameInFiles(TensorNaming naming, absl::string_view parameter);

// The naming of a folder that has these tensors.
TensorNaming NamingOfTensors(
    const std::function<bool(absl::string_view name)>& has);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_STORED_NAMES_H_
