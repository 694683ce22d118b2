#include "worker/agent/checkpoint_writer.h"

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

// A file to which nothing more is appended once `stop` is true.
class StoppableFile : public WritableFile {
 public:
  StoppableFile(std::unique_ptr<WritableFile> file,
                const std::atomic<bool>* stop)
      : file_(std::move(file)), stop_(*stop) {}
  absl::Status Append(const void* data, int64_t num_bytes) override {
    return stop_ ? Abandoned() : file_->Append(data, num_bytes);
  }
  absl::Status Sync() override { return stop_ ? Abandoned() : file_->Sync(); }
  absl::Status Close() override { return file_->Close(); }

 private:
  const std::unique_ptr<WritableFile> file_;
  const std::atomic<bool>& stop_;
};

// `files`, whose new files are StoppableFiles.
class StoppableFiles : public FileSystem {
 public:
  StoppableFiles(FileSystem* files, const std::atomic<bool>* stop)
      : files_(*files), stop_(stop) {}
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files_.Create(path));
    return std::make_unique<StoppableFile>(std::move(file), stop_);
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
  const std::atomic<bool>* const stop_;
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
  StoppableFiles files(write.files != nullptr ? write.files.get() : files_,
                       &abandoned_);
  return WriteCheckpointPart(files, write.directory, write.info, write.rank,
                             write.snapshot->pieces());
}

}  // namespace millrace
