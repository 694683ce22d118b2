// A job whose numbers are all unlike the frameworks' defaults, so that none can
// come back right by luck.

#ifndef MILLRACE_TESTS_PLANNER_FRAMEWORK_TESTING_H_
#define MILLRACE_TESTS_PLANNER_FRAMEWORK_TESTING_H_

#include <algorithm>
#include <vector>

#include "planner/job.h"
#include "planner/layout.h"

namespace millrace {

inline JobSpec UnusualJob() {
  JobSpec job;
  job.name = "unusual";
  job.model = {.vocab_size = 1552,
               .hidden = 192,
               .num_layers = 9,
               .num_heads = 16,
               .num_kv_heads = 8,
               .head_dim = 12,
               .ffn_hidden = 448,
               .sequence_length = 96,
               .rope_theta = 70000,
               .norm_epsilon = 2e-6,
               .init_std = 0.013};
  job.data.text = {"data/**"};
  job.training.num_steps = 777;
  job.training.global_batch = 96;
  job.training.seed = 42;
  job.training.gradient_clip_norm = 0.7;
  job.training.validation_interval_steps = 111;
  job.training.validation_steps = 3;
  job.training.optimizer = {.learning_rate = 1.7e-3,
                            .min_learning_rate = 1.3e-4,
                            .warmup_steps = 33,
                            .decay = LearningRateDecay::kCosine,
                            .beta1 = 0.88,
                            .beta2 = 0.97,
                            .epsilon = 3e-9,
                            .weight_decay = 0.07};
  job.checkpoint.interval_steps = 55;
  return job;
}

// Every layout of the job up to 8 stages, 8 replicas and 8 shards.
inline std::vector<Layout> LayoutsOf(const JobSpec& job) {
  std::vector<Layout> layouts;
  for (int32_t pipeline = 1; pipeline <= 8; ++pipeline) {
    for (const int32_t data : {1, 2, 3, 8}) {
      for (const int32_t tensor : {1, 2, 4, 8}) {
        for (const int32_t micro_batch : {1, 2, 3, 4}) {
          for (const int32_t zero : {0, 1}) {
            Layout layout{.pipeline = pipeline,
                          .data = data,
                          .tensor = tensor,
                          .micro_batch = micro_batch,
                          .zero = zero};
            layout.num_microbatches =
                static_cast<int32_t>(job.training.global_batch) /
                (data * micro_batch);
            if (ValidateLayout(job.model, layout, job.training.global_batch)
                    .ok()) {
              layouts.push_back(layout);
            }
          }
        }
      }
    }
  }
  return layouts;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_FRAMEWORK_TESTING_H_
