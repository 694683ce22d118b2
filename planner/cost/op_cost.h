// CostModel prices ops: it is the only place that asks a hardware profile how
// long something takes. Three files answer its questions: measured_times.h what
// was measured, sheet_times.h what a data sheet says of one device,
// network_times.h what it says of links.

#ifndef MILLRACE_PLANNER_COST_OP_COST_H_
#define MILLRACE_PLANNER_COST_OP_COST_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/measured_times.h"
#include "planner/cost/network_times.h"
#include "planner/cost/sheet_times.h"
#include "planner/layout/layout.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"
#include "planner/program/program.h"

namespace millrace {

// Copies share the profile.
class CostModel {
 public:
  // A profile has measured tables, a data sheet (StatesSheet) or both.
  // InvalidArgument for a profile with neither and for one whose tables or
  // sheet lack something; it names what is missing and what gives it.
  static absl::StatusOr<CostModel> Create(HardwareProfile profile);

  // Tables are sorted by kind, group size and bytes.
  const HardwareProfile& profile() const { return *profile_; }

  // Without tables no instruction of a Program has a price, only the work of
  // layers (planner/cost/closed_form.h plans with it). Without a sheet, tables
  // price all work.
  bool HasTables() const { return measured_.has_value(); }
  bool HasSheet() const { return sheet_.has_value(); }

  // False if the profile was measured with one rank: its tables then price
  // layouts of one rank only.
  bool HasCommunication() const { return !profile_->communication.empty(); }
  // FailedPrecondition for a layout that tables cannot price: one of another
  // precision, one of 8 or 4 bits, and one of several ranks if one measured.
  absl::Status CheckTablesPrice(const Layout& layout) const;

  // Instructions of Programs. All of this needs HasTables(), and collectives
  // and transfers HasCommunication().

  // Seconds of one op run alone, launch overhead included.
  double Seconds(const Layout& layout, OpKind kind,
                 const OpAttributes& attributes) const;
  // The same of a row of the tables, or of what would be one, without launch
  // overhead.
  double RowSeconds(const OpShape& shape) const {
    return measured_->RowSeconds(shape);
  }
  // How far that reaches beyond the rows (MeasuredTimes::Reach).
  double Reach(const OpShape& shape) const { return measured_->Reach(shape); }
  // False of communication that Seconds() prices by the network, since it
  // reaches beyond the ranks that were measured, and of what copy engines do:
  // no row of an OpShape changes it.
  bool IsPricedByRow(const Layout& layout, OpKind kind,
                     const OpAttributes& attributes) const;
  // Whether a collective or transfer is priced by what was measured of copy
  // engines, which then do it.
  bool IsByCopyEngines(const Layout& layout, OpKind kind,
                       const OpAttributes& attributes) const;
  // Kinds of op in `programs` of which the tables have no row, so that rows of
  // others stand in for them: names, sorted.
  std::vector<std::string> KindsWithoutRows(
      std::span<const Program> programs) const;
  // One value per instruction of `program`, for Simulate().
  std::vector<double> ProgramSeconds(const Program& program) const;

  // Work of layers. Seconds include launches. Tables price what they hold
  // something near, the sheet what is further off, and tables everything where
  // there is no sheet: an exchange or a ring then takes as long as a gather of
  // as many bytes, and products of 8 and 4 bits as long as those of 16.

  double GemmSeconds(const GroupedGemmAttributes& gemm) const;
  double AttentionSeconds(OpKind kind,
                          const GeneralAttentionAttributes& attention) const;
  double BandwidthSeconds(double bytes, int32_t launches) const;
  // NetworkTimes computes it; 0 for a group of one.
  double CollectiveSeconds(OpKind kind, double bytes,
                           const GroupPlacement& group,
                           int64_t experts_per_row = 0) const;
  // NetworkTimes computes it; 0 for one stage.
  double TransferSeconds(double bytes, int64_t stride,
                         int64_t num_stages) const;
  // Seconds to move `bytes` of device memory in one pass, without a launch.
  double MemorySeconds(double bytes) const {
    return bytes / memory_bytes_per_s_;
  }
  const CostConstants& constants() const { return constants_; }

  // FLOP/s of the best measured GEMM, or without tables the data sheet's in
  // bf16: what one rank could reach at most.
  double PeakFlopsPerSecond() const;

 private:
  explicit CostModel(HardwareProfile profile);

  // Seconds() without launch overhead.
  double SecondsAlone(const Layout& layout, OpKind kind,
                      const OpAttributes& attributes) const;
  // Whether rows price the group: without a network they do; else they do if
  // its ranks lie within as many neighbours as measured, and on one host unless
  // groups on several were measured.
  bool WereMeasured(int64_t group_size, int64_t stride) const;
  int64_t HostsOf(const GroupPlacement& group) const;
  double CollectiveOpSeconds(const Layout& layout, OpKind kind,
                             const CollectiveAttributes& collective) const;
  double TransferOpSeconds(const Layout& layout, OpKind kind,
                           const OpAttributes& attributes, int64_t hosts) const;
  // Seconds(), of a transfer between the stages that it joins.
  double InstructionSeconds(const Program& program,
                            const Instruction& instruction) const;
  double MeasuredGemmSeconds(const GroupedGemmAttributes& gemm) const;
  double MeasuredAttentionSeconds(
      OpKind kind, const GeneralAttentionAttributes& attention) const;
  bool HasAttentionNear(OpKind kind,
                        const GeneralAttentionAttributes& attention) const;
  // Whether the tables were measured among as many ranks, side by side.
  bool HasCollectiveNear(OpKind kind, const GroupPlacement& group) const;

  std::shared_ptr<const HardwareProfile> profile_;
  std::optional<SheetTimes> sheet_;
  std::optional<NetworkTimes> network_;  // Where there is a sheet.
  std::optional<MeasuredTimes> measured_;
  CostConstants constants_;
  double memory_bytes_per_s_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_OP_COST_H_
