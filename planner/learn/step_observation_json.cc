// Writes and reads observations as lines of a file; see step_observation.h.

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "planner/learn/step_observation.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Raise it when lines of older versions must no longer be read.
constexpr int kVersion = 1;

absl::StatusOr<OpKind> OpKindOf(const std::string& name) {
  for (int i = 0; i < kNumExecutedOpKinds; ++i) {
    if (name == OpKindName(static_cast<OpKind>(i))) {
      return static_cast<OpKind>(i);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown op kind '", name, "'"));
}

absl::StatusOr<OpObservation> OpFromJson(const Json& json) {
  const absl::StatusOr<OpKind> kind = OpKindOf(json.at(0).get<std::string>());
  if (!kind.ok()) return kind.status();
  OpObservation op{
      .shape = {.kind = *kind},
      .context = {.num_computing = json.at(2), .overlapped = json.at(3)},
      .seconds = json.at(4),
      .slowdown = json.at(5),
      .num_calls = json.at(6)};
  const Json& figures = json.at(1);
  // Written where there are several.
  if (IsCommunication(op.shape)) op.shape.figures[2] = op.shape.figures[3] = 1;
  for (size_t i = 0; i < op.shape.figures.size() && i < figures.size(); ++i) {
    op.shape.figures[i] = figures[i];
  }
  if (figures.size() != NumFigures(op.shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(OpKindName(*kind), " has ", figures.size(),
                     " figures, expected ", NumFigures(op.shape)));
  }
  if (!(op.seconds > 0 && op.slowdown > 0 && op.num_calls > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShapeText(op.shape), " has no time or no calls"));
  }
  return op;
}

}  // namespace

std::string StepObservationToJson(const StepObservation& observation) {
  Json ops = Json::array();
  for (const OpObservation& op : observation.ops) {
    Json figures = Json::array();
    for (size_t i = 0; i < NumFigures(op.shape); ++i) {
      figures.push_back(op.shape.figures[i]);
    }
    ops.push_back({OpKindName(op.shape.kind), std::move(figures),
                   op.context.num_computing, op.context.overlapped, op.seconds,
                   op.slowdown, op.num_calls});
  }
  return Json{{"version", kVersion},
              {"generation", observation.generation},
              {"step", observation.step},
              {"step_time_s", observation.step_time_s},
              {"launch_s", observation.launch_s},
              {"between_steps_s", observation.between_steps_s},
              {"slow_ranks", observation.slow_ranks},
              {"num_unplaced", observation.num_unplaced},
              {"others_share", observation.others_share},
              {"passes",
               {observation.passes.deviation, observation.passes.num_compared}},
              {"ops", std::move(ops)}}
      .dump();
}

absl::StatusOr<StepObservation> StepObservationFromJson(
    absl::string_view json) {
  const absl::StatusOr<Json> read = ParseJson(json);
  if (!read.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not an observed step: ", read.status().message()));
  }
  const Json& parsed = *read;
  try {
    const int version = parsed.at("version");
    if (version != kVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("an observed step of version ", version,
                       ", this Millrace reads version ", kVersion,
                       "; use the one that made the run"));
    }
    StepObservation observation;
    observation.generation = parsed.at("generation");
    observation.step = parsed.at("step");
    observation.step_time_s = parsed.at("step_time_s");
    observation.launch_s = parsed.at("launch_s");
    observation.between_steps_s = parsed.at("between_steps_s");
    observation.slow_ranks =
        parsed.at("slow_ranks").get<std::vector<int32_t>>();
    observation.num_unplaced = parsed.at("num_unplaced");
    observation.others_share = parsed.at("others_share");
    observation.passes = {.deviation = parsed.at("passes").at(0),
                          .num_compared = parsed.at("passes").at(1)};
    for (const Json& op : parsed.at("ops")) {
      absl::StatusOr<OpObservation> read = OpFromJson(op);
      if (!read.ok()) return read.status();
      observation.ops.push_back(*std::move(read));
    }
    return observation;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("not an observed step: ", error.what()));
  }
}

}  // namespace millrace
