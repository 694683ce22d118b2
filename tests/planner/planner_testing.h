// A small model and the layouts that planner tests sweep.

#ifndef MILLRACE_TESTS_PLANNER_PLANNER_TESTING_H_
#define MILLRACE_TESTS_PLANNER_PLANNER_TESTING_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "tests/planner/recompute_sets.h"
#include "tests/sweep.h"

namespace millrace {

// Divides by tensor 4 and pipeline 4, but by no power of two beyond, so that
// buckets need padding.
inline ModelSpec TestModel() {
  return {.vocab_size = 52,
          .hidden = 20,
          .num_layers = 5,
          .num_heads = 8,
          .num_kv_heads = 4,
          .head_dim = 6,
          .ffn_hidden = 28,
          .sequence_length = 12};
}

// `layout` list-scheduled by made-up costs: uneven stages, memory for as many
// micro-batches as there are stages.
inline Layout ListScheduled(Layout layout) {
  layout.schedule = Schedule::kListScheduled;
  layout.listed_transfer_us = 30;
  for (int32_t s = 0; s < layout.pipeline; ++s) {
    layout.listed_stages.push_back({.forward_us = 900 + 50 * (s % 3),
                                    .input_gradient_us = 1000,
                                    .weight_gradient_us = 800 - 90 * (s % 2),
                                    .activation_bytes = 100,
                                    .weight_gradient_bytes = 70,
                                    .memory_bytes = 100 * layout.pipeline});
  }
  return layout;
}

inline std::vector<Layout> TestLayouts(
    Precision precision = Precision::kFloat32) {
  std::vector<Layout> layouts;
  for (int32_t pipeline : {1, 2, 4}) {
    for (int32_t tensor : {1, 2, 4}) {
      for (int32_t data : {1, 2, 4}) {
        for (int32_t num_microbatches : {1, 2, 4, 8}) {
          for (int32_t zero : {0, 1, 2, 3}) {
            layouts.push_back(
                {.pipeline = pipeline,
                 .data = data,
                 .tensor = tensor,
                 .micro_batch = 1 + pipeline % 2,
                 .num_microbatches = num_microbatches,
                 .zero = zero,
                 .precision = precision,
                 .recompute =
                     kTestedRecomputes[layouts.size() % kNumTestedRecomputes]});
            Layout& layout = layouts.back();
            if (pipeline > 1 && !layout.shards_gradients() &&
                layouts.size() / kNumTestedRecomputes % 2 == 0) {
              layout.schedule = Schedule::kZeroBubble;
            } else if (pipeline > 1 && !layout.shards_gradients() &&
                       layouts.size() % 2 == 0) {
              layout = ListScheduled(layout);
            }
          }
        }
      }
    }
  }
  layouts = Sampled(layouts, 7);
  for (const int32_t pipeline : {1, 2}) {
    for (const int32_t num_microbatches : {1, 4}) {
      for (const int32_t zero : {0, 1, 2, 3}) {
        layouts.push_back({.pipeline = pipeline,
                           .data = 8,
                           .data_groups = zero == 1 ? 4 : 2,
                           .tensor = pipeline,
                           .micro_batch = 2,
                           .num_microbatches = num_microbatches,
                           .zero = zero,
                           .precision = precision});
      }
    }
  }
  return layouts;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_PLANNER_TESTING_H_
