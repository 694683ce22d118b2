// How fast ranks write and restore a checkpoint, against what the disk does.
//
//   checkpoint_bench FOLDER [GB [RANKS [TIMES]]]
//
// Makes a model whose checkpoint has about so many decimal gigabytes (4; layers
// of 0.8 GB) and spreads its state over the ranks (4), each a process, by the
// data axis with ZeRO 1. The ranks write their parts at the same time, durably,
// and one commits. Then the page cache forgets the parts, and all ranks restore
// at the same time: under the same layout, and under one whose tensor axis is
// two. Every element that a rank has restored is compared with what was saved.
//
// The disk's rates come first: as many processes write and read as many bytes
// past the page cache (O_DIRECT), in pieces of 8 MiB. Prints all times as they
// are measured, and the best of TIMES (3) at the end.

#include <fcntl.h>

#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "fault/checkpoint.h"
#include "fault/training_state.h"
#include "planner/program/parameters.h"
#include "tests/bench/timed_ranks.h"

namespace millrace {
namespace {

constexpr int64_t kPieceBytes = 8 << 20;
constexpr int64_t kMostEntryBytes = 256 << 20;
constexpr double kLayerBytes = 0.8e9;

ModelSpec ModelOf(double gigabytes) {
  ModelSpec model = {.vocab_size = 16000,
                     .hidden = 2048,
                     .num_heads = 16,
                     .num_kv_heads = 16,
                     .head_dim = 128,
                     .ffn_hidden = 8192,
                     .sequence_length = 2048};
  model.num_layers =
      std::max<int64_t>(1, std::llround(gigabytes * 1e9 / kLayerBytes) - 1);
  return model;
}

float SavedValue(int64_t tensor, int64_t idx) {
  return static_cast<float>((tensor * 31 + idx * 7 + (idx >> 9)) & 0xffff);
}

// A rank's state, and every element's value in it.
class BenchState {
 public:
  BenchState(const ModelSpec& model, const Layout& layout, Rank rank) {
    const MeshCoordinates at = CoordinatesOf(layout, rank);
    const StageParameters stage =
        BuildStageParameters(model, layout, at.pipeline);
    const int64_t count = stage.num_optimizer_elements;
    for (std::vector<float>& buffer : buffers_) buffer.assign(count, -1);
    pieces_ = DescribeState(stage, layout, at,
                            {.parameters = buffers_[0].data(),
                             .exp_avg = buffers_[1].data(),
                             .exp_avg_sq = buffers_[2].data(),
                             .master = true});
    for (const Parameter& parameter : ModelParameters(model)) {
      for (const char* suffix : {"", ".exp_avg", ".exp_avg_sq"}) {
        tensors_.emplace(parameter.name + suffix, tensors_.size());
      }
    }
  }

  void Fill() {
    Visit([](float& element, float value) { element = value; });
  }
  absl::Status Check() {
    int64_t num_wrong = 0;
    Visit([&](float& element, float value) { num_wrong += element != value; });
    if (num_wrong == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(num_wrong, " elements are wrong"));
  }
  const std::vector<StatePiece>& pieces() const { return pieces_; }

 private:
  template <typename Function>
  void Visit(Function function) {
    for (const StatePiece& piece : pieces_) {
      const int64_t tensor = tensors_.at(piece.tensor);
      const int64_t width = piece.box.col_end - piece.box.col_begin;
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        const int64_t row = piece.box.row_begin + i / width;
        const int64_t col = piece.box.col_begin + i % width;
        function(piece.data[i - piece.begin],
                 SavedValue(tensor, row * piece.cols + col));
      }
    }
  }

  std::vector<float> buffers_[3];
  std::vector<StatePiece> pieces_;
  std::map<std::string, int64_t> tensors_;
};

struct Freed {
  void operator()(char* memory) const { std::free(memory); }
};

std::string PlainPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/plain-", rank);
}

// Writes or reads a file of that size past the page cache.
absl::Status MovePlainly(const std::string& path, int64_t bytes, bool writes) {
  const int fd = open(
      path.c_str(),
      O_DIRECT | O_CLOEXEC | (writes ? O_WRONLY | O_CREAT : O_RDONLY), 0600);
  if (fd < 0) {
    return absl::InternalError(
        absl::StrCat(path, ": cannot be opened with O_DIRECT"));
  }
  const int64_t num_pieces = bytes / kPieceBytes;
  absl::Status status =
      ParallelFor(num_pieces, NumCopyThreads(), [&](int64_t i) {
        thread_local const std::unique_ptr<char, Freed> memory(
            static_cast<char*>(std::aligned_alloc(4096, kPieceBytes)));
        const off_t at = i * kPieceBytes;
        const ssize_t moved = writes ? pwrite(fd, memory.get(), kPieceBytes, at)
                                     : pread(fd, memory.get(), kPieceBytes, at);
        return moved == kPieceBytes
                   ? absl::OkStatus()
                   : absl::InternalError(absl::StrCat(path, ": I/O failed"));
      });
  if (writes && status.ok() && fsync(fd) != 0) {
    status = absl::InternalError(absl::StrCat(path, ": fsync failed"));
  }
  close(fd);
  return status;
}

absl::Status ForgetFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool forgotten =
      fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
  if (fd >= 0) close(fd);
  return forgotten ? absl::OkStatus()
                   : absl::InternalError(absl::StrCat("cannot forget ", path));
}

absl::Status Succeed(int /*rank*/) { return absl::OkStatus(); }

class Bench {
 public:
  Bench(std::string folder, double gigabytes, int32_t num_ranks, int32_t times)
      : folder_(std::move(folder)),
        times_(times),
        model_(ModelOf(gigabytes)),
        writers_{.data = num_ranks, .zero = 1} {}

  absl::Status Run() {
    RETURN_IF_ERROR(files_.MakeDirectories(folder_));
    const Layout readers = {
        .data = std::max(1, writers_.data / 2), .tensor = 2, .zero = 1};
    double disk_write_s = kNever, disk_read_s = kNever, write_s = kNever;
    double verify_s = kNever;
    double commit_s = 0;
    std::map<std::string, double> load_s;
    for (int i = 0; i < times_; ++i) {
      RETURN_IF_ERROR(files_.Remove(absl::StrCat(folder_, "/checkpoints")));
      write_s = std::min(write_s, Noted("written", Write()));
      ASSIGN_OR_RETURN(commit_s, Commit());
      disk_write_s =
          std::min(disk_write_s, Noted("disk writes", Plain(/*writes=*/true)));
      disk_read_s =
          std::min(disk_read_s, Noted("disk reads", Plain(/*writes=*/false)));
      for (int rank = 0; rank < writers_.data; ++rank) {
        RETURN_IF_ERROR(files_.Remove(PlainPath(folder_, rank)));
      }
      for (const Layout& layout : {writers_, readers}) {
        const auto [best, is_new] =
            load_s.emplace(LayoutToString(layout), kNever);
        ASSIGN_OR_RETURN(const double seconds, Load(layout, /*checks=*/is_new));
        best->second = std::min(best->second, Noted("restored", seconds));
      }
      RETURN_IF_ERROR(Forget());
      const double began_s = MonotonicSeconds();
      RETURN_IF_ERROR(VerifyCheckpoint(files_, Path()));
      verify_s =
          std::min(verify_s, Noted("verified", MonotonicSeconds() - began_s));
    }
    const double gigabytes = static_cast<double>(Bytes()) / 1e9;
    std::cout << absl::StrFormat(
        "%.2f GB, %d ranks of %d threads: the disk writes %.2f GB/s and reads "
        "%.2f GB/s\n",
        gigabytes, writers_.data, NumCopyThreads(), gigabytes / disk_write_s,
        gigabytes / disk_read_s);
    const auto line = [&](const std::string& what, double seconds,
                          double disk_s) {
      std::cout << absl::StrFormat("%-44s %6.2f s  %5.2f GB/s  %3.0f %%\n",
                                   what, seconds, gigabytes / seconds,
                                   100 * disk_s / seconds);
    };
    line("written, durable", write_s, disk_write_s);
    for (const auto& [layout, seconds] : load_s) {
      line(absl::StrCat("restored, verified: ", layout), seconds, disk_read_s);
    }
    line("verified by one process", verify_s, disk_read_s);
    std::cout << absl::StrFormat("commit %.0f ms\n", commit_s * 1e3);
    return files_.Remove(absl::StrCat(folder_, "/checkpoints"));
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  static double Noted(const char* what, double seconds) {
    std::cout << absl::StrFormat("  %s in %.2f s", what, seconds) << std::endl;
    return seconds;
  }

  std::string Directory() const { return folder_ + "/checkpoints"; }
  std::string Path() const { return Directory() + "/step-00000001"; }
  std::string EntryPath(int rank) const {
    return absl::StrCat(folder_, "/entry-", rank);
  }
  CheckpointInfo Info() const { return {.step = 1, .layout = writers_}; }
  int64_t Bytes() const {
    int64_t elements = 0;
    for (const Parameter& parameter : ModelParameters(model_)) {
      elements += parameter.rows * parameter.cols;
    }
    return elements * 3 * static_cast<int64_t>(sizeof(float));
  }

  double Write() {
    std::unique_ptr<BenchState> state;
    return TimeProcesses(
        writers_.num_ranks(),
        {.prepare =
             [&](int rank) {
               state =
                   std::make_unique<BenchState>(model_, writers_, Rank{rank});
               state->Fill();
             },
         .work = [&](int rank) -> absl::Status {
           ASSIGN_OR_RETURN(const std::string entry,
                            WriteCheckpointPart(files_, Directory(), Info(),
                                                Rank{rank}, state->pieces()));
           return WriteFileAtomically(EntryPath(rank), entry);
         },
         .check = Succeed});
  }

  absl::StatusOr<double> Commit() {
    std::vector<std::string> entries;
    for (int rank = 0; rank < writers_.num_ranks(); ++rank) {
      ASSIGN_OR_RETURN(entries.emplace_back(),
                       ReadFile(EntryPath(rank), kMostEntryBytes));
      RETURN_IF_ERROR(files_.Remove(EntryPath(rank)));
    }
    const double began_s = MonotonicSeconds();
    RETURN_IF_ERROR(CommitCheckpoint(files_, Directory(), Info(), entries, 1));
    return MonotonicSeconds() - began_s;
  }

  absl::Status Forget() {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(Path()));
    for (const std::string& name : names) {
      RETURN_IF_ERROR(ForgetFile(absl::StrCat(Path(), "/", name)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> Load(const Layout& layout, bool checks) {
    RETURN_IF_ERROR(Forget());
    std::unique_ptr<BenchState> state;
    const double seconds = TimeProcesses(
        layout.num_ranks(),
        {.prepare =
             [&](int rank) {
               state = std::make_unique<BenchState>(model_, layout, Rank{rank});
             },
         .work =
             [&](int) {
               return LoadCheckpoint(files_, Path(), state->pieces()).status();
             },
         .check =
             [&](int) { return checks ? state->Check() : absl::OkStatus(); }});
    if (checks) {
      std::cout << "every element is as it was saved: "
                << LayoutToString(layout) << std::endl;
    }
    return seconds;
  }

  double Plain(bool writes) {
    const int64_t share = Bytes() / writers_.num_ranks();
    return TimeProcesses(writers_.num_ranks(),
                         {.prepare = [](int) {},
                          .work =
                              [&](int rank) {
                                return MovePlainly(PlainPath(folder_, rank),
                                                   share, writes);
                              },
                          .check = Succeed});
  }

  FileSystem& files_ = *PosixFileSystem();
  const std::string folder_;
  const int32_t times_;
  const ModelSpec model_;
  const Layout writers_;
};

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  double gigabytes = 4;
  int32_t num_ranks = 4;
  int32_t times = 3;
  const bool is_right =
      argc >= 2 && argc <= 5 &&
      (argc < 3 || (absl::SimpleAtod(argv[2], &gigabytes) && gigabytes > 0)) &&
      (argc < 4 || (absl::SimpleAtoi(argv[3], &num_ranks) && num_ranks > 0)) &&
      (argc < 5 || (absl::SimpleAtoi(argv[4], &times) && times > 0));
  if (!is_right) {
    std::cerr << "usage: checkpoint_bench FOLDER [GB [RANKS [TIMES]]]\n";
    return 2;
  }
  const absl::Status status =
      millrace::Bench(argv[1], gigabytes, num_ranks, times).Run();
  if (!status.ok()) std::cerr << "checkpoint_bench: " << status << "\n";
  return status.ok() ? 0 : 1;
}
