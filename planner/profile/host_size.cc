#include "planner/profile/host_size.h"

#include <cstddef>
#include <vector>

namespace millrace {

bool WasMeasuredOnOneHost(const HardwareProfile& profile) {
  const int32_t num_ranks = profile.provenance.num_ranks;
  return !profile.communication.empty() && num_ranks > 1 &&
         num_ranks <= profile.ranks_per_host;
}

HardwareProfile WithHostsOf(int32_t devices, HardwareProfile profile) {
  const int32_t before = profile.ranks_per_host;
  if (devices <= before || !WasMeasuredOnOneHost(profile)) return profile;
  profile.ranks_per_host = devices;
  std::vector<double>& contention = profile.compute_contention;
  const double most = contention.empty() ? 1 : contention.back();
  contention.resize(static_cast<size_t>(devices), most);
  if (!profile.network.empty() && profile.network.front().devices == before) {
    profile.network.front().devices = devices;
  }
  return profile;
}

}  // namespace millrace
