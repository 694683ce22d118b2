// The job that tests of trainers on a GPU train.

#ifndef MILLRACE_TESTS_WORKER_CUDA_TRAIN_GPU_JOB_H_
#define MILLRACE_TESTS_WORKER_CUDA_TRAIN_GPU_JOB_H_

#include "planner/job/job.h"

namespace millrace {

// Shapes that the fast kernels take: head dim 64, tiles of 64.
inline JobSpec GpuJob() {
  JobSpec job;
  job.name = "small";
  job.model = {.vocab_size = 512,
               .hidden = 256,
               .num_layers = 2,
               .num_heads = 4,
               .num_kv_heads = 2,
               .head_dim = 64,
               .ffn_hidden = 512,
               .sequence_length = 256};
  job.training.num_steps = 100;
  job.training.global_batch = 8;
  job.training.seed = 1234;
  // Slow enough that a loss's difference is rounding, not the place on a cliff.
  job.training.optimizer.learning_rate = 2e-4;
  job.training.optimizer.warmup_steps = 5;
  return job;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_TRAIN_GPU_JOB_H_
