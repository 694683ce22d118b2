// Finds the files of a job's data, and reads those that are text. docs/data.md
// says what happens to files that are not text.

#ifndef MILLRACE_WORKER_RECORDS_DATA_FILES_H_
#define MILLRACE_WORKER_RECORDS_DATA_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct DataFile {
  std::string path;
  int64_t size_bytes;   // The part that is read.
  int64_t modified_ns;  // Since the epoch.
};

// The regular files that match any of `patterns`, each once: those of the first
// pattern in byte order of their paths, then what the second adds, and so on.
// *, ? and [...] match within one folder and not a leading dot; a component **
// matches any number of folders, none included, and does not follow links to
// folders. Relative patterns start at the working directory.
//
// `key` names the patterns' place in the job, for messages: "data.text".
// `max_bytes` above zero ends the list where the sum of sizes reaches it; the
// last file's size_bytes then says how much of it is read. Patterns behind that
// are not looked at.
//
// NotFound if no pattern matches a file, if a path without wildcards is missing
// or if it is a folder.
struct FoundFiles {
  std::vector<DataFile> files;
  // Patterns with wildcards that match nothing, while others match.
  std::vector<std::string> unmatched;
};
absl::StatusOr<FoundFiles> FindDataFiles(
    const std::vector<std::string>& patterns, const std::string& key,
    int64_t max_bytes);
// "no file matches a/*.txt, b/*.md (of data.text)"; empty if all match.
std::string DescribeUnmatched(const std::vector<std::string>& unmatched,
                              const std::string& key);

// Files left out, by reason.
struct TextSkips {
  int64_t unreadable = 0;  // No permission, or gone since it was listed.
  int64_t binary = 0;      // Holds a zero byte.
  int64_t invalid_utf8 = 0;
  int64_t empty = 0;
  std::string example;  // The first such file and its reason.

  int64_t total() const { return unreadable + binary + invalid_utf8 + empty; }
};
// "3 files left out: 2 not UTF-8, 1 unreadable (first: a/b.txt: ...)"; empty if
// none.
std::string DescribeSkips(const TextSkips& skips);

enum class TextVerdict : uint8_t {
  kText,
  kUnreadable,
  kBinary,
  kInvalidUtf8,
  kEmpty,
};
void CountSkip(TextVerdict verdict, const std::string& path, TextSkips* skips);

// Reads the first size_bytes of the file, less what remains of a character cut
// in two at that place, into `text`, which is left empty unless kText.
TextVerdict ReadText(const DataFile& file, std::string* text);

}  // namespace millrace

#endif  // MILLRACE_WORKER_RECORDS_DATA_FILES_H_
