#include "planner/job/object_path.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

constexpr char kScheme[] = "s3://";
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html
constexpr size_t kShortestBucket = 3;
constexpr size_t kLongestBucket = 63;

// Other servers than Amazon's take capitals and "_" as well.
bool IsBucketCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
         c == '.' || c == '_';
}

}  // namespace

bool IsObjectPath(absl::string_view path) {
  return absl::StartsWith(path, "s3:");
}

absl::StatusOr<ObjectPath> ParseObjectPath(absl::string_view path) {
  const auto wrong = [path](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected s3://BUCKET/PREFIX, found '", path, "': ", what));
  };
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, kScheme)) {
    return wrong("it does not begin with s3://");
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  const absl::string_view bucket = rest.substr(0, slash);
  if (bucket.size() < kShortestBucket || bucket.size() > kLongestBucket ||
      !std::all_of(bucket.begin(), bucket.end(), IsBucketCharacter)) {
    return wrong(
        "a bucket's name has 3 to 63 letters, digits, dots and hyphens");
  }
  absl::string_view key = rest.substr(slash);
  absl::ConsumePrefix(&key, "/");
  absl::ConsumeSuffix(&key, "/");
  if (!key.empty()) {
    for (const absl::string_view part : absl::StrSplit(key, '/')) {
      if (part.empty() || part == "." || part == "..") {
        return wrong("a part between slashes is empty, '.' or '..'");
      }
    }
  }
  return ObjectPath{std::string(bucket), std::string(key)};
}

absl::StatusOr<ObjectEndpoint> ParseObjectEndpoint(absl::string_view url) {
  const auto wrong = [url](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected http://HOST:PORT or https://HOST, found '", url,
                     "': ", what));
  };
  ObjectEndpoint endpoint;
  absl::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "http://")) {
    endpoint.is_encrypted = false;
    endpoint.port = 80;
  } else if (!absl::ConsumePrefix(&rest, "https://")) {
    return wrong("it begins with neither http:// nor https://");
  }
  absl::ConsumeSuffix(&rest, "/");
  // The colons of an IPv6 address are in brackets.
  const size_t host_end =
      absl::StartsWith(rest, "[") ? rest.find(']') : rest.find(':');
  absl::string_view host = rest.substr(0, host_end);
  rest.remove_prefix(host.size());
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumePrefix(&rest, "]")) {
    return wrong("the bracket is not closed");
  }
  if (host.empty()) return wrong("there is no host");
  const auto is_host_character = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
           c == '.' || c == '_' || c == ':';
  };
  if (!std::all_of(host.begin(), host.end(), is_host_character)) {
    return wrong("something follows the host; the bucket is named elsewhere");
  }
  if (absl::ConsumePrefix(&rest, ":")) {
    if (!absl::SimpleAtoi(rest, &endpoint.port) || endpoint.port < 1 ||
        endpoint.port > 65535) {
      return wrong("a port is a number from 1 to 65535, and ends the address");
    }
  } else if (!rest.empty()) {
    return wrong("something follows the host");
  }
  endpoint.host = std::string(host);
  return endpoint;
}

std::vector<std::pair<std::string, std::string>> ProblemsOfObjectKeys(
    const JobSpec& job) {
  const CheckpointSpec& checkpoint = job.checkpoint;
  std::vector<std::pair<std::string, std::string>> problems;
  if (IsObjectPath(job.exports.directory)) {
    problems.emplace_back(
        "export.directory",
        absl::StrCat("expected a folder, found ", job.exports.directory,
                     "; exports are not written to buckets"));
  }
  const auto check = [&problems](const char* key, const absl::Status& status) {
    if (!status.ok()) problems.emplace_back(key, status.message());
  };
  const bool has_directory = IsObjectPath(checkpoint.directory);
  const bool has_resume = IsObjectPath(checkpoint.resume);
  if (has_directory) {
    check("checkpoint.directory",
          ParseObjectPath(checkpoint.directory).status());
  }
  if (has_resume) {
    check("checkpoint.resume", ParseObjectPath(checkpoint.resume).status());
  }
  if (!checkpoint.endpoint.empty()) {
    check("checkpoint.endpoint",
          ParseObjectEndpoint(checkpoint.endpoint).status());
  }
  if (has_directory || has_resume) return problems;
  constexpr char kUnused[] =
      "given, but neither checkpoint.directory nor checkpoint.resume is an "
      "s3:// path; leave it out, or name one";
  if (!checkpoint.endpoint.empty()) {
    problems.emplace_back("checkpoint.endpoint", kUnused);
  }
  if (!checkpoint.region.empty()) {
    problems.emplace_back("checkpoint.region", kUnused);
  }
  return problems;
}

}  // namespace millrace
