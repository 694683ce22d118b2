// How fast a file goes into a bucket and comes back:
//
//   objects_bench s3://BUCKET/PREFIX MIB
//
// The server and the credentials come from the environment
// (docs/checkpoint.md). Writes one file as a rank writes its part, 4 MiB at a
// time, reads it back in pieces of 4 MiB by one thread and by four, compares,
// and removes it.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "coordinator/objects/stored_files.h"

namespace millrace {
namespace {

constexpr int64_t kPieceBytes = 4 << 20;
constexpr int64_t kMib = 1 << 20;

void Print(const char* what, int64_t mib, double began_s) {
  const double seconds = MonotonicSeconds() - began_s;
  std::cout << absl::StrFormat("%-22s %6.2f s  %6.0f MB/s\n", what, seconds,
                               static_cast<double>(mib * kMib) / seconds / 1e6)
            << std::flush;
}

absl::Status ReadBack(const RandomAccessFile& file, const std::string& piece,
                      int num_threads) {
  std::atomic<int64_t> next = 0;
  std::atomic<bool> is_good = true;
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      std::string read(piece.size(), '\0');
      while (true) {
        const int64_t offset = next.fetch_add(kPieceBytes);
        if (offset >= file.size()) return;
        const int64_t count = std::min(kPieceBytes, file.size() - offset);
        if (!file.Read(offset, count, read.data()).ok() ||
            std::memcmp(read.data(), piece.data(),
                        static_cast<size_t>(count)) != 0) {
          is_good = false;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return is_good ? absl::OkStatus() : absl::DataLossError("other bytes came");
}

absl::Status Run(const std::string& prefix, int64_t mib) {
  const std::shared_ptr<StoredFiles> files = StoredFilesOf({});
  const std::string path = absl::StrCat(prefix, "/objects_bench");
  std::string piece(kPieceBytes, '\0');
  for (size_t i = 0; i < piece.size(); ++i) {
    piece[i] = static_cast<char>((i * 2654435761u) >> 13);
  }
  double began_s = MonotonicSeconds();
  ASSIGN_OR_RETURN(const auto file, files->Create(path));
  for (int64_t left = mib * kMib; left > 0; left -= kPieceBytes) {
    RETURN_IF_ERROR(file->Append(piece.data(), std::min(left, kPieceBytes)));
  }
  RETURN_IF_ERROR(file->Sync());
  Print("write", mib, began_s);
  ASSIGN_OR_RETURN(const auto reader, files->Open(path));
  for (const int num_threads : {1, 4}) {
    began_s = MonotonicSeconds();
    RETURN_IF_ERROR(ReadBack(*reader, piece, num_threads));
    Print(num_threads == 1 ? "read, one thread" : "read, four threads", mib,
          began_s);
  }
  return files->Remove(path);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int64_t mib = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &mib) || mib < 1) {
    std::cerr << "usage: objects_bench s3://BUCKET/PREFIX MIB\n";
    return 2;
  }
  const absl::Status status = millrace::Run(argv[1], mib);
  if (!status.ok()) std::cerr << "objects_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
