#include "coordinator/protocol/secret.h"

#include <sys/random.h>
#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace millrace {
namespace {

constexpr size_t kLeastSecret = 16;

}  // namespace

absl::StatusOr<std::string> MakeSecret() {
  std::string bytes(16, '\0');
  if (getrandom(bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError("the kernel gave no random bytes");
  }
  return absl::BytesToHexString(bytes);
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

absl::StatusOr<std::string> GivenSecret(const std::string& file) {
  std::string secret;
  if (file.empty()) {
    const char* value = std::getenv(kSecretVariable);
    if (value != nullptr) secret = value;
  } else {
    struct stat facts = {};
    if (stat(file.c_str(), &facts) == 0 && (facts.st_mode & 077) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "others may read the secret in ", file, "; chmod 600 ", file));
    }
    absl::StatusOr<std::string> content = ReadFile(file, 4096);
    if (!content.ok()) {
      return absl::InvalidArgumentError(content.status().message());
    }
    secret = std::string(absl::StripAsciiWhitespace(*content));
  }
  if (secret.size() >= kLeastSecret &&
      secret.find_first_of(" \t\r\n") == std::string::npos) {
    return secret;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      file.empty() ? absl::StrCat("the environment variable ", kSecretVariable)
                   : file,
      secret.empty() ? " holds no secret"
                     : " is no secret of 16 or more letters and digits",
      "; agents that no MPI launcher starts together need one: openssl rand "
      "-hex 16 > FILE, chmod 600 FILE, the same FILE on all hosts, and "
      "--secret-file FILE, or export ",
      kSecretVariable, " on all"));
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
