#include "fault/weight_folder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"
#include "planner/program/parameters.h"

namespace millrace {
namespace {

// Tensors of one kind of fault that a message names.
constexpr size_t kMostNamed = 12;
// The bytes that a thread reads at a time. They stay in the caches until they
// are widened.
constexpr int64_t kSpanBytes = int64_t{1} << 20;
// If a piece has only a part of a row, the rest of the row is read too where it
// is shorter than this: a call costs as much.
constexpr int64_t kSkippedBytes = 4096;
// The longest index: far above what 100,000 tensors need.
constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
// Tensors that models keep although they follow from config.json.
constexpr std::array<const char*, 3> kDerivedTensors = {
    ".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
// GPT-2's names begin so, but for those of the hub's first folders.
constexpr char kGpt2Prefix[] = "transformer.";

absl::Status WrongFolder(const std::string& where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

bool IsDerived(const std::string& name) {
  return std::ranges::any_of(kDerivedTensors, [&](const char* end) {
    return absl::EndsWith(name, end);
  });
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::vector<int64_t> ShapeOf(int64_t rows, int64_t cols, bool is_vector) {
  if (is_vector) return {cols};
  return {rows, cols};
}

// The shapes of the files' tensors, by name.
std::map<std::string, std::vector<int64_t>> ExpectedTensors(
    const ModelSpec& model, TensorNaming naming) {
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const Parameter& parameter : ModelParameters(model)) {
    const StoredName name = NameInFiles(naming, parameter.name);
    std::vector<int64_t> shape =
        ShapeOf(parameter.rows, parameter.cols, parameter.is_vector);
    if (name.is_transposed) std::ranges::reverse(shape);
    const auto [first, is_new] = shapes.emplace(name.tensor, shape);
    // Parameters of one tensor follow each other along its rows.
    const size_t dim = name.is_transposed ? 1 : 0;
    if (!is_new) first->second[dim] += shape[dim];
  }
  return shapes;
}

// "a, b and 3 more".
std::string NameSome(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > kMostNamed) names.resize(kMostNamed);
  return absl::StrCat(absl::StrJoin(names, ", "),
                      count > kMostNamed
                          ? absl::StrCat(" and ", count - kMostNamed, " more")
                          : "");
}

// The folder's files that may be weights in another form.
std::string WhatIsThere(FileSystem& files, const std::string& folder) {
  const auto names = files.List(folder);
  if (!names.ok()) return "";
  std::vector<std::string> others;
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, ".bin") || absl::EndsWith(name, ".pth") ||
        absl::EndsWith(name, ".gguf") || absl::EndsWith(name, ".safetensors")) {
      others.push_back(name);
    }
  }
  if (others.empty()) return "";
  return absl::StrCat(" (it has ", NameSome(std::move(others)), ")");
}

absl::StatusOr<std::string> ReadText(FileSystem& files, const std::string& path,
                                     int64_t max_bytes) {
  ASSIGN_OR_RETURN(const auto file, files.Open(path));
  if (file->size() > max_bytes) {
    return WrongFolder(path, absl::StrCat(file->size(), " bytes, expected ",
                                          max_bytes, " at most"));
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  RETURN_IF_ERROR(file->Read(0, file->size(), text.data()));
  return text;
}

// The files of an index by the tensors that they should hold.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(
    FileSystem& files, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadText(files, path, kMaxIndexBytes));
  const absl::StatusOr<nlohmann::json> json = ParseJsonOnce(text);
  if (!json.ok()) return WrongFolder(path, json.status().message());
  const auto map = json->is_object() ? json->find("weight_map") : json->end();
  if (!json->is_object() || map == json->end() || !map->is_object() ||
      map->empty()) {
    return WrongFolder(
        path, "expected a key weight_map with the file of each tensor");
  }
  std::map<std::string, std::string> by_tensor;
  for (const auto& [tensor, file] : map->items()) {
    const std::string where = absl::StrCat("weight_map: ", tensor);
    if (!file.is_string()) {
      return WrongFolder(path,
                         absl::StrCat(where, ": expected the name of a file"));
    }
    const auto& name = file.get_ref<const std::string&>();
    if (name.empty() || absl::StrContains(name, '/') ||
        absl::StartsWith(name, ".") || absl::StrContains(name, '\0')) {
      return WrongFolder(
          path, absl::StrCat(where, ": '", name,
                             "' is not the name of a file in this folder"));
    }
    by_tensor[tensor] = name;
  }
  return by_tensor;
}

}  // namespace

// Stored elements, in one file, and where they go: `num_rows` runs of `count`
// elements, one each `stored_stride` elements of the file. They follow each
// other in memory, unless `to_stride` is set, for a matrix stored transposed:
// then elements of a run go to every so-manieth element, and runs begin at
// adjacent ones.
struct WeightFolder::Span {
  const Stored* stored;
  int64_t first;  // Element of the stored tensor.
  int64_t count;
  int64_t num_rows;
  int64_t stored_stride;
  float* to;
  int64_t to_stride = 0;
};

absl::Status WeightFolder::AddFile(FileSystem& files, const std::string& name) {
  const std::string path = JoinPath(folder_, name);
  auto file = files.Open(path);
  if (absl::IsNotFound(file.status())) {
    return WrongFolder(path,
                       absl::StrCat("missing, though ", kWeightIndex,
                                    " names it; copy it into the folder"));
  }
  if (!file.ok()) return WrongFolder(folder_, file.status().message());
  auto header = ReadSafetensorsHeader(**file, path);
  if (!header.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        header.status().message(), ". Copy or download the file again."));
  }
  for (const SafetensorsEntry& entry : header->entries) {
    const auto [first, is_new] = tensors_.emplace(
        entry.tensor.name, Stored{.entry = entry, .file_idx = files_.size()});
    if (!is_new) {
      return WrongFolder(
          path, absl::StrCat("tensor ", entry.tensor.name, " is also in ",
                             files_[first->second.file_idx].name,
                             "; keep one of the two"));
    }
  }
  files_.push_back({name, *std::move(file), *std::move(header)});
  return absl::OkStatus();
}

absl::Status WeightFolder::AddIndexedFiles(FileSystem& files) {
  const std::string path = JoinPath(folder_, kWeightIndex);
  ASSIGN_OR_RETURN(const auto by_tensor, ReadIndex(files, path));
  std::set<std::string> names;
  for (const auto& [tensor, name] : by_tensor) names.insert(name);
  for (const std::string& name : names) RETURN_IF_ERROR(AddFile(files, name));
  std::vector<std::string> wrong;
  for (const auto& [tensor, name] : by_tensor) {
    const auto stored = tensors_.find(tensor);
    if (stored == tensors_.end() ||
        files_[stored->second.file_idx].name != name) {
      wrong.push_back(absl::StrCat(tensor, " (not in ", name, ")"));
    }
  }
  for (const auto& [tensor, stored] : tensors_) {
    if (by_tensor.contains(tensor)) continue;
    wrong.push_back(
        absl::StrCat(tensor, " (only in ", files_[stored.file_idx].name, ")"));
  }
  if (wrong.empty()) return absl::OkStatus();
  return WrongFolder(path, absl::StrCat("the index and its files disagree on ",
                                        NameSome(std::move(wrong)),
                                        "; copy the folder again"));
}

absl::StatusOr<WeightFolder> WeightFolder::Open(FileSystem& files,
                                                const std::string& folder) {
  WeightFolder weights;
  weights.folder_ = folder;
  // Transformers looks for the one file first, too.
  if (files.Exists(JoinPath(folder, kWeightFile))) {
    RETURN_IF_ERROR(weights.AddFile(files, kWeightFile));
  } else if (files.Exists(JoinPath(folder, kWeightIndex))) {
    RETURN_IF_ERROR(weights.AddIndexedFiles(files));
  } else {
    return WrongFolder(
        folder, absl::StrCat("neither ", kWeightFile, " nor ", kWeightIndex,
                             " is there", WhatIsThere(files, folder),
                             "; name a folder with weights in safetensors"));
  }
  std::erase_if(weights.tensors_,
                [](const auto& item) { return IsDerived(item.first); });
  if (weights.tensors_.contains("wte.weight")) {
    std::map<std::string, Stored> renamed;
    for (const auto& [name, stored] : weights.tensors_) {
      renamed[name == kHead ? name : absl::StrCat(kGpt2Prefix, name)] = stored;
    }
    weights.tensors_ = std::move(renamed);
  }
  weights.naming_ = NamingOfTensors([&](absl::string_view name) {
    return weights.tensors_.contains(std::string(name));
  });
  return weights;
}

absl::Status WeightFolder::CheckIsOfModel(const ModelSpec& model) const {
  std::vector<std::string> missing, surplus, misshapen;
  const std::map<std::string, std::vector<int64_t>> known =
      ExpectedTensors(model, naming_);
  for (const auto& [name, expected] : known) {
    const auto stored = tensors_.find(name);
    if (stored == tensors_.end()) {
      missing.push_back(name);
      continue;
    }
    const std::vector<int64_t>& shape = stored->second.entry.tensor.shape;
    if (shape == expected) continue;
    misshapen.push_back(absl::StrCat(name, " is ", ShapeText(shape),
                                     ", expected ", ShapeText(expected)));
  }
  for (const auto& [name, stored] : tensors_) {
    if (model.ties_embedding && name == kHead) continue;
    if (!known.contains(name)) surplus.push_back(name);
  }
  std::vector<std::string> lines;
  const auto add = [&](const char* what, std::vector<std::string> names) {
    if (names.empty()) return;
    const size_t count = names.size();
    lines.push_back(absl::StrCat("  ", what, " (", count,
                                 "): ", NameSome(std::move(names))));
  };
  add("missing", std::move(missing));
  add("not of this model", std::move(surplus));
  add("of another shape", std::move(misshapen));
  if (!lines.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder_,
        ": its tensors are not those of config.json; copy the folder again:\n",
        absl::StrJoin(lines, "\n")));
  }
  return model.ties_embedding ? CheckTiedHead() : absl::OkStatus();
}

absl::Status WeightFolder::CheckTiedHead() const {
  const auto head = tensors_.find(kHead);
  if (head == tensors_.end()) return absl::OkStatus();
  const std::string name = NameInFiles(naming_, kEmbedding).tensor;
  const Stored& embedding = tensors_.at(name);
  const SafetensorsTensor& a = head->second.entry.tensor;
  const SafetensorsTensor& b = embedding.entry.tensor;
  bool is_equal = a.shape == b.shape && a.type == b.type;
  std::vector<char> ours(kSpanBytes), theirs(kSpanBytes);
  const int64_t num_bytes = a.num_bytes();
  for (int64_t at = 0; is_equal && at < num_bytes; at += kSpanBytes) {
    const int64_t count = std::min(kSpanBytes, num_bytes - at);
    RETURN_IF_ERROR(files_[head->second.file_idx].file->Read(
        head->second.entry.offset + at, count, ours.data()));
    RETURN_IF_ERROR(files_[embedding.file_idx].file->Read(
        embedding.entry.offset + at, count, theirs.data()));
    is_equal = std::memcmp(ours.data(), theirs.data(),
                           static_cast<size_t>(count)) == 0;
  }
  if (is_equal) return absl::OkStatus();
  return WrongFolder(
      folder_, absl::StrCat("config.json says tie_word_embeddings, but ", kHead,
                            " differs from ", name,
                            "; say tie_word_embeddings: false there"));
}

std::string WeightFolder::Fingerprint() const {
  std::string facts;
  for (const File& file : files_) {
    absl::StrAppend(&facts, file.name, " ", file.file->size(), " ",
                    file.header.checksum, "\n");
  }
  return absl::StrFormat(
      "%016x", Checksum(facts.data(), static_cast<int64_t>(facts.size())));
}

int64_t WeightFolder::num_bytes() const {
  int64_t sum = 0;
  for (const auto& [name, stored] : tensors_) {
    sum += stored.entry.tensor.num_bytes();
  }
  return sum;
}

absl::StatusOr<WeightFolder::Place> WeightFolder::Find(
    const StatePiece& piece) const {
  const StoredName name = NameInFiles(naming_, piece.tensor);
  const auto stored = tensors_.find(name.tensor);
  if (stored == tensors_.end()) {
    return WrongFolder(folder_, absl::StrCat("no tensor ", name.tensor));
  }
  const std::vector<int64_t>& shape = stored->second.entry.tensor.shape;
  std::vector<int64_t> expected =
      ShapeOf(piece.rows, piece.cols, piece.is_vector);
  if (name.is_transposed) std::ranges::reverse(expected);
  const size_t dim = name.is_transposed ? 1 : 0;
  const int64_t rows = expected[dim];
  const int64_t total = dim < shape.size() ? shape[dim] : 0;
  // A tensor under a family's own name may hold rows of other parameters too;
  // CheckIsOfModel() compares the sum of all rows.
  if (name.tensor != piece.tensor) expected[dim] = std::max(rows, total);
  if (shape != expected || name.first_row(rows, total) < 0) {
    return WrongFolder(
        folder_, absl::StrCat("tensor ", name.tensor, " is ", ShapeText(shape),
                              ", expected ", ShapeText(expected)));
  }
  return Place{.stored = &stored->second,
               .first_row = name.first_row(rows, total),
               .total_rows = total,
               .is_transposed = name.is_transposed};
}

absl::Status WeightFolder::ReadSpan(const Span& span) const {
  const ElementType type = span.stored->entry.tensor.type;
  const int64_t element_bytes = ElementBytes(type);
  const RandomAccessFile& file = *files_[span.stored->file_idx].file;
  const int64_t offset = span.stored->entry.offset + span.first * element_bytes;
  const int64_t num_bytes =
      ((span.num_rows - 1) * span.stored_stride + span.count) * element_bytes;
  if (type == ElementType::kFp32 && span.num_rows == 1 && span.to_stride == 0) {
    return file.Read(offset, num_bytes, span.to);
  }
  // Kept by each thread, since new memory costs as much as reading.
  thread_local std::vector<char> buffer;
  if (static_cast<int64_t>(buffer.size()) < num_bytes) buffer.resize(num_bytes);
  RETURN_IF_ERROR(file.Read(offset, num_bytes, buffer.data()));
  if (span.to_stride > 0) {
    thread_local std::vector<float> run;
    run.resize(static_cast<size_t>(span.count));
    for (int64_t row = 0; row < span.num_rows; ++row) {
      WidenToFp32(type,
                  buffer.data() + row * span.stored_stride * element_bytes,
                  span.count, run.data());
      for (int64_t i = 0; i < span.count; ++i) {
        span.to[row + i * span.to_stride] = run[static_cast<size_t>(i)];
      }
    }
    return absl::OkStatus();
  }
  for (int64_t row = 0; row < span.num_rows; ++row) {
    WidenToFp32(type, buffer.data() + row * span.stored_stride * element_bytes,
                span.count, span.to + row * span.count);
  }
  return absl::OkStatus();
}

void ZeroMoments(const std::vector<StatePiece>& pieces) {
  constexpr int64_t kElementsAtOnce = int64_t{1} << 22;
  struct Run {
    float* data;
    int64_t count;
  };
  std::vector<Run> runs;
  for (const StatePiece& piece : pieces) {
    if (!IsOptimizerState(piece.tensor)) continue;
    const int64_t count = piece.end - piece.begin;
    for (int64_t i = 0; i < count; i += kElementsAtOnce) {
      runs.push_back({piece.data + i, std::min(kElementsAtOnce, count - i)});
    }
  }
  CHECK(ParallelFor(static_cast<int64_t>(runs.size()), NumCopyThreads(),
                    [&](int64_t i) {
                      std::fill(runs[i].data, runs[i].data + runs[i].count,
                                0.0f);
                      return absl::OkStatus();
                    })
            .ok());
}

void WeightFolder::AddSpans(const StatePiece& piece, const Place& place,
                            std::vector<Span>* spans) {
  const int64_t element_bytes = ElementBytes(place.stored->entry.tensor.type);
  const ParameterBox& box = piece.box;
  const int64_t width = box.col_end - box.col_begin;
  const bool is_whole_rows = width == piece.cols;
  const int64_t span_elements = kSpanBytes / element_bytes;
  const int64_t skipped_bytes = (piece.cols - width) * element_bytes;
  const int64_t first =
      place.first_row * (piece.is_vector ? 1 : piece.cols) + box.col_begin;
  // Rows of a part of the columns that one call reads.
  const int64_t rows_at_once =
      skipped_bytes >= kSkippedBytes
          ? 1
          : std::max<int64_t>(1,
                              span_elements / std::max<int64_t>(1, piece.cols));
  for (int64_t i = piece.begin; i < piece.end;) {
    const int64_t row = i / width;
    const int64_t col = i % width;
    Span span = {.stored = place.stored,
                 .first = first + (box.row_begin + row) * piece.cols + col,
                 .count = std::min(piece.end - i, span_elements),
                 .num_rows = 1,
                 .stored_stride = 0,
                 .to = piece.data + (i - piece.begin)};
    if (!is_whole_rows) {
      span.count = std::min(span.count, width - col);
      if (col == 0 && span.count == width) {
        span.num_rows = std::min(rows_at_once, (piece.end - i) / width);
        span.stored_stride = piece.cols;
      }
    }
    i += span.count * span.num_rows;
    spans->push_back(span);
  }
}

// Blocks of whole rows of the piece, and of a part of a row at its ends. A
// stored run has a column of the block.
void WeightFolder::AddTransposedSpans(const StatePiece& piece,
                                      const Place& place,
                                      std::vector<Span>* spans) {
  const int64_t element_bytes = ElementBytes(place.stored->entry.tensor.type);
  const ParameterBox& box = piece.box;
  const int64_t width = box.col_end - box.col_begin;
  const int64_t span_elements = kSpanBytes / element_bytes;
  for (int64_t i = piece.begin; i < piece.end;) {
    const int64_t row = i / width;
    const int64_t col = i % width;
    const bool is_whole = col == 0 && piece.end - i >= width;
    const int64_t num_rows =
        is_whole ? std::min((piece.end - i) / width, span_elements) : 1;
    const int64_t num_cols =
        is_whole ? width : std::min(width - col, piece.end - i);
    const int64_t skipped_bytes = (place.total_rows - num_rows) * element_bytes;
    const int64_t cols_at_once =
        skipped_bytes >= kSkippedBytes
            ? 1
            : std::max<int64_t>(1, span_elements / place.total_rows);
    for (int64_t c = 0; c < num_cols; c += cols_at_once) {
      spans->push_back({.stored = place.stored,
                        .first = (box.col_begin + col + c) * place.total_rows +
                                 place.first_row + box.row_begin + row,
                        .count = num_rows,
                        .num_rows = std::min(cols_at_once, num_cols - c),
                        .stored_stride = place.total_rows,
                        .to = piece.data + (i - piece.begin) + c,
                        .to_stride = width});
    }
    i += num_rows * num_cols;
  }
}

absl::Status WeightFolder::Load(const std::vector<StatePiece>& pieces) const {
  std::vector<Span> spans;
  for (const StatePiece& piece : pieces) {
    if (IsOptimizerState(piece.tensor)) continue;
    ASSIGN_OR_RETURN(const Place place, Find(piece));
    place.is_transposed ? AddTransposedSpans(piece, place, &spans)
                        : AddSpans(piece, place, &spans);
  }
  // Few enough at once that threads seldom wait for the counter.
  constexpr int64_t kSpansAtOnce = 8;
  const auto num_spans = static_cast<int64_t>(spans.size());
  return ParallelFor((num_spans + kSpansAtOnce - 1) / kSpansAtOnce,
                     NumCopyThreads(), [&](int64_t i) -> absl::Status {
                       const int64_t end =
                           std::min((i + 1) * kSpansAtOnce, num_spans);
                       for (int64_t j = i * kSpansAtOnce; j < end; ++j) {
                         RETURN_IF_ERROR(ReadSpan(spans[j]));
                       }
                       return absl::OkStatus();
                     });
}

}  // namespace millrace
