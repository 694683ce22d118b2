#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "worker/compare/compare.h"

namespace millrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

// How much of its tolerance an output uses up; not a number counts as all.
double UsedTolerance(const OutputComparison& output) {
  const double l2 = output.relative_l2 / output.tolerance.relative_l2;
  const double max = output.max_error / output.tolerance.max_error;
  if (output.within) return l2 > max ? l2 : (max > 0 ? max : 0);
  return std::numeric_limits<double>::infinity();
}

std::string Where(const OutputComparison& output) {
  return absl::StrCat(
      output.name, " (", OpKindName(output.kind),
      output.microbatch_idx < 0
          ? ""
          : absl::StrCat(", micro-batch ", output.microbatch_idx),
      ") -> ", output.buffer);
}

// nlohmann would write null for what is not a number, which readers take for
// a missing value.
OrderedJson Number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : "inf";
}

OrderedJson OutputJson(const OutputComparison& output) {
  return {{"instruction", output.instruction},
          {"op", OpKindName(output.kind)},
          {"phase", PhaseName(output.phase)},
          {"microbatch", output.microbatch_idx},
          {"name", output.name},
          {"output", output.buffer},
          {"relative_l2", Number(output.relative_l2)},
          {"max_error", Number(output.max_error)},
          {"allowed_relative_l2", output.tolerance.relative_l2},
          {"allowed_max_error", output.tolerance.max_error},
          {"within", output.within}};
}

struct Worst {
  int64_t num_outputs = 0;
  int64_t num_beyond = 0;
  const OutputComparison* output = nullptr;
};

std::map<OpKind, Worst> WorstByKind(const Comparison& comparison) {
  std::map<OpKind, Worst> worst;
  for (const OutputComparison& output : comparison.outputs) {
    Worst& of_kind = worst[output.kind];
    ++of_kind.num_outputs;
    if (!output.within) ++of_kind.num_beyond;
    if (of_kind.output == nullptr ||
        UsedTolerance(output) > UsedTolerance(*of_kind.output)) {
      of_kind.output = &output;
    }
  }
  return worst;
}

}  // namespace

std::string ComparisonToText(const Comparison& comparison) {
  std::string text = absl::StrFormat(
      "%s, %s on the GPU against fp32 on the CPU, %d outputs\n",
      CompareModeName(comparison.mode),
      RecipeOf(comparison.precision, comparison.gemm_format).name,
      comparison.outputs.size());
  if (comparison.mode == CompareMode::kChained) {
    absl::StrAppendFormat(&text,
                          "loss %.6f on the CPU, %.6f on the GPU; gradient "
                          "norm %.6g and %.6g\n",
                          comparison.cpu_loss, comparison.gpu_loss,
                          comparison.cpu_gradient_norm,
                          comparison.gpu_gradient_norm);
  }
  const auto first = comparison.FirstDifference();
  if (first.has_value()) {
    absl::StrAppendFormat(
        &text,
        "first difference: %s\n  relative L2 %.2e (allowed %.1e), largest "
        "error %.2e (allowed %.1e)\n",
        Where(*first), first->relative_l2, first->tolerance.relative_l2,
        first->max_error, first->tolerance.max_error);
  } else {
    absl::StrAppend(&text, "all within tolerance\n");
  }
  absl::StrAppend(&text,
                  "op kind                  outputs beyond   relative L2 "
                  "(allowed)   largest error (allowed)   worst\n");
  for (const auto& [kind, worst] : WorstByKind(comparison)) {
    absl::StrAppendFormat(
        &text, "%-24s %7d %6d    %.2e  (%.1e)         %.2e  (%.1e)   %s\n",
        OpKindName(kind), worst.num_outputs, worst.num_beyond,
        worst.output->relative_l2, worst.output->tolerance.relative_l2,
        worst.output->max_error, worst.output->tolerance.max_error,
        worst.output->name);
  }
  return text;
}

std::string ComparisonToJson(const Comparison& comparison) {
  OrderedJson json = {
      {"mode", CompareModeName(comparison.mode)},
      {"precision",
       RecipeOf(comparison.precision, comparison.gemm_format).name}};
  if (comparison.mode == CompareMode::kChained) {
    json["cpu_loss"] = Number(comparison.cpu_loss);
    json["gpu_loss"] = Number(comparison.gpu_loss);
    json["cpu_gradient_norm"] = Number(comparison.cpu_gradient_norm);
    json["gpu_gradient_norm"] = Number(comparison.gpu_gradient_norm);
  }
  const auto first = comparison.FirstDifference();
  json["first_difference"] = first ? OutputJson(*first) : OrderedJson();
  json["outputs"] = OrderedJson::array();
  for (const OutputComparison& output : comparison.outputs) {
    json["outputs"].push_back(OutputJson(output));
  }
  return JsonText(json, 2) + "\n";
}

}  // namespace millrace
