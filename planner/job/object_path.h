// Names of objects in an S3-compatible store, and of its server:
// s3://BUCKET/KEY and http://HOST:PORT. Text only; nothing is asked over the
// network.

#ifndef MILLRACE_PLANNER_JOB_OBJECT_PATH_H_
#define MILLRACE_PLANNER_JOB_OBJECT_PATH_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "planner/job/job.h"

namespace millrace {

struct ObjectPath {
  std::string bucket;
  std::string key;  // Without "/" at either end; empty: the whole bucket.
};

struct ObjectEndpoint {
  bool is_encrypted = true;  // https
  std::string host;          // A name or an address; IPv6 without brackets.
  int32_t port = 443;
};

// Whether `path` is meant as an object's: it begins with "s3:".
bool IsObjectPath(absl::string_view path);

// Reads "s3://BUCKET/PREFIX". InvalidArgument if there is no bucket, if its
// name is none that S3 allows, or if a part of the key is empty, "." or "..".
absl::StatusOr<ObjectPath> ParseObjectPath(absl::string_view path);

// Reads "http://HOST", "https://HOST:PORT" or the like. InvalidArgument if the
// scheme is another, if there is no host, or if something follows the port.
absl::StatusOr<ObjectEndpoint> ParseObjectEndpoint(absl::string_view url);

// The mistakes in a job's keys that name objects: the key's path in a job file,
// and what was expected.
std::vector<std::pair<std::string, std::string>> ProblemsOfObjectKeys(
    const JobSpec& job);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_OBJECT_PATH_H_
