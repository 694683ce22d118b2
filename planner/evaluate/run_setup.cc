#include "planner/evaluate/run_setup.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "planner/evaluate/bridge_recipes.h"
#include "planner/evaluate/framework_rules.h"
#include "planner/evaluate/run_model.h"

namespace millrace {
namespace {

absl::Status SetupNotStated(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is not stated"));
}

bool Contains(absl::string_view text, absl::string_view part) {
  return absl::StrContains(absl::AsciiStrToLower(text),
                           absl::AsciiStrToLower(part));
}

int64_t StatedOr(const std::optional<int64_t>& stated, int64_t otherwise) {
  return stated.value_or(otherwise);
}

bool IsTorchtitan(const PublishedRun& run) {
  return absl::StartsWith(run.group, "torchtitan");
}

// --- Machine ---

struct Machine {
  const char* word;  // Of the row's gpu, in capital letters.
  const char* profile;
};

// The first word found counts: GB200 before B200.
constexpr char kA100[] = "a100-80gb";
constexpr char kA100WithSlowFabric[] = "a100-80gb-100g";  // Gb/s a device.
constexpr char kVtrainTable[] = "vtrain_single";          // A group.
constexpr char kA100OfVtrainTable[] = "a100-80gb-vtrain-node";
constexpr char kH100WithLessPower[] = "h100-500w";
constexpr Machine kMachines[] = {
    {"GB300", "gb300-nvl72"}, {"GB200", "gb200-nvl72"}, {"B300", "b300-hgx"},
    {"B200", "b200-hgx"},     {"H200", "h200-cluster"}, {"H800", "h800-sxm"},
    {"H100", "h100-sxm"},     {"A100", kA100},
};

// Whether `gpu` has `word` as a name of its own: neither GH200 nor an A1000.
bool Names(absl::string_view gpu, absl::string_view word) {
  for (size_t at = gpu.find(word); at != absl::string_view::npos;
       at = gpu.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool is_longer = end < gpu.size() && absl::ascii_isdigit(gpu[end]);
    const bool is_grace = at > 0 && gpu[at - 1] == 'G';
    if (!is_longer && !is_grace) return true;
  }
  return false;
}

// Devices of the same name with less bandwidth, fewer processors or without
// NVLink between all of a node.
bool IsUnlikeSxm(absl::string_view gpu) {
  return absl::StrContains(gpu, "PCIE") ||
         (absl::StrContains(gpu, "NVL") && !absl::StrContains(gpu, "NVL72")) ||
         (Names(gpu, "A100") &&
          (absl::StrContains(gpu, "40GB") || absl::StrContains(gpu, "40 GB")));
}

// Null if the text, in capital letters, names none.
const Machine* MachineNamed(absl::string_view text) {
  const auto* const machine =
      std::find_if(std::begin(kMachines), std::end(kMachines),
                   [&](const Machine& m) { return Names(text, m.word); });
  return machine == std::end(kMachines) ? nullptr : machine;
}

absl::Status FindMachine(const PublishedRun& run, RunSetup* setup) {
  if (run.gpu.empty()) return SetupNotStated("gpu");
  const std::string gpu = absl::AsciiStrToUpper(run.gpu);
  const Machine* const machine = MachineNamed(gpu);
  if (machine == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gpu '", run.gpu, "' is unknown; known are ",
        absl::StrJoin(kMachines, ", ", [](std::string* out, const Machine& m) {
          absl::StrAppend(out, m.word);
        })));
  }
  if (IsUnlikeSxm(gpu)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpu '", run.gpu, "' is another device than that of ",
                     machine->profile, ", which no profile describes"));
  }
  setup->profile = machine->profile;
  const bool is_vtrain = absl::StartsWith(run.group, "vtrain");
  if (setup->profile == kA100 && absl::StartsWith(run.group, kVtrainTable)) {
    setup->profile = kA100OfVtrainTable;
    setup->assumptions.push_back(
        "all-reduces as slow as in the measurements that vTrain adds up");
  } else if (setup->profile == kA100 && is_vtrain) {
    setup->profile = kA100WithSlowFabric;
    setup->assumptions.push_back(
        "800 Gb/s of fabric a node of 8 devices, as vTrain's machine has");
  } else if (absl::StrContains(gpu, "500W")) {
    setup->profile = kH100WithLessPower;
  }
  return absl::OkStatus();
}

// --- Layout ---

absl::Status Fits(absl::string_view name, const std::optional<int64_t>& stated,
                  int32_t* out) {
  if (!stated) return SetupNotStated(name);
  if (*stated < 1 || *stated > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", *stated, "; it must be from 1 to 2147483647"));
  }
  *out = static_cast<int32_t>(*stated);
  return absl::OkStatus();
}

absl::Status FindPrecision(const PublishedRun& run, RunSetup* setup) {
  const absl::string_view precision = run.precision;
  if (precision.empty() || Contains(precision, "not stated")) {
    if (!Contains(precision, "16")) return SetupNotStated("precision");
  }
  setup->layout.precision = Precision::kBfloat16;
  if (Contains(precision, "FP4")) {
    setup->layout.gemm_format = GemmFormat::kFloat4;
  } else if (Contains(precision, "FP8")) {
    setup->layout.gemm_format = GemmFormat::kFloat8;
    if (Contains(precision, "rowwise")) {
      // Of torchtitan's runs, where they gain next to nothing over bf16.
      setup->implementation.low_precision_rate = 0.45;
      setup->assumptions.push_back(
          "with a scale for each row, 8-bit products reach 0.45 of the rate "
          "they reach with one for each tensor");
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
  const int64_t shard = StatedOr(run.fsdp_shard, 0);
  if (shard > 1 && layout.zero == 3 && shard != layout.data &&
      shard != static_cast<int64_t>(layout.data) * layout.context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fsdp_shard ", shard, " shards within parts of the data axis of ",
        layout.data, "; the planner shards over all of it"));
  }
  return absl::OkStatus();
}

// What "selective" covers, where the row names it; otherwise the framework's.
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

absl::Status FindBatches(const PublishedRun& run, RunSetup* setup) {
  Layout& layout = setup->layout;
  int32_t global_batch = 0;
  RETURN_IF_ERROR(Fits("global_batch", run.global_batch, &global_batch));
  if (!run.micro_batch && IsTorchtitan(run) && layout.pipeline > 1) {
    if (global_batch % (layout.data * layout.pipeline) != 0) {
      return absl::InvalidArgumentError(
          "micro_batch is not stated and the global batch does not divide into "
          "torchtitan's default of one micro-batch a stage");
    }
    layout.micro_batch = global_batch / (layout.data * layout.pipeline);
    layout.num_microbatches = layout.pipeline;
    setup->assumptions.push_back(
        "micro_batch not stated; as many micro-batches as pipeline stages, "
        "torchtitan's default");
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
  RETURN_IF_ERROR(Fits("cp", StatedOr(run.context, 1), &layout.context));
  RETURN_IF_ERROR(Fits("ep", StatedOr(run.expert, 1), &layout.expert));
  // "ETP=4": experts are cut as the layer is.
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
  // Beyond what integers hold, too.
  const double num_ranks = static_cast<double>(layout.tensor) *
                           layout.pipeline * layout.context * layout.data;
  if (num_ranks != num_gpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp ", layout.tensor, " x pp ", layout.pipeline, " x cp ",
                     layout.context, " x dp ", layout.data, " is ", num_ranks,
                     " devices, but n_gpus is ", num_gpus));
  }
  RETURN_IF_ERROR(Fits("vp", StatedOr(run.interleave, 1), &layout.interleave));
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

// What the notes say of the way the run computed.
void ReadNotes(const PublishedRun& run, RunSetup* setup) {
  Implementation& implementation = setup->implementation;
  if (Contains(run.notes, "no sequence parallel") ||
      Contains(run.notes, "no SP")) {
    implementation.sequence_parallel = false;
  } else if (Contains(run.notes, "sequence parallel on") ||
             Contains(run.notes, "TP+SP")) {
    implementation.sequence_parallel = true;
  }
  // Compiled, the loss of later versions keeps no copies in fp32.
  if (IsTorchtitan(run) && Contains(run.source, "2025")) {
    constexpr double kLogitAndGradient = 4;
    implementation.logit_bytes = kLogitAndGradient;
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

// How the framework keeps weights and moments of this model on this machine.
void FindStorage(const PublishedRun& run, RunSetup* setup) {
  Implementation& implementation = setup->implementation;
  const bool is_blackwell = absl::StrContains(setup->profile, "b200") ||
                            absl::StrContains(setup->profile, "b300");
  if (absl::StartsWith(run.group, "mlperf") && is_blackwell &&
      setup->layout.gemm_format != GemmFormat::kAsStored) {
    implementation.weight_bytes = 1;
    setup->assumptions.push_back(
        "weights kept in 8 bits alone (fp8_params of NVIDIA's MLPerf code)");
  }
  if (absl::StartsWith(run.group, "mbridge") && setup->model.mla.kv_rank > 0) {
    constexpr double kMasterAndMomentsInBf16 = 8;
    implementation.optimizer_bytes = kMasterAndMomentsInBf16;
    setup->assumptions.push_back(
        "moments in bf16, as Megatron-Bridge's recipes of such models set");
  }
  // PyTorch's loss over shards of the vocabulary has no fused backward pass:
  // two more copies in fp32, of the exponentials and of their product.
  if (IsTorchtitan(run) && setup->layout.tensor > 1) {
    implementation.logit_bytes += 8;
  }
}

}  // namespace

std::string ProfileOfDevice(const std::string& text) {
  const std::string upper = absl::AsciiStrToUpper(text);
  const Machine* const machine = MachineNamed(upper);
  return machine == nullptr || IsUnlikeSxm(upper) ? "" : machine->profile;
}

bool IsProfileOfRuns(const std::string& name) {
  return name == kA100WithSlowFabric || name == kA100OfVtrainTable ||
         name == kH100WithLessPower ||
         std::any_of(std::begin(kMachines), std::end(kMachines),
                     [&](const Machine& m) { return name == m.profile; });
}

absl::StatusOr<RunSetup> SetUpRun(const PublishedRun& run) {
  RunSetup setup;
  if (!run.kind.empty() && run.kind != "pretrain" &&
      run.kind != "memory_formula") {
    return absl::InvalidArgumentError(absl::StrCat(
        "kind '", run.kind,
        "' is unknown; the planner prices steps that train all parameters "
        "(pretrain)"));
  }
  const FrameworkChoice framework = FrameworkOf(run);
  setup.assumptions.push_back(absl::StrCat(
      framework.is_known ? "computes as " : "framework unknown; computes as ",
      framework.rule->framework));
  setup.implementation = framework.rule->implementation;
  setup.memory_is_of_first_rank = framework.rule->logs_first_rank;
  setup.reserved_per_allocated = framework.rule->reserved_per_allocated;
  ReadNotes(run, &setup);
  ASSIGN_OR_RETURN(setup.model,
                   ModelOfRun(run, *framework.rule, &setup.assumptions));
  RETURN_IF_ERROR(FindAxes(run, &setup));
  RETURN_IF_ERROR(FindBatches(run, &setup));
  RETURN_IF_ERROR(FindPrecision(run, &setup));
  RETURN_IF_ERROR(FindZero(run, *framework.rule, &setup));
  RETURN_IF_ERROR(FindRecompute(run, *framework.rule, &setup));
  RETURN_IF_ERROR(FindMachine(run, &setup));
  FindStorage(run, &setup);
  if (absl::StartsWith(run.group, "mbridge")) ApplyBridgeRecipe(run, &setup);
  return setup;
}

}  // namespace millrace
