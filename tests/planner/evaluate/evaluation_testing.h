// Predictions made up by hand.

#ifndef MILLRACE_TESTS_PLANNER_EVALUATE_EVALUATION_TESTING_H_
#define MILLRACE_TESTS_PLANNER_EVALUATE_EVALUATION_TESTING_H_

#include <string>

#include "planner/evaluate/evaluate.h"

namespace millrace {

struct MadeUp {
  std::string id;
  std::string group = "g";
  double predicted = 1;
  double measured = 1;
  int64_t num_gpus = 8;
};

// A dense bf16 run of quality A on the profile "machine".
inline RunPrediction MakePrediction(const MadeUp& made_up) {
  RunPrediction prediction;
  PublishedRun& run = prediction.run;
  run.id = made_up.id;
  run.group = made_up.group;
  run.source = "program@v1:file";
  run.model = "model";
  run.quality = std::string("A");
  run.num_gpus = made_up.num_gpus;
  run.global_batch = 64;
  run.sequence = 1024;
  run.step_time_s = made_up.measured;
  prediction.setup.profile = "machine";
  prediction.setup.model.sequence_length = 1024;
  prediction.setup.layout.precision = Precision::kBfloat16;
  prediction.setup.layout.data = static_cast<int32_t>(made_up.num_gpus);
  prediction.step_time_s = made_up.predicted;
  return prediction;
}

inline RunPrediction MakeUnsupported(const std::string& id) {
  RunPrediction prediction;
  prediction.run.id = id;
  prediction.run.group = std::string("g");
  prediction.run.quality = std::string("B");
  prediction.status = absl::InvalidArgumentError("hidden is not stated");
  return prediction;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_EVALUATE_EVALUATION_TESTING_H_
