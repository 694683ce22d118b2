// Writes an evaluation (planner/evaluate/evaluate.h) as JSON for programs and
// as text for people. docs/evaluate.md explains both.

#ifndef MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_
#define MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_

#include <string>
#include <vector>

#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluation_summary.h"

namespace millrace {

// Writes one JSON object a line: one for each run, then {"summary": ...}.
// Missing values are null.
std::string EvaluationToJson(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary);

// Writes a table of runs, then errors by group, quality and class, and choices.
std::string EvaluationToText(const std::vector<RunPrediction>& predictions,
                             const EvaluationSummary& summary);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_EVALUATION_REPORT_H_
