// Running the real binary on a tiny job, and doing to its processes what bad
// days do: killing them, interrupting them. Only processes of the job itself
// are ever signalled, found as descendants of the one started here.

#ifndef MILLRACE_TESTS_E2E_JOB_PROCESS_H_
#define MILLRACE_TESTS_E2E_JOB_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace millrace {

// A folder of the test's own, with the job's caches and runs in it. Removed at
// the end, unless the test has failed.
struct JobFolder {
  explicit JobFolder(const std::string& name);
  JobFolder(const JobFolder&) = delete;
  ~JobFolder();
  std::string path;
};

struct TinyJob {
  int64_t num_steps = 40;
  int64_t checkpoint_interval = 10;
  std::string checkpoint_directory;  // Empty: within the run directory.
  int32_t devices_per_agent = 2;
  std::string layout = "auto";
  std::string extra;  // More lines of YAML.
};
// Writes FOLDER/job.yaml and returns its path.
std::string WriteTinyJob(const JobFolder& folder, const TinyJob& job);

class JobProcess {
 public:
  // `command` starts with the program; standard output and error go to
  // FOLDER/output.txt, anew.
  JobProcess(const JobFolder& folder, const std::vector<std::string>& command);
  ~JobProcess();  // Kills what is left.

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // Descendants whose command line holds `word` as its second argument:
  // "worker", "coordinator".
  std::vector<pid_t> Find(const std::string& word) const;
  // Polls until `condition` holds; false after `timeout` or if the job ended.
  bool WaitUntil(const std::function<bool()>& condition,
                 absl::Duration timeout = absl::Seconds(120)) const;
  // The exit code; -1 if it had to be killed after `timeout`, 128 + n if signal
  // n ended it.
  int Wait(absl::Duration timeout = absl::Seconds(240));
  std::string Output() const;

 private:
  const std::string output_path_;
  pid_t pid_;
  bool ended_ = false;
};

// {"millrace", "run", JOB} and {"mpirun", ..., "millrace", "agent", JOB}.
std::vector<std::string> RunCommand(const std::string& job);
std::vector<std::string> MpirunCommand(const std::string& job,
                                       int32_t num_agents);

// The next three read FOLDER's newest run.
nlohmann::json ReadResult(const JobFolder& folder);
std::vector<nlohmann::json> ReadLines(const JobFolder& folder,
                                      const std::string& file);
int64_t CountEvents(const JobFolder& folder, const std::string& event);

}  // namespace millrace

#endif  // MILLRACE_TESTS_E2E_JOB_PROCESS_H_
