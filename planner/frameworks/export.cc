#include "planner/frameworks/export.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "planner/cost/layer_work.h"
#include "planner/frameworks/export_parts.h"
#include "planner/job/job_keys.h"
#include "planner/job/layout_space.h"

namespace millrace {
namespace {

// Sets the layout's precision from the job's if the layout leaves it open.
absl::Status TakePrecision(const std::string& precision, Layout& layout) {
  const PrecisionRecipe* recipe = FindRecipe(precision);
  if (recipe == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("training.precision: only fp32, bf16, fp8, fp8_blockwise "
                     "and fp4 can be exported, found '",
                     precision, "'"));
  }
  if (layout.precision == Precision::kFloat32) {
    layout.precision = recipe->precision;
  }
  if (layout.gemm_format == GemmFormat::kAsStored) {
    layout.gemm_format = recipe->gemm_format;
  }
  return absl::OkStatus();
}

absl::Status CheckOptionsHaveWords(const JobSpec& job, Framework framework) {
  const FeedForward feed_forward = job.model.feed_forward;
  if (feed_forward == FeedForward::kGeglu ||
      feed_forward == FeedForward::kGeluErf) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.feed_forward: ", FeedForwardName(feed_forward),
        " is one that exports to ", framework->name, " have no words for yet"));
  }
  for (const char* path : framework->unwritten_options) {
    const JobKey* key = FindJobKey(path);
    CHECK(key != nullptr) << path;
    const std::string value = JobValueToYaml(*key, job);
    if (value == JobValueToYaml(*key, JobSpec{})) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", value, " is an option that exports to ", framework->name,
        " have no words for yet; export the job without it, and "
        "set it there by hand"));
  }
  return absl::OkStatus();
}

// Frameworks run the same number of micro-batches on every rank.
absl::Status CheckIsEven(const Layout& layout, Framework framework) {
  if (!layout.is_uneven()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the layout runs ", layout.most_microbatches(), " micro-batches on ",
      layout.extra_microbatches, " of ", layout.data, " data replicas and ",
      layout.num_microbatches, " on the others, which ", framework->name,
      " has no words for; set layout.data to a number that divides ",
      "training.global_batch, ", layout.global_batch(), ", for example ",
      LargestDivisorUpTo(layout.global_batch(), layout.data)));
}

// Adds the differences and assumptions that hold for every framework.
void NoteCommon(Export& out) {
  out.differences.push_back(
      "the plan's order of instructions, lanes and buffer offsets: the "
      "framework schedules and allocates by its own rules, so the predicted "
      "times are not its times");
  if (!out.layout.recompute_by_stage.empty()) {
    out.differences.push_back(absl::StrCat(
        "recompute by stage (", RecomputeKey(out.layout),
        "): one setting holds for all stages, so all do the most of any, ",
        RecomputeName(out.layout.recompute),
        ", which fits too and takes longer"));
  }
  if (out.layout.schedule == Schedule::kZeroBubble) {
    out.differences.push_back(
        "the schedule zero_bubble: weight gradients are not put off, the order "
        "is one forward, one backward");
  }
  if (out.layout.schedule == Schedule::kListScheduled) {
    out.differences.push_back(
        "the schedule list: the order of passes is the framework's own");
  }
  if (out.layout.data_groups > 1 && !out.layout.shards_optimizer()) {
    out.differences.push_back(absl::StrCat(
        "all-reduces in ", out.layout.data_groups,
        " groups (layout.data_groups): the framework's go over the whole data "
        "axis"));
  }
  if (out.layout.rounds_gradients() || out.layout.rounds_across()) {
    out.differences.push_back(absl::StrCat(
        "training.gradient_reduction ",
        GradientReductionName(out.layout.gradient_reduction),
        ": the framework's own default says what gradients are reduced in"));
  }
  if (out.layout.moments != MomentFormat::kFloat32) {
    out.differences.push_back(absl::StrCat(
        "training.optimizer.moments ", Describe(out.layout.moments).name,
        ": the framework keeps the optimizer's moments in fp32, which takes "
        "more memory than the plan says"));
  }
  if (out.job.model.moe.num_experts > 0) {
    out.differences.push_back(
        "routing: the plan takes every expert to get equally many tokens; "
        "losses and biases that balance them are yours to set");
  }
  out.differences.push_back(
      "the fault section: restarts are the launcher's business");
  out.assumptions.push_back(
      "the devices are those of the hardware profile that the plan was made "
      "with");
}

// Returns how many devices each host contributes: the most that divide the
// layout's devices equally.
int32_t SharedDevices(const Layout& layout, int32_t devices_per_host) {
  const int32_t num_devices = layout.num_ranks();
  if (devices_per_host == 0 || num_devices <= devices_per_host) {
    return num_devices;
  }
  int32_t most = 1;
  for (int32_t devices = devices_per_host; devices >= 1; --devices) {
    if (num_devices % devices != 0) continue;
    // A tensor group that covers one host and a part of another would be slow.
    if (devices % layout.tensor == 0 || layout.tensor % devices == 0) {
      return devices;
    }
    most = std::max(most, devices);
  }
  return most;
}

void SetHosts(int32_t devices_per_host, Export& out) {
  out.devices_per_host = SharedDevices(out.layout, devices_per_host);
  out.num_hosts = out.layout.num_ranks() / out.devices_per_host;
  if (devices_per_host == 0) {
    out.assumptions.push_back(
        "one host holds all devices; for more, give the launcher the number of "
        "hosts and the devices of one");
  } else if (out.num_hosts > 1) {
    out.assumptions.push_back(absl::StrCat(
        out.num_hosts, " hosts, ", out.devices_per_host, " devices of each",
        out.devices_per_host < devices_per_host
            ? absl::StrCat(", since ", devices_per_host,
                           " cannot share the layout equally")
            : "",
        "; ", out.framework->start_on_hosts));
  }
}

}  // namespace

std::vector<std::string> Export::indexed_prefixes() const {
  std::vector<std::string> prefixes;
  for (const std::string& path : job.data.indexed) {
    prefixes.emplace_back(absl::StripSuffix(path, ".bin"));
  }
  return prefixes;
}

std::string Export::checkpoint_folder() const {
  const std::string& folder = job.checkpoint.directory;
  return folder.empty() ? "checkpoints" : folder;
}

std::string Export::Value(const char* job_path) const {
  const JobKey* key = FindJobKey(job_path);
  CHECK(key != nullptr) << job_path;
  return JobValueToYaml(*key, job);
}

bool Export::IsReal(const char* job_path) const {
  JobSpec copy = job;
  return std::holds_alternative<double*>(FindJobKey(job_path)->field(copy));
}

std::vector<LayerRange> Export::Chunks() const {
  return ChunkLayers(job.model, layout, Implementation{});
}

std::vector<std::string> CommentLines(const Export& out) {
  std::vector<std::string> lines = {
      absl::StrCat(out.title(), " (", out.framework->version, ") for the job '",
                   out.job.name, "', in the layout that Millrace planned:"),
      absl::StrCat("  ", LayoutToString(out.layout), "; ",
                   out.layout.num_ranks(), " devices"),
      "What it cannot express of the plan, or does otherwise:"};
  for (const std::string& text : out.differences) {
    lines.push_back(absl::StrCat("  - ", text));
  }
  lines.push_back("Assumed:");
  for (const std::string& text : out.assumptions) {
    lines.push_back(absl::StrCat("  - ", text));
  }
  return lines;
}

std::string HashComment(const Export& out) {
  std::string text;
  for (const std::string& line : CommentLines(out)) {
    absl::StrAppend(&text, "# ", line, "\n");
  }
  return text;
}

std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrJoin(absl::StrSplit(text, '\''), "'\\''"),
                      "'");
}

std::string TorchrunCommand(const Export& out) {
  return absl::StrCat("torchrun --nnodes ", out.num_hosts, " --nproc-per-node ",
                      out.devices_per_host,
                      out.num_hosts > 1
                          ? " --rdzv-backend c10d --rdzv-endpoint HOST:29500"
                          : "");
}

absl::StatusOr<std::string> ExportLayout(const JobSpec& job,
                                         const Layout& layout,
                                         Framework framework,
                                         int32_t devices_per_host) {
  RETURN_IF_ERROR(
      ValidatePlannedLayout(job.model, layout, job.training.global_batch));
  RETURN_IF_ERROR(CheckOptionsHaveWords(job, framework));
  RETURN_IF_ERROR(CheckIsEven(layout, framework));
  Export out{.framework = framework, .job = job, .layout = layout};
  RETURN_IF_ERROR(TakePrecision(job.training.precision, out.layout));
  PinLayout(layout, &out.job);
  NoteCommon(out);
  SetHosts(devices_per_host, out);
  if (framework->write != nullptr) return framework->write(std::move(out));
  return absl::InvalidArgumentError(absl::StrCat(
      framework->why_no_export, "; export to ", JoinWithOr(ExportNames())));
}

}  // namespace millrace
