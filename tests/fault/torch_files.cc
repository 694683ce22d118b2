#include "tests/fault/torch_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "fault/checkpoint_files.h"
#include "fault/weight_import.h"
#include "tests/fault/state_fixture.h"

namespace millrace {
namespace {

template <typename T>
std::string Bytes(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

std::string Joined(const std::vector<std::string>& items) {
  std::string all;
  for (const std::string& item : items) all += item;
  return all;
}

constexpr int64_t kSalt = 11;

constexpr char kMetadataModule[] = "torch.distributed.checkpoint.metadata";

const char* TypeName(ElementType type) {
  return type == ElementType::kFp32   ? "float32"
         : type == ElementType::kFp16 ? "float16"
                                      : "bfloat16";
}

const char* StorageName(ElementType type) {
  return type == ElementType::kFp32   ? "FloatStorage"
         : type == ElementType::kFp16 ? "HalfStorage"
                                      : "BFloat16Storage";
}

std::string NarrowedValue(ElementType type, const std::string& name,
                          int64_t row, int64_t col) {
  const float value = ElementValue(name, row, col, kSalt);
  std::string bytes(ElementBytes(type), '\0');
  NarrowFromFp32(type, &value, 1, bytes.data());
  return bytes;
}

// The elements of a box, row by row.
std::string BytesOfBox(const TorchTestTensor& tensor, const TorchBox& box) {
  const int64_t element_bytes = ElementBytes(tensor.type);
  const size_t num_dims = tensor.shape.size();
  int64_t count = 1;
  for (const int64_t size : box.sizes) count *= size;
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, element = 0, stride = 1;
    for (size_t dim = num_dims; dim-- > 0;) {
      element += (box.offsets[dim] + rest % box.sizes[dim]) * stride;
      rest /= box.sizes[dim];
      stride *= tensor.shape[dim];
    }
    bytes += tensor.bytes.substr(element * element_bytes, element_bytes);
  }
  return bytes;
}

std::string PickledProperties(ElementType type) {
  const std::string no = "\x89";
  const std::string layout =
      PickledGlobal("torch.serialization", "_get_layout") +
      PickledTuple({PickledText("torch.strided")}) + "R";
  const std::string format =
      PickledGlobal(kMetadataModule, "_MEM_FORMAT_ENCODING") +
      PickledTuple({PickledInt(0)}) + "R";
  return absl::StrCat(PickledGlobal(kMetadataModule, "TensorProperties"),
                      ")\x81",
                      PickledTuple({PickledGlobal("torch", TypeName(type)),
                                    layout, no, format, no}),
                      "b");
}

}  // namespace

std::string PickledInt(int64_t value) {
  return absl::StrCat("\x8a\x08", Bytes(value));
}

std::string PickledText(const std::string& text) {
  return absl::StrCat("X", Bytes(static_cast<uint32_t>(text.size())), text);
}

std::string PickledGlobal(const std::string& module, const std::string& name) {
  return absl::StrCat("c", module, "\n", name, "\n");
}

std::string PickledTuple(const std::vector<std::string>& items) {
  return absl::StrCat("(", Joined(items), "t");
}

std::string PickledList(const std::vector<std::string>& items) {
  return absl::StrCat("](", Joined(items), "e");
}

std::string PickledMap(
    const std::vector<std::pair<std::string, std::string>>& items) {
  std::string all = "}(";
  for (const auto& [key, value] : items) absl::StrAppend(&all, key, value);
  return all + "u";
}

std::string PickledSize(const std::vector<int64_t>& dims) {
  std::vector<std::string> items;
  for (const int64_t dim : dims) items.push_back(PickledInt(dim));
  return PickledGlobal("torch", "Size") + PickledTuple({PickledTuple(items)}) +
         "R";
}

std::string PickledObject(
    const std::string& module, const std::string& name,
    const std::vector<std::pair<std::string, std::string>>& state) {
  std::vector<std::pair<std::string, std::string>> items;
  for (const auto& [key, value] : state) {
    items.emplace_back(PickledText(key), value);
  }
  return absl::StrCat(PickledGlobal(module, name), ")\x81", PickledMap(items),
                      "b");
}

std::string PickleFile(const std::string& value) {
  return absl::StrCat("\x80\x04", value, ".");
}

std::string StoredZip(
    const std::vector<std::pair<std::string, std::string>>& members) {
  std::string archive, directory;
  for (const auto& [name, content] : members) {
    const auto header_at = static_cast<uint32_t>(archive.size());
    const auto name_bytes = static_cast<uint16_t>(name.size());
    const auto num_bytes = static_cast<uint32_t>(content.size());
    const std::string common = Bytes<uint16_t>(0) + Bytes<uint16_t>(0x0808) +
                               Bytes<uint16_t>(0) + Bytes<uint32_t>(0);
    absl::StrAppend(&archive, Bytes<uint32_t>(0x04034b50), common,
                    std::string(12, '\0'), Bytes(name_bytes),
                    Bytes<uint16_t>(4), name, "PAD!", content);
    absl::StrAppend(&directory, Bytes<uint32_t>(0x02014b50), Bytes<uint16_t>(0),
                    common, Bytes<uint32_t>(0), Bytes(num_bytes),
                    Bytes(num_bytes), Bytes(name_bytes), std::string(12, '\0'),
                    Bytes(header_at), name);
  }
  const auto count = static_cast<uint16_t>(members.size());
  const uint64_t end_at = archive.size() + directory.size();
  const std::string large_end = absl::StrCat(
      Bytes<uint32_t>(0x06064b50), Bytes<uint64_t>(44), Bytes<uint16_t>(45),
      Bytes<uint16_t>(45), Bytes<uint64_t>(0), Bytes<uint64_t>(count),
      Bytes<uint64_t>(count), Bytes<uint64_t>(directory.size()),
      Bytes<uint64_t>(archive.size()), Bytes<uint32_t>(0x07064b50),
      Bytes<uint32_t>(0), Bytes(end_at), Bytes<uint32_t>(1));
  return absl::StrCat(
      archive, directory, large_end, Bytes<uint32_t>(0x06054b50),
      Bytes<uint32_t>(0), Bytes(count), Bytes(count),
      Bytes(static_cast<uint32_t>(directory.size())),
      Bytes(static_cast<uint32_t>(archive.size())), Bytes<uint16_t>(0));
}

std::vector<TorchBox> GridOf(const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& parts) {
  std::vector<TorchBox> boxes = {{}};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const int64_t num_parts = dim < parts.size() ? parts[dim] : 1;
    const int64_t size = (shape[dim] + num_parts - 1) / num_parts;
    std::vector<TorchBox> cut;
    for (const TorchBox& box : boxes) {
      for (int64_t begin = 0; begin < shape[dim]; begin += size) {
        cut.push_back(box);
        cut.back().offsets.push_back(begin);
        cut.back().sizes.push_back(std::min(size, shape[dim] - begin));
      }
    }
    boxes = std::move(cut);
  }
  return boxes;
}

std::string TorchArchive(ElementType type, const std::vector<int64_t>& sizes,
                         const std::string& bytes) {
  const auto count = static_cast<int64_t>(bytes.size()) / ElementBytes(type);
  std::vector<std::string> dims, strides;
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    dims.insert(dims.begin(), PickledInt(sizes[i]));
    strides.insert(strides.begin(), PickledInt(stride));
    stride *= sizes[i];
  }
  const std::string storage = PickledTuple(
      {PickledText("storage"), PickledGlobal("torch", StorageName(type)),
       PickledText("0"), PickledText("cpu"), PickledInt(count)});
  const std::string value =
      PickledGlobal("torch._utils", "_rebuild_tensor_v2") +
      PickledTuple({storage + "Q", PickledInt(0), PickledTuple(dims),
                    PickledTuple(strides), "\x89",
                    PickledGlobal("collections", "OrderedDict") + ")R"}) +
      "R";
  return StoredZip({{"archive/data.pkl", PickleFile(value)},
                    {"archive/byteorder", "little"},
                    {"archive/data/0", bytes},
                    {"archive/version", "3\n"}});
}

ModelSpec GroupedModel() {
  ModelSpec model = TinyModel();
  model.num_kv_heads = 2;
  return model;
}

std::vector<int64_t> DimsOf(const Parameter& parameter) {
  if (parameter.is_vector) return {parameter.cols};
  return {parameter.rows, parameter.cols};
}

std::string RowOf(ElementType type, const Parameter& parameter, int64_t row) {
  if (parameter.is_vector) return NarrowedValue(type, parameter.name, 0, row);
  std::string bytes;
  for (int64_t col = 0; col < parameter.cols; ++col) {
    bytes += NarrowedValue(type, parameter.name, row, col);
  }
  return bytes;
}

std::string AllOfIt(ElementType type, const Parameter& parameter) {
  std::string bytes;
  const int64_t rows = parameter.is_vector ? parameter.cols : parameter.rows;
  for (int64_t row = 0; row < rows; ++row) {
    bytes += RowOf(type, parameter, row);
  }
  return bytes;
}

std::vector<TorchTestTensor> HuggingFaceTensors(
    const ModelSpec& model, ElementType type, const std::vector<int64_t>& parts,
    const std::function<std::string(const std::string&)>& rename) {
  std::vector<TorchTestTensor> tensors;
  for (const Parameter& parameter : ModelParameters(model)) {
    tensors.push_back(
        {.name = rename == nullptr ? parameter.name : rename(parameter.name),
         .type = type,
         .shape = DimsOf(parameter),
         .bytes = AllOfIt(type, parameter),
         .boxes = GridOf(DimsOf(parameter), parts)});
  }
  return tensors;
}

std::string ImportError(FileSystem& files, const std::string& source,
                        const ModelSpec& model) {
  const auto import = WeightImport::Open(files, source, model);
  if (import.ok()) return "no error";
  EXPECT_EQ(import.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(import.status().message());
}

void WriteTestFile(FileSystem& files, const std::string& path,
                   const std::string& content) {
  auto file = files.Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)
                  ->Append(content.data(), static_cast<int64_t>(content.size()))
                  .ok());
  ASSERT_TRUE((*file)->Close().ok());
}

void WriteTorchCheckpoint(FileSystem& files, const std::string& folder,
                          const std::vector<TorchTestTensor>& tensors,
                          int num_ranks) {
  ASSERT_TRUE(files.MakeDirectories(folder).ok());
  std::vector<std::string> contents(num_ranks);
  std::vector<std::pair<std::string, std::string>> entries, storage;
  for (const TorchTestTensor& tensor : tensors) {
    std::vector<std::string> chunks;
    for (size_t i = 0; i < tensor.boxes.size(); ++i) {
      const TorchBox& box = tensor.boxes[i];
      const size_t rank = i % num_ranks;
      const std::string item =
          TorchArchive(tensor.type, box.sizes, BytesOfBox(tensor, box));
      chunks.push_back(PickledObject(kMetadataModule, "ChunkStorageMetadata",
                                     {{"offsets", PickledSize(box.offsets)},
                                      {"sizes", PickledSize(box.sizes)}}));
      storage.emplace_back(
          PickledObject(kMetadataModule, "MetadataIndex",
                        {{"fqn", PickledText(tensor.name)},
                         {"offset", PickledSize(box.offsets)},
                         {"index", PickledInt(static_cast<int64_t>(i))}}),
          PickledObject(
              "torch.distributed.checkpoint.filesystem", "_StorageInfo",
              {{"relative_path",
                PickledText(absl::StrCat("__", rank, "_0.distcp"))},
               {"offset",
                PickledInt(static_cast<int64_t>(contents[rank].size()))},
               {"length", PickledInt(static_cast<int64_t>(item.size()))}}));
      contents[rank] += item;
    }
    entries.emplace_back(
        PickledText(tensor.name),
        PickledObject(kMetadataModule, "TensorStorageMetadata",
                      {{"properties", PickledProperties(tensor.type)},
                       {"size", PickledSize(tensor.shape)},
                       {"chunks", PickledList(chunks)}}));
  }
  storage.emplace_back(
      PickledObject(kMetadataModule, "MetadataIndex",
                    {{"fqn", PickledText("train_state")}, {"index", "N"}}),
      "N");
  entries.emplace_back(
      PickledText("train_state"),
      PickledObject(kMetadataModule, "BytesStorageMetadata", {}));
  for (int rank = 0; rank < num_ranks; ++rank) {
    WriteTestFile(files,
                  JoinPath(folder, absl::StrCat("__", rank, "_0.distcp")),
                  contents[rank]);
  }
  WriteTestFile(
      files, JoinPath(folder, ".metadata"),
      PickleFile(PickledObject(kMetadataModule, "Metadata",
                               {{"state_dict_metadata", PickledMap(entries)},
                                {"planner_data", "N"},
                                {"storage_data", PickledMap(storage)}})));
}

}  // namespace millrace
