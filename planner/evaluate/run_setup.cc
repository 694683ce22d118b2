#include "planner/evaluate/run_setup.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "planner/evaluate/framework_rules.h"
#include "planner/evaluate/known_models.h"
#include "planner/evaluate/run_devices.h"
#include "planner/evaluate/run_model.h"

namespace millrace {
namespace {

bool Contains(absl::string_view text, absl::string_view part) {
  return absl::StrContains(absl::AsciiStrToLower(text),
                           absl::AsciiStrToLower(part));
}

// --- Machine ---

absl::Status FindMachine(const PublishedRun& run,
                         const FrameworkRule& framework, RunSetup* setup) {
  if (run.gpu.empty()) return NotStated("gpu");
  ASSIGN_OR_RETURN(const RunDevice device, DeviceOfRun(run.gpu));
  setup->profile = device.profile;
  const auto other = framework.profiles.find(setup->profile);
  if (other == framework.profiles.end()) return absl::OkStatus();
  setup->profile = other->second.name;
  setup->assumptions.push_back(other->second.says);
  return absl::OkStatus();
}

// --- Layout ---

absl::Status Fits(absl::string_view name, const std::optional<int64_t>& stated,
                  int32_t* out) {
  if (!stated) return NotStated(name);
  if (*stated < 1 || *stated > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", *stated, "; it must be from 1 to 2147483647"));
  }
  *out = static_cast<int32_t>(*stated);
  return absl::OkStatus();
}

absl::Status FindPrecision(const PublishedRun& run, double rate_with_row_scales,
                           RunSetup* setup) {
  const absl::string_view precision = run.precision;
  if (precision.empty() || Contains(precision, "not stated")) {
    if (!Contains(precision, "16")) return NotStated("precision");
  }
  setup->layout.precision = Precision::kBfloat16;
  if (Contains(precision, "FP4")) {
    setup->layout.gemm_format = GemmFormat::kFloat4;
  } else if (Contains(precision, "FP8")) {
    setup->layout.gemm_format = GemmFormat::kFloat8;
    if (Contains(precision, "rowwise")) {
      setup->implementation.low_precision_rate = rate_with_row_scales;
      setup->assumptions.push_back(
          absl::StrCat("with a scale for each row, 8-bit products reach ",
                       rate_with_row_scales,
                       " of the rate they reach with one for each tensor"));
    } else if (!absl::EqualsIgnoreCase(precision, "FP8")) {
      setup->assumptions.push_back(
          absl::StrCat("recipe '", precision, "' is planned as any 8-bit one"));
    }
  } else if (!Contains(precision, "BF16") && !Contains(precision, "FP16") &&
             !Contains(precision, "float16")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "precision '", precision,
        "' is unknown; known are BF16, FP16, FP8 and FP4 recipes"));
  }
  return absl::OkStatus();
}

absl::Status FindZero(const PublishedRun& run, const FrameworkRule& framework,
                      RunSetup* setup) {
  // "ZeRO-1", "zero_1" and "zero1" are one word.
  const std::string zero = absl::StrReplaceAll(
      absl::AsciiStrToLower(run.zero), {{"-", ""}, {"_", ""}, {" ", ""}});
  Layout& layout = setup->layout;
  if (zero.empty()) {
    layout.zero = framework.zero;
    setup->assumptions.push_back(
        absl::StrCat("ZeRO not stated; stage ", framework.zero,
                     ", the framework's default here"));
  } else if (absl::StartsWith(zero, "none")) {
    layout.zero = 0;
  } else if (absl::StartsWith(zero, "zero1") ||
             absl::StartsWith(zero, "distributedoptimizer")) {
    layout.zero = 1;
  } else if (absl::StartsWith(zero, "zero2")) {
    layout.zero = 2;
  } else if (absl::StartsWith(zero, "zero3") ||
             absl::StartsWith(zero, "fsdp")) {
    layout.zero = 3;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "zero_or_fsdp '", run.zero,
        "' is unknown; known are none, zero1, zero2, zero3, fsdp"));
  }
  const int64_t shard = run.fsdp_shard.value_or(0);
  if (shard > 1 && layout.zero == 3 && shard != layout.data &&
      shard != static_cast<int64_t>(layout.data) * layout.context) {
    const int64_t in_group = shard / layout.context;
    if (in_group * layout.context != shard || layout.data % in_group != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "fsdp_shard ", shard, " does not divide the data axis of ",
          layout.data, " x context ", layout.context));
    }
    layout.data_groups = static_cast<int32_t>(layout.data / in_group);
  }
  return absl::OkStatus();
}

// Finds what "selective" covers: the ops that the row names, else the
// framework's.
void FindSelection(const PublishedRun& run, RunSetup* setup) {
  const absl::string_view recompute = run.recompute;
  const SelectiveRecompute named = {
      .norms = Contains(recompute, "norm"),
      .activation = Contains(recompute, "moe_act"),
      .attention = Contains(recompute, "attention core") ||
                   Contains(recompute, "core_attn"),
      .latent_projections = Contains(recompute, "mla_up_proj"),
      .experts = Contains(recompute, "selective moe,")};
  SelectiveRecompute& selective = setup->implementation.selective;
  if (named.norms || named.activation || named.attention ||
      named.latent_projections || named.experts) {
    selective = named;
  } else {
    setup->assumptions.push_back(
        "what is computed again is not stated; what the framework's selective "
        "policy covers");
  }
}

absl::Status FindRecompute(const PublishedRun& run,
                           const FrameworkRule& framework, RunSetup* setup) {
  Layout& layout = setup->layout;
  const absl::string_view recompute = run.recompute;
  if (recompute.empty()) {
    layout.recompute = framework.recompute;
    setup->assumptions.push_back(
        absl::StrCat("recompute not stated; ", RecomputeName(layout.recompute),
                     ", the framework's default here"));
  } else if (absl::StartsWithIgnoreCase(recompute, "none")) {
    layout.recompute = Recompute::kNone;
  } else if (absl::StartsWithIgnoreCase(recompute, "full")) {
    layout.recompute = Recompute::kFull;
  } else if (Contains(recompute, "selective")) {
    layout.recompute = Recompute::kPolicy;
    FindSelection(run, setup);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("recompute '", recompute,
                     "' is unknown; known are none, selective ..., full"));
  }
  return absl::OkStatus();
}

absl::Status FindBatches(const PublishedRun& run,
                         const FrameworkRule& framework, RunSetup* setup) {
  Layout& layout = setup->layout;
  int32_t global_batch = 0;
  RETURN_IF_ERROR(Fits("global_batch", run.global_batch, &global_batch));
  if (!run.micro_batch && framework.one_micro_batch_a_stage &&
      layout.pipeline > 1) {
    if (global_batch % (layout.data * layout.pipeline) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "micro_batch is not stated and the global batch does not divide "
          "into ",
          framework.name, "'s default of one micro-batch a stage"));
    }
    layout.micro_batch = global_batch / (layout.data * layout.pipeline);
    layout.num_microbatches = layout.pipeline;
    setup->assumptions.push_back(
        absl::StrCat("micro_batch not stated; as many micro-batches as "
                     "pipeline stages, ",
                     framework.name, "'s default"));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Fits("micro_batch", run.micro_batch, &layout.micro_batch));
  const int64_t sequences =
      static_cast<int64_t>(layout.micro_batch) * layout.data;
  if (global_batch % sequences != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "global_batch ", global_batch, " is not divisible by micro_batch ",
        layout.micro_batch, " x dp ", layout.data));
  }
  layout.num_microbatches = static_cast<int32_t>(global_batch / sequences);
  return absl::OkStatus();
}

absl::Status FindAxes(const PublishedRun& run, RunSetup* setup) {
  Layout& layout = setup->layout;
  int32_t num_gpus = 0;
  RETURN_IF_ERROR(Fits("n_gpus", run.num_gpus, &num_gpus));
  RETURN_IF_ERROR(Fits("tp", run.tensor, &layout.tensor));
  RETURN_IF_ERROR(Fits("pp", run.pipeline, &layout.pipeline));
  RETURN_IF_ERROR(Fits("cp", run.context.value_or(1), &layout.context));
  RETURN_IF_ERROR(Fits("ep", run.expert.value_or(1), &layout.expert));
  // "ETP=4" means that experts are cut as the layer is.
  if (layout.expert > 1 && layout.tensor > 1) {
    const bool is_cut =
        Contains(run.notes, absl::StrCat("ETP=", layout.tensor));
    layout.expert_tensor = is_cut ? layout.tensor : 1;
    if (!is_cut && !Contains(run.notes, "ETP=1")) {
      setup->assumptions.push_back(
          "whether experts are cut is not stated; they are whole");
    }
  }
  if (run.data) {
    RETURN_IF_ERROR(Fits("dp", run.data, &layout.data));
  } else {
    layout.data = std::max(
        num_gpus / layout.tensor / layout.pipeline / layout.context, 1);
    setup->assumptions.push_back("dp not stated; what the devices leave");
  }
  // Counts as a double, since the product may exceed every integer.
  const double num_ranks = static_cast<double>(layout.tensor) *
                           layout.pipeline * layout.context * layout.data;
  if (num_ranks != num_gpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp ", layout.tensor, " x pp ", layout.pipeline, " x cp ",
                     layout.context, " x dp ", layout.data, " is ", num_ranks,
                     " devices, but n_gpus is ", num_gpus));
  }
  RETURN_IF_ERROR(Fits("vp", run.interleave.value_or(1), &layout.interleave));
  if (layout.pipeline == 1) {
    layout.interleave = 1;
  } else if (!run.interleave) {
    const bool is_interleaved = Contains(run.notes, "interleaved");
    layout.interleave = is_interleaved ? 2 : 1;
    setup->assumptions.push_back(
        is_interleaved
            ? "vp not stated but the schedule is interleaved; 2 chunks a "
              "stage, torchtitan's default"
            : "vp not stated; one chunk a stage");
  }
  // Megatron may count embedding and head as layers, each alone in its chunk.
  if (layout.interleave > 1 && int64_t{layout.pipeline} * layout.interleave ==
                                   setup->model.num_layers + 2) {
    --layout.interleave;
    setup->assumptions.push_back(
        "the chunks of embedding and head hold no layer; planned with a chunk "
        "less a stage");
  }
  layout.schedule = layout.interleave > 1 ? Schedule::kInterleaved
                                          : Schedule::kOneForwardOneBackward;
  return absl::OkStatus();
}

// Applies what the notes say about how the run computed.
void ReadNotes(const PublishedRun& run, RunSetup* setup) {
  Implementation& implementation = setup->implementation;
  if (Contains(run.notes, "no sequence parallel") ||
      Contains(run.notes, "no SP")) {
    implementation.sequence_parallel = false;
  } else if (Contains(run.notes, "sequence parallel on") ||
             Contains(run.notes, "TP+SP")) {
    implementation.sequence_parallel = true;
  }
  if (Contains(run.notes, "async TP")) implementation.overlaps_tensor = true;
  if (Contains(run.notes, "TP comm overlap off")) {
    implementation.overlaps_tensor = false;
  }
  if (Contains(run.notes, "eager")) implementation.fused_elementwise = false;
  if (Contains(run.notes, "DP outermost")) {
    implementation.pipeline_outermost = false;
  }
  if (Contains(run.notes, "CUDA graphs")) {
    implementation.launches_from_host = false;
  }
}

// --- Cases and recipes ---

// The version in the section of the run's source, "... [26.04.01 NeMo
// Container]", by ParseVersion(); 0 where there is none.
int32_t VersionOfRun(const PublishedRun& run) {
  const size_t open = run.source.find('[');
  if (open == std::string::npos) return 0;
  const absl::string_view section =
      absl::string_view(run.source).substr(open + 1);
  return ParseVersion(section.substr(0, section.find(' '))).value_or(0);
}

bool IsOnOneOf(const std::vector<std::string>& gpus, const PublishedRun& run) {
  const absl::StatusOr<RunDevice> device = DeviceOfRun(run.gpu);
  return device.ok() && std::ranges::find(gpus, device->word) != gpus.end();
}

bool FitsRun(const RunFilter& filter, const PublishedRun& run,
             const RunSetup& setup) {
  const bool low_precision = setup.layout.gemm_format != GemmFormat::kAsStored;
  const bool latent_attention = setup.model.mla.kv_rank > 0;
  return absl::StartsWith(PlainModelName(run.model), filter.model) &&
         absl::StrContains(run.source, filter.source) &&
         VersionOfRun(run) >= filter.first_version &&
         setup.layout.tensor >= filter.tensor_ranks &&
         filter.low_precision.value_or(low_precision) == low_precision &&
         filter.latent_attention.value_or(latent_attention) ==
             latent_attention &&
         (filter.gpus.empty() || IsOnOneOf(filter.gpus, run));
}

void ApplyCases(const FrameworkRule& rule, const PublishedRun& run,
                RunSetup* setup) {
  for (const BehaviourCase& one : rule.cases) {
    if (!FitsRun(one.filter, run, *setup)) continue;
    Apply(one.set, &setup->implementation);
    if (!one.says.empty()) setup->assumptions.push_back(one.says);
  }
}

}  // namespace

void ApplyRecipe(const FrameworkRule& rule, const PublishedRun& run,
                 RunSetup* setup) {
  const auto recipe = std::find_if(
      rule.recipes.rbegin(), rule.recipes.rend(),
      [&](const Recipe& known) { return FitsRun(known.filter, run, *setup); });
  if (recipe == rule.recipes.rend()) return;
  Apply(recipe->set, &setup->implementation);
  setup->assumptions.push_back(
      absl::StrCat(rule.recipes_say, ": ", recipe->says));
  if (!run.recompute.empty() || !recipe->recompute.has_value()) return;
  setup->layout.recompute = Recompute::kPolicy;
  setup->implementation.selective = *recipe->recompute;
  setup->assumptions.push_back(
      absl::StrCat("recompute as in that recipe: ", recipe->recompute_says));
}

absl::StatusOr<RunSetup> SetUpRun(const PublishedRun& run,
                                  const RunRules& rules) {
  RunSetup setup;
  if (!run.kind.empty() && run.kind != "pretrain" &&
      run.kind != "memory_formula") {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind '", run.kind,
        "' is unknown; the planner prices steps that train all parameters "
        "(pretrain)"));
  }
  const FrameworkChoice choice = FrameworkOf(rules.frameworks, run);
  const FrameworkRule& framework = *choice.rule;
  setup.assumptions.push_back(absl::StrCat(
      choice.is_known ? "computes as " : "framework unknown; computes as ",
      framework.says));
  setup.implementation = framework.implementation;
  setup.memory_is_of_first_rank = framework.logs_first_rank;
  setup.reserved_per_allocated = framework.reserved_per_allocated;
  ReadNotes(run, &setup);
  ASSIGN_OR_RETURN(setup.model, ModelOfRun(run, rules.models, framework,
                                           &setup.assumptions));
  RETURN_IF_ERROR(FindAxes(run, &setup));
  RETURN_IF_ERROR(FindBatches(run, framework, &setup));
  RETURN_IF_ERROR(
      FindPrecision(run, rules.frameworks.rate_with_row_scales, &setup));
  RETURN_IF_ERROR(FindZero(run, framework, &setup));
  RETURN_IF_ERROR(FindRecompute(run, framework, &setup));
  RETURN_IF_ERROR(FindMachine(run, framework, &setup));
  ApplyCases(framework, run, &setup);
  ApplyRecipe(framework, run, &setup);
  return setup;
}

}  // namespace millrace
