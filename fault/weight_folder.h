// Model weights as Hugging Face keeps them: a folder with model.safetensors, or
// with several such files and model.safetensors.index.json, which says what is
// in which. Tensors have the names and global shapes of ModelParameters(), or
// hold those as the family's naming says (planner/frameworks/stored_names.h).
// The hub's cache keeps links in place of the files, which are followed.

#ifndef MILLRACE_FAULT_WEIGHT_FOLDER_H_
#define MILLRACE_FAULT_WEIGHT_FOLDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fault/file_system.h"
#include "fault/safetensors.h"
#include "fault/training_state.h"
#include "planner/frameworks/stored_names.h"
#include "planner/layout/model.h"

namespace millrace {

inline constexpr char kWeightFile[] = "model.safetensors";
inline constexpr char kWeightIndex[] = "model.safetensors.index.json";

class WeightFolder {
 public:
  // Opens all files and checks their headers against their sizes and the index.
  // Reads no weights. InvalidArgument naming file and place: nobody vouches for
  // the folder.
  static absl::StatusOr<WeightFolder> Open(FileSystem& files,
                                           const std::string& folder);

  // InvalidArgument unless the folder holds exactly the parameters of `model`,
  // by names and shapes; lists what is missing, surplus and misshapen. A head
  // that is tied may be left out, or must equal the embedding, which is read.
  absl::Status CheckIsOfModel(const ModelSpec& model) const;

  // Sixteen hexadecimal digits that follow from the files' names, sizes and
  // headers, wherever the folder lies.
  std::string Fingerprint() const;

  // Fills the parameters among the pieces, widened to fp32; moments stay as
  // they are. Reads the elements of the pieces and hardly more, on several
  // threads, through a buffer of a megabyte each. Files are read rather than
  // mapped: one that is cut short meanwhile, or a disk that fails, is then an
  // error and not a signal. InvalidArgument if a tensor is missing or has
  // another shape; then nothing has been changed.
  absl::Status Load(const std::vector<StatePiece>& pieces) const;

  // Bytes of all tensors, as stored.
  int64_t num_bytes() const;
  int64_t num_tensors() const { return static_cast<int64_t>(tensors_.size()); }

 private:
  struct File {
    std::string name;
    std::unique_ptr<RandomAccessFile> file;
    SafetensorsHeader header;
  };
  struct Stored {
    SafetensorsEntry entry;
    size_t file_idx;
  };
  struct Span;

  WeightFolder() = default;
  absl::Status AddFile(FileSystem& files, const std::string& name);
  absl::Status AddIndexedFiles(FileSystem& files);
  absl::Status CheckTiedHead() const;
  // Where a piece's parameter is: its rows of a tensor of `total_rows`; of a
  // vector, its elements.
  struct Place {
    const Stored* stored;
    int64_t first_row;
    int64_t total_rows;
    bool is_transposed;
  };
  absl::StatusOr<Place> Find(const StatePiece& piece) const;
  static void AddSpans(const StatePiece& piece, const Place& place,
                       std::vector<Span>* spans);
  static void AddTransposedSpans(const StatePiece& piece, const Place& place,
                                 std::vector<Span>* spans);
  absl::Status ReadSpan(const Span& span) const;

  std::string folder_;
  TensorNaming naming_ = TensorNaming::kPlain;
  std::vector<File> files_;
  std::map<std::string, Stored> tensors_;
};

// Sets the optimizer's moments among the pieces to zero, on several threads.
void ZeroMoments(const std::vector<StatePiece>& pieces);

}  // namespace millrace

#endif  // MILLRACE_FAULT_WEIGHT_FOLDER_H_
