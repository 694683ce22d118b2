// Estimates the error of every row of a profile's tables from the rows that a
// run measured, by a Gaussian process (planner/learn/learn_from_run.h).

#ifndef MILLRACE_PLANNER_LEARN_SHAPE_ERRORS_H_
#define MILLRACE_PLANNER_LEARN_SHAPE_ERRORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/learn/step_observation.h"

namespace millrace {

struct ShapeError {
  OpShape shape;
  OpContext context;
  double log_ratio = 0;   // log(measured / expected).
  int64_t num_calls = 1;  // `log_ratio` is their mean.
  // The shape takes so little of the step that its time is mostly overhead. It
  // then tells nothing about other shapes.
  bool is_minor = false;
};

class ShapeErrors {
 public:
  // Observations that others like them contradict count less. At most a few
  // hundred.
  explicit ShapeErrors(std::vector<ShapeError> observed);

  // Each returns the expected log(true / listed): of a row, of the contention
  // factor of a number of ranks, and of the overlap factor of computing or
  // communication.
  double OfRow(const OpShape& shape) const;
  double OfContention(int num_computing) const;
  double OfOverlap(bool communication) const;

 private:
  std::vector<ShapeError> observed_;
  std::vector<std::string> kinds_;  // KindText() of each observation.
  std::vector<double> weights_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_SHAPE_ERRORS_H_
