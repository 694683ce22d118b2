// Runs each target over its corpus, then over random changes of it.
//
//   millrace_fuzz CORPUS_FOLDER [--seconds S] [--seed N] [--target NAME]
//                 [--half 1|2] [--seconds-of VARIABLE]
//
// --half takes every other target, so that two processes share the work.
// --seconds-of takes the seconds from the environment, if they are there.
// An input that ends the process, or takes longer than 20 seconds, stays in
// the file that is named at the start.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "tests/fuzz/fuzz_targets.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr size_t kMostBytes = 1 << 16;
constexpr unsigned kHangSeconds = 20;

// The input of the run that goes on, which outlives the process.
class LastInput {
 public:
  LastInput()
      : path_((fs::temp_directory_path() /
               absl::StrCat("millrace-fuzz-input-", getpid()))
                  .string()) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(fd_ >= 0 && ftruncate(fd_, kMostBytes) == 0);
    bytes_ = static_cast<char*>(
        mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    CHECK(bytes_ != MAP_FAILED);
  }
  ~LastInput() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }
  // Beyond the input are zeros.
  void Set(const std::string& input) {
    CHECK(input.size() <= kMostBytes);
    std::memset(bytes_, 0, std::max(input.size(), num_bytes_));
    std::memcpy(bytes_, input.data(), input.size());
    num_bytes_ = input.size();
  }

 private:
  const std::string path_;
  int fd_ = -1;
  char* bytes_ = nullptr;
  size_t num_bytes_ = 0;
};

class Mutator {
 public:
  Mutator(std::vector<std::string> corpus, uint64_t seed)
      : corpus_(std::move(corpus)), random_(seed) {}

  std::string Next() {
    std::string input = Any();
    const uint64_t num_changes = 1 + Below(6);
    for (uint64_t i = 0; i < num_changes; ++i) Change(&input);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    return input;
  }

 private:
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const std::string& Any() { return corpus_[Below(corpus_.size())]; }

  void Change(std::string* input) {
    const size_t place = Below(input->size() + 1);
    const size_t length = 1 + Below(16);
    switch (Below(8)) {
      case 0:
        if (place < input->size()) (*input)[place] ^= 1 << Below(8);
        break;
      case 1:
        if (place < input->size()) (*input)[place] = Byte();
        break;
      case 2:
        input->erase(std::min(place, input->size()), length);
        break;
      case 3:
        input->insert(place, std::string(length, Byte()));
        break;
      case 4:  // Numbers at the edge.
        input->insert(place, kWords[Below(std::size(kWords))]);
        break;
      case 5: {
        const std::string& other = Any();
        input->insert(place, other.substr(Below(other.size()), 8 * length));
        break;
      }
      case 6:  // A part of itself again.
        input->insert(place, input->substr(place / 2, 4 * length));
        break;
      default: {
        uint64_t value = uint64_t{1} << Below(64);
        value -= Below(2);
        if (place + 8 <= input->size()) {
          std::memcpy(input->data() + place, &value, 1 + Below(8));
        }
      }
    }
  }

  char Byte() { return static_cast<char>(Below(256)); }

  static constexpr const char* kWords[] = {"0",
                                           "-1",
                                           "9223372036854775807",
                                           "-9223372036854775808",
                                           "1e308",
                                           "1e-320",
                                           "nan",
                                           "null",
                                           "[",
                                           "{",
                                           "\"",
                                           "\\u0000",
                                           "[[[[[[[[",
                                           ": ",
                                           "\n",
                                           "\xff",
                                           "true",
                                           "1e99999",
                                           "{% for a in ",
                                           "}}",
                                           "(?:a+)+"};

  const std::vector<std::string> corpus_;
  std::mt19937_64 random_;
};

std::vector<std::string> ReadCorpus(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const std::string& path : paths) {
    const auto content = ReadFile(path, kMostBytes);
    CHECK(content.ok());
    corpus.push_back(*content);
  }
  return corpus;
}

struct FuzzOptions {
  std::string corpus;
  double seconds = 1;
  uint64_t seed = 1;
  std::string target;
  int half = 0;  // 0: all targets.
};

// False if there is no corpus.
bool FuzzOne(const FuzzTarget& target, const FuzzOptions& options,
             LastInput* last) {
  const std::vector<std::string> corpus =
      ReadCorpus(absl::StrCat(options.corpus, "/", target.name));
  if (corpus.empty()) {
    std::cerr << "no corpus for " << target.name << std::endl;
    return false;
  }
  std::cout << target.name << std::flush;
  const auto run = [&](const std::string& input) {
    last->Set(input);
    alarm(kHangSeconds);  // Its signal ends the process.
    target.parse(input);
  };
  for (const std::string& input : corpus) run(input);
  Mutator mutator(corpus, options.seed);
  const auto began = Clock::now();
  int64_t num_runs = 0;
  while (std::chrono::duration<double>(Clock::now() - began).count() <
         options.seconds) {
    run(mutator.Next());
    ++num_runs;
  }
  alarm(0);
  std::cout << ": " << corpus.size() << " inputs, " << num_runs << " changed"
            << std::endl;
  return true;
}

int FuzzMain(int num_arguments, char** arguments) {
  FuzzOptions options;
  bool understood = num_arguments >= 2 && num_arguments % 2 == 0;
  for (int i = 2; understood && i + 1 < num_arguments; i += 2) {
    const std::string word = arguments[i];
    if (word == "--seconds") {
      understood = absl::SimpleAtod(arguments[i + 1], &options.seconds);
    } else if (word == "--seed") {
      understood = absl::SimpleAtoi(arguments[i + 1], &options.seed);
    } else if (word == "--seconds-of") {
      const char* value = std::getenv(arguments[i + 1]);
      understood =
          value == nullptr || absl::SimpleAtod(value, &options.seconds);
    } else if (word == "--half") {
      understood = absl::SimpleAtoi(arguments[i + 1], &options.half) &&
                   (options.half == 1 || options.half == 2);
    } else {
      options.target = arguments[i + 1];
      understood =
          word == "--target" && FindFuzzTarget(options.target) != nullptr;
    }
  }
  if (!understood) {
    std::cerr << "usage: millrace_fuzz CORPUS_FOLDER [--seconds S] [--seed N] "
                 "[--target NAME] [--half 1|2] [--seconds-of VARIABLE]"
              << std::endl;
    return 2;
  }
  options.corpus = arguments[1];
  LastInput last;
  std::cout << "the input of a crash or hang stays in " << last.path()
            << std::endl;
  bool all_well = true;
  int number = 0;
  for (const FuzzTarget& target : FuzzTargets()) {
    ++number;
    if (options.half != 0 && number % 2 != options.half % 2) continue;
    if (!options.target.empty() && options.target != target.name) continue;
    all_well = FuzzOne(target, options, &last) && all_well;
  }
  return all_well ? 0 : 1;
}

}  // namespace
}  // namespace millrace

int main(int num_arguments, char** arguments) {
  return millrace::FuzzMain(num_arguments, arguments);
}
