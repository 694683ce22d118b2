// Checkpoints of torch.distributed.checkpoint, which FSDP, torchtitan and
// Megatron-Core (torch_dist) write: a folder with .metadata, a pickle that says
// which box of which tensor lies where, and .distcp files, rows of torch.save
// archives. Nobody vouches for the files: they are read as data, nothing in
// them is executed.

#ifndef MILLRACE_FAULT_TORCH_CHECKPOINT_H_
#define MILLRACE_FAULT_TORCH_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/element_type.h"
#include "fault/file_system.h"

namespace millrace {

inline constexpr char kTorchMetadata[] = ".metadata";

class TorchCheckpoint {
 public:
  // A box of a tensor and the archive that holds it.
  struct Chunk {
    std::vector<int64_t> offsets;
    std::vector<int64_t> sizes;
    std::string file;  // Empty where no file is known.
    int64_t item_begin = 0;
    int64_t item_bytes = 0;
  };
  struct Tensor {
    std::string name;
    std::string type_name;            // "torch.float32".
    std::optional<ElementType> type;  // None: a type that weights have not.
    std::vector<int64_t> shape;
    std::vector<Chunk> chunks;
  };

  // Reads .metadata alone. InvalidArgument "PATH: byte N or tensor: what was
  // found; what to do".
  static absl::StatusOr<TorchCheckpoint> Open(FileSystem& files,
                                              const std::string& folder);

  // By name; values that are no tensors are left out.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& folder() const { return folder_; }

  // A tensor as rows of `row_elements`: where the bytes of each part are.
  struct Part {
    int64_t row_begin, row_end;
    int64_t col_begin, col_end;
    std::string file;
    int64_t offset;  // The part's first byte, from the file's start.
  };
  struct Rows {
    ElementType type;
    int64_t num_rows;
    int64_t row_elements;
    std::vector<Part> parts;
  };
  // Opens the archives of the tensor, checks them against .metadata, and that
  // the parts are all of the tensor, each element once. The last `num_col_dims`
  // dims (0 or 1) make a row.
  absl::StatusOr<Rows> Locate(const Tensor& tensor, int num_col_dims) const;

  // Reads rows [begin, end) one behind the other. Thread-safe.
  absl::Status Read(const Rows& rows, int64_t begin, int64_t end,
                    char* out) const;

 private:
  // Files that were opened; few at a time.
  struct OpenFiles {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<RandomAccessFile>> by_name;
  };

  TorchCheckpoint(FileSystem& files, std::string folder)
      : files_(&files),
        folder_(std::move(folder)),
        open_(std::make_unique<OpenFiles>()) {}
  absl::StatusOr<std::shared_ptr<RandomAccessFile>> OpenFile(
      const std::string& name) const;
  absl::StatusOr<int64_t> DataOffset(const Tensor& tensor,
                                     const Chunk& chunk) const;

  FileSystem* files_;
  std::string folder_;
  std::map<std::string, Tensor> tensors_;
  std::unique_ptr<OpenFiles> open_;
};

// Shape as messages show it: "[4, 8]".
std::string DimsText(const std::vector<int64_t>& dims);

}  // namespace millrace

#endif  // MILLRACE_FAULT_TORCH_CHECKPOINT_H_
