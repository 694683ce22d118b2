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
  double log_ratio = 0;   // Of measured over expected.
  int64_t num_calls = 1;  // That it is the mean of.
  // So little of the step that it is mostly overhead: tells of itself alone.
  bool is_minor = false;
};

class ShapeErrors {
 public:
  // Among observations that are alike, those that the others contradict count
  // less. At most a few hundred.
  explicit ShapeErrors(std::vector<ShapeError> observed);

  // log(true / listed) to expect of a row; of the contention factor of so many
  // ranks; of the overlap factor of computing or communication.
  double OfRow(const OpShape& shape) const;
  double OfContention(int num_computing) const;
  double OfOverlap(bool communication) const;

 private:
  std::vector<ShapeError> observed_;
  std::vector<std::string> kinds_;  // KindText of each.
  std::vector<double> weights_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LEARN_SHAPE_ERRORS_H_
