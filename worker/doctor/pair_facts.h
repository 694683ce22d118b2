// One host's findings about its way to another: which addresses answer, and
// how fast the ways between their interfaces are.

#ifndef MILLRACE_WORKER_DOCTOR_PAIR_FACTS_H_
#define MILLRACE_WORKER_DOCTOR_PAIR_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"

namespace millrace {

// One address of another host, tried.
struct ReachedAddress {
  int32_t from = 0;       // The agent that tried.
  int32_t to = 0;         // The agent whose address it is.
  std::string interface;  // The other's.
  std::string address;
  std::string own_interface;  // The one that the kernel took, if it answered.
  std::string error;          // Empty if agent `to` answered.
  // Another process of this examination answered, as at the address of a
  // container bridge, which every host has. Not an error of the network.
  bool led_elsewhere = false;
};

// A rail: a way from an interface of one host to one of another.
struct RailFacts {
  int32_t from = 0;
  int32_t to = 0;
  std::string own_interface;
  std::string interface;
  std::string address;
  std::string error;          // Why it could not be measured.
  double there_bytes_s = 0;   // One TCP connection, from `from` to `to`.
  double back_bytes_s = 0;    // From `to` to `from`.
  double round_trip_s = 0;    // The median of small messages.
  double clock_offset_s = 0;  // The clock of `to` less that of `from`.
  double clock_uncertainty_s = 0;

  // The slower direction.
  double BytesPerSecond() const;
};

nlohmann::json ToJson(const ReachedAddress& reached);
nlohmann::json ToJson(const RailFacts& rail);
// InvalidArgument if one is not what ToJson() makes.
absl::StatusOr<std::vector<ReachedAddress>> ReachedFromJson(
    const nlohmann::json& list);
absl::StatusOr<std::vector<RailFacts>> RailsFromJson(
    const nlohmann::json& list);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_PAIR_FACTS_H_
