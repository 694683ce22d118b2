// Finds which elements of a bucket this rank's optimizer updates, and where
// they begin in an operand.

#ifndef MILLRACE_WORKER_TRAIN_BUCKET_SLICE_H_
#define MILLRACE_WORKER_TRAIN_BUCKET_SLICE_H_

#include <cstdint>

#include "planner/layout/layout.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

// Elements [begin, begin + num_elements) of a bucket.
struct BucketSlice {
  int64_t begin;
  int64_t num_elements;
};

// The whole, or where data_sharded the run of the rank's data index.
inline BucketSlice SliceOfBucket(const Layout& layout,
                                 const MeshCoordinates& coordinates,
                                 const OptimizerAttributes& attributes) {
  if (!attributes.data_sharded) return {0, attributes.num_elements};
  const int64_t share = attributes.num_elements / layout.group_data();
  return {layout.slice_of(coordinates.data) * share, share};
}

// The elements of its operand that an all-reduce sums.
inline BucketSlice ReducedPart(const Layout& layout,
                               const MeshCoordinates& coordinates,
                               const CollectiveAttributes& attributes) {
  return SliceOfBucket(layout, coordinates,
                       {.num_elements = attributes.num_elements,
                        .data_sharded = attributes.of_slice});
}

// The element of `operand` where the slice begins: it holds the bucket, or the
// slice alone.
inline int64_t BeginIn(const Buffer& operand, const BucketSlice& slice) {
  return operand.dims[0] == slice.num_elements ? 0 : slice.begin;
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_BUCKET_SLICE_H_
