#include "base/host_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/units.h"

namespace millrace {
namespace {

// The number behind `name` at the beginning of a line.
std::optional<int64_t> Figure(const std::string& path, absl::string_view name) {
  const std::string text = ReadFile(path).value_or("");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    absl::ConsumeSuffix(&line, "kB");
    int64_t value = 0;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &value)) {
      return value;
    }
  }
  return std::nullopt;
}

struct ControlGroup {
  const char* limit;
  const char* used;
  const char* cached;  // The name of the figure in memory.stat.
  const char* folder;
};
// Version 2, then version 1.
constexpr ControlGroup kControlGroups[] = {
    {"memory.max", "memory.current", "inactive_file ", "/sys/fs/cgroup/"},
    {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
     "/sys/fs/cgroup/memory/"}};

}  // namespace

std::optional<HostMemory> ReadHostMemory() {
  const std::optional<int64_t> total = Figure("/proc/meminfo", "MemTotal:");
  const std::optional<int64_t> available =
      Figure("/proc/meminfo", "MemAvailable:");
  if (!total.has_value() || !available.has_value()) return std::nullopt;
  HostMemory memory = {.total = *total * kKiB, .available = *available * kKiB};
  for (const ControlGroup& group : kControlGroups) {
    const std::optional<int64_t> limit =
        Figure(absl::StrCat(group.folder, group.limit), "");
    const std::optional<int64_t> used =
        Figure(absl::StrCat(group.folder, group.used), "");
    if (!limit.has_value() || !used.has_value()) continue;
    const int64_t cached =
        Figure(absl::StrCat(group.folder, "memory.stat"), group.cached)
            .value_or(0);
    memory.total = std::min(memory.total, *limit);
    memory.available = std::max<int64_t>(
        0, std::min(memory.available, *limit - *used + cached));
  }
  return memory;
}

}  // namespace millrace
