// Which ranks add a product's bias.

#ifndef MILLRACE_WORKER_TRAIN_PRODUCT_BIAS_H_
#define MILLRACE_WORKER_TRAIN_PRODUCT_BIAS_H_

#include "planner/layout/mesh.h"
#include "planner/program/ops.h"

namespace millrace {

// Whether this rank's product adds its bias.
inline bool AddsBias(const GemmAttributes& attributes,
                     const MeshCoordinates& coordinates) {
  return attributes.bias && (!attributes.bias_once || coordinates.tensor == 0);
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_PRODUCT_BIAS_H_
