#include "worker/cuda/peer/shared_words.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"

namespace millrace {
namespace {

// Before the words: a number that the handle repeats, since the process of that
// id may be another one here.
constexpr size_t kHeaderBytes = 4096;

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("failed to ", what, ": ", std::strerror(errno)));
}

uint64_t TokenOf(const std::byte* mapping) {
  uint64_t token = 0;
  std::memcpy(&token, mapping, sizeof(token));
  return token;
}

}  // namespace

absl::Status SharedWords::Map() {
  struct stat file;
  if (fstat(fd_, &file) != 0) return SystemError("look at shared memory");
  if (file.st_size <= static_cast<off_t>(kHeaderBytes)) {
    return absl::UnavailableError("shared memory is shorter than expected");
  }
  num_bytes_ = static_cast<size_t>(file.st_size);
  void* const mapped =
      mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) return SystemError("map shared memory");
  mapping_ = static_cast<std::byte*>(mapped);
  return absl::OkStatus();
}

namespace {

absl::StatusOr<uint32_t*> Register(std::byte* mapping, size_t num_bytes) {
  RETURN_IF_ERROR(CudaStatus(
      cudaHostRegister(mapping, num_bytes,
                       cudaHostRegisterPortable | cudaHostRegisterMapped),
      "show shared memory to the device"));
  void* device = nullptr;
  const cudaError_t error = cudaHostGetDevicePointer(&device, mapping, 0);
  if (error != cudaSuccess) {
    cudaHostUnregister(mapping);
    return CudaStatus(error, "show shared memory to the device");
  }
  return reinterpret_cast<uint32_t*>(static_cast<std::byte*>(device) +
                                     kHeaderBytes);
}

}  // namespace

absl::StatusOr<SharedWords> SharedWords::Create(int64_t num_words) {
  SharedWords shared;
  shared.fd_ = memfd_create("millrace-words", MFD_CLOEXEC);
  if (shared.fd_ < 0) return SystemError("make shared memory");
  const size_t bytes =
      kHeaderBytes + static_cast<size_t>(num_words) * sizeof(uint32_t);
  if (ftruncate(shared.fd_, static_cast<off_t>(bytes)) != 0) {
    return SystemError("make shared memory");
  }
  RETURN_IF_ERROR(shared.Map());
  std::random_device random;
  const uint64_t token = uint64_t{random()} << 32 | random();
  std::memcpy(shared.mapping_, &token, sizeof(token));
  ASSIGN_OR_RETURN(shared.device_words_,
                   Register(shared.mapping_, shared.num_bytes_));
  return shared;
}

std::string SharedWords::handle() const {
  return absl::StrCat(getpid(), " ", fd_, " ", TokenOf(mapping_));
}

absl::StatusOr<SharedWords> SharedWords::Open(const std::string& handle) {
  const std::vector<std::string> parts = absl::StrSplit(handle, ' ');
  int64_t process = 0, fd = 0;
  uint64_t token = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &process) ||
      !absl::SimpleAtoi(parts[1], &fd) || !absl::SimpleAtoi(parts[2], &token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", handle, "' is no handle of shared memory"));
  }
  SharedWords shared;
  const std::string path = absl::StrCat("/proc/", process, "/fd/", fd);
  shared.fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (shared.fd_ < 0) return SystemError(absl::StrCat("open ", path));
  RETURN_IF_ERROR(shared.Map());
  if (TokenOf(shared.mapping_) != token) {
    return absl::UnavailableError(
        absl::StrCat(path, " is of another process here"));
  }
  ASSIGN_OR_RETURN(shared.device_words_,
                   Register(shared.mapping_, shared.num_bytes_));
  return shared;
}

SharedWords::~SharedWords() {
  if (device_words_ != nullptr) cudaHostUnregister(mapping_);
  if (mapping_ != nullptr) munmap(mapping_, num_bytes_);
  if (fd_ >= 0) close(fd_);
}

uint32_t* SharedWords::words() const {
  return reinterpret_cast<uint32_t*>(mapping_ + kHeaderBytes);
}

}  // namespace millrace
