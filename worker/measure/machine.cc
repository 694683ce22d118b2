#include "worker/measure/machine.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "base/units.h"

namespace millrace {
namespace {

// Where hwloc knows no model, the kernel may.
std::string ProcessorModel(hwloc_topology_t topology) {
  const hwloc_obj_t package =
      hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
  const char* model = package == nullptr
                          ? nullptr
                          : hwloc_obj_get_info_by_name(package, "CPUModel");
  if (model != nullptr && *model != '\0') {
    return std::string(absl::StripAsciiWhitespace(model));
  }
  return "unknown processor";
}

}  // namespace

std::string Machine::Fingerprint() const {
  std::string name;
  for (const char character : processor) {
    if (absl::ascii_isalnum(character)) {
      name += character;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return absl::StrCat(name, name.ends_with('-') ? "" : "-", "c", num_cores);
}

std::string Machine::Description() const {
  return absl::StrCat(processor, ", ", num_cores,
                      num_cores == 1 ? " core, " : " cores, ",
                      FormatBytes(memory_bytes));
}

absl::StatusOr<Machine> DescribeMachine() {
  hwloc_topology_t topology;
  if (hwloc_topology_init(&topology) != 0) {
    return absl::InternalError("hwloc cannot be initialized");
  }
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return absl::InternalError(
        "hwloc cannot read this machine's topology; is /sys mounted?");
  }
  Machine machine;
  machine.processor = ProcessorModel(topology);
  hwloc_bitmap_t binding = hwloc_bitmap_alloc();
  // This process may be bound to fewer cores than the machine has.
  const bool bound =
      hwloc_get_cpubind(topology, binding, HWLOC_CPUBIND_PROCESS) == 0;
  const int num_bound = bound ? hwloc_bitmap_weight(binding) : 0;
  const int num_units = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
  machine.num_cores =
      num_bound > 0 ? std::min(num_bound, num_units) : num_units;
  machine.memory_bytes =
      static_cast<int64_t>(hwloc_get_root_obj(topology)->total_memory);
  hwloc_bitmap_free(binding);
  hwloc_topology_destroy(topology);
  if (const std::optional<HostMemory> memory = ReadHostMemory()) {
    machine.memory_bytes = std::min(machine.memory_bytes, memory->total);
  }
  return machine;
}

int32_t ThreadsPerDevice(const Machine& machine, int32_t devices_on_host) {
  return std::max(1, machine.num_cores / std::max(1, devices_on_host));
}

int64_t DeviceMemoryBytes(const Machine& machine, int32_t devices_on_host) {
  // A tenth stays for the system, the file cache and the processes' own needs.
  return machine.memory_bytes / 10 * 9 / std::max(1, devices_on_host);
}

}  // namespace millrace
