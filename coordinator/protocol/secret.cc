#include "coordinator/protocol/secret.h"

#include <sys/random.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<std::string> MakeSecret() {
  char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    return absl::InternalError("the kernel gave no random bytes");
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

absl::StatusOr<std::string> SecretFromEnvironment() {
  const char* secret = std::getenv(kSecretVariable);
  if (secret == nullptr || *secret == '\0') {
    return absl::FailedPreconditionError(
        absl::StrCat("the environment variable ", kSecretVariable,
                     " is not set; this command is started by an agent, use "
                     "'millrace run' or 'millrace agent'"));
  }
  return std::string(secret);
}

bool SecretsEqual(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace millrace
