#include "coordinator/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "base/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostBytesAtOnce = int64_t{4} << 20;
// Files of this host or process alone, or with their own way to other hosts.
constexpr const char* kLeftOut[] = {"logs",      "checkpoints", "exports",
                                    "state.log", "reserve",     "address",
                                    "job.yaml"};

bool IsLeftOut(const std::string& name) {
  return std::find(std::begin(kLeftOut), std::end(kLeftOut), name) !=
             std::end(kLeftOut) ||
         absl::StartsWith(name, "probe-") || absl::EndsWith(name, ".tmp");
}

bool Grows(const std::string& name) {
  return absl::EndsWith(name, ".jsonl") ||
         absl::StartsWith(name, "tensorboard/");
}

}  // namespace

RunFiles::RunFiles(std::string run_directory,
                   std::map<std::string, int64_t> appended)
    : run_directory_(std::move(run_directory)) {
  for (const auto& [name, bytes] : appended) {
    if (Grows(name)) sent_[name].bytes = bytes;
  }
}

std::vector<protocol::RunFile> RunFiles::Next() {
  std::vector<protocol::RunFile> pieces;
  int64_t room = kMostBytesAtOnce;
  std::error_code error;
  for (fs::recursive_directory_iterator it(run_directory_, error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = fs::relative(it->path(), run_directory_).string();
    std::error_code unreadable;
    if (IsLeftOut(name)) {
      if (it->is_directory(unreadable)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(unreadable)) continue;
    const auto bytes = static_cast<int64_t>(it->file_size(unreadable));
    const fs::file_time_type time = it->last_write_time(unreadable);
    if (unreadable) continue;
    Sent& sent = sent_[name];
    const bool grows = Grows(name) && bytes >= sent.bytes;
    if (grows ? bytes == sent.bytes
              : bytes == sent.bytes && time == sent.time) {
      continue;
    }
    const int64_t offset = grows ? sent.bytes : 0;
    // A file that is replaced goes whole; one that is larger than everything is
    // no record of a run.
    const int64_t piece = grows ? std::min(bytes - offset, room) : bytes;
    if (piece > room || (grows && piece == 0)) continue;
    std::string data(static_cast<size_t>(piece), '\0');
    const absl::StatusOr<int> file = OpenRegularFile(it->path().string());
    if (!file.ok()) continue;
    const ssize_t num_read =
        pread(*file, data.data(), data.size(), static_cast<off_t>(offset));
    close(*file);
    if (num_read != static_cast<ssize_t>(data.size())) continue;
    room -= piece;
    sent = {.bytes = offset + piece, .time = time};
    protocol::RunFile message;
    message.set_name(name);
    message.set_offset(offset);
    message.set_data(std::move(data));
    pieces.push_back(std::move(message));
  }
  return pieces;
}

}  // namespace millrace
