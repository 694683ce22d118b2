// What planner/search.h and planner/planned_search.h say of a layout, in words
// and shares.

#ifndef MILLRACE_PLANNER_PREDICTION_H_
#define MILLRACE_PLANNER_PREDICTION_H_

#include <cstdint>
#include <string>

#include "planner/cost.h"
#include "planner/layout.h"
#include "planner/model.h"
#include "planner/search.h"

namespace millrace {

// Step time with its interval, tokens a second and MFU.
void FillTime(const ModelSpec& model, const Layout& layout,
              const CostModel& cost, double step_time_s,
              Prediction* prediction);

// All that the closed form says.
Prediction PredictionOf(const ModelSpec& model, const Layout& layout,
                        const CostModel& cost, const StepPrediction& step);

// Why `loser` is not the layout predicted as `chosen`: "1.23x slower: bubble 43
// % of the step", "needs ... more than the device has".
std::string WhyItLost(const Alternative& loser, const Prediction& chosen,
                      int64_t memory_limit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PREDICTION_H_
