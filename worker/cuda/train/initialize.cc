#include "worker/cuda/train/initialize.h"

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/pointwise/random_normal_cuda.h"
#include "planner/program/parameters.h"
#include "worker/train/initialize.h"

namespace millrace {

absl::Status InitializeOnDevice(const ModelSpec& model,
                                const std::vector<StatePiece>& parameters,
                                uint64_t seed, cudaStream_t stream) {
  absl::flat_hash_set<std::string> names;
  for (const Parameter& parameter : ModelParameters(model)) {
    names.insert(parameter.name);
  }
  for (const StatePiece& piece : parameters) {
    if (!names.contains(piece.tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat(piece.tensor, " is no parameter of the model"));
    }
    if (piece.is_vector) {
      RETURN_IF_ERROR(LaunchFill(piece.data, piece.end - piece.begin,
                                 InitialVectorValue(model, piece.tensor),
                                 stream));
      continue;
    }
    RETURN_IF_ERROR(LaunchFillNormalBox(
        {.out = piece.data,
         .begin = piece.begin,
         .end = piece.end,
         .row_begin = piece.box.row_begin,
         .col_begin = piece.box.col_begin,
         .box_cols = piece.box.col_end - piece.box.col_begin,
         .cols = piece.cols,
         .std = model.init_std,
         .seed = seed,
         .stream = ParameterStream(piece.tensor)},
        stream));
  }
  return absl::OkStatus();
}

}  // namespace millrace
