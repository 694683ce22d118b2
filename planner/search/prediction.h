// Fills in a Prediction from a step time or from the closed form, and puts into
// words why a layout lost.

#ifndef MILLRACE_PLANNER_SEARCH_PREDICTION_H_
#define MILLRACE_PLANNER_SEARCH_PREDICTION_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "planner/cost/closed_form.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/search/plan.h"

namespace millrace {

// Step time by `price_model` with its interval, tokens a second and MFU.
void FillTime(const ModelSpec& model, const Layout& layout,
              const CostModel& cost, PriceModel price_model, double step_time_s,
              Prediction* prediction);

// The whole Prediction by the closed form.
Prediction PredictionOf(const ModelSpec& model, const Layout& layout,
                        const CostModel& cost, const StepPrediction& step);

// Fills in why `loser` is not the layout predicted as `chosen`, "1.23x slower:
// bubble 43 % of the step" or "needs ... more than the device has", in full and
// in brief. Both must be priced by one model. `plan_model` is the model of
// Plan::prediction: where the two are by another, the reason names theirs, "0.1
// % slower by the closed form (choice 72.7 s): ...".
void SayWhyItLost(const Prediction& chosen, int64_t memory_limit,
                  PriceModel plan_model, Alternative* loser);

// `prediction` with the step time and shares by the closed form, which must
// have priced it.
Prediction ByClosedForm(const Prediction& prediction);

// Compares two step times by their ratio: "1.50x slower", "1.7 % slower", "0.6
// % faster", or "as fast" within 0.05 %.
std::string SpeedText(double ratio);

// FormatSeconds(), but seconds alone up to ten minutes, so that step times
// compare: "61.3 s".
std::string FormatStepTime(double seconds);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_SEARCH_PREDICTION_H_
