// Adds a run to a folder in MLflow's file layout:
//   FOLDER/EXPERIMENT/meta.yaml
//   FOLDER/EXPERIMENT/RUN/meta.yaml
//   FOLDER/EXPERIMENT/RUN/metrics/train/loss   lines "milliseconds value step"
//   FOLDER/EXPERIMENT/RUN/params/training.seed and tags/NAME   one value each
// Ids follow from names, so a restarted coordinator goes on with the same run.

#ifndef MILLRACE_COORDINATOR_METRICS_MLFLOW_RUN_H_
#define MILLRACE_COORDINATOR_METRICS_MLFLOW_RUN_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/metrics/append_file.h"
#include "coordinator/metrics/run_records.h"
#include "planner/job/job.h"

namespace millrace {

struct MlflowOptions {
  std::string folder;  // "mlruns".
  JobSpec job;         // Its name is the experiment's.
  std::string run_directory;
  double started_unix_s = 0;
};

class MlflowRun {
 public:
  static absl::StatusOr<MlflowRun> Open(const MlflowOptions& options);

  absl::Status Add(const StepRecord& record, double unix_s);
  // `status`: that of result.json.
  absl::Status End(const std::string& status, double unix_s);

  const std::string& folder() const { return folder_; }  // The run's.

 private:
  MlflowRun(MlflowOptions options, std::string experiment_id,
            std::string run_id);
  absl::Status WriteMeta(int status, const std::string& end_time) const;

  MlflowOptions options_;
  std::string experiment_id_;
  std::string run_id_;
  std::string folder_;
  std::map<std::string, AppendFile> metrics_;  // By tag.
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_METRICS_MLFLOW_RUN_H_
