// Looks up and interpolates the measured times in a profile's tables.

#ifndef MILLRACE_PLANNER_COST_MEASURED_TIMES_H_
#define MILLRACE_PLANNER_COST_MEASURED_TIMES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "planner/cost/sheet_times.h"
#include "planner/profile/op_shape.h"
#include "planner/profile/profile.h"
#include "planner/program/ops.h"

namespace millrace {

// InvalidArgument naming the table that the profile lacks, and the command that
// measures it; or saying that an op takes no time.
absl::Status CheckTables(const HardwareProfile& profile);

// GEMMs and attention take the achieved rate of the nearest measured shapes,
// weighted by their distance in log space; bandwidth-bound ops and
// communication are interpolated in log space between measured sizes. Outside
// of what was measured, times scale with FLOPs or bytes from the nearest point,
// and communication never gets quicker than its smallest measured message.
// Seconds are of one op run alone, without launch overhead.
class MeasuredTimes {
 public:
  // Borrows `profile`, which must pass CheckTables() and whose tables must be
  // sorted by kind, group size, hosts, pairs and bytes. Seconds of shapes
  // between measured ones are in proportion to the time by `sheet`, or without
  // one to the FLOPs.
  MeasuredTimes(const HardwareProfile& profile,
                const std::optional<SheetTimes>& sheet);

  // The format is kAsStored, kFloat8 or kFloat8Blocks; products of each have
  // rows of their own.
  double GemmSeconds(const GemmAttributes& gemm,
                     GemmFormat format = GemmFormat::kAsStored) const;
  double AttentionSeconds(OpKind kind,
                          const AttentionAttributes& attention) const;
  double CrossEntropySeconds(OpKind kind, const VocabAttributes& vocab) const;
  double BandwidthSeconds(OpKind kind, double bytes) const;
  // The median rate of all bandwidth-bound rows.
  double BytesPerSecond() const { return bytes_per_s_; }
  // `what` says the kind and the group, `bytes` the size. The profile must have
  // communication.
  double CommunicationSeconds(CommunicationTime what, double bytes,
                              bool by_copy_engines) const;
  // Seconds of a row of the tables, or of a shape that has no row.
  double RowSeconds(const OpShape& shape) const;

  // How far the price of a shape reaches beyond the rows of its kind. 1: a row
  // has every dim, or sizes around this one were measured; 2: the nearest row
  // has a dim of half or twice the size. Where its kind has no row, 1 too, and
  // far above 2 for groups on several hosts where all rows are of one host.
  double Reach(const OpShape& shape) const;
  // Whether a product, in whatever transposes, was measured within a factor of
  // two in each dim; and attention with as wide heads within a factor of two in
  // the length of sequences.
  bool HasGemmNear(int64_t m, int64_t n, int64_t k,
                   GemmFormat format = GemmFormat::kAsStored) const;
  bool HasGemms(GemmFormat format) const;  // Whatever their shape.
  bool HasAttentionNear(OpKind kind, int64_t sequence_length,
                        int64_t head_dim) const;
  bool HasAttention(OpKind kind) const;  // Whatever its shape.
  bool HasCopyEngines(OpKind kind) const;
  // Whether communication between hosts was measured.
  bool HasHosts() const;
  // The best measured GEMM's; in 8 bits only where no other was measured.
  double BestFlopsPerSecond() const;

 private:
  double GemmWorkOf(const GemmAttributes& gemm,
                    GemmFormat format = GemmFormat::kAsStored) const;
  double AttentionWorkOf(OpKind kind,
                         const AttentionAttributes& attention) const;
  double CrossEntropyWorkOf(OpKind kind, const VocabAttributes& vocab) const;
  double OverwritingGemmSeconds(const GemmAttributes& gemm,
                                GemmFormat format) const;
  // Seconds of a product that has a part of the rows of a measured one. Returns
  // nothing for other shapes, and without a data sheet.
  std::optional<double> PartOfGemmSeconds(const GemmAttributes& gemm,
                                          GemmFormat format) const;
  // Seconds that the product c += a b takes more than c = a b; c is [m, n] in
  // fp32, and k the inner dim.
  double AccumulationSeconds(int64_t m, int64_t n, int64_t k) const;

  const HardwareProfile* profile_;
  std::optional<SheetTimes> sheet_;
  std::vector<double> gemm_speeds_;  // For each row: work over its seconds.
  double bytes_per_s_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_COST_MEASURED_TIMES_H_
