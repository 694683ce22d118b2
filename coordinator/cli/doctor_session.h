// Agent 0's side of an examination: a server that carries the examination's
// orders to all agents and their answers back.

#ifndef MILLRACE_COORDINATOR_CLI_DOCTOR_SESSION_H_
#define MILLRACE_COORDINATOR_CLI_DOCTOR_SESSION_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/doctor/examination.h"

namespace millrace {

struct DoctorSessionOptions {
  int listen_fd = -1;  // Taken over.
  std::string secret;
  ExaminationOptions examination;
  // Called with a line about what goes on.
  std::function<void(const std::string& line)> on_progress;
  // Called before the hosts look at themselves, and after they did.
  std::function<void(bool begins)> on_looking;
  // Called once, with all that was found. Returns every agent's exit code.
  std::function<int(const ExaminationResult& result)> on_done;
};

// Runs until the examination is over and all agents were told. Errors are those
// of the server.
absl::Status RunDoctorSession(DoctorSessionOptions options);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_CLI_DOCTOR_SESSION_H_
