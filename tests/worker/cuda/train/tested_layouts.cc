#include "tests/worker/cuda/train/tested_layouts.h"

#include "planner/program/copy_engines.h"
#include "tests/planner/planner_testing.h"
#include "tests/planner/recompute_sets.h"

namespace millrace {

std::vector<Layout> LayoutsOf(int32_t num_ranks) {
  std::vector<Layout> layouts;
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t tensor : {1, 2, 4}) {
      const int32_t data = num_ranks / (pipeline * tensor);
      if (pipeline * tensor * data != num_ranks) continue;
      Layout layout = {.pipeline = pipeline,
                       .data = data,
                       .tensor = tensor,
                       .micro_batch = 1,
                       .num_microbatches = 8 / data};
      const auto add = [&] {
        for (const Precision precision :
             {Precision::kBfloat16, Precision::kFloat32}) {
          layout.precision = precision;
          layouts.push_back(layout);
        }
      };
      for (const int32_t zero : {0, 1, 2, 3}) {
        if (zero > 0 && data == 1) continue;
        layout.zero = zero;
        add();
      }
      for (const Recompute recompute : kTestedRecomputes) {
        if (recompute == Recompute::kNone) continue;
        layout.recompute = recompute;
        add();
      }
    }
  }
  return layouts;
}

std::vector<Layout> PassOrderLayoutsOf(int32_t num_ranks) {
  std::vector<Layout> layouts;
  if (num_ranks == 1) return layouts;
  const auto add_orders = [&](const Layout& mesh) {
    Layout zero_bubble = mesh;
    zero_bubble.schedule = Schedule::kZeroBubble;
    const Layout little = ListScheduled(mesh);
    Layout much = little;
    for (ListedStage& stage : much.listed_stages) stage.memory_bytes *= 8;
    for (Layout layout : {zero_bubble, little, much}) {
      for (const Precision precision :
           {Precision::kBfloat16, Precision::kFloat32}) {
        layout.precision = precision;
        layouts.push_back(layout);
      }
    }
  };
  add_orders({.pipeline = num_ranks, .num_microbatches = 8});
  if (num_ranks == 4) {
    add_orders({.pipeline = 2, .tensor = 2, .num_microbatches = 8});
    add_orders({.pipeline = 2, .data = 2, .num_microbatches = 4, .zero = 1});
  }
  return layouts;
}

std::vector<Layout> RoundedLayoutsOf(int32_t num_ranks) {
  std::vector<Layout> layouts;
  if (num_ranks == 1) return layouts;
  for (const int32_t zero : {0, 1, 2, 3}) {
    for (const Precision precision :
         {Precision::kBfloat16, Precision::kFloat32}) {
      layouts.push_back({.data = num_ranks,
                         .num_microbatches = 8 / num_ranks,
                         .zero = zero,
                         .precision = precision});
    }
  }
  if (num_ranks == 4) {
    for (const int32_t zero : {1, 2}) {
      layouts.push_back(
          {.data = 2, .tensor = 2, .num_microbatches = 4, .zero = zero});
      layouts.push_back(
          {.pipeline = 2, .data = 2, .num_microbatches = 4, .zero = zero});
    }
  }
  for (Layout& layout : layouts) {
    layout.gradient_reduction = GradientReduction::kBfloat16;
  }
  if (num_ranks == 4) {
    for (const int32_t zero : {0, 1, 2, 3}) {
      layouts.push_back(
          {.data = 4,
           .data_groups = 2,
           .num_microbatches = 2,
           .zero = zero,
           .precision = Precision::kFloat32,
           .gradient_reduction = GradientReduction::kBfloat16Across});
    }
  }
  return layouts;
}

std::vector<Layout> WithCopyEngines(const std::vector<Layout>& layouts) {
  std::vector<Layout> with;
  for (Layout layout : layouts) {
    layout.copy_engines = CopyEngineUseOf(layout);
    if (layout.copy_engines.any()) with.push_back(layout);
  }
  return with;
}

std::vector<Layout> LayoutsByCopyEngines(int32_t num_ranks) {
  return WithCopyEngines(LayoutsOf(num_ranks));
}
std::vector<Layout> PassOrderLayoutsByCopyEngines(int32_t num_ranks) {
  return WithCopyEngines(PassOrderLayoutsOf(num_ranks));
}

}  // namespace millrace
