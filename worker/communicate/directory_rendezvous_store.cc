#include "worker/communicate/directory_rendezvous_store.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(1);

}  // namespace

// Keys hold slashes and blanks, file names had better not.
std::string DirectoryRendezvousStore::PathOf(const std::string& key) const {
  return absl::StrCat(folder_, "/", absl::WebSafeBase64Escape(key));
}

absl::Status DirectoryRendezvousStore::Set(const std::string& key,
                                           const std::string& value) {
  RETURN_IF_ERROR(MakeDirectories(folder_));
  return WriteFileAtomically(PathOf(key), value);
}

absl::StatusOr<std::string> DirectoryRendezvousStore::Get(
    const std::string& key, absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  while (true) {
    absl::StatusOr<std::string> value = ReadFile(PathOf(key));
    if (value.ok() || !absl::IsNotFound(value.status())) return value;
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "nobody set '", key, "' within ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(kPoll);
  }
}

}  // namespace millrace
