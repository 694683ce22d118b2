#include "planner/frameworks/adapter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {

std::span<const Framework> Adapters() {
  static const Framework kAdapters[] = {
      HuggingFaceAdapter(), MegatronAdapter(),   MegatronBridgeAdapter(),
      NemoAdapter(),        TorchtitanAdapter(), DeepSpeedAdapter(),
  };
  return kAdapters;
}

Framework FindAdapter(absl::string_view name) {
  const auto adapters = Adapters();
  const auto found = std::ranges::find(adapters, name, &FrameworkAdapter::name);
  return found == adapters.end() ? nullptr : *found;
}

std::vector<std::string> ImportNames() {
  std::vector<std::string> names;
  for (const Framework adapter : Adapters()) names.emplace_back(adapter->name);
  return names;
}

std::vector<std::string> ExportNames() {
  std::vector<std::string> names;
  for (const Framework adapter : Adapters()) {
    if (adapter->write != nullptr) names.emplace_back(adapter->name);
  }
  return names;
}

std::string JoinWithOr(std::span<const std::string> names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.first(names.size() - 1), ", "),
                      " or ", names.back());
}

}  // namespace millrace
