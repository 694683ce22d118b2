#include "kernels/tuning/tuning_families.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

const std::vector<TuningFamily>& Families() {
  static const auto* families = new std::vector<TuningFamily>{
      // The classes of norms. layer: 1 is LayerNorm, 0 RMSNorm. residual: 1
      // normalises a sum. vectors: a row's 16-byte vectors, up to the next
      // power of two. cached: 1 says that all rows fit the second-level cache,
      // where latency counts. The choice is the number of threads of a row;
      // more threads take fewer vectors each, 8 at most.
      {.name = "norm_forward",
       .class_dims = {"layer", "residual", "vectors", "cached"},
       .knobs = {{.name = "threads",
                  .values = {8, 32, 64, 128, 256, 512, 1024}}}},
      // At most 4 vectors a thread. Stages: rows on their way for each at work.
      {.name = "norm_backward",
       .class_dims = {"layer", "vectors", "cached"},
       .knobs = {{.name = "threads",
                  .values = {8, 32, 64, 128, 256, 512, 1024}},
                 {.name = "stages", .values = {1, 2}}}},
      // Threads of a block; each takes eight elements.
      {.name = "swiglu_forward",
       .class_dims = {"cached"},
       .knobs = {{.name = "threads", .values = {128, 256, 512, 1024}}}},
      {.name = "swiglu_backward",
       .class_dims = {"cached"},
       .knobs = {{.name = "threads", .values = {128, 256, 512, 1024}}}},
      // With QK-norm. Blocks of a multiprocessor, and heads on their way for
      // each group of lanes.
      {.name = "rope_norm_forward",
       .class_dims = {"head_dim", "cached"},
       .knobs = {{.name = "blocks", .values = {2, 3, 4}},
                 {.name = "stages", .values = {2, 3, 4}}}},
      // On Hopper. visible: 0 all keys, 1 causal, 2 a window; keys: how many
      // keys a query sees at most; tiles: of 64 queries, of all heads.
      // Consumers: warpgroups of 64 queries a block (head dim 64 alone has 3).
      // heads: how many are worked on at once, so that their keys and values
      // stay in the cache. split 1: a block's warpgroups share out the keys of
      // 64 queries (head dims 64 and 128, no windows or documents).
      {.name = "attention_forward",
       .class_dims = {"head_dim", "visible", "keys", "tiles"},
       .knobs = {{.name = "consumers", .values = {2, 3}},
                 {.name = "heads", .values = {1, 2, 4, 8, 16, 32}},
                 {.name = "split", .values = {0, 1}}}},
      // Blocks of the cluster that keeps a row in its shared memory; at least
      // what the row needs.
      {.name = "cross_entropy_rows",
       .class_dims = {"vocabulary"},
       .knobs = {{.name = "cluster", .values = {1, 2, 3, 4, 5, 6, 7, 8}}}},
  };
  return *families;
}

}  // namespace

absl::Span<const TuningFamily> KernelTuningFamilies() { return Families(); }

const TuningFamily& FamilyOf(TunedKernel kernel) {
  return Families()[static_cast<size_t>(kernel)];
}

TuningValues TunedChoice(TunedKernel kernel, const TuningValues& shape_class,
                         const TuningValues& start) {
  return TunedChoice(FamilyOf(kernel), shape_class, start);
}

absl::Status InstallKernelTuning(absl::string_view text,
                                 absl::string_view chip) {
  if (text.empty()) text = ShippedTuningTable(chip);
  if (text.empty()) {
    InstallTuning({});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const TuningTable table,
                   ParseTuningTable(text, KernelTuningFamilies()));
  if (table.chip != chip) {
    return absl::InvalidArgumentError(
        absl::StrCat("the kernels' tuning table was measured on '", table.chip,
                     "', this is '", chip, "'; tune them here"));
  }
  InstallTuning(table);
  return absl::OkStatus();
}

}  // namespace millrace
