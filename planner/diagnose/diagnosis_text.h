// A diagnosis for people, and for programs.

#ifndef MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_
#define MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_

#include <string>

#include "planner/diagnose/advice.h"
#include "planner/diagnose/trace.h"
#include "planner/diagnose/trace_analysis.h"

namespace millrace {

// Tables and hints, ending in a newline. `name` is what the trace is called.
// `advice` is null where no job was named.
std::string DiagnosisToText(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis,
                            const Advice* advice = nullptr);

// One JSON object and a newline; docs/diagnose.md lists its keys. Seconds.
std::string DiagnosisToJson(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis,
                            const Advice* advice = nullptr);

// "launch", "synchronize", "allocate", "queued", "unknown", "end".
const char* GapCauseName(GapCause cause);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_DIAGNOSIS_TEXT_H_
