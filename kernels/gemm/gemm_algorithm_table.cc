#include "kernels/gemm/gemm_algorithm_table.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "kernels/cuda/status.h"
#include "kernels/gemm/gemm_bf16_sm90.h"
#include "kernels/gemm/gemm_cublaslt.h"

namespace millrace {
namespace {

absl::string_view EpilogueWord(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return "";
    case GemmEpilogue::kBias:
      return "-bias";
    case GemmEpilogue::kGelu:
      return "-gelu";
    case GemmEpilogue::kGeluBias:
      return "-gelu-bias";
    case GemmEpilogue::kGeluSave:
      return "-gelu-save";
    case GemmEpilogue::kGeluBiasSave:
      return "-gelu-bias-save";
    case GemmEpilogue::kGeluGradient:
      return "-gelu-gradient";
    case GemmEpilogue::kGeluBiasGradient:
      return "-gelu-bias-gradient";
    case GemmEpilogue::kSumA:
      return "-sum-a";
    case GemmEpilogue::kSumB:
      return "-sum-b";
  }
  return "";
}

}  // namespace

std::string GemmBf16ShapeWord(const GemmBf16Shape& shape) {
  std::string word = absl::StrCat("m", shape.m, "n", shape.n, "k", shape.k);
  if (shape.trans_a) absl::StrAppend(&word, "-ta");
  if (shape.trans_b) absl::StrAppend(&word, "-tb");
  if (shape.fp32_output) absl::StrAppend(&word, "-fp32");
  if (shape.accumulate) absl::StrAppend(&word, "-add");
  absl::StrAppend(&word, EpilogueWord(shape.epilogue));
  // A stride that says what zero says makes no other word.
  auto stride = [&](absl::string_view name, int64_t value, int64_t dense) {
    if (value != 0 && value != dense) {
      absl::StrAppend(&word, "-", name, value);
    }
  };
  stride("as", shape.a_stride, shape.trans_a ? shape.m : shape.k);
  stride("bs", shape.b_stride, shape.trans_b ? shape.k : shape.n);
  stride("cs", shape.c_stride, shape.n);
  stride("xs", shape.aux_stride, shape.n);
  return word;
}

absl::StatusOr<GemmAlgorithmTable> GemmAlgorithmTable::Parse(
    absl::string_view text) {
  GemmAlgorithmTable table;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (!line.empty() && line[0] == '#') {
      table.AddRemark(std::string(line));
      continue;
    }
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.empty()) continue;
    double microseconds = 0;
    if (words.size() != 4 || !absl::SimpleAtod(words[3], &microseconds) ||
        !(microseconds > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table of GEMM algorithms, line ", line_number, ": \"", line,
          "\" is not <chip> <shape> <algorithm> <microseconds>"));
    }
    const bool is_new =
        table.entries_
            .try_emplace({std::string(words[0]), std::string(words[1])},
                         Entry{{std::string(words[2])}, microseconds})
            .second;
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrCat("table of GEMM algorithms, line ", line_number, ": ",
                       words[1], " on ", words[0], " has an entry already"));
    }
  }
  return table;
}

std::string GemmAlgorithmTable::Format() const {
  std::string text;
  for (const std::string& remark : remarks_) {
    absl::StrAppend(&text, remark, "\n");
  }
  for (const auto& [key, entry] : entries_) {
    absl::StrAppend(&text, key.first, " ", key.second, " ",
                    entry.algorithm.text, " ", entry.microseconds, "\n");
  }
  return text;
}

void GemmAlgorithmTable::Set(const std::string& chip,
                             const GemmBf16Shape& shape, Entry entry) {
  SetWord(chip, GemmBf16ShapeWord(shape), std::move(entry));
}

void GemmAlgorithmTable::SetWord(const std::string& chip,
                                 const std::string& word, Entry entry) {
  entries_[{chip, word}] = std::move(entry);
}

std::map<std::string, GemmAlgorithmTable::Entry> GemmAlgorithmTable::EntriesOf(
    const std::string& chip) const {
  std::map<std::string, Entry> of_chip;
  for (const auto& [key, entry] : entries_) {
    if (key.first == chip) of_chip.emplace(key.second, entry);
  }
  return of_chip;
}

void GemmAlgorithmTable::AddRemark(const std::string& line) {
  remarks_.push_back(line[0] == '#' ? line : "# " + line);
}

std::optional<GemmAlgorithm> GemmAlgorithmTable::Find(
    const std::string& chip, const GemmBf16Shape& shape,
    std::string* ignored) const {
  const auto found = entries_.find({chip, GemmBf16ShapeWord(shape)});
  if (found == entries_.end()) return std::nullopt;
  const GemmAlgorithm& algorithm = found->second.algorithm;
  absl::Status status = CheckLtVersion(algorithm);
  if (absl::IsNotFound(status)) status = ParseGemmSm90(algorithm).status();
  if (status.ok()) return algorithm;
  if (ignored != nullptr) *ignored = std::string(status.message());
  return std::nullopt;
}

absl::StatusOr<std::string> CurrentChipWord() {
  int device = 0;
  cudaDeviceProp properties;
  RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "find the device"));
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, device),
                             "read the name of the device"));
  std::string name = properties.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

}  // namespace millrace
