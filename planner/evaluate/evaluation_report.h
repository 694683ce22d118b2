// An evaluation (planner/evaluate/evaluate.h) for programs and for people;
// docs/evaluate.md explains both.

#ifndef MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_
#define MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_

#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluation_summary.h"

namespace millrace {

// One JSON object a line: one for each run, then {"summary": ...}. What is
// missing is null.
std::string EvaluationToJson(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary);

// A table of runs, then errors by group, quality and class, and choices.
std::string EvaluationToText(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_
