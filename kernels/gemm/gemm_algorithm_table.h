// The GemmAlgorithm of each shape on each chip: the part of a hardware profile
// that measuring found. Each line is an entry with words between spaces:
//   <chip> <shape> <algorithm> <microseconds>
//   NVIDIA_H200 m8192n8192k8192-tb cublaslt/130100/... 1390.2
// Lines that begin with # say where the entries come from and are kept.

#ifndef MILLRACE_KERNELS_GEMM_GEMM_ALGORITHM_TABLE_H_
#define MILLRACE_KERNELS_GEMM_GEMM_ALGORITHM_TABLE_H_

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/gemm/gemm_bf16.h"

namespace millrace {

// All that the choice depends on, as one word: sizes, then letters for what
// differs from the default.
std::string GemmBf16ShapeWord(const GemmBf16Shape& shape);

class GemmAlgorithmTable {
 public:
  struct Entry {
    GemmAlgorithm algorithm;
    double microseconds;
  };

  // InvalidArgument names the line.
  static absl::StatusOr<GemmAlgorithmTable> Parse(absl::string_view text);
  // Parse(Format()) gives an equal table; entries are sorted.
  std::string Format() const;

  void Set(const std::string& chip, const GemmBf16Shape& shape, Entry entry);
  // `word` is a GemmBf16ShapeWord().
  void SetWord(const std::string& chip, const std::string& word, Entry entry);
  void AddRemark(const std::string& line);

  // Entries of `chip`, by the word of the shape.
  std::map<std::string, Entry> EntriesOf(const std::string& chip) const;

  // Nothing if there is no entry, or if it is one of cuBLAS in another version
  // than this library's; that is said in `ignored`, unless it is null.
  std::optional<GemmAlgorithm> Find(const std::string& chip,
                                    const GemmBf16Shape& shape,
                                    std::string* ignored) const;

 private:
  std::vector<std::string> remarks_;
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

// The word for the current device: its name, with underscores for spaces.
absl::StatusOr<std::string> CurrentChipWord();

}  // namespace millrace

#endif  // MILLRACE_KERNELS_GEMM_GEMM_ALGORITHM_TABLE_H_
