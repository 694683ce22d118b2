// Layouts that tests on GPUs train under. Those that need several ranks are
// none of one.

#ifndef MILLRACE_TESTS_WORKER_CUDA_TRAIN_TESTED_LAYOUTS_H_
#define MILLRACE_TESTS_WORKER_CUDA_TRAIN_TESTED_LAYOUTS_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"

namespace millrace {

// Every mesh, in either precision, under every ZeRO stage that means something,
// and with each recomputation. Pipelines run 1F1B.
std::vector<Layout> LayoutsOf(int32_t num_ranks);

// Pipelines in the other orders of passes, in either precision: zero bubble,
// and list scheduling by uneven costs with little memory and with much; beside
// the other axes where there are ranks for them.
std::vector<Layout> PassOrderLayoutsOf(int32_t num_ranks);

// Gradients in bf16 on their way between replicas: each ZeRO stage, in either
// precision; and beside the other axes where there are ranks for them.
std::vector<Layout> RoundedLayoutsOf(int32_t num_ranks);

// With copy engines, where they have something to do.
std::vector<Layout> WithCopyEngines(const std::vector<Layout>& layouts);
std::vector<Layout> LayoutsByCopyEngines(int32_t num_ranks);
std::vector<Layout> PassOrderLayoutsByCopyEngines(int32_t num_ranks);

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_CUDA_TRAIN_TESTED_LAYOUTS_H_
