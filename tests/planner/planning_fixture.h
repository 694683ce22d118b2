// Jobs and spaces that tests of planning share.

#ifndef MILLRACE_TESTS_PLANNER_PLANNING_FIXTURE_H_
#define MILLRACE_TESTS_PLANNER_PLANNING_FIXTURE_H_

#include <cstdint>

#include "planner/explain/what_if.h"
#include "planner/job/job.h"
#include "planner/job/layout_space.h"
#include "tests/planner/known_models.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {

// A model that tensor 2 and pipeline 4 divide.
inline LayoutSpace SmallSpace(int32_t num_devices, int64_t global_batch) {
  return {.model = {.vocab_size = 128,
                    .hidden = 64,
                    .num_layers = 4,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 16,
                    .ffn_hidden = 96,
                    .sequence_length = 32},
          .global_batch = global_batch,
          .num_devices = num_devices};
}

// A small job for four devices of the made-up machine.
inline JobSpec SmallJob() {
  JobSpec job;
  job.name = "small";
  job.model = {.vocab_size = 256,
               .hidden = 64,
               .num_layers = 4,
               .num_heads = 4,
               .num_kv_heads = 4,
               .head_dim = 16,
               .ffn_hidden = 192,
               .sequence_length = 64};
  job.training.num_steps = 100;
  job.training.global_batch = 8;
  return job;
}

// The small job on the made-up machine.
inline PlanningCase SmallCase(int32_t num_devices) {
  PlanningCase planned;
  planned.job = SmallJob();
  planned.job.name = "asked";
  planned.job.data.synthetic = true;
  planned.job.training.optimizer.learning_rate = 1e-3;
  planned.profile = MakeProfile({});
  planned.num_devices = num_devices;
  return planned;
}

// Llama 3 8B on GPUs in bf16.
inline JobSpec Llama8B(int64_t global_batch) {
  JobSpec job;
  job.name = "llama3-8b";
  job.model = Llama3_8B();
  job.training.num_steps = 10;
  job.training.global_batch = global_batch;
  job.training.precision = "bf16";
  job.resources.backend = "cuda";
  return job;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_PLANNING_FIXTURE_H_
