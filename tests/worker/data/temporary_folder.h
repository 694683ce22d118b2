// A folder for one test, gone when the test ends.

#ifndef MILLRACE_TESTS_WORKER_DATA_TEMPORARY_FOLDER_H_
#define MILLRACE_TESTS_WORKER_DATA_TEMPORARY_FOLDER_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace millrace {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        std::filesystem::temp_directory_path() / "millrace-test-XXXXXX";
    CHECK(mkdtemp(name.data()) != nullptr) << name;
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

  // Creates folders as needed; returns the path.
  std::string Write(const std::string& name, const std::string& content) const {
    const std::string path = *this / name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream out(path, std::ios::binary);
    out << content;
    CHECK(out.good()) << path;
    return path;
  }

 private:
  std::string path_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_DATA_TEMPORARY_FOLDER_H_
