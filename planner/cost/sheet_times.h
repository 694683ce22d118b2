// Computes how long one device takes for products, attention and passes over
// memory by its data sheet and the constants of a profile.

#ifndef MILLRACE_PLANNER_COST_SHEET_TIMES_H_
#define MILLRACE_PLANNER_COST_SHEET_TIMES_H_

#include "absl/status/statusor.h"
#include "planner/layout/layout.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// The constants that a profile with device and network lists under `constants`,
// all of one machine type. Shares are of what the data sheet says. A profile
// that has measured tables alone needs none: its tables say what a device
// reaches, the host's launches are part of them, and communication hides under
// all that it runs beside.
struct CostConstants {
  // The share of the peak FLOP/s that tiles reach if they fill the device.
  // Power, clocks, issue and operand bandwidth then limit them.
  double gemm_share = 0;
  double gemm_fp8_share = 0;
  double gemm_fp4_share = 0;
  double gemm_tile_s = 0;  // A tile's start and end, while nothing multiplies.
  // The share of the bf16 peak that FlashAttention reaches on long sequences.
  double attention_forward_share = 0;
  double attention_backward_share = 0;
  double memory_share = 0;
  double link_share = 0;    // For the innermost level of the network.
  double fabric_share = 0;  // For the other levels.
  // The share of tensor-axis communication that matrix products hide, in an
  // Implementation that overlaps it.
  double tensor_hidden_share = 1;
  double data_hidden_share = 1;  // The same for the data axis, under passes.
  // Seconds that the host takes for one kernel that it launches by itself; the
  // device waits where its kernels are shorter.
  double host_launch_s = 0;
  // The part of a step beside its passes: data, clipping, logs.
  double step_s = 0;
};

// Whether the profile states rates of the device and of its network, and lists
// any of the constants above. A profile that does so must state all of them;
// otherwise it is refused.
bool StatesSheet(const HardwareProfile& profile);

// Attention of the queries of whole sequences.
GeneralAttentionAttributes GeneralOf(const AttentionAttributes& attention);
// Whether the kind computes all gradients of attention, and whether it writes
// the matrix of scores to memory (no FlashAttention).
bool IsAttentionBackward(OpKind kind);
bool IsUnfusedAttention(OpKind kind);

// The products of attention without flash: scores and what they weigh, each
// once forward and twice backward, for the gradients of both operands.
struct ScoreProducts {
  GroupedGemmAttributes scores;
  GroupedGemmAttributes context;
  int num_each;
};
ScoreProducts ScoreProductsOf(OpKind kind,
                              const GeneralAttentionAttributes& attention);

// All seconds are without launches.
class SheetTimes {
 public:
  // InvalidArgument naming the figure of device or network or the constant that
  // is missing or unknown, and what gives it.
  static absl::StatusOr<SheetTimes> Create(const HardwareProfile& profile);

  const CostConstants& constants() const { return constants_; }

  // Products as stored are of bf16. A product is cut into tiles that the
  // multiprocessors take in waves, each as long as its k and gemm_tile_s ask,
  // and moves at least its operands.
  double GemmSeconds(const GroupedGemmAttributes& gemm) const;
  // FlashAttention by FLOPs (Dao, 2023: backward 2.5 x forward); otherwise as
  // two products for each head, four in the backward pass. Passes over the
  // scores are ops of their own.
  double AttentionSeconds(OpKind kind,
                          const GeneralAttentionAttributes& attention) const;
  // How many times faster kFloat8AttentionForward is than kAttentionForward; 1
  // where the device does not multiply in 8 bits.
  double Float8AttentionGain(int64_t head_dim) const;
  // Seconds to move `bytes` of device memory in one pass.
  double MemorySeconds(double bytes) const {
    return bytes / memory_bytes_per_s_;
  }

 private:
  SheetTimes(const DeviceSpec& device, const CostConstants& constants);
  double FlopsPerSecond(GemmFormat format) const;

  // Figures of the data sheet.
  double bf16_flops_per_s_, fp8_flops_per_s_, fp4_flops_per_s_;
  double multiprocessors_;
  double memory_bytes_per_s_;  // Reached.
  CostConstants constants_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_SHEET_TIMES_H_
