#include "worker/doctor/bucket_look.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/objects/object_store.h"
#include "planner/job/object_path.h"

namespace millrace {
namespace {

// Random, since a store may compress.
std::string ProbedContent() {
  std::mt19937_64 random(std::random_device{}());
  std::string content(static_cast<size_t>(kProbedObjectBytes), '\0');
  for (char& byte : content) byte = static_cast<char>(random());
  return content;
}

// The errors of a store say what to do where its server has answered.
absl::Status Explained(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  return absl::UnavailableError(
      absl::StrCat(status.message(),
                   "; see whether the server runs and this host reaches it: "
                   "checkpoint.endpoint, AWS_ENDPOINT_URL, a firewall"));
}

// "PREFIX/", or "" for a whole bucket.
std::string FolderKey(const std::string& key) {
  return key.empty() ? "" : absl::StrCat(key, "/");
}

absl::Status WriteAndReadBack(ObjectStore& store, const std::string& key,
                              BucketFacts* facts) {
  const std::string content = ProbedContent();
  double began_s = MonotonicSeconds();
  RETURN_IF_ERROR(store.Put(key, content).status());
  facts->write_bytes_s =
      static_cast<double>(content.size()) / (MonotonicSeconds() - began_s);
  began_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(const std::string read,
                   store.GetRange(key, 0, kProbedObjectBytes, /*tag=*/""));
  facts->read_bytes_s =
      static_cast<double>(content.size()) / (MonotonicSeconds() - began_s);
  if (read == content) return absl::OkStatus();
  return absl::DataLossError(
      "an object that was written comes back with other bytes; a proxy or the "
      "server changes them");
}

absl::Status Probe(ObjectStore& store, const ObjectPath& place,
                   const std::string& name, BucketFacts* facts) {
  const std::string key = FolderKey(place.key) + name;
  // The first request opens a connection.
  RETURN_IF_ERROR(store.List(key, /*by_folder=*/true).status());
  const double began_s = MonotonicSeconds();
  RETURN_IF_ERROR(store.List(key, /*by_folder=*/true).status());
  facts->request_s = MonotonicSeconds() - began_s;
  const absl::Status used = WriteAndReadBack(store, key, facts);
  const absl::Status removed = store.Delete(key);
  RETURN_IF_ERROR(used);
  RETURN_IF_ERROR(removed);
  const absl::Status gone = store.Look(key).status();
  if (absl::IsNotFound(gone)) return absl::OkStatus();
  RETURN_IF_ERROR(gone);
  return absl::FailedPreconditionError(
      absl::StrCat("the object ", name,
                   " is there still after it was removed; remove it, and take "
                   "a server that shows at once what was written"));
}

}  // namespace

BucketFacts ProbeBucket(const ObjectFilesOptions& options,
                        const std::string& directory, const std::string& name) {
  BucketFacts facts = {.path = directory};
  ObjectFiles files(options);
  const absl::StatusOr<ObjectPath> place = ParseObjectPath(directory);
  const auto store = files.StoreOf(directory);
  absl::Status status = place.ok() ? store.status() : place.status();
  if (status.ok()) status = Probe(**store, *place, name, &facts);
  facts.error = std::string(Explained(status).message());
  return facts;
}

absl::Status LookForObjects(const ObjectFilesOptions& options,
                            const std::string& path) {
  ObjectFiles files(options);
  ASSIGN_OR_RETURN(const ObjectPath place, ParseObjectPath(path));
  ASSIGN_OR_RETURN(const std::shared_ptr<ObjectStore> store,
                   files.StoreOf(path));
  const absl::StatusOr<ObjectListing> listing =
      store->List(FolderKey(place.key), /*by_folder=*/true);
  if (!listing.ok()) return Explained(listing.status());
  if (!listing->keys.empty() || !listing->prefixes.empty()) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("nothing is at ", path,
                   "; name the path of a checkpoint, as millrace checkpoint "
                   "list shows it"));
}

}  // namespace millrace
