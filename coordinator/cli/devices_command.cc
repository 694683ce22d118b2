#include "coordinator/cli/devices_command.h"

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/backend/cuda_backend.h"
#include "worker/measure/machine.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// GPUs and what is to be said about them. An error means that no job can train
// on them, and is news here, not a failure.
struct Gpus {
  std::vector<CudaDeviceInfo> devices;
  std::vector<std::string> warnings;
  absl::Status status;
};

absl::Status FindGpus(Gpus* gpus) {
  ASSIGN_OR_RETURN(CudaBackend* const backend, LoadCudaBackend());
  ASSIGN_OR_RETURN(gpus->devices, backend->ListDevices());
  ASSIGN_OR_RETURN(
      gpus->warnings,
      backend->CheckHost(static_cast<int32_t>(gpus->devices.size())));
  return absl::OkStatus();
}

void PrintText(const Machine& machine, const Gpus& gpus) {
  std::cout << "cpu:  " << machine.Description() << "\n";
  for (size_t i = 0; i < gpus.devices.size(); ++i) {
    const CudaDeviceInfo& gpu = gpus.devices[i];
    std::cout << absl::StreamFormat(
        "cuda: %d  %s, %s, %d multiprocessors, compute capability %d.%d\n", i,
        gpu.name, FormatBytes(gpu.memory_bytes), gpu.num_multiprocessors,
        gpu.compute_capability / 10, gpu.compute_capability % 10);
  }
  for (const std::string& warning : gpus.warnings) {
    std::cout << "cuda: warning: " << warning << "\n";
  }
  if (!gpus.status.ok()) {
    std::cout << "cuda: cannot be used: " << gpus.status.message() << "\n";
  }
}

void PrintJson(const Machine& machine, const Gpus& gpus) {
  Json devices = Json::array();
  for (const CudaDeviceInfo& gpu : gpus.devices) {
    devices.push_back({{"name", gpu.name},
                       {"memory_bytes", gpu.memory_bytes},
                       {"multiprocessors", gpu.num_multiprocessors},
                       {"compute_capability", gpu.compute_capability}});
  }
  Json cuda = {{"devices", devices}, {"warnings", gpus.warnings}};
  cuda["error"] = gpus.status.ok() ? Json(nullptr)
                                   : Json(std::string(gpus.status.message()));
  const Json all = {{"cpu",
                     {{"processor", machine.processor},
                      {"cores", machine.num_cores},
                      {"memory_bytes", machine.memory_bytes}}},
                    {"cuda", cuda}};
  std::cout << JsonText(all, 1) << "\n";
}

int ListDevices(bool json) {
  const absl::StatusOr<Machine> machine = DescribeMachine();
  if (!machine.ok()) {
    std::cerr << "millrace devices: " << machine.status().message()
              << std::endl;
    return 1;
  }
  Gpus gpus;
  gpus.status = FindGpus(&gpus);
  json ? PrintJson(*machine, gpus) : PrintText(*machine, gpus);
  return 0;
}

}  // namespace

void AddDevicesCommand(CLI::App& app, int* exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "devices", "List what this machine has to train on, and what is amiss");
  command->add_flag("--json", *json, "For programs");
  command->footer(
      "Example:\n"
      "  millrace devices\n"
      "Exit code 0 whatever there is; where GPUs cannot be used, the reason is "
      "told.");
  command->callback([=] { *exit_code = ListDevices(*json); });
}

}  // namespace millrace
