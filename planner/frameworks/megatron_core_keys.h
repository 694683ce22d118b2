// Frameworks built on Megatron Core have the arguments of Megatron-LM under
// names of their own: one table, which exports and imports share.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/settings.h"

namespace millrace {

// Whether it is one of them: kMegatronBridge or kNemo.
bool IsOnCore(Framework framework);

// What a key's value is, seen from the flag of Megatron-LM.
enum class CoreValue : uint8_t {
  kSame,
  kOn,       // true where the flag, a switch, is given.
  kOff,      // false where it is given.
  kSquared,  // "squared_relu" where it is given.
  kWords,    // A list of the flag's words.
  kPattern,  // A list of zeros and ones, which the flag has as Python text.
};

struct CoreKey {
  std::string name;  // "model.num_layers"; empty: the framework has none.
  CoreValue value = CoreValue::kSame;
};

// The key of a framework on the core that says what a flag of Megatron-LM
// ("num-layers") says; without a name for one that has no counterpart there.
CoreKey CoreKeyOf(Framework framework, absl::string_view flag);

// The settings of a framework on the core under their own names, with the
// values that the flags of Megatron-LM would have: a switch is "True", or
// kSwitchOff where its flag would be left out. Values that no flag can have
// stay as they are.
inline constexpr char kSwitchOff[] = "False";
Settings WithFlagValues(Framework framework, const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_
