// A Trainer on CPU cores: each lane a thread, arenas in host memory,
// communicators from whoever makes it.

#ifndef MILLRACE_WORKER_CPU_TRAINER_H_
#define MILLRACE_WORKER_CPU_TRAINER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "worker/train/trainer.h"

namespace millrace {

// Builds Programs and arenas, creates communicators (collective over the world)
// and initializes the parameters from the job's seed: a pure function of (seed,
// parameter name, element), the same under every layout.
absl::StatusOr<std::unique_ptr<Trainer>> CreateCpuTrainer(
    const TrainerOptions& options);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CPU_TRAINER_H_
