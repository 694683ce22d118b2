#include "coordinator/cli/watch_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/http/http_server.h"
#include "coordinator/protocol/secret.h"
#include "coordinator/report/report.h"
#include "coordinator/watch/run_follower.h"
#include "coordinator/watch/watch_page.h"

namespace millrace {
namespace {

constexpr absl::Duration kWatchInterval = absl::Seconds(1);

struct WatchOptions {
  std::string run_directory;
  bool page = false;
  int32_t port = 0;
};

bool HasText(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

// A terminal that understands how to move its cursor.
bool CanRedraw() {
  const char* term = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && term != nullptr && *term != '\0' &&
         std::strcmp(term, "dumb") != 0;
}

WatchLook LookOf(bool redraws) {
  WatchLook look = {.width = 110,
                    .height = 1000,
                    .colours = redraws && !HasText("NO_COLOR"),
                    .now_unix_s = UnixNow()};
  winsize size = {};
  if (redraws && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0 && size.ws_row > 1) {
    // The last column and row stay free, or the terminal would scroll.
    look.width = size.ws_col - 1;
    look.height = size.ws_row - 1;
  }
  return look;
}

// Draws over what was drawn before. The cursor always rests below the page and
// nothing of the terminal is switched, so that an interrupt leaves it in order.
absl::Status WatchOnTerminal(const WatchOptions& options) {
  ASSIGN_OR_RETURN(RunFollower follower,
                   RunFollower::Open(options.run_directory));
  const bool redraws = CanRedraw();
  size_t num_drawn = 0;
  while (true) {
    RETURN_IF_ERROR(follower.Refresh());
    const std::vector<std::string> lines =
        WatchLines(follower.run(), LookOf(redraws));
    std::string text =
        num_drawn == 0 ? "" : absl::StrCat("\x1b[", num_drawn, "A");
    for (const std::string& line : lines) {
      absl::StrAppend(&text, line, redraws ? "\x1b[K\n" : "\n");
    }
    if (redraws) absl::StrAppend(&text, "\x1b[J");
    std::cout << text << std::flush;
    if (follower.run().over || !redraws || !std::cout) return absl::OkStatus();
    num_drawn = lines.size();
    absl::SleepFor(kWatchInterval);
  }
}

HttpAnswer PageAnswer(const WatchOptions& options) {
  const absl::StatusOr<std::string> page = ReportPage(options.run_directory);
  if (!page.ok()) {
    return {.status = 500, .body = std::string(page.status().message()) + "\n"};
  }
  HttpAnswer answer = {.type = "text/html; charset=utf-8", .body = *page};
  if (!FileExists(options.run_directory + "/result.json")) {
    answer.refresh_s = 5;
  }
  return answer;
}

// Until an interrupt. Only who knows the path gets the page, since every user
// of the machine reaches the port.
absl::Status ServePage(const WatchOptions& options) {
  ASSIGN_OR_RETURN(RunFollower follower,
                   RunFollower::Open(options.run_directory));
  ASSIGN_OR_RETURN(const std::string secret, MakeSecret());
  const std::string path = absl::StrCat("/", secret, "/");
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  std::unique_ptr<HttpServer> server;
  ASSIGN_OR_RETURN(
      server,
      HttpServer::Start({.port = options.port,
                         .answer = [&](const std::string& asked) -> HttpAnswer {
                           if (!SecretsEqual(asked, path)) {
                             return {.status = 404, .body = "nothing here\n"};
                           }
                           return PageAnswer(options);
                         }}));
  std::cout << "http://127.0.0.1:" << server->port() << path << std::endl
            << "serves the report of " << follower.run().name
            << " until Ctrl-C; from another machine: ssh -L " << server->port()
            << ":127.0.0.1:" << server->port() << " HOST" << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  return absl::OkStatus();
}

}  // namespace

void AddWatchCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<WatchOptions>();
  CLI::App* command = app.add_subcommand(
      "watch", "Show a run on the terminal while it goes on");
  command->add_option("RUN", options->run_directory, "The run directory")
      ->required();
  command->add_flag("--page", options->page,
                    "Serve the report, updating, to a browser of this machine");
  command
      ->add_option("--port", options->port,
                   "With --page: its port; 0 takes a free one")
      ->check(CLI::Range(0, 65535));
  command->footer(
      "Examples:\n  millrace watch runs/quickstart-latest\n"
      "  millrace watch runs/quickstart-latest --page\n"
      "Where standard output is no terminal, or TERM is dumb, the page is "
      "printed once.\nNO_COLOR leaves out colours.");
  command->callback([options, exit_code] {
    const absl::Status status =
        options->page ? ServePage(*options) : WatchOnTerminal(*options);
    if (!status.ok())
      std::cerr << "millrace watch: " << status.message() << std::endl;
    const bool bad_input =
        absl::IsNotFound(status) || absl::IsInvalidArgument(status);
    *exit_code = status.ok() ? 0 : bad_input ? 2 : 1;
  });
}

}  // namespace millrace
