#include "fault/torch_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "fault/checkpoint_files.h"
#include "fault/coverage.h"
#include "fault/pickle.h"
#include "fault/stored_zip.h"

namespace millrace {
namespace {

// Classes and types in .metadata, of all versions of PyTorch since 2.0.
constexpr const char* kMetadataGlobals[] = {
    "builtins getattr",  // How Python 3.11 names the members of an enum.
    "collections OrderedDict",
    "collections defaultdict",
    "builtins dict",
    "pathlib PosixPath",
    "pathlib._local PosixPath",
    "torch Size",
    "torch bfloat16",
    "torch bool",
    "torch complex128",
    "torch complex64",
    "torch float16",
    "torch float32",
    "torch float64",
    "torch float8_e4m3fn",
    "torch float8_e5m2",
    "torch int16",
    "torch int32",
    "torch int64",
    "torch int8",
    "torch uint16",
    "torch uint32",
    "torch uint64",
    "torch uint8",
    "torch.distributed._shard.sharded_tensor.metadata MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata TensorProperties",
    "torch.distributed.checkpoint.filesystem _StorageInfo",
    "torch.distributed.checkpoint.metadata BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata Metadata",
    "torch.distributed.checkpoint.metadata MetadataIndex",
    "torch.distributed.checkpoint.metadata StorageMeta",
    "torch.distributed.checkpoint.metadata TensorProperties",
    "torch.distributed.checkpoint.metadata TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
    "torch.serialization _get_layout",
};
constexpr char kMetadataClass[] =
    "torch.distributed.checkpoint.metadata Metadata";
constexpr char kTensorClass[] =
    "torch.distributed.checkpoint.metadata TensorStorageMetadata";
constexpr char kChunkClass[] =
    "torch.distributed.checkpoint.metadata ChunkStorageMetadata";
constexpr char kIndexClass[] =
    "torch.distributed.checkpoint.metadata MetadataIndex";
constexpr char kStorageClass[] =
    "torch.distributed.checkpoint.filesystem _StorageInfo";
constexpr char kSizeClass[] = "torch Size";

// The same in the archive of one tensor.
constexpr const char* kItemGlobals[] = {
    "collections OrderedDict",
    "torch BFloat16Storage",
    "torch FloatStorage",
    "torch HalfStorage",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor_v2",
};
constexpr char kRebuildTensor[] = "torch._utils _rebuild_tensor_v2";
constexpr char kRebuildParameter[] = "torch._utils _rebuild_parameter";

struct TorchType {
  ElementType type;
  const char* storage;
  const char* dtype;
};
constexpr TorchType kTorchTypes[] = {
    {ElementType::kFp32, "torch FloatStorage", "torch float32"},
    {ElementType::kFp16, "torch HalfStorage", "torch float16"},
    {ElementType::kBf16, "torch BFloat16Storage", "torch bfloat16"},
};

// The pickle of one tensor has some 200 bytes.
constexpr int64_t kMaxItemPickleBytes = 1 << 16;
constexpr size_t kMaxDims = 8;
// Parts of a tensor: thousands of ranks, each with hundreds of layers.
constexpr size_t kMaxParts = 1 << 20;
constexpr size_t kMaxOpenFiles = 256;

absl::Status WrongTensor(const std::string& where, absl::string_view name,
                         absl::string_view found) {
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": ", name, ": ", found,
      "; the checkpoint is damaged or not whole, so copy all of its files "
      "again, or save it again"));
}

absl::Status WrongMetadata(const std::string& path, absl::string_view found) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", found,
      "; expected the .metadata of torch.distributed.checkpoint (PyTorch 2.0 "
      "or later)"));
}

// A torch.Size, or the tuple that it is made of.
bool ReadDims(PickleValue value, std::vector<int64_t>* dims) {
  if (value.IsObjectOf(kSizeClass)) {
    if (value.item(1).size() != 1) return false;
    value = value.item(1).item(0);
  }
  if (value.kind() != PickleKind::kTuple && value.kind() != PickleKind::kList) {
    return false;
  }
  if (value.size() > kMaxDims) return false;
  dims->clear();
  for (size_t i = 0; i < value.size(); ++i) {
    const PickleValue dim = value.item(i);
    if (dim.kind() != PickleKind::kInt || dim.number() < 0) return false;
    dims->push_back(dim.number());
  }
  return true;
}

// Elements of a box; none if they overflow.
std::optional<int64_t> CountElements(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) {
    if (__builtin_mul_overflow(count, dim, &count)) return std::nullopt;
  }
  // Their bytes must fit, too.
  if (count > std::numeric_limits<int64_t>::max() / 8) return std::nullopt;
  return count;
}

// Where items lie, by tensor and offsets.
using Storage = std::map<std::pair<std::string, std::vector<int64_t>>,
                         TorchCheckpoint::Chunk>;

absl::Status ReadStorage(PickleValue data, const std::string& path,
                         Storage* storage) {
  if (data.kind() != PickleKind::kMap) {
    return WrongMetadata(path, "storage_data is no map");
  }
  for (size_t i = 0; i + 1 < data.size(); i += 2) {
    const PickleValue index = data.item(i);
    const PickleValue info = data.item(i + 1);
    const auto name = index.Find("fqn");
    const auto offsets = index.Find("offset");
    if (!index.IsObjectOf(kIndexClass) || !name.has_value() ||
        name->kind() != PickleKind::kText) {
      return WrongMetadata(path, "storage_data has a key that is no index");
    }
    // Values that are no tensors have no offset.
    if (!offsets.has_value() || offsets->IsNone()) continue;
    const std::string text(name->text());
    const auto file = info.Find("relative_path");
    const auto begin = info.Find("offset");
    const auto bytes = info.Find("length");
    const auto transforms = info.Find("transform_descriptors");
    TorchCheckpoint::Chunk chunk;
    if (!info.IsObjectOf(kStorageClass) || !file.has_value() ||
        file->kind() != PickleKind::kText || !begin.has_value() ||
        begin->kind() != PickleKind::kInt || !bytes.has_value() ||
        bytes->kind() != PickleKind::kInt ||
        !ReadDims(*offsets, &chunk.offsets)) {
      return WrongTensor(path, text, "storage_data does not say where it is");
    }
    if (transforms.has_value() && !transforms->IsNone()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", text,
          ": its bytes are transformed (compressed, for example); save the "
          "checkpoint without extensions"));
    }
    chunk.file = std::string(file->text());
    if (chunk.file.empty() || absl::StartsWith(chunk.file, ".") ||
        absl::StrContains(chunk.file, '/') ||
        absl::StrContains(chunk.file, '\0')) {
      return WrongTensor(path, text,
                         absl::StrCat("'", chunk.file,
                                      "' is not the name of a "
                                      "file in this folder"));
    }
    chunk.item_begin = begin->number();
    chunk.item_bytes = bytes->number();
    const std::vector<int64_t> key = chunk.offsets;
    if (!storage->emplace(std::pair(text, key), std::move(chunk)).second) {
      return WrongTensor(path, text,
                         absl::StrCat("two parts at ", DimsText(key)));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTensor(PickleValue value, const std::string& path,
                        const Storage& storage,
                        TorchCheckpoint::Tensor* tensor) {
  const auto properties = value.Find("properties");
  const auto shape = value.Find("size");
  const auto chunks = value.Find("chunks");
  if (!properties.has_value() || !shape.has_value() || !chunks.has_value() ||
      properties->kind() != PickleKind::kObject || properties->size() != 3 ||
      chunks->kind() != PickleKind::kList ||
      !ReadDims(*shape, &tensor->shape)) {
    return WrongTensor(path, tensor->name, "it has no type, shape or parts");
  }
  // The state of properties is a tuple; files of others may have a map.
  const PickleValue state = properties->item(2);
  const auto type = state.kind() == PickleKind::kTuple && state.size() > 0
                        ? std::optional<PickleValue>(state.item(0))
                        : properties->Find("dtype");
  if (!type.has_value() || type->kind() != PickleKind::kGlobal) {
    return WrongTensor(path, tensor->name, "it has no type");
  }
  tensor->type_name = std::string(type->text());
  for (const TorchType& known : kTorchTypes) {
    if (type->text() == known.dtype) tensor->type = known.type;
  }
  for (size_t i = 0; i < chunks->size(); ++i) {
    const PickleValue part = chunks->item(i);
    const auto offsets = part.Find("offsets");
    const auto sizes = part.Find("sizes");
    TorchCheckpoint::Chunk chunk;
    if (!part.IsObjectOf(kChunkClass) || !offsets.has_value() ||
        !sizes.has_value() || !ReadDims(*offsets, &chunk.offsets) ||
        !ReadDims(*sizes, &chunk.sizes)) {
      return WrongTensor(path, tensor->name, "a part without place or sizes");
    }
    const auto stored = storage.find({tensor->name, chunk.offsets});
    if (stored != storage.end()) {
      chunk.file = stored->second.file;
      chunk.item_begin = stored->second.item_begin;
      chunk.item_bytes = stored->second.item_bytes;
    }
    tensor->chunks.push_back(std::move(chunk));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadBytes(const RandomAccessFile& file,
                                      int64_t offset, int64_t num_bytes) {
  std::string content(static_cast<size_t>(num_bytes), '\0');
  RETURN_IF_ERROR(file.Read(offset, num_bytes, content.data()));
  return content;
}

const StoredMember* FindMember(const std::vector<StoredMember>& members,
                               absl::string_view end) {
  const auto found =
      std::ranges::find_if(members, [&](const StoredMember& member) {
        const size_t slash = member.name.find('/');
        return slash != std::string::npos &&
               absl::string_view(member.name).substr(slash + 1) == end;
      });
  return found == members.end() ? nullptr : &*found;
}

// The tensor of an archive, as its pickle describes it.
struct ArchivedTensor {
  std::string storage;  // "torch FloatStorage".
  std::string key;      // Names the member with the bytes: "0".
  int64_t storage_elements = 0;
  int64_t first_element = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

bool ReadArchivedTensor(PickleValue value, ArchivedTensor* tensor) {
  if (value.IsObjectOf(kRebuildParameter)) {
    if (value.item(1).size() < 1) return false;
    value = value.item(1).item(0);
  }
  if (!value.IsObjectOf(kRebuildTensor)) return false;
  const PickleValue args = value.item(1);
  if (args.size() < 4 || args.item(0).kind() != PickleKind::kPersistent ||
      args.item(1).kind() != PickleKind::kInt) {
    return false;
  }
  const PickleValue id = args.item(0).item(0);
  if (id.kind() != PickleKind::kTuple || id.size() != 5 ||
      id.item(0).kind() != PickleKind::kText ||
      id.item(0).text() != "storage" ||
      id.item(1).kind() != PickleKind::kGlobal ||
      id.item(2).kind() != PickleKind::kText ||
      id.item(4).kind() != PickleKind::kInt) {
    return false;
  }
  tensor->storage = std::string(id.item(1).text());
  tensor->key = std::string(id.item(2).text());
  tensor->storage_elements = id.item(4).number();
  tensor->first_element = args.item(1).number();
  return ReadDims(args.item(2), &tensor->sizes) &&
         ReadDims(args.item(3), &tensor->strides);
}

// Whether elements follow each other row by row. Strides of dims of size one
// say nothing.
bool IsContiguous(const ArchivedTensor& tensor) {
  if (tensor.strides.size() != tensor.sizes.size()) return false;
  int64_t stride = 1;
  for (size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != stride) return false;
    stride *= tensor.sizes[i];
  }
  return true;
}

}  // namespace

std::string DimsText(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::StatusOr<TorchCheckpoint> TorchCheckpoint::Open(
    FileSystem& files, const std::string& folder) {
  const std::string path = JoinPath(folder, kTorchMetadata);
  const auto file = files.Open(path);
  if (!file.ok()) {
    return absl::InvalidArgumentError(std::string(file.status().message()));
  }
  if ((*file)->size() > kMaxPickleBytes) {
    return WrongMetadata(path, absl::StrCat((*file)->size(), " bytes"));
  }
  ASSIGN_OR_RETURN(std::string content, ReadBytes(**file, 0, (*file)->size()));
  ASSIGN_OR_RETURN(const Pickle pickle,
                   Pickle::Parse(std::move(content), path, kMetadataGlobals));
  const PickleValue root = pickle.root();
  const auto data = root.Find("state_dict_metadata");
  const auto storage_data = root.Find("storage_data");
  if (!root.IsObjectOf(kMetadataClass) || !data.has_value() ||
      data->kind() != PickleKind::kMap || !storage_data.has_value()) {
    return WrongMetadata(path, "it holds something else");
  }
  Storage storage;
  RETURN_IF_ERROR(ReadStorage(*storage_data, path, &storage));
  TorchCheckpoint checkpoint(files, folder);
  for (size_t i = 0; i + 1 < data->size(); i += 2) {
    if (data->item(i).kind() != PickleKind::kText) {
      return WrongMetadata(path, "a tensor whose name is no text");
    }
    const PickleValue value = data->item(i + 1);
    if (!value.IsObjectOf(kTensorClass)) continue;
    Tensor tensor = {.name = std::string(data->item(i).text())};
    RETURN_IF_ERROR(ReadTensor(value, path, storage, &tensor));
    const std::string name = tensor.name;
    if (!checkpoint.tensors_.emplace(name, std::move(tensor)).second) {
      return WrongTensor(path, name, "the name is there twice");
    }
  }
  return checkpoint;
}

absl::StatusOr<std::shared_ptr<RandomAccessFile>> TorchCheckpoint::OpenFile(
    const std::string& name) const {
  std::lock_guard<std::mutex> lock(open_->mutex);
  const auto found = open_->by_name.find(name);
  if (found != open_->by_name.end()) return found->second;
  if (open_->by_name.size() >= kMaxOpenFiles) open_->by_name.clear();
  auto file = files_->Open(JoinPath(folder_, name));
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.status().message(),
                     "; .metadata names it, so copy all files of ", folder_));
  }
  std::shared_ptr<RandomAccessFile> shared = *std::move(file);
  open_->by_name.emplace(name, shared);
  return shared;
}

absl::StatusOr<int64_t> TorchCheckpoint::DataOffset(const Tensor& tensor,
                                                    const Chunk& chunk) const {
  if (chunk.file.empty()) {
    return WrongTensor(
        JoinPath(folder_, kTorchMetadata), tensor.name,
        absl::StrCat("no file holds its part at ", DimsText(chunk.offsets)));
  }
  const std::string path = JoinPath(folder_, chunk.file);
  ASSIGN_OR_RETURN(const auto file, OpenFile(chunk.file));
  if (chunk.item_begin < 0 || chunk.item_bytes < 0 ||
      chunk.item_begin > file->size() ||
      chunk.item_bytes > file->size() - chunk.item_begin) {
    return WrongTensor(
        path, tensor.name,
        absl::StrCat(".metadata says ", chunk.item_bytes, " bytes at ",
                     chunk.item_begin, " of a file of ", file->size()));
  }
  const int64_t end = chunk.item_begin + chunk.item_bytes;
  ASSIGN_OR_RETURN(const std::vector<StoredMember> members,
                   ReadStoredZip(*file, path, chunk.item_begin, end));
  const auto wrong = [&](absl::string_view found) {
    return WrongTensor(absl::StrCat(path, ": byte ", chunk.item_begin),
                       tensor.name, found);
  };
  const StoredMember* description = FindMember(members, "data.pkl");
  if (description == nullptr || description->num_bytes > kMaxItemPickleBytes) {
    return wrong("no data.pkl of usual length in its archive");
  }
  if (const StoredMember* order = FindMember(members, "byteorder");
      order != nullptr) {
    ASSIGN_OR_RETURN(const std::string text,
                     ReadBytes(*file, order->offset,
                               std::min<int64_t>(order->num_bytes, kMaxDims)));
    if (text != "little") return wrong("its bytes are not little-endian");
  }
  ASSIGN_OR_RETURN(std::string content, ReadBytes(*file, description->offset,
                                                  description->num_bytes));
  ASSIGN_OR_RETURN(const Pickle pickle,
                   Pickle::Parse(std::move(content),
                                 absl::StrCat(path, ": data.pkl at byte ",
                                              description->offset),
                                 kItemGlobals));
  ArchivedTensor archived;
  if (!ReadArchivedTensor(pickle.root(), &archived)) {
    return wrong("its archive holds no plain tensor");
  }
  if (archived.sizes != chunk.sizes) {
    return wrong(absl::StrCat("the archive's tensor is ",
                              DimsText(archived.sizes), ", and .metadata says ",
                              DimsText(chunk.sizes)));
  }
  const auto known =
      std::ranges::find(kTorchTypes, *tensor.type, &TorchType::type);
  if (archived.storage != known->storage) {
    return wrong(absl::StrCat("the archive has a ", archived.storage,
                              ", and .metadata says ", tensor.type_name));
  }
  if (!IsContiguous(archived)) {
    return wrong(absl::StrCat("its elements lie apart (strides ",
                              DimsText(archived.strides), ")"));
  }
  const int64_t element_bytes = ElementBytes(*tensor.type);
  const int64_t count = *CountElements(chunk.sizes);
  const StoredMember* data =
      FindMember(members, absl::StrCat("data/", archived.key));
  if (data == nullptr || archived.first_element < 0 ||
      archived.first_element > archived.storage_elements ||
      count > archived.storage_elements - archived.first_element ||
      data->num_bytes / element_bytes < archived.storage_elements) {
    return wrong(absl::StrCat("its archive has fewer than the ", count,
                              " elements of the part"));
  }
  return data->offset + archived.first_element * element_bytes;
}

absl::StatusOr<TorchCheckpoint::Rows> TorchCheckpoint::Locate(
    const Tensor& tensor, int num_col_dims) const {
  const std::string path = JoinPath(folder_, kTorchMetadata);
  const size_t num_dims = tensor.shape.size();
  if (!tensor.type.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", tensor.name, ": its type is ", tensor.type_name,
        ", expected float32, float16 or bfloat16; save the weights as one of "
        "these"));
  }
  if (num_dims < static_cast<size_t>(num_col_dims) || num_dims == 0 ||
      !CountElements(tensor.shape).has_value()) {
    return WrongTensor(path, tensor.name,
                       absl::StrCat("shape ", DimsText(tensor.shape)));
  }
  Rows rows = {.type = *tensor.type};
  rows.row_elements = num_col_dims == 0 ? 1 : tensor.shape.back();
  const size_t num_row_dims = num_dims - num_col_dims;
  rows.num_rows = 1;
  for (size_t i = 0; i < num_row_dims; ++i) rows.num_rows *= tensor.shape[i];
  const int64_t element_bytes = ElementBytes(rows.type);
  std::vector<BoxRun> runs;
  for (const Chunk& chunk : tensor.chunks) {
    bool is_within =
        chunk.offsets.size() == num_dims && chunk.sizes.size() == num_dims;
    for (size_t i = 0; is_within && i < num_dims; ++i) {
      is_within = chunk.offsets[i] <= tensor.shape[i] &&
                  chunk.sizes[i] <= tensor.shape[i] - chunk.offsets[i];
    }
    if (!is_within) {
      return WrongTensor(
          path, tensor.name,
          absl::StrCat("a part of ", DimsText(chunk.sizes), " at ",
                       DimsText(chunk.offsets), " of a tensor of ",
                       DimsText(tensor.shape)));
    }
    if (*CountElements(chunk.sizes) == 0) continue;
    ASSIGN_OR_RETURN(const int64_t data_offset, DataOffset(tensor, chunk));
    // The last of the dims of rows runs on; the ones before begin anew.
    const int64_t run_rows =
        num_row_dims == 0 ? 1 : chunk.sizes[num_row_dims - 1];
    const int64_t width = num_col_dims == 0 ? 1 : chunk.sizes.back();
    const int64_t col = num_col_dims == 0 ? 0 : chunk.offsets.back();
    int64_t num_runs = 1;
    for (size_t i = 0; i + 1 < num_row_dims; ++i) num_runs *= chunk.sizes[i];
    if (static_cast<size_t>(num_runs) > kMaxParts - rows.parts.size()) {
      return WrongTensor(path, tensor.name, "too many parts");
    }
    for (int64_t run = 0; run < num_runs; ++run) {
      int64_t row = 0;
      int64_t rest = run;
      int64_t row_stride = 1;
      for (size_t i = num_row_dims; i-- > 0;) {
        int64_t at = chunk.offsets[i];
        if (i + 1 < num_row_dims) {
          at += rest % chunk.sizes[i];
          rest /= chunk.sizes[i];
        }
        row += at * row_stride;
        row_stride *= tensor.shape[i];
      }
      rows.parts.push_back(
          {.row_begin = row,
           .row_end = row + run_rows,
           .col_begin = col,
           .col_end = col + width,
           .file = chunk.file,
           .offset = data_offset + run * run_rows * width * element_bytes});
      runs.push_back({.box = {row, row + run_rows, col, col + width},
                      .begin = 0,
                      .end = run_rows * width});
    }
  }
  const absl::Status cover =
      CheckExactCover(tensor.name, rows.num_rows, rows.row_elements, runs);
  if (!cover.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", cover.message(),
                     "; copy all files of the checkpoint again, or save it "
                     "again"));
  }
  return rows;
}

absl::Status TorchCheckpoint::Read(const Rows& rows, int64_t begin, int64_t end,
                                   char* out) const {
  const int64_t element_bytes = ElementBytes(rows.type);
  const int64_t row_bytes = rows.row_elements * element_bytes;
  std::vector<char> part_rows;
  for (const Part& part : rows.parts) {
    const int64_t first = std::max(begin, part.row_begin);
    const int64_t last = std::min(end, part.row_end);
    if (first >= last) continue;
    ASSIGN_OR_RETURN(const auto file, OpenFile(part.file));
    const int64_t width_bytes = (part.col_end - part.col_begin) * element_bytes;
    const int64_t offset = part.offset + (first - part.row_begin) * width_bytes;
    char* to =
        out + (first - begin) * row_bytes + part.col_begin * element_bytes;
    if (width_bytes == row_bytes) {
      RETURN_IF_ERROR(file->Read(offset, (last - first) * row_bytes, to));
      continue;
    }
    part_rows.resize(static_cast<size_t>((last - first) * width_bytes));
    RETURN_IF_ERROR(
        file->Read(offset, (last - first) * width_bytes, part_rows.data()));
    for (int64_t row = 0; row < last - first; ++row) {
      std::memcpy(to + row * row_bytes, part_rows.data() + row * width_bytes,
                  static_cast<size_t>(width_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
