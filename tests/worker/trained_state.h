// The training state that one rank has after a test's steps, kept as the
// reference, and how far the state of other ranks is from it.

#ifndef MILLRACE_TESTS_WORKER_TRAINED_STATE_H_
#define MILLRACE_TESTS_WORKER_TRAINED_STATE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/training_state.h"

namespace millrace {

// Every tensor of a state, row-major: parameters by their name, moments with
// ".exp_avg" and ".exp_avg_sq" behind it.
using WholeState = std::map<std::string, std::vector<float>>;

// Copies the pieces of a rank that holds every tensor whole.
// FailedPrecondition if it does not.
absl::StatusOr<WholeState> CopyWholeState(
    const std::vector<StatePiece>& pieces);

// To and from files of `folder`, one for each tensor. The folder must exist.
absl::Status SaveWholeState(const WholeState& state, const std::string& folder);
absl::StatusOr<WholeState> LoadWholeState(const std::string& folder);

// Squared distances to a reference, and the elements compared, by tensor.
struct TensorDistance {
  double squared = 0;
  int64_t num_elements = 0;
};
using StateDistances = std::map<std::string, TensorDistance>;

// Adds the pieces that the rank owns. NotFound for a tensor that the reference
// lacks, OutOfRange for elements beyond its end.
absl::Status AddDistances(const std::vector<StatePiece>& pieces,
                          const WholeState& reference,
                          StateDistances* distances);
// One line of text for each tensor, and back.
std::string DistancesToText(const StateDistances& distances);
absl::Status AddDistancesFromText(const std::string& text,
                                  StateDistances* distances);

// The tensor furthest from the reference, in units of the reference's own norm.
struct WorstTensor {
  double error = 0;
  std::string name;
};
struct StateError {
  // Relative to how far training moved the tensor: a parameter that was never
  // updated has an error of 1.
  WorstTensor parameters;
  WorstTensor first_moments;   // Relative to the moment. Linear in gradients.
  WorstTensor second_moments;  // As first_moments.
};
// `before` is the state in which training began. DataLoss unless every element
// of the reference was compared exactly once.
absl::StatusOr<StateError> WorstErrors(const StateDistances& distances,
                                       const WholeState& before,
                                       const WholeState& reference);

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_TRAINED_STATE_H_
