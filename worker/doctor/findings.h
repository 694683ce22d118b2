// Faults of the hosts of an examination: where a host deviates from
// the majority, and what a job would fail by.

#ifndef MILLRACE_WORKER_DOCTOR_FINDINGS_H_
#define MILLRACE_WORKER_DOCTOR_FINDINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "worker/doctor/host_facts.h"
#include "worker/doctor/pair_facts.h"

namespace millrace {

enum class Severity : uint8_t { kFailure, kWarning };

struct Finding {
  Severity severity = Severity::kWarning;
  std::string host;  // "node2", or "node1, agent 3" where a host has several.
  std::string text;  // The value, the majority's, and what to do.
};

// Needs of the job that is to run; the defaults are those of any job.
struct JobNeeds {
  bool gpus = true;  // False for backend cpu.
  bool shared_checkpoints = false;
  int64_t checkpoint_bytes = 0;  // All that it keeps; 0: not known.
};

struct ExaminationResult {
  // By agent; the first agent of each host stands for the host. Agents that
  // did not come or did not answer are left out, and are in `failures`.
  std::vector<HostFacts> hosts;
  std::vector<ReachedAddress> reached;
  std::vector<RailFacts> rails;
  std::vector<Finding> failures;  // Found on the way.
  JobNeeds needs;
};

// The hosts' first agents, in order: positions in `hosts`.
std::vector<size_t> FirstAgents(const std::vector<HostFacts>& hosts);

// "node2", or "node1, agent 3" for one of several agents of a host.
std::string NameOf(const std::vector<HostFacts>& hosts, const HostFacts& agent);

// The value that most agents have. Among equally frequent ones the first
// agent's wins, or the first of those.
std::string MajorityOf(const std::vector<std::string>& values);

// Failures first, then warnings; in the order of hosts.
std::vector<Finding> FindingsOf(const ExaminationResult& result);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_FINDINGS_H_
