// Ways between hosts, tried and measured over TCP sockets. Each host runs a
// PairServer; any other connects to it. Both prove that they know the
// examination's secret before anything else, so a stranger gets nothing.

#ifndef MILLRACE_WORKER_DOCTOR_PAIR_PROBE_H_
#define MILLRACE_WORKER_DOCTOR_PAIR_PROBE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/agent/listener.h"
#include "worker/agent/network.h"
#include "worker/doctor/pair_facts.h"

namespace millrace {

// Tells clients its agent's index: an address may lead to another host.
class PairServer {
 public:
  // Listens on the addresses, at a port of the kernel's choice.
  static absl::StatusOr<std::unique_ptr<PairServer>> Create(
      const std::vector<std::string>& addresses, const std::string& secret);
  ~PairServer();

  int32_t port() const { return port_; }
  // To be told before others are told the port.
  void set_agent_idx(int32_t agent_idx) { agent_idx_ = agent_idx; }

 private:
  PairServer(Listener listener, std::string secret);
  void Accept();
  void Serve(int fd);

  const Listener listener_;
  const std::string secret_;
  const int32_t port_;
  std::atomic<int32_t> agent_idx_ = -1;
  std::atomic<int> num_serving_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

struct PairTarget {
  int32_t agent_idx = 0;
  int32_t port = 0;
  HostAddress address;
};

// Tries all targets, many at a time. The host's kernel may take `limit` to
// answer, and the process there some more. `own_addresses`
// name this host's interfaces.
std::vector<ReachedAddress> ReachAll(
    const std::vector<PairTarget>& targets, const std::string& secret,
    const std::vector<HostAddress>& own_addresses,
    absl::Duration limit = absl::Seconds(3));

// Measures one way: round trips and clocks first, then bytes in both
// directions, in twice a tenth of a second or a little more; five seconds at
// most. What fails is in the result's `error`.
RailFacts MeasureRail(const PairTarget& target, const std::string& secret);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_PAIR_PROBE_H_
