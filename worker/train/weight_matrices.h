// Finds which parts of a bucket's matrices lie in this rank's slice of it.

#ifndef MILLRACE_WORKER_TRAIN_WEIGHT_MATRICES_H_
#define MILLRACE_WORKER_TRAIN_WEIGHT_MATRICES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/train/bucket_slice.h"

namespace millrace {

inline BucketSlice SliceOfWeights(const Layout& layout,
                                  const MeshCoordinates& coordinates,
                                  const WeightBucketAttributes& attributes) {
  return SliceOfBucket(layout, coordinates,
                       {.num_elements = attributes.num_elements,
                        .data_sharded = attributes.data_sharded});
}

// By matrix, the elements of the bucket that are both its and in the slice;
// none where num_elements is zero. Each matrix reaches to the next one's begin,
// the last to the bucket's end.
inline std::array<BucketSlice, kFloat8Matrices> MatricesIn(
    const WeightBucketAttributes& attributes, const BucketSlice& slice) {
  std::array<BucketSlice, kFloat8Matrices> parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t matrix_end = i + 1 < parts.size() ? attributes.begins[i + 1]
                                                    : attributes.num_elements;
    const int64_t begin = std::max(attributes.begins[i], slice.begin);
    const int64_t end = std::min(matrix_end, slice.begin + slice.num_elements);
    parts[i] = {begin, std::max<int64_t>(0, end - begin)};
  }
  return parts;
}

// How many ranks' magnitudes kQuantizeWeights reads, and how far apart those of
// one matrix are, and where the first rank's of the bucket's matrix `i` is.
struct GatheredAmaxes {
  int64_t num_ranks;
  int64_t stride;
  int64_t first;
};
inline GatheredAmaxes AmaxesOf(const Layout& layout,
                               const WeightBucketAttributes& attributes,
                               size_t matrix) {
  return {.num_ranks = attributes.data_sharded ? layout.group_data() : 1,
          .stride = kNumberStride * attributes.num_buckets,
          .first = kNumberStride * attributes.bucket_idx +
                   static_cast<int64_t>(matrix)};
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_WEIGHT_MATRICES_H_
