// How long an instruction takes on the measured hardware.

#ifndef MILLRACE_PLANNER_COST_H_
#define MILLRACE_PLANNER_COST_H_

#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile.h"
#include "planner/program.h"

namespace millrace {

// Looks instructions up in a profile's tables: interpolated in log space inside
// what was measured, scaled by FLOPs or bytes from the nearest point outside.
class CostModel {
 public:
  // Returns InvalidArgument naming the table a profile lacks and the command
  // that measures it.
  static absl::StatusOr<CostModel> Create(HardwareProfile profile);

  const HardwareProfile& profile() const { return profile_; }

  // Seconds of one instruction run alone, launch overhead included.
  double Seconds(const Layout& layout, const Instruction& instruction) const;

  // One value per instruction of `program`, for Simulate().
  std::vector<double> ProgramSeconds(const Program& program) const;

 private:
  explicit CostModel(HardwareProfile profile);
  HardwareProfile profile_;
};

// Floating-point operations and bytes moved by one instruction, from its kind
// and attributes alone.
struct OpWork {
  double flops;
  double bytes;
};
OpWork WorkOf(const Layout& layout, OpKind kind,
              const OpAttributes& attributes);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_H_
