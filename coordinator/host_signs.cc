#include "coordinator/host_signs.h"

namespace millrace {

HostSign SignFromMessage(const protocol::HostSign& message) {
  HostSign sign = {.megahertz = message.megahertz(),
                   .num_throttles = message.num_throttles(),
                   .steal_share = message.steal_share(),
                   .processor_pressure = message.processor_pressure(),
                   .memory_pressure = message.memory_pressure()};
  if (!message.has_gpu()) return sign;
  const protocol::GpuSign& gpu = message.gpu();
  sign.gpu = {.present = gpu.present(),
              .clock_mhz = gpu.clock_mhz(),
              .throttle_reasons = gpu.throttle_reasons(),
              .corrected_errors = gpu.corrected_errors(),
              .uncorrected_errors = gpu.uncorrected_errors(),
              .remap_pending = gpu.remap_pending(),
              .remap_failed = gpu.remap_failed(),
              .nvlinks = gpu.nvlinks(),
              .active_nvlinks = gpu.active_nvlinks(),
              .nvlink_errors = gpu.nvlink_errors(),
              .pcie_width = gpu.pcie_width()};
  return sign;
}

}  // namespace millrace
