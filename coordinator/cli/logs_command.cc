#include "coordinator/cli/logs_command.h"

#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file_piece.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/cli/launch.h"
#include "coordinator/cli/visit.h"
#include "coordinator/protocol/secret.h"
#include "coordinator/watch/run_follower.h"
#include "worker/agent/rank_log.h"

namespace millrace {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;
constexpr absl::Duration kFollowInterval = absl::Milliseconds(300);

struct LogsOptions {
  std::string job;
  std::string secret_file;
  int32_t rank = 0;
  bool follow = false;
};

// A log that may grow.
struct LogSource {
  // The piece from that offset on; empty at the end, Cancelled when the job has
  // ended and takes no more questions.
  std::function<absl::StatusOr<std::string>(int64_t offset)> read;
  std::function<bool()> is_over;  // Nothing comes any more.
};

absl::StatusOr<LogSource> SourceOfCoordinator(const std::string& address,
                                              const LogsOptions& options) {
  ASSIGN_OR_RETURN(Visit opened, Visit::Open(address, options.secret_file));
  const auto visit = std::make_shared<Visit>(std::move(opened));
  return LogSource{.read = [visit, rank = options.rank](
                               int64_t offset) -> absl::StatusOr<std::string> {
                     protocol::ToCoordinator question;
                     question.mutable_log_request()->set_rank(rank);
                     question.mutable_log_request()->set_offset(offset);
                     ASSIGN_OR_RETURN(const protocol::FromCoordinator answer,
                                      visit->Ask(question));
                     if (!answer.log().error().empty()) {
                       return absl::NotFoundError(answer.log().error());
                     }
                     return answer.log().text();
                   },
                   .is_over = [] { return false; }};
}

// Where the log is, if it is not in the run directory.
absl::Status LogIsElsewhere(const std::string& run_directory, int32_t rank) {
  absl::StatusOr<RunFollower> follower = RunFollower::Open(run_directory);
  if (!follower.ok()) return follower.status();
  RETURN_IF_ERROR(follower->Refresh());
  for (const WatchedRank& known : follower->run().ranks) {
    if (known.rank != rank || known.host.empty()) continue;
    return absl::NotFoundError(absl::StrCat(
        run_directory, " has no log of rank ", rank, ": its host, ", known.host,
        ", keeps it in the folder ", follower->run().name,
        " of its own output.directory; while the job runs, give its secret and "
        "the log comes through the coordinator"));
  }
  return absl::NotFoundError(absl::StrCat(
      run_directory, " has no log of rank ", rank, "; it has ",
      follower->run().ranks.size(), " ranks, and logs in its folder logs"));
}

absl::StatusOr<LogSource> SourceOfRun(const std::string& run_directory,
                                      const LogsOptions& options) {
  const auto is_over = [run_directory] {
    return FileExists(run_directory + "/result.json");
  };
  const absl::StatusOr<std::string> address =
      ReadFile(absl::StrCat(run_directory, "/", kAddressFile));
  if (!is_over() && address.ok() && GivenSecret(options.secret_file).ok()) {
    return SourceOfCoordinator(
        std::string(absl::StripAsciiWhitespace(*address)), options);
  }
  const std::string path = RankLogPath(run_directory, options.rank);
  if (!FileExists(path)) return LogIsElsewhere(run_directory, options.rank);
  return LogSource{.read =
                       [path](int64_t offset) {
                         return ReadPiece(path, offset, kPieceBytes);
                       },
                   .is_over = is_over};
}

absl::Status PrintLog(const LogsOptions& options) {
  ASSIGN_OR_RETURN(const JobPlace place, FindJob(options.job));
  ASSIGN_OR_RETURN(const LogSource source,
                   place.address.empty()
                       ? SourceOfRun(place.run_directory, options)
                       : SourceOfCoordinator(place.address, options));
  int64_t offset = 0;
  while (std::cout) {
    // Asked first: what was written before the end is read after it.
    const bool is_over = source.is_over();
    absl::StatusOr<std::string> piece = source.read(offset);
    // Who follows a job to its end has got what there was.
    if (absl::IsCancelled(piece.status()) && options.follow && offset > 0) {
      std::cerr << "millrace: " << piece.status().message() << std::endl;
      return absl::OkStatus();
    }
    if (!piece.ok()) return piece.status();
    std::cout << *piece << std::flush;
    offset += static_cast<int64_t>(piece->size());
    if (!piece->empty()) continue;
    if (!options.follow || is_over) return absl::OkStatus();
    absl::SleepFor(kFollowInterval);
  }
  return absl::OkStatus();
}

}  // namespace

void AddLogsCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<LogsOptions>();
  CLI::App* command = app.add_subcommand(
      "logs", "Print the log of a rank, whatever host it lies on");
  command
      ->add_option("RUN|HOST:PORT", options->job,
                   "The run directory, or where agent 0 listens")
      ->required();
  command->add_option("--rank", options->rank, "Whose log")
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--follow", options->follow,
                    "Go on with what is added, until the job ends");
  command->add_option("--secret-file", options->secret_file,
                      "The job's secret; else MILLRACE_SECRET");
  command->footer(
      "Examples:\n  millrace logs runs/quickstart-latest --rank 3\n"
      "  millrace logs node1:4711 --rank 3 --follow --secret-file secret\n"
      "While a job runs, and with its secret, the log comes from the rank's "
      "host through\nthe coordinator; else from the files of the run "
      "directory.");
  command->callback([options, exit_code] {
    const absl::Status status = PrintLog(*options);
    *exit_code = status.ok() ? 0 : Fail(status);
  });
}

}  // namespace millrace
