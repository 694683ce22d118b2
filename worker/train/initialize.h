// Initial weights: a pure function of (seed, parameter name, element), the same
// under every layout.

#ifndef MILLRACE_WORKER_TRAIN_INITIALIZE_H_
#define MILLRACE_WORKER_TRAIN_INITIALIZE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fault/training_state.h"
#include "planner/layout/layout.h"
#include "planner/layout/model.h"
#include "planner/program/parameters.h"

namespace millrace {

// The stream of random numbers (kernels/pointwise/random_normal.h) that the
// elements of a matrix are drawn from.
uint64_t ParameterStream(const std::string& name);

// Fills a rank's flat parameter buffer: matrices normal(0, init_std), norm
// weights one, biases and padding zero.
void InitializeParameters(const ModelSpec& model, const Layout& layout,
                          MeshCoordinates coordinates,
                          const StageParameters& parameters, uint64_t seed,
                          float* flat);

// The same numbers for those of `pieces` that are parameters, wherever they
// lie; moments stay as they are, and so does padding.
void InitializePieces(const ModelSpec& model,
                      const std::vector<StatePiece>& pieces, uint64_t seed);

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_INITIALIZE_H_
