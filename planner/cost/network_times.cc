#include "planner/cost/network_times.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// The share of its links that a ring reaches that enters and leaves domains at
// devices whose ports differ, through the host's memory: its members are some
// of a domain's devices, neither one nor all. Fitted to half of vTrain's runs
// with 2 and 4 tensor ranks on 64 to 512 A100 (Bang et al., 2024).
constexpr double kFarPortShare = 0.36;

}  // namespace

int64_t MembersInside(const GroupPlacement& group, int32_t devices) {
  if (devices == 0) return group.size();
  int64_t members = 1;
  for (const GroupPlacement::Axis& axis : {group.inner, group.outer}) {
    members *= std::clamp<int64_t>(devices / axis.stride, 1, axis.size);
  }
  return members;
}

double NetworkTimes::CollectiveSeconds(OpKind kind, double bytes,
                                       const GroupPlacement& group,
                                       int64_t experts_per_row) const {
  const int64_t size = group.size();
  const auto ranks = static_cast<double>(size);
  // The bytes that each rank sends. An all-reduce scatters and gathers.
  const double sent =
      bytes * (ranks - 1) / ranks * (kind == OpKind::kAllReduce ? 2 : 1);
  double slowest = 0, ring_latency = 0, tree_latency = 0;
  int64_t below = 1;  // Members inside one domain of the level below.
  for (size_t i = 0; i < levels_.size(); ++i) {
    const bool is_last = i + 1 == levels_.size();
    const int64_t inside =
        is_last ? size : MembersInside(group, levels_[i].devices);
    if (inside <= below) continue;
    const double domains = static_cast<double>(inside / below);
    const double rate = BytesPerSecond(i);
    if (kind == OpKind::kExpertExchange && experts_per_row > 0) {
      const double others = ranks / static_cast<double>(below) - 1;
      const auto experts = static_cast<double>(experts_per_row);
      const double met =
          others * (1 - std::pow(others / (others + 1), experts));
      slowest = std::max(slowest, bytes * met / experts / rate);
    } else if (kind == OpKind::kExpertExchange) {
      // Parts go straight to their ranks: those outside over one's own link.
      const double outside = static_cast<double>(inside - below) / ranks;
      slowest = std::max(slowest, bytes * outside / rate);
    } else if (kind == OpKind::kContextRing) {
      // All members of a domain pass on at once, but only one has to cross.
      slowest = std::max(slowest, sent / rate);
    } else {
      const bool has_far_ports = i > 0 && !group.relays_to_ports && below > 1 &&
                                 below < levels_[i - 1].devices;
      slowest = std::max(slowest, sent / (static_cast<double>(below) * rate *
                                          (has_far_ports ? kFarPortShare : 1)));
    }
    ring_latency += (domains - 1) * levels_[i].latency_s;
    tree_latency += std::ceil(std::log2(domains)) * levels_[i].latency_s;
    below = inside;
  }
  double latency = ring_latency;
  if (kind == OpKind::kAllReduce) {
    latency = 2 * std::min(ring_latency, 2 * tree_latency);
  } else if (kind == OpKind::kExpertExchange) {
    latency = tree_latency;
  }
  return slowest + latency;
}

double NetworkTimes::TransferSeconds(double bytes, int64_t stride,
                                     int64_t num_stages) const {
  size_t level = 0;
  while (level + 1 < levels_.size() && levels_[level].devices != 0 &&
         stride * num_stages > levels_[level].devices) {
    ++level;
  }
  return bytes / BytesPerSecond(level) + levels_[level].latency_s;
}

}  // namespace millrace
