// The devices that published runs name, and the profiles that describe them.

#ifndef MILLRACE_PLANNER_EVALUATE_RUN_DEVICES_H_
#define MILLRACE_PLANNER_EVALUATE_RUN_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct RunDevice {
  const char* word;     // A word that rows have, in capitals: "GB200".
  const char* profile;  // A name in configs/hardware: "gb200-nvl72".
};

// Returns the device that a row's `gpu` names ("DGX-GB200"). Returns
// InvalidArgument for a device without a profile and names those that have one.
absl::StatusOr<RunDevice> DeviceOfRun(const std::string& gpu);

// Returns the profile of the device that a text names by one of the rows' words
// ("NVIDIA-H200-x4"); empty if it names none.
std::string ProfileOfDevice(const std::string& text);

std::vector<std::string> DeviceWords();
// Returns the names of the profiles of all devices.
std::vector<std::string> DeviceProfiles();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_EVALUATE_RUN_DEVICES_H_
