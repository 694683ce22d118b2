// Seconds of a layer's work on one kind of device: from a profile's measured
// tables where they hold something near, otherwise by formula from its data
// sheet and constants.

#ifndef MILLRACE_PLANNER_COST_FORMULA_COST_H_
#define MILLRACE_PLANNER_COST_FORMULA_COST_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "planner/cost/layer_work.h"
#include "planner/cost/op_cost.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"

namespace millrace {

// The constants that a profile with device and network lists under `constants`,
// all of one machine type. Shares are of what the data sheet says. A profile
// that has measured tables alone needs none: its tables say what a device
// reaches, the host's launches are part of them, and communication hides under
// all that it runs beside.
struct CostConstants {
  // Of peak FLOP/s, by tiles that fill the device while nothing else limits
  // them: power and clocks, issue, operands' way to the multiprocessors.
  double gemm_share;
  double gemm_fp8_share;
  double gemm_fp4_share;
  double gemm_tile_s;  // A tile's start and end, while nothing multiplies.
  // Of the bf16 peak, of FlashAttention over long sequences.
  double attention_forward_share;
  double attention_backward_share;
  double memory_share;
  double link_share;    // Of the innermost level of the network.
  double fabric_share;  // Of the others.
  // Of tensor-axis communication, what an Implementation that overlaps it
  // hides under matrix products.
  double tensor_hidden_share;
  double data_hidden_share;  // Likewise of the data axis's, under passes.
  // Seconds that the host takes for one kernel that it launches by itself; the
  // device waits where its kernels are shorter.
  double host_launch_s;
  double step_s;  // Of a step beside its passes: data, clipping, logs.
};

// Ranks r, r + stride, r + 2 stride ...; with a second axis, each of them once
// for every multiple of its stride.
struct GroupPlacement {
  struct Axis {
    int64_t size = 1;
    int64_t stride = 1;
  };
  Axis inner;
  Axis outer;
  bool relays_to_ports = true;  // As Implementation says.
  int64_t size() const { return inner.size * outer.size; }
};

class DeviceCost {
 public:
  // A profile without device or network must have measured tables, which then
  // price everything. InvalidArgument for a profile with neither, naming device
  // or network, and for a constant that is missing or unknown, naming it; both
  // say what gives it.
  static absl::StatusOr<DeviceCost> Create(HardwareProfile profile);

  const HardwareProfile& profile() const { return profile_; }
  // False if measured tables price everything.
  bool has_sheet() const { return has_sheet_; }
  // Null for a profile without them.
  const CostModel* tables() const {
    return tables_.has_value() ? &*tables_ : nullptr;
  }
  const CostConstants& constants() const { return constants_; }

  // Launches included. `format` counts where `work.low_precision`; as stored is
  // bf16. A product is cut into tiles that the multiprocessors take in waves,
  // each as long as its k and gemm_tile_s ask, and moves at least its operands.
  double GemmSeconds(const GemmWork& work, GemmFormat format) const;
  // FlashAttention by FLOPs (Dao, 2023: backward 2.5 x forward); otherwise as
  // two products for each head, four in the backward pass. Passes over the
  // scores are BandwidthWork.
  double AttentionSeconds(const AttentionWork& work) const;
  double BandwidthSeconds(const BandwidthWork& work) const;

  // Rings and exchanges whose traffic over each level of the network is shared
  // by the group's members inside the level below; `bytes` of the full tensor.
  // With `experts_per_row`, rows of an exchange are for so many ranks at
  // random, cross each level once for each domain that has any of them, and are
  // passed on inside (DeepEP; DeepSeek-AI, 2024, section 3.2.2).
  double CollectiveSeconds(CommKind kind, double bytes,
                           const GroupPlacement& group,
                           int64_t experts_per_row = 0) const;
  // From one pipeline stage to the next, `stride` ranks on, in a pipeline of
  // `num_stages`: the slowest link that any of them has to take.
  double TransferSeconds(double bytes, int64_t stride,
                         int64_t num_stages) const;
  // What moves `bytes` of device memory in one pass takes.
  double MemorySeconds(double bytes) const {
    return bytes / memory_bytes_per_s_;
  }

 private:
  DeviceCost(HardwareProfile profile, const CostConstants& constants);
  static absl::StatusOr<DeviceCost> CreateFromTables(HardwareProfile profile);

  // The same from measured tables alone.
  double MeasuredGemmSeconds(const GemmWork& work) const;
  double MeasuredAttentionSeconds(const AttentionWork& work) const;
  double FormulaGemmSeconds(const GemmWork& work, GemmFormat format) const;
  double GemmFlopsPerSecond(GemmFormat format) const;
  // Whether the tables hold a product within a factor of two in each dim.
  bool HasGemmNear(const GemmWork& work) const;
  bool HasAttentionNear(const AttentionWork& work) const;
  // Whether the tables were measured among as many ranks, side by side.
  bool HasCollective(CommKind kind, const GroupPlacement& group) const;
  double LinkBytesPerSecond(size_t level) const;

  HardwareProfile profile_;
  CostConstants constants_;
  double memory_bytes_per_s_;
  bool has_sheet_ = true;
  std::optional<CostModel> tables_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_FORMULA_COST_H_
