#include "worker/backend/cuda_backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "worker/backend/shared_library.h"

namespace millrace {
namespace {

// A library that the machine must have, where to look for it beside the
// system's places, and how to get it.
struct NeededLibrary {
  const char* file;
  std::vector<std::string> folders;
  const char* advice;
};
const std::vector<NeededLibrary>& NeededLibraries() {
  static const auto* const kLibraries = new std::vector<NeededLibrary>{
      {.file = "libcublasLt.so.13",
       .folders = {"${CUDA_HOME}/lib64", "${CUDA_PATH}/lib64",
                   "/usr/local/cuda/lib64", "/usr/local/cuda-13*/lib64",
                   "${VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*/lib",
                   "${CONDA_PREFIX}/lib/python3*/site-packages/nvidia/*/lib",
                   "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
       .advice = "it comes with CUDA 13 (also with pip install "
                 "nvidia-cublas)"},
      {.file = "libnccl.so.2",
       .folders = {"${NCCL_HOME}/lib", "${CUDA_HOME}/lib64",
                   "${CUDA_PATH}/lib64", "/usr/local/cuda/lib64",
                   "/usr/local/cuda-13*/lib64", "/usr/local/nccl*/lib",
                   "${VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/nccl/lib",
                   "${CONDA_PREFIX}/lib/python3*/site-packages/nvidia/nccl/lib",
                   "/usr/local/lib/python3*/*-packages/nvidia/nccl/lib"},
       .advice = "it is NCCL, a package of its own (libnccl2, or pip install "
                 "nvidia-nccl-cu13); 2.28.9 or newer is advised"}};
  return *kLibraries;
}

// Once a library is loaded, those that need it by its name get this one.
absl::Status LoadNeeded(const NeededLibrary& library) {
  const absl::Status by_name = LoadSharedLibrary(library.file).status();
  if (by_name.ok()) return absl::OkStatus();
  std::string seen;
  for (const std::string& path : FindInFolders(library.folders, library.file)) {
    const absl::Status by_path = LoadSharedLibrary(path).status();
    if (by_path.ok()) return absl::OkStatus();
    absl::StrAppend(&seen, "; ", by_path.message());
  }
  return absl::UnavailableError(absl::StrCat(
      "training on GPUs needs ", library.file, ", which cannot be loaded (",
      by_name.message(), seen, "); ", library.advice,
      ". Put its folder into LD_LIBRARY_PATH if it is installed elsewhere"));
}

// In a bundle, libexec/millrace and lib/; in a build folder, side by side.
// Under Python the program is Python's, so the library beside this code counts.
absl::StatusOr<std::string> FindCudaLibrary() {
  ASSIGN_OR_RETURN(const std::string folder, ProgramFolder());
  const std::vector<std::string> candidates = {
      absl::StrCat(folder, "/", kCudaLibraryName),
      absl::StrCat(folder, "/../lib/", kCudaLibraryName),
      absl::StrCat(CodeFolder(), "/", kCudaLibraryName)};
  for (const std::string& path : candidates) {
    if (access(path.c_str(), F_OK) == 0) return path;
  }
  return absl::UnavailableError(absl::StrCat(
      "this millrace was built without CUDA: there is no ",
      absl::StrJoin(candidates, " and no "),
      ". Build it where nvcc and NCCL are (MILLRACE_CUDA=on insists), use a "
      "bundle that has the library, or set resources.backend: cpu"));
}

absl::StatusOr<CudaBackend*> Load() {
  ASSIGN_OR_RETURN(const std::string path, FindCudaLibrary());
  for (const NeededLibrary& library : NeededLibraries()) {
    RETURN_IF_ERROR(LoadNeeded(library));
  }
  const absl::StatusOr<void*> handle = LoadSharedLibrary(path);
  if (!handle.ok()) {
    const std::string missing = MissingLibrary(handle.status().message());
    return absl::UnavailableError(absl::StrCat(
        path, " cannot be loaded: ", handle.status().message(),
        missing.empty() ? "; is it of another build than the program?"
                        : absl::StrCat("; install what has ", missing,
                                       " or name its folder in "
                                       "LD_LIBRARY_PATH")));
  }
  const auto entry = reinterpret_cast<CudaLibraryEntryFunction*>(
      dlsym(*handle, kCudaLibraryEntryName));
  const std::string found = entry == nullptr ? "unknown" : entry()->version;
  if (found != MILLRACE_VERSION) {
    return absl::UnavailableError(
        absl::StrCat(path, " is of version ", found, ", the program of ",
                     MILLRACE_VERSION, "; install both from one build"));
  }
  if (entry()->interface_size != kCudaInterfaceSize) {
    return absl::UnavailableError(absl::StrCat(
        path,
        " is of another build than the program; take both from one: "
        "build all of it again"));
  }
  return entry()->backend;
}

}  // namespace

absl::StatusOr<CudaBackend*> LoadCudaBackend() {
  static std::mutex mutex;
  static absl::StatusOr<CudaBackend*>* loaded = nullptr;  // Never freed.
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded == nullptr) loaded = new absl::StatusOr<CudaBackend*>(Load());
  return *loaded;
}

}  // namespace millrace
