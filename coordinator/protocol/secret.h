// The job's secret: a random token that agent 0 makes and that both ends of a
// connection prove to know before anything else (tls.h). It travels through the
// launcher and the environment, never on a command line, where others could
// read it, and never over a connection.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_SECRET_H_
#define MILLRACE_COORDINATOR_PROTOCOL_SECRET_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr char kSecretVariable[] = "MILLRACE_SECRET";

// 128 bits from the kernel, as 32 hexadecimal digits.
absl::StatusOr<std::string> MakeSecret();

// FailedPrecondition if the environment holds none.
absl::StatusOr<std::string> SecretFromEnvironment();

// The secret where no launcher hands one to the agents: the content of `file`,
// which nobody but its owner may read, or the environment's if `file` is empty.
// InvalidArgument says how to give one.
absl::StatusOr<std::string> GivenSecret(const std::string& file);

// Takes equally long wherever the two differ.
bool SecretsEqual(absl::string_view a, absl::string_view b);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_SECRET_H_
