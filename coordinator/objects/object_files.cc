#include "coordinator/objects/object_files.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <future>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "planner/job/object_path.h"

namespace millrace {
namespace {

// S3 takes 10,000 parts at most: of these sizes, 390 GiB.
constexpr size_t kPartBytes = 16 << 20;
constexpr size_t kLaterPartBytes = 64 << 20;
constexpr size_t kFirstParts = 5000;
constexpr size_t kPartsAtOnce = 4;
constexpr int64_t kMaxReadBytes = 32 << 20;
constexpr int64_t kMaxRenamedBytes = int64_t{1} << 30;

class ObjectWriter : public WritableFile {
 public:
  ObjectWriter(std::shared_ptr<ObjectStore> store, std::string key)
      : store_(std::move(store)), key_(std::move(key)) {}

  ~ObjectWriter() override {
    for (auto& part : under_way_) part.wait();
    if (!upload_.empty() && !is_written_) {
      // Best effort: Remove() of the folder does it again.
      store_->AbandonUpload(key_, upload_).IgnoreError();
    }
  }

  absl::Status Append(const void* data, int64_t num_bytes) override {
    if (is_written_) {
      return absl::FailedPreconditionError(
          absl::StrCat(key_, " is written and takes no more"));
    }
    const char* next = static_cast<const char*>(data);
    auto left = static_cast<size_t>(num_bytes);
    while (left > 0) {
      const size_t limit =
          num_parts_ < kFirstParts ? kPartBytes : kLaterPartBytes;
      buffer_.reserve(limit);
      const size_t count = std::min(left, limit - buffer_.size());
      buffer_.append(next, count);
      next += count;
      left -= count;
      num_bytes_ += static_cast<int64_t>(count);
      if (buffer_.size() == limit) RETURN_IF_ERROR(SendPart());
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (is_written_) return absl::OkStatus();
    if (upload_.empty()) {
      RETURN_IF_ERROR(store_->Put(key_, buffer_).status());
    } else {
      if (!buffer_.empty()) RETURN_IF_ERROR(SendPart());
      while (!under_way_.empty()) RETURN_IF_ERROR(AwaitPart());
      RETURN_IF_ERROR(Complete());
    }
    is_written_ = true;
    return absl::OkStatus();
  }

  absl::Status Close() override { return Sync(); }

 private:
  absl::Status SendPart() {
    if (upload_.empty()) {
      ASSIGN_OR_RETURN(upload_, store_->BeginUpload(key_));
    }
    if (under_way_.size() == kPartsAtOnce) RETURN_IF_ERROR(AwaitPart());
    const auto number = static_cast<int32_t>(++num_parts_);
    under_way_.push_back(std::async(
        std::launch::async,
        [this, number, data = std::exchange(buffer_, std::string())] {
          return store_->UploadPart(key_, upload_, number, data);
        }));
    return absl::OkStatus();
  }

  absl::Status AwaitPart() {
    absl::StatusOr<std::string> tag = under_way_.front().get();
    under_way_.pop_front();
    RETURN_IF_ERROR(tag.status());
    tags_.push_back(*std::move(tag));
    return absl::OkStatus();
  }

  absl::Status Complete() {
    const absl::Status status = store_->CompleteUpload(key_, upload_, tags_);
    if (!absl::IsNotFound(status)) return status;
    // An upload that is not there any more is complete if the answer to an
    // earlier try was lost.
    const absl::StatusOr<ObjectFacts> written = store_->Look(key_);
    return written.ok() && written->bytes == num_bytes_ ? absl::OkStatus()
                                                        : status;
  }

  const std::shared_ptr<ObjectStore> store_;
  const std::string key_;
  std::string buffer_;
  int64_t num_bytes_ = 0;
  std::string upload_;  // Empty: none begun.
  size_t num_parts_ = 0;
  std::vector<std::string> tags_;
  std::deque<std::future<absl::StatusOr<std::string>>> under_way_;
  bool is_written_ = false;
};

class ObjectReader : public RandomAccessFile {
 public:
  ObjectReader(std::shared_ptr<ObjectStore> store, std::string path,
               std::string key, ObjectFacts facts)
      : store_(std::move(store)),
        path_(std::move(path)),
        key_(std::move(key)),
        facts_(std::move(facts)) {}

  int64_t size() const override { return facts_.bytes; }

  absl::Status Read(int64_t offset, int64_t num_bytes,
                    void* out) const override {
    if (offset < 0 || num_bytes < 0 || offset > size() ||
        num_bytes > size() - offset) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends after ", size(), " bytes"));
    }
    char* next = static_cast<char*>(out);
    while (num_bytes > 0) {
      const int64_t count = std::min(num_bytes, kMaxReadBytes);
      const absl::StatusOr<std::string> data =
          store_->GetRange(key_, offset, count, facts_.tag);
      if (!data.ok()) return Judged(data.status());
      std::memcpy(next, data->data(), data->size());
      next += count;
      offset += count;
      num_bytes -= count;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Judged(const absl::Status& status) const {
    if (!absl::StrContains(status.message(), " answered 412")) return status;
    return absl::DataLossError(
        absl::StrCat(path_, " was written again while it was read"));
  }

  const std::shared_ptr<ObjectStore> store_;
  const std::string path_, key_;
  const ObjectFacts facts_;
};

// An object's store and key.
struct Place {
  std::shared_ptr<ObjectStore> store;
  std::string key;
  // The keys of a folder's content begin with this.
  std::string prefix() const { return key.empty() ? "" : key + "/"; }
};

absl::StatusOr<Place> PlaceOf(ObjectFiles& files, const std::string& path) {
  Place place;
  ASSIGN_OR_RETURN(ObjectPath parsed, ParseObjectPath(path));
  place.key = std::move(parsed.key);
  ASSIGN_OR_RETURN(place.store, files.StoreOf(path));
  return place;
}

}  // namespace

ObjectFiles::ObjectFiles(ObjectFilesOptions options)
    : options_(std::move(options)) {}
ObjectFiles::~ObjectFiles() = default;

absl::StatusOr<std::shared_ptr<ObjectStore>> ObjectFiles::StoreOf(
    const std::string& path) {
  ASSIGN_OR_RETURN(const ObjectPath parsed, ParseObjectPath(path));
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return absl::AbortedError("not needed any more");
  std::shared_ptr<ObjectStore>& store = stores_[parsed.bucket];
  if (store != nullptr) return store;
  ASSIGN_OR_RETURN(ObjectCredentials credentials,
                   FindCredentials(options_.environment));
  ASSIGN_OR_RETURN(
      store, ObjectStore::Create(
                 {.place = CompletePlace(options_.place, options_.environment),
                  .bucket = parsed.bucket,
                  .credentials = std::move(credentials),
                  .ca_file = options_.environment("AWS_CA_BUNDLE"),
                  .patience = options_.patience}));
  return store;
}

void ObjectFiles::Abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  for (const auto& [bucket, store] : stores_) {
    if (store != nullptr) store->Abort();
  }
}

absl::StatusOr<std::unique_ptr<WritableFile>> ObjectFiles::Create(
    const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(*this, path));
  return std::make_unique<ObjectWriter>(place.store, place.key);
}

absl::StatusOr<std::unique_ptr<RandomAccessFile>> ObjectFiles::Open(
    const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(*this, path));
  ASSIGN_OR_RETURN(ObjectFacts facts, place.store->Look(place.key));
  return std::make_unique<ObjectReader>(place.store, path, place.key,
                                        std::move(facts));
}

absl::Status ObjectFiles::Rename(const std::string& from,
                                 const std::string& to) {
  ASSIGN_OR_RETURN(const Place old_place, PlaceOf(*this, from));
  ASSIGN_OR_RETURN(const Place new_place, PlaceOf(*this, to));
  ASSIGN_OR_RETURN(const ObjectContent content,
                   old_place.store->Get(old_place.key, kMaxRenamedBytes));
  const absl::StatusOr<ObjectFacts> replaced =
      new_place.store->Look(new_place.key);
  WriteCondition condition;
  if (replaced.ok()) {
    condition.if_tag = replaced->tag;
  } else if (absl::IsNotFound(replaced.status())) {
    condition.if_absent = true;
  } else {
    return replaced.status();
  }
  const absl::Status written =
      new_place.store->Put(new_place.key, content.data, condition).status();
  if (absl::IsAborted(written)) {
    // It is this call's own if the answer to an earlier try was lost.
    const absl::StatusOr<ObjectContent> there =
        new_place.store->Get(new_place.key, kMaxRenamedBytes);
    if (!there.ok() || there->data != content.data) return written;
  } else {
    RETURN_IF_ERROR(written);
  }
  return old_place.store->Delete(old_place.key);
}

absl::Status ObjectFiles::SyncDirectory(const std::string&) {
  return absl::OkStatus();
}

absl::Status ObjectFiles::MakeDirectories(const std::string& path) {
  return PlaceOf(*this, path).status();
}

absl::Status ObjectFiles::Remove(const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(*this, path));
  if (place.key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a bucket is not removed"));
  }
  RETURN_IF_ERROR(place.store->Delete(place.key));
  ASSIGN_OR_RETURN(const ObjectListing listing,
                   place.store->List(place.prefix(), /*by_folder=*/false));
  for (const std::string& key : listing.keys) {
    RETURN_IF_ERROR(place.store->Delete(key));
  }
  // Not every store lists them, and they are not in anybody's way.
  if (!listing.keys.empty()) {
    place.store->AbandonUploads(place.prefix()).IgnoreError();
  }
  return absl::OkStatus();
}

bool ObjectFiles::Exists(const std::string& path) {
  const absl::StatusOr<Place> place = PlaceOf(*this, path);
  if (!place.ok()) return true;
  if (!place->key.empty()) {
    const absl::Status found = place->store->Look(place->key).status();
    if (!absl::IsNotFound(found)) return true;
  }
  return !absl::IsNotFound(List(path).status());
}

absl::StatusOr<std::vector<std::string>> ObjectFiles::List(
    const std::string& path) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(*this, path));
  const std::string prefix = place.prefix();
  ASSIGN_OR_RETURN(const ObjectListing listing,
                   place.store->List(prefix, /*by_folder=*/true));
  std::set<std::string> names;
  for (const auto* found : {&listing.keys, &listing.prefixes}) {
    for (const std::string& key : *found) {
      absl::string_view name = key;
      if (!absl::ConsumePrefix(&name, prefix)) continue;
      absl::ConsumeSuffix(&name, "/");
      // Tools mark an empty folder by an object of its name.
      if (!name.empty()) names.emplace(name);
    }
  }
  if (names.empty() && !place.key.empty()) {
    return absl::NotFoundError(absl::StrCat("nothing is in ", path));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace millrace
