// 32-bit words of host memory that the processes of one host and their GPUs
// share. Processes read and write them without CUDA, so a driver that waits for
// a stream cannot block them. Streams use stream_words.h.

#ifndef MILLRACE_WORKER_CUDA_PEER_SHARED_WORDS_H_
#define MILLRACE_WORKER_CUDA_PEER_SHARED_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace millrace {

// Move-only. The memory lives until all who have it are gone or have let it go;
// nothing of it is left on disk or under a name.
class SharedWords {
 public:
  // Creates words of zero, for the device that is current.
  static absl::StatusOr<SharedWords> Create(int64_t num_words);
  // Opens another process's words, which it must still have. Unavailable if
  // this process may not, or runs where that one cannot be seen.
  static absl::StatusOr<SharedWords> Open(const std::string& handle);

  SharedWords(SharedWords&& other) noexcept { *this = std::move(other); }
  SharedWords& operator=(SharedWords&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(mapping_, other.mapping_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(device_words_, other.device_words_);
    return *this;
  }
  ~SharedWords();

  // Returns text for Open().
  std::string handle() const;

  // Returns the words for this process. Others write to them at any time, so
  // use Load() and Store().
  uint32_t* words() const;
  // The same words, for streams of the device.
  uint32_t* device_words() const { return device_words_; }

  static uint32_t Load(const uint32_t* word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
  }
  static void Store(uint32_t* word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
  }

 private:
  SharedWords() = default;
  absl::Status Map();  // Maps the memory of fd_.

  int fd_ = -1;
  std::byte* mapping_ = nullptr;
  size_t num_bytes_ = 0;
  uint32_t* device_words_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CUDA_PEER_SHARED_WORDS_H_
