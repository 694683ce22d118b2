#include "worker/train/op_binders.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {

absl::Status CheckBinding(const BoundKinds& bound,
                          const Instruction& instruction) {
  if (bound.Has(instruction.kind)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", bound.backend, " backend has no kernel for op kind ",
      OpKindName(instruction.kind), ", which ", instruction.name, " needs"));
}

absl::Status CheckBindings(const BoundKinds& bound,
                           std::initializer_list<const Program*> programs) {
  for (const Program* program : programs) {
    const PrecisionRecipe& recipe = RecipeOf(program->layout);
    if (!bound.Has(recipe)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", bound.backend, " backend has no kernels for ", recipe.name));
    }
    for (const Instruction& instruction : program->instructions) {
      RETURN_IF_ERROR(CheckBinding(bound, instruction));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
