#include "coordinator/cli/status_command.h"

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "coordinator/cli/visit.h"
#include "coordinator/watch/run_follower.h"
#include "coordinator/watch/watch_page.h"

namespace millrace {
namespace {

struct StatusOptions {
  std::string job;
  std::string secret_file;
  bool json = false;
};

absl::Status PrintStatusOfRun(const std::string& run_directory, bool json) {
  ASSIGN_OR_RETURN(RunFollower follower, RunFollower::Open(run_directory));
  RETURN_IF_ERROR(follower.Refresh());
  if (json) {
    std::cout << JsonText(WatchJson(follower.run(), UnixNow())) << std::endl;
    return absl::OkStatus();
  }
  const WatchLook look = {
      .width = 110, .height = 1000, .now_unix_s = UnixNow()};
  for (const std::string& line : WatchLines(follower.run(), look)) {
    std::cout << line << "\n";
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

absl::Status PrintStatus(const StatusOptions& options) {
  ASSIGN_OR_RETURN(const JobPlace place, FindJob(options.job));
  if (place.address.empty()) {
    return PrintStatusOfRun(place.run_directory, options.json);
  }
  ASSIGN_OR_RETURN(Visit visit,
                   Visit::Open(place.address, options.secret_file));
  protocol::ToCoordinator question;
  question.mutable_status_request();
  ASSIGN_OR_RETURN(const protocol::FromCoordinator answer, visit.Ask(question));
  std::cout << (options.json ? answer.status().json() + "\n"
                             : answer.status().text())
            << std::flush;
  return absl::OkStatus();
}

}  // namespace

void AddStatusCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = app.add_subcommand(
      "status", "Show how a job is doing, from any host that reaches it");
  command
      ->add_option("RUN|HOST:PORT", options->job,
                   "The run directory, or where agent 0 listens")
      ->required();
  command->add_option("--secret-file", options->secret_file,
                      "With HOST:PORT: the job's secret; else MILLRACE_SECRET");
  command->add_flag("--json", options->json, "For programs");
  command->footer(
      "Examples:\n  millrace status runs/quickstart-latest\n"
      "  millrace status node1:4711 --secret-file secret\n"
      "The second asks the coordinator, on a host that sees no file of the "
      "run.");
  command->callback([options, exit_code] {
    const absl::Status status = PrintStatus(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace millrace
