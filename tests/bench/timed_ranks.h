// Times work that a process for each rank does at the same time.

#ifndef MILLRACE_TESTS_BENCH_TIMED_RANKS_H_
#define MILLRACE_TESTS_BENCH_TIMED_RANKS_H_

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/clock.h"

namespace millrace {

struct RankWork {
  std::function<void(int)> prepare;
  std::function<absl::Status(int)> work;
  std::function<absl::Status(int)> check;
};

// Runs `work` in a process for each rank; `prepare` before, outside the time.
// Returns the seconds from the first's start to the last's end.
inline double TimeProcesses(int num_ranks, const RankWork& work) {
  struct Times {
    double begin, end;
    bool ok;
  };
  auto* times = static_cast<Times*>(mmap(nullptr, sizeof(Times) * num_ranks,
                                         PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  CHECK(times != MAP_FAILED);
  int ready[2], go[2];
  CHECK(pipe(ready) == 0 && pipe(go) == 0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (fork() != 0) continue;
    work.prepare(rank);
    char byte = 0;
    CHECK(write(ready[1], &byte, 1) == 1);
    CHECK(read(go[0], &byte, 1) == 1);
    times[rank].begin = MonotonicSeconds();
    absl::Status status = work.work(rank);
    times[rank].end = MonotonicSeconds();
    if (status.ok()) status = work.check(rank);
    times[rank].ok = status.ok();
    if (!status.ok()) std::cerr << status << std::endl;
    _exit(0);
  }
  std::vector<char> bytes(static_cast<size_t>(num_ranks));
  for (int i = 0; i < num_ranks; ++i)
    CHECK(read(ready[0], bytes.data(), 1) == 1);
  CHECK(write(go[1], bytes.data(), bytes.size()) == num_ranks);
  while (wait(nullptr) > 0) {
  }
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    CHECK(times[rank].ok) << "rank " << rank;
    begin = std::min(begin, times[rank].begin);
    end = std::max(end, times[rank].end);
  }
  munmap(times, sizeof(Times) * num_ranks);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) close(fd);
  return end - begin;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_BENCH_TIMED_RANKS_H_
