#include "fault/weight_export.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/manifest.h"
#include "fault/safetensors.h"
#include "fault/weight_folder.h"

namespace millrace {
namespace {

// A tensor is written in runs of so many elements, so that memory does not grow
// with it: whole chunks of a checkpoint, read by several threads.
constexpr int64_t kRunElements =
    16 * kChunkBytes / static_cast<int64_t>(sizeof(float));

// "model.layers.10.x" behind "model.layers.2.x", as people count layers.
std::vector<std::pair<std::string, int64_t>> CountingOrder(
    const std::string& name) {
  std::vector<std::pair<std::string, int64_t>> words;
  for (const absl::string_view word : absl::StrSplit(name, '.')) {
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(word, &number);
    words.emplace_back(is_number ? "" : std::string(word), number);
  }
  return words;
}

void SortByName(std::vector<SafetensorsTensor>& tensors) {
  std::ranges::stable_sort(tensors, {}, [](const SafetensorsTensor& tensor) {
    return CountingOrder(tensor.name);
  });
}

// A tensor of the files, and the parameters that it holds, in the order of
// their rows.
struct ExportedTensor {
  SafetensorsTensor tensor;
  bool is_transposed = false;
  std::vector<std::string> parts;
};
using ExportedTensors = std::map<std::string, ExportedTensor>;  // By name.

ExportedTensors TensorsOf(const Manifest& manifest, ElementType type,
                          TensorNaming naming) {
  struct Part {
    int64_t place;  // In the order of rows.
    std::string name;
  };
  std::map<std::string, std::vector<Part>> by_tensor;
  for (const auto& [name, shape] : manifest.shapes) {
    if (IsOptimizerState(name)) continue;
    const StoredName stored = NameInFiles(naming, name);
    by_tensor[stored.tensor].push_back(
        {stored.from_end == 0 ? std::numeric_limits<int64_t>::min()
                              : -stored.from_end,
         name});
  }
  ExportedTensors tensors;
  for (auto& [name, parts] : by_tensor) {
    std::ranges::sort(parts, {}, &Part::place);
    ExportedTensor exported = {.tensor = {.name = name, .type = type}};
    int64_t rows = 0, cols = 0;
    bool is_vector = false;
    for (const Part& part : parts) {
      const TensorShape& shape = manifest.shapes.at(part.name);
      is_vector = shape.is_vector;
      rows += is_vector ? shape.cols : shape.rows;
      cols = shape.cols;
      exported.is_transposed = NameInFiles(naming, part.name).is_transposed;
      exported.parts.push_back(part.name);
    }
    exported.tensor.shape = {rows};
    if (!is_vector) exported.tensor.shape.push_back(cols);
    if (exported.is_transposed) std::ranges::reverse(exported.tensor.shape);
    tensors.emplace(name, std::move(exported));
  }
  return tensors;
}

// The checkpoint that an export reads. Everything is borrowed.
struct ExportSource {
  FileSystem* files;
  const WeightExport* what;
  const Manifest* manifest;
};

// Elements [begin, end) of the box of a parameter.
absl::Status LoadRun(const ExportSource& source, const std::string& name,
                     const ParameterBox& box, int64_t begin, int64_t end,
                     float* data) {
  if (source.what->cancelled != nullptr && *source.what->cancelled) {
    return absl::CancelledError("the export was given up");
  }
  const TensorShape& shape = source.manifest->shapes.at(name);
  const StatePiece run = {.tensor = name,
                          .rows = shape.rows,
                          .cols = shape.cols,
                          .is_vector = shape.is_vector,
                          .box = box,
                          .begin = begin,
                          .end = end,
                          .data = data,
                          .is_owner = false};
  return LoadPieces(*source.files, source.what->checkpoint, *source.manifest,
                    {run});
}

absl::Status AppendPart(const ExportSource& source, const std::string& name,
                        SafetensorsWriter& writer) {
  const TensorShape& shape = source.manifest->shapes.at(name);
  std::vector<float> values;
  for (int64_t begin = 0; begin < shape.num_elements(); begin += kRunElements) {
    const int64_t end = std::min(begin + kRunElements, shape.num_elements());
    values.resize(static_cast<size_t>(end - begin));
    RETURN_IF_ERROR(LoadRun(source, name, {0, shape.rows, 0, shape.cols}, begin,
                            end, values.data()));
    RETURN_IF_ERROR(writer.Append(values.data(), end - begin));
  }
  return absl::OkStatus();
}

// Some columns of all parts at a time become rows of the file.
absl::Status AppendTransposed(const ExportSource& source,
                              const ExportedTensor& exported,
                              SafetensorsWriter& writer) {
  const int64_t cols = exported.tensor.shape[0];
  const int64_t total = exported.tensor.shape[1];
  const int64_t at_once = std::max<int64_t>(1, kRunElements / total);
  std::vector<float> part, rows;
  for (int64_t begin = 0; begin < cols; begin += at_once) {
    const int64_t width = std::min(at_once, cols - begin);
    rows.resize(static_cast<size_t>(width * total));
    int64_t first = 0;
    for (const std::string& name : exported.parts) {
      const int64_t of_part = source.manifest->shapes.at(name).rows;
      part.resize(static_cast<size_t>(of_part * width));
      RETURN_IF_ERROR(LoadRun(source, name, {0, of_part, begin, begin + width},
                              0, of_part * width, part.data()));
      for (int64_t r = 0; r < of_part; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          rows[static_cast<size_t>(c * total + first + r)] =
              part[static_cast<size_t>(r * width + c)];
        }
      }
      first += of_part;
    }
    RETURN_IF_ERROR(writer.Append(rows.data(), width * total));
  }
  return absl::OkStatus();
}

using AppendElements = decltype(WeightFolderContent::append);

// Appends tensors of the checkpoint. Its arguments must outlive it.
AppendElements AppendOf(const ExportSource& source,
                        const ExportedTensors& tensors) {
  return [&source, &tensors](const SafetensorsTensor& tensor,
                             SafetensorsWriter& writer) -> absl::Status {
    const ExportedTensor& exported = tensors.at(tensor.name);
    if (exported.is_transposed) {
      return AppendTransposed(source, exported, writer);
    }
    for (const std::string& name : exported.parts) {
      RETURN_IF_ERROR(AppendPart(source, name, writer));
    }
    return absl::OkStatus();
  };
}

std::vector<SafetensorsTensor> HeadersOf(const ExportedTensors& tensors) {
  std::vector<SafetensorsTensor> headers;
  for (const auto& [name, exported] : tensors) {
    headers.push_back(exported.tensor);
  }
  SortByName(headers);
  return headers;
}

absl::Status WriteTensors(FileSystem& files, const AppendElements& append,
                          const std::vector<SafetensorsTensor>& tensors,
                          const std::string& path) {
  // "pt" is what readers of Hugging Face's checkpoints insist on.
  ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::Create(files, path, tensors, {{"format", "pt"}}));
  for (const SafetensorsTensor& tensor : tensors) {
    RETURN_IF_ERROR(append(tensor, writer));
  }
  return writer.Finish();
}

absl::Status WriteText(FileSystem& files, const std::string& path,
                       const std::string& text) {
  ASSIGN_OR_RETURN(const auto file, files.Create(path));
  RETURN_IF_ERROR(file->Append(text.data(), static_cast<int64_t>(text.size())));
  RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

std::vector<std::vector<SafetensorsTensor>> CutIntoShards(
    std::vector<SafetensorsTensor> tensors, int64_t max_bytes) {
  std::vector<std::vector<SafetensorsTensor>> shards;
  int64_t bytes = 0;
  for (SafetensorsTensor& tensor : tensors) {
    if (shards.empty() || bytes + tensor.num_bytes() > max_bytes) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += tensor.num_bytes();
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

absl::Status WriteShards(FileSystem& files, const WeightFolderContent& what,
                         const std::string& folder) {
  std::vector<SafetensorsTensor> tensors = what.tensors;
  SortByName(tensors);
  const auto shards = CutIntoShards(std::move(tensors), what.max_shard_bytes);
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t num_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? std::string(kWeightFile)
                           : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                             i + 1, shards.size());
    RETURN_IF_ERROR(
        WriteTensors(files, what.append, shards[i], JoinPath(folder, name)));
    for (const SafetensorsTensor& tensor : shards[i]) {
      // Names are not looked up, which takes quadratic time.
      map.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(tensor.name,
                                                                    name);
      num_bytes += tensor.num_bytes();
    }
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {
        {"metadata", {{"total_size", num_bytes}}},
        {"weight_map", std::move(map)}};
    RETURN_IF_ERROR(WriteText(files, JoinPath(folder, kWeightIndex),
                              absl::StrCat(JsonText(index, 2), "\n")));
  }
  for (const auto& [name, content] : what.other_files) {
    RETURN_IF_ERROR(WriteText(files, JoinPath(folder, name), content));
  }
  return files.SyncDirectory(folder);
}

std::string WithoutSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::Status ExportWeightFile(FileSystem& files, const WeightExport& what,
                              const std::string& output_path) {
  ASSIGN_OR_RETURN(const Manifest manifest,
                   ReadManifest(files, what.checkpoint));
  const std::string temporary = absl::StrCat(output_path, ".tmp");
  const ExportSource source = {&files, &what, &manifest};
  const ExportedTensors tensors =
      TensorsOf(manifest, what.type, TensorNaming::kPlain);
  absl::Status status = WriteTensors(files, AppendOf(source, tensors),
                                     HeadersOf(tensors), temporary);
  if (status.ok()) status = files.Rename(temporary, output_path);
  if (!status.ok()) {
    files.Remove(temporary).IgnoreError();
    return status;
  }
  return files.SyncDirectory(ParentPath(output_path));
}

absl::Status WriteWeightFolder(FileSystem& files,
                               const WeightFolderContent& content,
                               const std::string& output_folder) {
  const std::string folder = WithoutSlashes(output_folder);
  const std::string partial = absl::StrCat(folder, ".partial");
  if (files.Exists(folder)) {
    return absl::AlreadyExistsError(
        absl::StrCat(folder, " is there already; name another folder"));
  }
  if (files.Exists(partial)) {
    return absl::AlreadyExistsError(
        absl::StrCat(partial,
                     " is there already: another export is writing it, or one "
                     "was interrupted; then remove it"));
  }
  RETURN_IF_ERROR(files.MakeDirectories(partial));
  absl::Status status = WriteShards(files, content, partial);
  if (status.ok()) status = files.Rename(partial, folder);
  if (!status.ok()) {
    files.Remove(partial).IgnoreError();
    return status;
  }
  return files.SyncDirectory(ParentPath(folder));
}

absl::Status ExportWeightFolder(FileSystem& files, const WeightExport& what,
                                const std::string& output_folder) {
  ASSIGN_OR_RETURN(const Manifest manifest,
                   ReadManifest(files, what.checkpoint));
  const ExportSource source = {&files, &what, &manifest};
  const ExportedTensors tensors = TensorsOf(manifest, what.type, what.naming);
  return WriteWeightFolder(files,
                           {.tensors = HeadersOf(tensors),
                            .append = AppendOf(source, tensors),
                            .max_shard_bytes = what.max_shard_bytes,
                            .other_files = what.other_files},
                           output_folder);
}

}  // namespace millrace
