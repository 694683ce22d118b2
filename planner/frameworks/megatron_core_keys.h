// Frameworks built on Megatron Core have the arguments of Megatron-LM under
// other names. Exports and imports share one table of these names.

#ifndef MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_
#define MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/settings.h"

namespace millrace {

// How Megatron-LM and the two frameworks on its core name their arguments.
enum class MegatronDialect : uint8_t { kFlags, kBridge, kNemo };

// Returns the keys for which a key of the job stands alone.
std::vector<FrameworkKey> KeysIn(MegatronDialect dialect);

// Whether the framework is built on Megatron Core: Megatron-Bridge or NeMo.
bool IsOnCore(Framework framework);

// How a key's value follows from the flag of Megatron-LM.
enum class CoreValue : uint8_t {
  kSame,
  kOn,       // true if the flag, a switch, is given.
  kOff,      // false if it is given.
  kSquared,  // "squared_relu" if it is given.
  kWords,    // A list of the flag's words.
  kPattern,  // A list of zeros and ones; the flag has Python text.
};

struct CoreKey {
  std::string name;  // "model.num_layers"; empty: the framework has none.
  CoreValue value = CoreValue::kSame;
};

// Returns the key of a framework on the core that means the same as a flag of
// Megatron-LM ("num-layers"). Its name is empty if there is none.
CoreKey CoreKeyOf(Framework framework, absl::string_view flag);

// Returns the settings of a framework on the core under their own names, but
// with the values that the flags of Megatron-LM would have. A switch becomes
// "True", or kSwitchOff if its flag would be left out. Values that no flag can
// have stay as they are.
inline constexpr char kSwitchOff[] = "False";
Settings WithFlagValues(Framework framework, const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_FRAMEWORKS_MEGATRON_CORE_KEYS_H_
