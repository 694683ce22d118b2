// How long an instruction takes on the measured hardware.

#ifndef MILLRACE_PLANNER_COST_OP_COST_H_
#define MILLRACE_PLANNER_COST_OP_COST_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"
#include "planner/program/op_work.h"
#include "planner/program/program.h"

namespace millrace {

class DeviceCost;

// Looks instructions up in a profile's tables. GEMMs and attention take the
// achieved FLOP/s of the nearest measured shapes, weighted by their distance in
// log space; bandwidth-bound ops and communication are interpolated in log
// space between measured sizes. Outside of what was measured, times scale with
// FLOPs or bytes from the nearest point, and communication never gets quicker
// than its smallest measured message.
class CostModel {
 public:
  // Returns InvalidArgument naming the table a profile lacks and the command
  // that measures it; a data sheet's profile may lack all.
  static absl::StatusOr<CostModel> Create(HardwareProfile profile);

  const HardwareProfile& profile() const { return profile_; }

  // False for a data sheet's profile, which prices no instructions:
  // planner/cost/closed_form.h plans with it.
  bool HasTables() const { return !profile_.gemms.empty(); }

  // False if the profile was measured with one rank: it then prices layouts of
  // one rank only.
  bool HasCommunication() const { return !profile_.communication.empty(); }

  // Seconds of one op run alone, launch overhead included. Needs HasTables(),
  // for collectives and transfers HasCommunication().
  double Seconds(const Layout& layout, OpKind kind,
                 const OpAttributes& attributes) const;

  // The same of a row of the tables, or of what would be one, without launch
  // overhead.
  double RowSeconds(const OpShape& shape) const;
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

  // FLOP/s of the best measured GEMM, or without tables the data sheet's in
  // bf16: what one rank could reach at most.
  double PeakFlopsPerSecond() const;

 private:
  explicit CostModel(HardwareProfile profile);

  // Seconds of shapes between measured ones are in proportion to this: the time
  // by the device's closed form, or the FLOPs for a profile without one.
  double GemmWorkOf(const GemmAttributes& gemm) const;
  double AttentionWorkOf(OpKind kind,
                         const AttentionAttributes& attention) const;
  double CrossEntropyWorkOf(OpKind kind, const VocabAttributes& vocab) const;
  void FillSpeeds();

  // Seconds() without launch overhead.
  double SecondsAlone(const Layout& layout, OpKind kind,
                      const OpAttributes& attributes) const;
  double GemmSeconds(const GemmAttributes& gemm) const;
  // Of a part of the rows of a measured product; nothing for other shapes and
  // without a closed form.
  std::optional<double> PartOfGemmSeconds(const GemmAttributes& gemm) const;
  // Seconds that the product c += a b takes more than c = a b; c is [m, n] in
  // fp32, and k the inner dim.
  double AccumulationSeconds(int64_t m, int64_t n, int64_t k) const;
  double AttentionSeconds(OpKind kind,
                          const AttentionAttributes& attention) const;
  double CrossEntropySeconds(OpKind kind, const VocabAttributes& vocab) const;
  double BandwidthSeconds(OpKind kind, double bytes) const;
  double CommunicationSeconds(OpKind kind, int32_t group_size, double bytes,
                              bool by_copy_engines) const;
  // Whether the group's ranks lie within as many neighbours as measured.
  bool WereMeasured(int64_t group_size, int64_t stride) const;
  double CollectiveSeconds(const Layout& layout, OpKind kind,
                           const CollectiveAttributes& collective) const;
  double TransferSeconds(const Layout& layout, OpKind kind,
                         const OpAttributes& attributes) const;

  HardwareProfile profile_;  // Tables sorted by kind, group size and bytes.
  std::vector<double> gemm_speeds_;  // Of each row: work over its seconds.
  // The same without tables; null for a profile without device, network or
  // their constants.
  std::shared_ptr<const DeviceCost> network_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_OP_COST_H_
