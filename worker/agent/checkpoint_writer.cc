#include "worker/agent/checkpoint_writer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(1);

absl::Status Abandoned() {
  return absl::CancelledError("the checkpoint was abandoned");
}

// How a write goes on: no further once `stop` is true, and no faster than
// `bytes_per_second` (0: any) until `hurry` is.
struct Pace {
  const std::atomic<bool>& stop;
  const std::atomic<bool>& hurry;
  int64_t bytes_per_second;
};

// A file that is written at a pace.
class PacedFile : public WritableFile {
 public:
  PacedFile(std::unique_ptr<WritableFile> file, const Pace& pace)
      : file_(std::move(file)), pace_(pace) {}
  absl::Status Append(const void* data, int64_t num_bytes) override {
    if (pace_.stop) return Abandoned();
    RETURN_IF_ERROR(file_->Append(data, num_bytes));
    num_bytes_ += num_bytes;
    Rest();
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    return pace_.stop ? Abandoned() : file_->Sync();
  }
  absl::Status Close() override { return file_->Close(); }

 private:
  // Waits until so much may have been written.
  void Rest() const {
    if (pace_.bytes_per_second == 0) return;
    const double due_s =
        began_s_ + static_cast<double>(num_bytes_) /
                       static_cast<double>(pace_.bytes_per_second);
    while (!pace_.stop && !pace_.hurry) {
      const double left_s = due_s - MonotonicSeconds();
      if (left_s <= 0) return;
      absl::SleepFor(std::min(absl::Seconds(left_s), kPollInterval));
    }
  }

  const std::unique_ptr<WritableFile> file_;
  const Pace pace_;
  const double began_s_ = MonotonicSeconds();
  int64_t num_bytes_ = 0;
};

// `files`, whose new files are PacedFiles.
class PacedFiles : public FileSystem {
 public:
  PacedFiles(FileSystem* files, const Pace& pace)
      : files_(*files), pace_(pace) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(path));
    return std::make_unique<PacedFile>(std::move(file), pace_);
  }
  absl::StatusOr<std::unique_ptr<RandomAccessFile>> Open(
      const std::string& path) override {
    return files_.Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return files_.Rename(from, to);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return files_.SyncDirectory(path);
  }
  absl::Status MakeDirectories(const std::string& path) override {
    return files_.MakeDirectories(path);
  }
  absl::Status Remove(const std::string& path) override {
    return files_.Remove(path);
  }
  bool Exists(const std::string& path) override { return files_.Exists(path); }
  absl::StatusOr<std::vector<std::string>> List(
      const std::string& path) override {
    return files_.List(path);
  }

 private:
  FileSystem& files_;
  const Pace pace_;
};

}  // namespace

CheckpointWriter::CheckpointWriter(FileSystem* files)
    : files_(files), thread_([this] { Run(); }) {}

CheckpointWriter::~CheckpointWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
    abandoned_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

absl::Status CheckpointWriter::Wait(const std::atomic<bool>& aborted,
                                    std::unique_lock<std::mutex>& lock) {
  waited_for_ = true;
  changed_.wait(lock, [&] { return aborted || !write_.has_value(); });
  return aborted ? absl::AbortedError("the generation has ended")
                 : absl::OkStatus();
}

absl::Status CheckpointWriter::WaitUntilIdle(const std::atomic<bool>& aborted) {
  std::unique_lock<std::mutex> lock(mutex_);
  return Wait(aborted, lock);
}

absl::Status CheckpointWriter::Start(CheckpointWrite write,
                                     const std::atomic<bool>& aborted) {
  std::unique_lock<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(Wait(aborted, lock));
  abandoned_ = false;
  waited_for_ = false;
  write_ = std::move(write);
  changed_.notify_all();
  return absl::OkStatus();
}

void CheckpointWriter::Abandon() {
  std::lock_guard<std::mutex> lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

void CheckpointWriter::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || write_.has_value(); });
    if (!write_.has_value()) return;
    lock.unlock();
    // Nobody else changes write_ while it has a value.
    const double began_s = MonotonicSeconds();
    absl::StatusOr<std::string> entry;
    try {
      entry = Write(*write_);
    } catch (const std::bad_alloc&) {
      entry =
          absl::ResourceExhaustedError("the host's memory does not suffice");
    }
    // Whoever may take the next snapshot must find the memory free.
    write_->snapshot = nullptr;
    if (!abandoned_) write_->on_written(entry, MonotonicSeconds() - began_s);
    lock.lock();
    write_.reset();
    changed_.notify_all();
  }
}

absl::StatusOr<std::string> CheckpointWriter::Write(
    const CheckpointWrite& write) {
  while (true) {
    if (abandoned_) return Abandoned();
    ASSIGN_OR_RETURN(const bool is_taken, write.snapshot->IsTaken());
    if (is_taken) break;
    absl::SleepFor(kPollInterval);
  }
  PacedFiles files(write.files == nullptr ? files_ : write.files.get(),
                   {.stop = abandoned_,
                    .hurry = waited_for_,
                    .bytes_per_second = write.bytes_per_second});
  return WriteCheckpointPart(files, write.directory, write.info, write.rank,
                             write.snapshot->pieces(), write.placement);
}

}  // namespace millrace
