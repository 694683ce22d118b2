#include "planner/evaluate/bridge_recipes.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "planner/evaluate/known_models.h"

namespace millrace {
namespace {

// How tokens reach their experts: a row for each expert by NCCL, or a row for
// each rank by the kernels of DeepEP and HybridEP.
enum class Exchange : uint8_t { kEachExpert, kEachRank };
enum class Graphs : uint8_t {
  kNone,
  kRouter,
  kAttentionAndRouter,
  kStep,  // And experts in one kernel (cutedsl_fused_grouped_mlp).
};
enum class Again : uint8_t { kNothing, kLatent, kNormsAndActivation };

// For containers from `first` on, until a later line for the same.
struct BridgeRecipe {
  const char* model;  // Start of PlainModelName.
  const char* gpu;    // Word of PublishedRun::gpu; "" for all.
  int first;          // 10,000 x year + 100 x month + patch.
  bool in_8_bits;     // Of 8 and 4 bits alone.
  Exchange exchange;
  bool overlaps;  // Exchanges run under another micro-batch's layers.
  Graphs graphs;
  Again again;
};

constexpr Exchange kExpert = Exchange::kEachExpert, kRank = Exchange::kEachRank;
constexpr Graphs kNone = Graphs::kNone, kRouter = Graphs::kRouter,
                 kAttention = Graphs::kAttentionAndRouter,
                 kStep = Graphs::kStep;
constexpr Again kNothing = Again::kNothing, kLatent = Again::kLatent,
                kNorms = Again::kNormsAndActivation;

// Oldest first. GB200's "mlp" of 26.04 is of the three dense layers alone.
constexpr BridgeRecipe kRecipes[] = {
    {"deepseekv3", "GB300", 0, true, kRank, false, kNone, kLatent},
    {"deepseekv3", "GB300", 260600, true, kRank, true, kStep, kNothing},
    {"deepseekv3", "GB200", 0, false, kRank, false, kAttention, kLatent},
    {"deepseekv3", "GB200", 260400, true, kRank, false, kAttention, kNothing},
    {"deepseekv3", "GB200", 260600, true, kRank, true, kStep, kLatent},
    {"deepseekv3", "B300", 0, false, kRank, false, kNone, kLatent},
    {"deepseekv3", "B300", 260401, false, kRank, false, kAttention, kLatent},
    {"deepseekv3", "B200", 0, false, kRank, false, kNone, kLatent},
    {"deepseekv3", "B200", 260401, true, kRank, true, kAttention, kLatent},
    {"deepseekv3", "H100", 0, false, kRank, false, kNone, kLatent},
    {"kimik2", "", 0, false, kRank, false, kNone, kLatent},
    {"qwen3235b", "GB300", 0, false, kRank, false, kRouter, kNothing},
    {"qwen3235b", "GB300", 260200, true, kRank, false, kAttention, kNothing},
    {"qwen3235b", "GB300", 260600, true, kRank, true, kStep, kNothing},
    {"qwen3235b", "GB200", 0, false, kRank, false, kAttention, kNothing},
    {"qwen3235b", "GB200", 260600, true, kRank, true, kStep, kNothing},
    {"qwen3235b", "B300", 0, false, kExpert, true, kNone, kNothing},
    {"qwen3235b", "B300", 260400, false, kExpert, false, kNone, kNothing},
    {"qwen3235b", "B300", 260600, false, kRank, false, kNone, kNothing},
    {"qwen3235b", "B200", 0, false, kExpert, false, kNone, kNothing},
    {"qwen3235b", "H100", 0, false, kExpert, true, kNone, kNothing},
    {"qwen330b", "GB300", 0, false, kRank, false, kRouter, kNothing},
    {"qwen330b", "GB300", 260600, true, kRank, true, kStep, kNothing},
    {"qwen330b", "GB200", 0, false, kRank, false, kRouter, kNothing},
    {"qwen330b", "GB200", 260600, true, kRank, true, kStep, kNothing},
    {"qwen330b", "B300", 0, false, kRank, false, kRouter, kNothing},
    {"qwen330b", "B300", 260600, true, kRank, true, kStep, kNothing},
    {"qwen330b", "B200", 0, false, kExpert, false, kRouter, kNothing},
    {"qwen330b", "B200", 260201, false, kRank, false, kAttention, kNothing},
    {"qwen330b", "H100", 0, false, kRank, true, kRouter, kNothing},
    {"qwen330b", "H100", 260400, false, kRank, false, kNone, kNothing},
    {"gptoss120b", "GB300", 0, false, kExpert, false, kAttention, kNothing},
    {"gptoss120b", "GB300", 260600, true, kRank, true, kStep, kNothing},
    {"gptoss120b", "GB200", 0, false, kExpert, false, kNone, kNorms},
    {"gptoss120b", "GB200", 260400, false, kRank, true, kNone, kNorms},
    {"gptoss120b", "GB200", 260600, true, kRank, true, kStep, kNothing},
    {"gptoss120b", "B300", 0, false, kExpert, false, kAttention, kNothing},
    {"gptoss120b", "B300", 260201, false, kRank, false, kAttention, kNothing},
    {"gptoss120b", "B200", 0, false, kExpert, false, kNone, kNorms},
    {"gptoss120b", "B200", 260201, false, kRank, false, kNone, kNorms},
    {"gptoss120b", "H100", 0, false, kExpert, false, kNone, kNorms},
};

// "... [26.04.01 NeMo Container]" is 260401; 0 where there is no such section.
int ContainerOf(const PublishedRun& run) {
  const size_t open = run.source.find('[');
  if (open == std::string::npos) return 0;
  const absl::string_view section =
      absl::string_view(run.source).substr(open + 1);
  int number = 0, parts = 0;
  for (const absl::string_view part :
       absl::StrSplit(section.substr(0, section.find(' ')), '.')) {
    int value = 0;
    if (++parts > 3 || !absl::SimpleAtoi(part, &value)) return 0;
    number = 100 * number + value;
  }
  return parts == 2 ? 100 * number : number;
}

const BridgeRecipe* RecipeOf(const PublishedRun& run, const RunSetup& setup) {
  const std::string model = PlainModelName(run.model);
  const std::string gpu = absl::AsciiStrToUpper(run.gpu);
  const bool in_8_bits = setup.layout.gemm_format != GemmFormat::kAsStored;
  const int container = ContainerOf(run);
  const BridgeRecipe* found = nullptr;
  for (const BridgeRecipe& recipe : kRecipes) {
    // GB200 holds B200, too.
    const bool is_gpu =
        *recipe.gpu == '\0' ||
        (absl::StrContains(gpu, recipe.gpu) &&
         (recipe.gpu[0] == 'G' || !absl::StrContains(gpu, "GB")));
    if (is_gpu && absl::StartsWith(model, recipe.model) &&
        container >= recipe.first && (in_8_bits || !recipe.in_8_bits)) {
      found = &recipe;
    }
  }
  return found;
}

}  // namespace

void ApplyBridgeRecipe(const PublishedRun& run, RunSetup* setup) {
  const BridgeRecipe* recipe = RecipeOf(run, *setup);
  if (recipe == nullptr) return;
  Implementation& how = setup->implementation;
  how.sends_tokens_once = recipe->exchange == kRank;
  how.overlaps_experts = recipe->overlaps;
  how.launches_from_host = recipe->graphs != kStep;
  how.fuses_experts = recipe->graphs == kStep;
  how.adds_expert_biases =
      absl::StartsWith(recipe->model, "gptoss") && !how.fuses_experts;
  how.graphs_router = recipe->graphs != kNone;
  how.graphs_attention = recipe->graphs == kAttention;
  setup->assumptions.push_back(absl::StrCat(
      "exchange, graphs and overlap of experts as in Megatron-Bridge's recipe: "
      "tokens sent ",
      how.sends_tokens_once ? "once a rank" : "once an expert",
      how.overlaps_experts ? ", under other layers" : "", ", ",
      recipe->graphs == kStep        ? "the step one graph"
      : recipe->graphs == kAttention ? "attention and router graphs"
      : recipe->graphs == kRouter    ? "the router a graph"
                                     : "no graphs"));
  if (!run.recompute.empty() || recipe->again == kNothing) return;
  setup->layout.recompute = Recompute::kPolicy;
  how.selective = {.norms = recipe->again == kNorms,
                   .activation = recipe->again == kNorms,
                   .latent_projections = recipe->again == kLatent};
  setup->assumptions.push_back(absl::StrCat(
      "recompute as in that recipe: ", recipe->again == kLatent
                                           ? "latent attention's projections"
                                           : "norms and activations"));
}

}  // namespace millrace
