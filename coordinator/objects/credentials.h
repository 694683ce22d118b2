// Where credentials and the place of an S3-compatible store come from, by the
// names that Amazon's tools use:
// https://docs.aws.amazon.com/sdkref/latest/guide/settings-reference.html

#ifndef MILLRACE_COORDINATOR_OBJECTS_CREDENTIALS_H_
#define MILLRACE_COORDINATOR_OBJECTS_CREDENTIALS_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/objects/signature.h"

namespace millrace {

// The value of a variable of the environment; empty if it is not set.
using Environment = std::function<std::string(const std::string& name)>;
Environment ProcessEnvironment();

// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or else the
// section AWS_PROFILE ("default") of AWS_SHARED_CREDENTIALS_FILE
// (~/.aws/credentials). PermissionDenied, with what to do, if there are none.
// No message holds a secret.
absl::StatusOr<ObjectCredentials> FindCredentials(const Environment& of);

struct ObjectStorePlace {
  std::string endpoint;  // "http://minio:9000"; empty: Amazon's of the region.
  std::string region;
};

// Fills in what is empty: the endpoint from AWS_ENDPOINT_URL_S3 or
// AWS_ENDPOINT_URL, the region from AWS_REGION or AWS_DEFAULT_REGION, else
// us-east-1.
ObjectStorePlace CompletePlace(ObjectStorePlace place, const Environment& of);

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_CREDENTIALS_H_
