// Predicts how noise, slow devices and slow links lengthen a planned step, how
// its step times scatter, and which ranks or links are to blame.

#ifndef MILLRACE_PLANNER_FLEET_DISTURBANCE_H_
#define MILLRACE_PLANNER_FLEET_DISTURBANCE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"
#include "planner/profile/prediction_interval.h"
#include "planner/profile/profile.h"
#include "planner/search/plan.h"

namespace millrace {

// A node, a device or a share of all nodes that computes slower than it should.
// Its times grow by a factor.
struct Straggler {
  enum class What : uint8_t { kNode, kDevice, kShareOfNodes };
  What what;
  int64_t idx = 0;   // Index of the node or device, in rank order.
  double share = 0;  // Share of the nodes, drawn at random.
  double factor = 1;
};

// A node with only a share of the bandwidth of one network level.
struct DegradedLink {
  int32_t node;
  std::string level;  // As in --what-if: a name, intra_node or inter_node.
  double rate;        // Above 0, at most 1.
};

struct DisturbanceSpec {
  // Standard deviation over mean: of each pass of a replica's stage, and of
  // whole steps.
  double pass_noise = 0;
  double step_noise = 0;
  std::vector<Straggler> stragglers;
  std::vector<DegradedLink> links;
  uint64_t seed = 0;
  std::optional<int32_t> num_steps;  // Absent: 20 to 200, as time allows.

  bool is_given() const {
    return pass_noise > 0 || step_noise > 0 || !stragglers.empty() ||
           !links.empty();
  }
};

// These parse the values of options and add them to *spec. `noise` is the
// profile's noise, or the assumed one. InvalidArgument says what was expected.
//   --noise      "2%" of passes, "passes=2%,steps=1%", or "profile"
//   --straggler  "node=3,slower=20%", "device=17,slower=20%" or
//                "nodes=0.5%,slower=20%": a share of all, drawn at random
//   --slow-link  "node=3,link=inter_node,rate=50%"
absl::Status ParseNoise(absl::string_view text, const StepNoise& noise,
                        DisturbanceSpec* spec);
absl::Status ParseStraggler(absl::string_view text, DisturbanceSpec* spec);
absl::Status ParseSlowLink(absl::string_view text, DisturbanceSpec* spec);

// A cause of the longer mean step: the passes of one rank, or one link, and the
// seconds that they add.
struct DisturbanceCause {
  std::string text;  // "passes of stage 3 in replica 12, ranks 400 to 407".
  double seconds;
};

struct DisturbedStep {
  double step_time_s = 0;  // Mean.
  double slowdown = 0;     // Over the plan's step time, less one.
  double deviation_s = 0;  // Between steps.
  double p5_s = 0;
  double median_s = 0;
  double p95_s = 0;
  double longest_s = 0;
  // The interval that holds the mean step of a run in 9 of 10 cases under this
  // disturbance. It includes the model's error.
  double low_s = 0;
  double high_s = 0;
  int32_t num_steps = 0;
  uint64_t seed = 0;
  int32_t num_slow_nodes = 0;
  std::vector<DisturbanceCause> causes;  // The largest ones, largest first.
};

// Simulates the plan's step by passes with `spec`, and scales the plan's
// prediction by what that adds. If the plan has a timeline of instructions,
// passes take the times they have there. Deterministic. Returns InvalidArgument
// that names the option for a node, device or link that does not exist, and for
// a link without a price, as in a profile without device or network section.
absl::StatusOr<DisturbedStep> SimulateDisturbed(const JobSpec& job,
                                                const HardwareProfile& profile,
                                                const Plan& plan,
                                                const DisturbanceSpec& spec);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_DISTURBANCE_H_
