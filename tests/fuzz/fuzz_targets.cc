#include "tests/fuzz/fuzz_targets.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace millrace {
namespace {

constexpr FuzzTarget kTargets[] = {
    {"frames", FuzzFrames},
    {"handshake", FuzzHandshake},
    {"file_calls", FuzzFileCalls},
    {"xml", FuzzXml},
    {"job", FuzzJob},
    {"profile", FuzzProfile},
    {"settings", FuzzSettings},
    {"plan", FuzzPlan},
    {"program", FuzzProgram},
    {"timeline", FuzzTimeline},
    {"state_log", FuzzStateLog},
    {"manifest", FuzzManifest},
    {"safetensors", FuzzSafetensors},
    {"pickle", FuzzPickle},
    {"zip", FuzzZip},
    {"model_config", FuzzModelConfig},
    {"tokenizer", FuzzTokenizer},
    {"chat_template", FuzzChatTemplate},
    {"parquet", FuzzParquet},
    {"json_lines", FuzzJsonLines},
    {"token_index", FuzzTokenIndex},
    {"trace", FuzzTrace},
    {"kernel_log", FuzzKernelLog},
};

// Removed when the process ends well.
struct Folder {
  Folder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "millrace-fuzz-XXXXXX")
            .string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

std::span<const FuzzTarget> FuzzTargets() { return kTargets; }

const FuzzTarget* FindFuzzTarget(absl::string_view name) {
  for (const FuzzTarget& target : kTargets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

std::string FuzzFile(absl::string_view bytes, const std::string& ending) {
  static const Folder folder;
  const std::string path = absl::StrCat(folder.path, "/file", ending);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  CHECK(fd >= 0);
  CHECK(write(fd, bytes.data(), bytes.size()) ==
        static_cast<ssize_t>(bytes.size()));
  close(fd);
  return path;
}

}  // namespace millrace
