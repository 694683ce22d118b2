// Faults between hosts: who does not reach whom, slow ways, clocks.

#ifndef MILLRACE_WORKER_DOCTOR_PAIR_FINDINGS_H_
#define MILLRACE_WORKER_DOCTOR_PAIR_FINDINGS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "worker/doctor/findings.h"

namespace millrace {

// Each host's clock less the median of all, in seconds, by its first agent.
// Measured against the first host; hosts that it was not measured with are left
// out.
std::map<int32_t, double> ClockOffsets(const ExaminationResult& result);

// Pairs that a job could not use are failures: hosts must reach each other both
// ways. Ways that are much slower than the median are warnings.
std::vector<Finding> PairFindings(const ExaminationResult& result);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_PAIR_FINDINGS_H_
