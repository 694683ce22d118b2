#include "coordinator/objects/credentials.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr char kKeyId[] = "aws_access_key_id";
constexpr char kSecret[] = "aws_secret_access_key";
constexpr char kToken[] = "aws_session_token";

// The keys of a section of an INI file.
std::map<std::string, std::string> Section(const std::string& text,
                                           const std::string& name) {
  std::map<std::string, std::string> values;
  bool is_inside = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      is_inside = line == absl::StrCat("[", name, "]");
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (!is_inside) continue;
    values[absl::AsciiStrToLower(absl::StripAsciiWhitespace(entry.first))] =
        std::string(absl::StripAsciiWhitespace(entry.second));
  }
  return values;
}

absl::StatusOr<ObjectCredentials> FromFile(const Environment& of) {
  std::string path = of("AWS_SHARED_CREDENTIALS_FILE");
  if (path.empty()) path = of("HOME") + "/.aws/credentials";
  std::string profile = of("AWS_PROFILE");
  if (profile.empty()) profile = "default";
  constexpr char kRemedy[] =
      "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on every host, or write "
      "them there";
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  if (!text.ok()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "no credentials for s3:// paths: the environment has "
        "none, and neither has the profile ",
        profile, " of ", path, " (", text.status().message(), "); ", kRemedy));
  }
  std::map<std::string, std::string> values = Section(*text, profile);
  if (values[kKeyId].empty() || values[kSecret].empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "no credentials for s3:// paths: ", path, " has no section [", profile,
        "] with ", kKeyId, " and ", kSecret, "; ", kRemedy));
  }
  return ObjectCredentials{values[kKeyId], values[kSecret], values[kToken]};
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
}

absl::StatusOr<ObjectCredentials> FindCredentials(const Environment& of) {
  ObjectCredentials found = {of("AWS_ACCESS_KEY_ID"),
                             of("AWS_SECRET_ACCESS_KEY"),
                             of("AWS_SESSION_TOKEN")};
  if (found.access_key_id.empty() && found.secret_access_key.empty()) {
    return FromFile(of);
  }
  if (found.access_key_id.empty() || found.secret_access_key.empty()) {
    return absl::PermissionDeniedError(
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together, and one "
        "of them is not set; set both");
  }
  return found;
}

ObjectStorePlace CompletePlace(ObjectStorePlace place, const Environment& of) {
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (place.endpoint.empty()) place.endpoint = of(name);
  }
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (place.region.empty()) place.region = of(name);
  }
  if (place.region.empty()) place.region = "us-east-1";
  return place;
}

}  // namespace millrace
