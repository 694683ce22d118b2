// GPUs that tests make up: their driver's library is fake_nvml.cc.

#ifndef MILLRACE_TESTS_WORKER_BACKEND_FAKE_GPUS_H_
#define MILLRACE_TESTS_WORKER_BACKEND_FAKE_GPUS_H_

#include <cstdlib>
#include <string>

#include "base/check.h"
#include "base/files.h"
#include "tests/worker/data/temporary_folder.h"
#include "worker/backend/shared_library.h"

namespace millrace {

// The fake driver has the GPUs of the last Set(), in all of the process.
class FakeGpus {
 public:
  FakeGpus() { Set(""); }

  // Lines such as "0000:1b:00.0 clock_mhz 1980".
  void Set(const std::string& lines) {
    CHECK(WriteFileAtomically(Path(), lines).ok());
  }

  // The library beside the test program.
  static std::string Library() { return *ProgramFolder() + "/libfake_nvml.so"; }

 private:
  // Set once: threads that a test leaves behind read the environment.
  static const std::string& Path() {
    static const TemporaryFolder folder;
    static const std::string path = [] {
      std::string name = std::string(folder.path()) + "/gpus";
      setenv("MILLRACE_FAKE_NVML", name.c_str(), 1);
      return name;
    }();
    return path;
  }
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_BACKEND_FAKE_GPUS_H_
