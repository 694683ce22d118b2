// Writes a diagnosis as text for people and as JSON for programs.

#ifndef MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_
#define MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_

#include <string>

#include "planner/diagnose/advice.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/trace_analysis.h"

namespace millrace {

// Writes tables and hints that end in a newline. `name` is the trace's name.
// `advice` is null if no job was named.
std::string DiagnosisToText(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis,
                            const Advice* advice = nullptr);

// Writes one JSON object and a newline. docs/diagnose.md lists its keys. Times
// are in seconds.
std::string DiagnosisToJson(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis,
                            const Advice* advice = nullptr);

// Returns "launch", "synchronize", "allocate", "queued", "unknown" or "end".
const char* GapCauseName(GapCause cause);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_
