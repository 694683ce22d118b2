// Decides which sample of which source is the n-th of a run.
//
// Sample n of a run goes to the source whose interval of [0, 1) holds the
// fractional part of n times the golden ratio; the intervals are as long as the
// weights. The multiples of the golden ratio fill [0, 1) as evenly as a
// sequence can, so that after any number of samples each source has had its
// share to within a few, in any stretch of the run. A source's own samples come
// in their order, so its cursor is the number of earlier samples that went to
// it: a sum of integer parts, which takes time logarithmic in n. Nothing is
// stored.

#ifndef MILLRACE_WORKER_DATA_MIXTURE_H_
#define MILLRACE_WORKER_DATA_MIXTURE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

class Mixture {
 public:
  // Weights above zero; their sum counts as one. InvalidArgument, with the
  // index of the source, for a share below one in four thousand million.
  // Different keys begin at different places.
  static absl::StatusOr<Mixture> Make(const std::vector<double>& weights,
                                      uint64_t key);

  struct Pick {
    size_t source_idx;
    int64_t number;  // Index among the source's samples, from zero.
  };
  // The n-th sample, from zero.
  Pick At(int64_t n) const;
  // How many of the first n samples are the source's: its cursor.
  int64_t NumBefore(size_t source_idx, int64_t n) const;

 private:
  Mixture(std::vector<uint64_t> ends, uint64_t first)
      : ends_(std::move(ends)), first_(first) {}

  std::vector<uint64_t> ends_;  // Ends of the intervals, in units of 2^-32.
  uint64_t first_;              // Where n = 0 is, in the same units.
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_MIXTURE_H_
