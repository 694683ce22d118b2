// How to share work among devices that are not equally fast: layers among
// pipeline stages, micro-batches among replicas.

#ifndef MILLRACE_PLANNER_FLEET_UNEVEN_SPLIT_H_
#define MILLRACE_PLANNER_FLEET_UNEVEN_SPLIT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace {

// What one micro-batch takes on a stage: all passes of each layer, and of the
// ends of the model that it has.
struct StageSpeed {
  double seconds_per_layer;  // Above 0.
  double end_s = 0;
  int64_t most_layers;  // That its memory holds.
};

// Layers by stage, each at least one, all together `num_layers`, with which
// one-forward-one-backward takes least: the sum over stages and (num_
// microbatches - 1) times the slowest. Of equals those whose stages of one
// speed are most alike. Nothing where the stages cannot hold the layers.
std::optional<std::vector<int64_t>> SplitLayers(
    std::span<const StageSpeed> stages, int64_t num_layers,
    int64_t num_microbatches);

// Alike replicas, each of which takes fixed_s + m x seconds_per_microbatch for
// m micro-batches, and nothing for none.
struct ReplicaSpeed {
  int64_t num_replicas;
  double fixed_s;
  double seconds_per_microbatch;  // Above 0.
};

// How many micro-batches each replica of a kind has at most, by kind, so that
// `num_microbatches` are done soonest. One less for some replicas of a kind
// makes the sum what it should be. At least one replica.
std::vector<int64_t> SplitMicrobatches(std::span<const ReplicaSpeed> kinds,
                                       int64_t num_microbatches);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FLEET_UNEVEN_SPLIT_H_
