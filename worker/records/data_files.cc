#include "worker/records/data_files.h"

#include <dirent.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/utf8.h"

namespace millrace {
namespace {

bool IsWild(const std::string& component) {
  return component.find_first_of("*?[") != std::string::npos;
}

std::string Join(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder.back() == '/') return absl::StrCat(folder, name);
  return absl::StrCat(folder, "/", name);
}

// Names in a folder, without . and ..; none if it cannot be read.
std::vector<std::string> ListFolder(const std::string& folder) {
  std::vector<std::string> names;
  DIR* stream = opendir(folder.empty() ? "." : folder.c_str());
  if (stream == nullptr) return names;
  while (const dirent* entry = readdir(stream)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(stream);
  return names;
}

using FilesByPath = std::map<std::string, DataFile>;

// Walks one pattern, component by component.
class Globber {
 public:
  explicit Globber(const std::string& pattern, FilesByPath* found)
      : found_(found) {
    components_ = absl::StrSplit(pattern, '/', absl::SkipEmpty());
    Walk(pattern.front() == '/' ? "/" : "", 0);
  }

 private:
  void Walk(const std::string& path, size_t component_idx) {
    if (component_idx == components_.size()) {
      AddFile(path);
      return;
    }
    const std::string& component = components_[component_idx];
    if (component == "**") {
      WalkBelow(path, component_idx);
    } else if (!IsWild(component)) {
      Walk(Join(path, component), component_idx + 1);
    } else {
      for (const std::string& name : ListFolder(path)) {
        if (fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) == 0) {
          Walk(Join(path, name), component_idx + 1);
        }
      }
    }
  }

  // The rest of the pattern here, and in every folder below. A pattern that
  // ends in ** means every file below.
  void WalkBelow(const std::string& path, size_t component_idx) {
    const bool is_last = component_idx + 1 == components_.size();
    if (!is_last) Walk(path, component_idx + 1);
    for (const std::string& name : ListFolder(path)) {
      if (name.front() == '.') continue;
      const std::string below = Join(path, name);
      struct stat info {};
      // lstat: links to folders are not followed, so there are no circles.
      if (lstat(below.c_str(), &info) != 0) continue;
      if (S_ISDIR(info.st_mode)) {
        WalkBelow(below, component_idx);
      } else if (is_last) {
        AddFile(below);
      }
    }
  }

  void AddFile(const std::string& path) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return;
    const int64_t modified_ns =
        int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    (*found_)[path] = {path, info.st_size, modified_ns};
  }

  std::vector<std::string> components_;
  FilesByPath* found_;
};

bool IsGlob(const std::string& pattern) {
  const std::vector<std::string> components = absl::StrSplit(pattern, '/');
  return std::any_of(components.begin(), components.end(), IsWild);
}

// A path without wildcards, which whoever wrote it expects to be there.
absl::Status MissingPath(const std::string& path, const std::string& key) {
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return absl::NotFoundError(
        absl::StrCat(key, ": ", path, " is a folder; write ", Join(path, "**"),
                     " for all files below it"));
  }
  return absl::NotFoundError(absl::StrCat(
      key, ": there is no file ", path,
      "; check the spelling (relative paths start at the working directory)"));
}

absl::Status NothingMatches(const std::vector<std::string>& patterns,
                            const std::string& key) {
  return absl::NotFoundError(absl::StrCat(
      key, ": no file matches ", absl::StrJoin(patterns, ", "),
      "; name data that this machine has, as in [/home/me/books/**/*.txt], or "
      "train on random tokens with data: {synthetic: true}"));
}

// Bytes of the whole characters at the beginning of `text`, which may end
// within a character.
size_t WithoutPartialCharacter(absl::string_view text) {
  size_t end = text.size();
  while (end > 0 && text.size() - end < 3 &&
         (static_cast<unsigned char>(text[end - 1]) & 0xC0) == 0x80) {
    --end;
  }
  if (end == 0) return text.size();
  const auto lead = static_cast<unsigned char>(text[end - 1]);
  const size_t length = lead >= 0xF0   ? 4
                        : lead >= 0xE0 ? 3
                        : lead >= 0xC0 ? 2
                                       : 1;
  return text.size() - (end - 1) < length ? end - 1 : text.size();
}

// False if the file cannot be opened or read.
bool ReadPrefix(const std::string& path, int64_t num_bytes,
                std::string* content) {
  const absl::StatusOr<int> opened = OpenRegularFile(path);
  if (!opened.ok()) return false;
  const int file = *opened;
  content->resize(static_cast<size_t>(num_bytes));
  size_t done = 0;
  bool ok = true;
  while (done < content->size()) {
    const ssize_t count =
        read(file, content->data() + done, content->size() - done);
    if (count < 0 && errno == EINTR) continue;
    ok = count >= 0;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  close(file);
  content->resize(done);
  return ok;
}

}  // namespace

absl::StatusOr<FoundFiles> FindDataFiles(
    const std::vector<std::string>& patterns, const std::string& key,
    int64_t max_bytes) {
  std::set<std::string> seen;
  FoundFiles result;
  int64_t total_bytes = 0;
  for (const std::string& pattern : patterns) {
    if (pattern.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ": an empty pattern; expected a path or a glob"));
    }
    if (max_bytes > 0 && total_bytes >= max_bytes) break;
    FilesByPath found;
    Globber(pattern, &found);
    if (found.empty()) {
      if (!IsGlob(pattern)) return MissingPath(pattern, key);
      result.unmatched.push_back(pattern);
    }
    for (auto& [path, file] : found) {
      if (!seen.insert(path).second) continue;
      if (max_bytes > 0) {
        if (total_bytes >= max_bytes) break;
        file.size_bytes = std::min(file.size_bytes, max_bytes - total_bytes);
      }
      total_bytes += file.size_bytes;
      result.files.push_back(std::move(file));
    }
  }
  if (result.files.empty()) return NothingMatches(patterns, key);
  return result;
}

std::string DescribeUnmatched(const std::vector<std::string>& unmatched,
                              const std::string& key) {
  if (unmatched.empty()) return "";
  return absl::StrCat("no file matches ", absl::StrJoin(unmatched, ", "),
                      " (of ", key, ")");
}

std::string DescribeSkips(const TextSkips& skips) {
  if (skips.total() == 0) return "";
  std::vector<std::string> reasons;
  const auto add = [&](int64_t count, const char* reason) {
    if (count > 0) reasons.push_back(absl::StrCat(count, " ", reason));
  };
  add(skips.unreadable, "unreadable");
  add(skips.binary, "binary");
  add(skips.invalid_utf8, "not UTF-8");
  add(skips.empty, "empty");
  return absl::StrCat(skips.total(), skips.total() == 1 ? " file" : " files",
                      " left out: ", absl::StrJoin(reasons, ", "),
                      " (first: ", skips.example, ")");
}

void CountSkip(TextVerdict verdict, const std::string& path, TextSkips* skips) {
  const char* reason = "";
  switch (verdict) {
    case TextVerdict::kText:
      return;
    case TextVerdict::kUnreadable:
      ++skips->unreadable;
      reason = "cannot be read";
      break;
    case TextVerdict::kBinary:
      ++skips->binary;
      reason = "holds a zero byte";
      break;
    case TextVerdict::kInvalidUtf8:
      ++skips->invalid_utf8;
      reason = "is not UTF-8";
      break;
    case TextVerdict::kEmpty:
      ++skips->empty;
      reason = "is empty";
      break;
  }
  if (skips->example.empty()) skips->example = absl::StrCat(path, " ", reason);
}

TextVerdict ReadText(const DataFile& file, std::string* text) {
  text->clear();
  std::string content;
  if (!ReadPrefix(file.path, file.size_bytes, &content)) {
    return TextVerdict::kUnreadable;
  }
  if (content.find('\0') != std::string::npos) return TextVerdict::kBinary;
  struct stat info {};
  const bool is_cut =
      stat(file.path.c_str(), &info) == 0 && info.st_size > file.size_bytes;
  if (is_cut) content.resize(WithoutPartialCharacter(content));
  if (content.empty()) return TextVerdict::kEmpty;
  if (!IsUtf8(content)) return TextVerdict::kInvalidUtf8;
  *text = std::move(content);
  return TextVerdict::kText;
}

}  // namespace millrace
