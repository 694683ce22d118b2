// A made-up machine whose every time follows from a few round figures, so that
// tests know what the cost model must answer.

#ifndef MILLRACE_TESTS_PLANNER_PROFILE_FIXTURE_H_
#define MILLRACE_TESTS_PLANNER_PROFILE_FIXTURE_H_

#include "planner/cost/op_cost.h"
#include "planner/profile/profile.h"

namespace millrace {

struct MachineFigures {
  double flops_per_second = 1e10;
  double bytes_per_second = 1e10;
  double link_latency_s = 2e-5;
  double link_bytes_per_second = 2e9;
  int32_t num_ranks = 4;
  int32_t ranks_per_host = 4;
  double contention_per_rank = 0;  // Each further rank adds so much.
};

inline HardwareProfile MakeProfile(const MachineFigures& machine) {
  HardwareProfile profile;
  profile.name = "made up";
  profile.provenance = {.machine = "made-up",
                        .description = "a machine of round figures",
                        .version = "0.1.0",
                        .date = "2026-01-01T00:00:00Z",
                        .num_ranks = machine.num_ranks,
                        .threads_per_device = 1};
  profile.ranks_per_host = machine.ranks_per_host;
  profile.device_memory_bytes = int64_t{1} << 30;
  profile.launch_overhead_s = 1e-6;
  for (int32_t n = 0; n < machine.ranks_per_host; ++n) {
    profile.compute_contention.push_back(1 + n * machine.contention_per_rank);
  }
  for (const bool trans_a : {false, true}) {
    for (const bool trans_b : {false, true}) {
      for (const int64_t size : {32, 256, 1024}) {
        const auto edge = static_cast<double>(size);
        profile.gemms.push_back(
            {.m = size,
             .n = size,
             .k = size,
             .trans_a = trans_a,
             .trans_b = trans_b,
             .seconds = 2 * edge * edge * edge / machine.flops_per_second});
      }
    }
  }
  for (const bool backward : {false, true}) {
    profile.attention.push_back(
        {.backward = backward,
         .num_sequences = 1,
         .sequence_length = 64,
         .num_heads = 4,
         .num_kv_heads = 4,
         .head_dim = 16,
         .seconds = (backward ? 5.0 : 2.0) * 4 * 64 * 64 * 16 /
                    machine.flops_per_second});
  }
  profile.cross_entropy.push_back(
      {.kind = OpKind::kLinearCrossEntropy,
       .num_tokens = 64,
       .hidden = 64,
       .vocab_rows = 128,
       .seconds = 6.0 * 64 * 64 * 128 / machine.flops_per_second});
  for (const int64_t bytes : {1 << 10, 1 << 24}) {
    profile.bandwidth.push_back(
        {.kind = OpKind::kAdd,
         .bytes = bytes,
         .seconds = static_cast<double>(bytes) / machine.bytes_per_second});
  }
  if (machine.num_ranks == 1) return profile;
  for (const OpKind kind : {OpKind::kAllGather, OpKind::kReduceScatter,
                            OpKind::kAllReduce, OpKind::kSend}) {
    for (const int64_t bytes : {64, 1 << 16, 1 << 24}) {
      profile.communication.push_back(
          {.kind = kind,
           .group_size = 2,
           .bytes = bytes,
           .seconds =
               machine.link_latency_s +
               static_cast<double>(bytes) / machine.link_bytes_per_second});
    }
  }
  return profile;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_PROFILE_FIXTURE_H_
