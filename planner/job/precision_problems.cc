#include "planner/job/precision_problems.h"

#include "absl/strings/str_cat.h"
#include "planner/layout/numeric_format.h"

namespace millrace {

std::vector<std::pair<std::string, std::string>> ProblemsOfPrecision(
    const JobSpec& job) {
  std::vector<std::pair<std::string, std::string>> problems;
  const std::string& precision = job.training.precision;
  const PrecisionRecipe* recipe = FindRecipe(precision, Backend::kCpu);
  const bool uses_cuda = job.resources.uses_cuda();
  if (!uses_cuda &&
      (recipe == nullptr || !recipe->backends.Has(Backend::kCpu))) {
    problems.emplace_back(
        "training.precision",
        absl::StrCat(precision,
                     " is trained on GPUs only; set resources.backend: cuda, "
                     "or precision: fp32"));
  }
  const bool attends_in_float8 =
      job.model.attention_format == AttentionFormat::kFloat8;
  if (attends_in_float8 && uses_cuda && recipe != nullptr &&
      job.precision() == Precision::kFloat32) {
    problems.emplace_back(
        "training.attention",
        absl::StrCat("fp8 reads on GPUs what is stored in bf16, and "
                     "training.precision is ",
                     precision,
                     "; set precision: bf16, fp8 or fp8_blockwise, or "
                     "attention: bf16"));
  }
  const bool multiplies_in_float8 =
      recipe != nullptr && IsFloat8(recipe->gemm_format);
  if (job.model.stored_end_layers > 0 && !multiplies_in_float8 &&
      !attends_in_float8) {
    problems.emplace_back(
        "training.bf16_end_layers",
        absl::StrCat("expected 0 where training.precision is ", precision,
                     ", found ", job.model.stored_end_layers,
                     "; layers are left out of 8 bits alone, so set "
                     "precision: fp8 or leave this key out"));
  }
  return problems;
}

}  // namespace millrace
