#include "coordinator/cli/visit.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/protocol/secret.h"
#include "worker/agent/network.h"

namespace millrace {
namespace {

constexpr absl::Duration kNobodyAfter = absl::Seconds(5);
// A log's piece comes from another host.
constexpr absl::Duration kAnswerLimit = absl::Seconds(15);

}  // namespace

absl::StatusOr<JobPlace> FindJob(const std::string& text) {
  std::error_code none;
  if (std::filesystem::is_directory(text, none)) {
    return JobPlace{.run_directory = text};
  }
  if (!absl::StrContains(text, ':')) {
    return absl::NotFoundError(absl::StrCat(
        text,
        " is neither a run directory, such as runs/quickstart-latest, "
        "nor the HOST:PORT of a job's agent 0, such as node1:4711"));
  }
  ASSIGN_OR_RETURN(const std::string address, ResolveAddress(text));
  return JobPlace{.address = address};
}

absl::StatusOr<Visit> Visit::Open(const std::string& address,
                                  const std::string& secret_file) {
  ASSIGN_OR_RETURN(const std::string secret, GivenSecret(secret_file));
  ASSIGN_OR_RETURN(std::unique_ptr<Client> client,
                   Client::Create({.address = address,
                                   .secret = secret,
                                   .give_up_after = kNobodyAfter,
                                   .make_hello = [] {
                                     protocol::Hello hello;
                                     hello.mutable_visitor();
                                     return hello;
                                   }}));
  return Visit(std::move(client));
}

absl::StatusOr<protocol::FromCoordinator> Visit::Ask(
    const protocol::ToCoordinator& question) {
  client_->SendReliably(question);
  const absl::Time deadline = MonotonicNow() + kAnswerLimit;
  while (MonotonicNow() < deadline) {
    std::optional<protocol::FromCoordinator> answer;
    ASSIGN_OR_RETURN(answer, client_->Receive(absl::Seconds(1)));
    if (!answer.has_value()) continue;
    if (answer->has_shutdown()) {
      const std::string& why = answer->shutdown().message();
      return absl::CancelledError(
          absl::StrCat("the job has ended", why.empty() ? "" : ": ", why));
    }
    return *std::move(answer);
  }
  return absl::UnavailableError(
      absl::StrCat("no answer within ", absl::FormatDuration(kAnswerLimit),
                   " from the coordinator at ", client_->address(),
                   "; is it busy, or the agent of that rank gone?"));
}

}  // namespace millrace
