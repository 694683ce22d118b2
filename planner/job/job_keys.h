// Every key a job file may have: its type, default, range and meaning, and the
// field of JobSpec it sets. Reading, writing and docs/job.md all follow this
// one table.

#ifndef MILLRACE_PLANNER_JOB_JOB_KEYS_H_
#define MILLRACE_PLANNER_JOB_JOB_KEYS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "planner/job/job.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

// A key whose only value says which kind of thing the section describes.
struct FixedChoice {};

// Points into a JobSpec. An absent optional is written `auto`.
using JobField =
    std::variant<FixedChoice, bool*, std::string*, std::vector<std::string>*,
                 std::vector<double>*, std::map<std::string, DataSourceSpec>*,
                 std::vector<DataSourceSpec>*, double*, int32_t*, int64_t*,
                 uint64_t*, std::optional<int32_t>*, std::optional<int64_t>*,
                 std::optional<double>*, LearningRateDecay*, FeedForward*,
                 RopeScalingKind*, NormKind*, AttentionFormat*>;

// The numbers that a key accepts.
struct NumberRange {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool excludes_least = false;
  bool excludes_most = false;
};

struct JobKey {
  const char* path;  // "training.optimizer.beta1".
  JobField (*field)(JobSpec& job);
  const char* doc;  // One sentence or two; what it is, and its unit.
  bool required = false;
  NumberRange range = {};  // For numbers.
  // Why there is no more: "because ...", in messages about values that are too
  // large. Null where the maximum needs no reason.
  const char* maximum_reason = nullptr;
  bool is_bytes = false;  // Written as "20 MiB" or a plain count.
  // For text: "cpu" or "none|linear|cosine". Those of an enum are in its order.
  const char* choices = nullptr;
  // For what is recomputed: sets of ops beside the choices, and a list of all
  // but auto, one for each pipeline stage, kept as "full, none".
  bool by_stage = false;
  // Where the default is not a constant: "default heads".
  const char* default_note = nullptr;
};

std::span<const JobKey> JobKeys();
// The key of that path, or null.
const JobKey* FindJobKey(absl::string_view path);

// Whether a key of text accepts it.
bool IsChoice(const JobKey& key, absl::string_view text);

// "; the most is 1000000, because ..." if `value` is a number above the key's
// maximum, else empty.
std::string TooLargeText(const JobKey& key, absl::string_view value);

// The values that a key accepts, as messages say it: "an integer of at least
// 1".
std::string DescribeExpected(const JobKey& key);

// The value of `key` in `job`, as YAML.
std::string JobValueToYaml(const JobKey& key, const JobSpec& job);

// Sets the key from YAML. Returns false, and leaves the job as it is, if the
// value is not what the key expects.
bool SetFromTree(const JobKey& key, const YamlTree& tree, JobSpec* job);

// The list of docs/job.md, one item a key.
std::string JobKeysAsMarkdown();

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_JOB_KEYS_H_
