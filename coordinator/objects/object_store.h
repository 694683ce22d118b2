// The calls of Amazon's S3 that checkpoints need, on any server that has them:
// https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
//
// A call that a busy server refuses, or whose connection breaks, is sent again,
// with growing pauses, for a minute. Requests carry the hash of their body, so
// that the server refuses what changed on the way.

#ifndef MILLRACE_COORDINATOR_OBJECTS_OBJECT_STORE_H_
#define MILLRACE_COORDINATOR_OBJECTS_OBJECT_STORE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/objects/credentials.h"
#include "coordinator/objects/http_client.h"
#include "coordinator/objects/signature.h"

namespace millrace {

// A condition of a write of an object. Servers without such conditions write
// all the same.
struct WriteCondition {
  bool if_absent = false;
  std::string if_tag;  // Empty: none. The object's tag must be this one.
};

struct ObjectFacts {
  int64_t bytes = 0;
  std::string tag;  // Of this content: the ETag.
  // Since it was written, by the server's clock. Infinite if that is not told.
  absl::Duration age = absl::InfiniteDuration();
};

struct ObjectContent {
  std::string data;
  ObjectFacts facts;
};

struct ObjectListing {
  std::vector<std::string> keys;      // Whole keys.
  std::vector<std::string> prefixes;  // Ending in "/"; with a delimiter alone.
};

struct ObjectStoreOptions {
  ObjectStorePlace place;  // Complete, but for Amazon's own endpoint.
  std::string bucket;
  ObjectCredentials credentials;
  std::string ca_file;  // As in HttpClientOptions.
  // How long a call is tried.
  absl::Duration patience = absl::Seconds(60);
};

// One bucket. Thread-safe. Errors name the object, the server, its status of
// HTTP, its code and message, and what to do: NotFound (there is no such
// object), PermissionDenied, Aborted (a condition does not hold),
// ResourceExhausted (a quota), Unavailable, and InvalidArgument for what else
// the server refuses: there is no such bucket, or it is in another region.
class ObjectStore {
 public:
  // Asks nobody yet. InvalidArgument if the endpoint is no address.
  static absl::StatusOr<std::shared_ptr<ObjectStore>> Create(
      ObjectStoreOptions options);

  // Writes an object whole, at once or not at all. Returns its tag.
  absl::StatusOr<std::string> Put(const std::string& key,
                                  absl::string_view data,
                                  const WriteCondition& condition = {});
  absl::StatusOr<ObjectFacts> Look(const std::string& key);
  // The whole object of at most `max_bytes`; ResourceExhausted for a larger
  // one.
  absl::StatusOr<ObjectContent> Get(const std::string& key, int64_t max_bytes);
  // `num_bytes` above 0 from `offset` on. Aborted if the object's tag is not
  // `tag` any more.
  absl::StatusOr<std::string> GetRange(const std::string& key, int64_t offset,
                                       int64_t num_bytes,
                                       const std::string& tag);
  // An absent object is fine.
  absl::Status Delete(const std::string& key);
  // The objects whose keys begin with `prefix`. With `by_folder`, those with a
  // "/" after it appear once, as a prefix.
  absl::StatusOr<ObjectListing> List(const std::string& prefix, bool by_folder);

  // An object written in pieces, of which all but the last have 5 MiB at least.
  // It is not there until it is completed.
  absl::StatusOr<std::string> BeginUpload(const std::string& key);
  // Parts count from 1. Returns the part's tag.
  absl::StatusOr<std::string> UploadPart(const std::string& key,
                                         const std::string& upload,
                                         int32_t part, absl::string_view data);
  absl::Status CompleteUpload(const std::string& key, const std::string& upload,
                              const std::vector<std::string>& tags);
  absl::Status AbandonUpload(const std::string& key, const std::string& upload);
  // Abandons uploads to keys that begin with `prefix`, whose writers are gone.
  absl::Status AbandonUploads(const std::string& prefix);

  // Ends the calls under way, and all later ones. Returns at once.
  void Abort() { client_->Abort(); }

 private:
  struct Call;
  ObjectStore(ObjectStoreOptions options, std::string host,
              std::string base_path, std::unique_ptr<HttpClient> client);

  absl::StatusOr<HttpReply> Send(const Call& call);
  absl::StatusOr<HttpReply> SendOnce(const Call& call);
  absl::Status ErrorOf(const Call& call, const HttpReply& reply) const;
  std::string Address(const std::string& key) const;

  const ObjectStoreOptions options_;
  const std::string host_;       // The header.
  const std::string base_path_;  // "/bucket/", or "/" where the host names it.
  const std::unique_ptr<HttpClient> client_;
  // How far the server's clock is ahead of ours, once it complained.
  std::atomic<int64_t> clock_offset_s_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_OBJECT_STORE_H_
