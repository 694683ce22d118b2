// Whether a bucket would serve a job from this host: the server answers, there
// are credentials with the rights that checkpoints need, and how fast it is.

#ifndef MILLRACE_WORKER_DOCTOR_BUCKET_LOOK_H_
#define MILLRACE_WORKER_DOCTOR_BUCKET_LOOK_H_

#include <string>

#include "absl/status/status.h"
#include "coordinator/objects/object_files.h"
#include "worker/doctor/host_facts.h"

namespace millrace {

// Lists s3://BUCKET/PREFIX, writes kProbedObjectBytes as PREFIX/`name`, reads
// it, compares it and removes it. An error says which of these failed, why, and
// what to do. The object is removed whatever fails, if it can be.
BucketFacts ProbeBucket(const ObjectFilesOptions& options,
                        const std::string& directory, const std::string& name);

// OK if a checkpoint's objects can be listed at this s3:// path; NotFound if
// none are there.
absl::Status LookForObjects(const ObjectFilesOptions& options,
                            const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_BUCKET_LOOK_H_
