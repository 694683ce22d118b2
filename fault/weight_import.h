// Weights of other frameworks' checkpoints, as tensors of Hugging Face's names:
// checkpoints of torch.distributed.checkpoint with Hugging Face's names, with
// torchtitan's of its Llamas, and Megatron-Core's torch_dist.

#ifndef MILLRACE_FAULT_WEIGHT_IMPORT_H_
#define MILLRACE_FAULT_WEIGHT_IMPORT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/element_type.h"
#include "fault/file_system.h"
#include "fault/safetensors.h"
#include "fault/torch_checkpoint.h"
#include "planner/layout/model.h"
#include "planner/program/parameters.h"

namespace millrace {

class WeightImport {
 public:
  // Finds every parameter of `model` in the checkpoint: in the folder itself,
  // or in the one that Megatron's latest_checkpointed_iteration.txt names.
  // Checks names, shapes and places of all of them and reads no weights.
  // InvalidArgument lists what is missing, surplus and misshapen.
  static absl::StatusOr<WeightImport> Open(FileSystem& files,
                                           const std::string& folder,
                                           const ModelSpec& model);

  // The checkpoint's folder, and whose names it has, for people.
  const std::string& folder() const { return checkpoint_.folder(); }
  const std::string& naming() const { return naming_; }
  // The type of the embedding, which config.json should state. Each tensor
  // keeps its own.
  ElementType type() const { return type_; }
  int64_t num_bytes() const;
  int64_t num_tensors() const { return static_cast<int64_t>(targets_.size()); }
  // Tensors that were left behind: optimizer state and the like.
  int64_t num_skipped() const { return num_skipped_; }
  // Rows of embedding and head beyond the vocabulary, which are left out.
  int64_t num_padding_rows() const { return num_padding_rows_; }

  // Writes the tensors, bit for bit, as a folder that WeightFolder reads;
  // `other_files` go beside them. Memory needed does not grow with the model.
  absl::Status Write(FileSystem& files,
                     std::map<std::string, std::string> other_files,
                     int64_t max_shard_bytes,
                     const std::string& output_folder) const;

 private:
  // Where a target's rows are in its source: row r of block b is row
  // first_row + b * block_stride + r there, or with is_interleaved the rows of
  // a block's two halves in turn.
  struct RowMap {
    int64_t first_row = 0;
    int64_t block_rows = 0;
    int64_t block_stride = 0;
    bool is_interleaved = false;
  };
  struct Target {
    Parameter parameter;
    std::string source;
    RowMap map;
  };
  struct Candidate;
  class Matcher;

  explicit WeightImport(TorchCheckpoint checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  absl::Status CheckTiedHead(const Target& head) const;
  absl::Status ReadTarget(const Target& target, int64_t begin, int64_t end,
                          char* out) const;
  SafetensorsTensor TensorOf(const Target& target) const;

  TorchCheckpoint checkpoint_;
  std::string naming_;
  ElementType type_ = ElementType::kBf16;
  std::vector<Target> targets_;
  std::map<std::string, TorchCheckpoint::Rows> rows_;  // By source.
  int64_t num_skipped_ = 0;
  int64_t num_padding_rows_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_WEIGHT_IMPORT_H_
