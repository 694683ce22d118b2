#include "fault/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "fault/manifest.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is written as it lies");

constexpr int64_t kLengthBytes = 8;
// The data starts at a multiple of this, so that it can be mapped and read with
// vector loads. Headers are padded with spaces, as the format allows.
constexpr int64_t kDataAlignment = 64;
// Elements that Append() rounds at a time.
constexpr int64_t kNarrowedElements = 1 << 18;

absl::Status DamagedPart(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, " is not a whole safetensors file: ", what));
}

// The bytes of the tensor; negative if they overflow or a dim is negative.
int64_t CheckedBytes(const SafetensorsTensor& tensor) {
  int64_t bytes = ElementBytes(tensor.type);
  for (const int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return -1;
  }
  return bytes;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name,
                                            const nlohmann::json& value,
                                            const std::string& path) {
  const std::string where = absl::StrCat("tensor ", name, ": ");
  const std::string& dtype = value.at("dtype").get_ref<const std::string&>();
  const std::optional<ElementType> type = ElementTypeOfDtype(dtype);
  if (!type.has_value()) {
    return DamagedPart(path, absl::StrCat(where, "its dtype is '", dtype,
                                          "', expected F32, F16 or BF16"));
  }
  SafetensorsEntry entry;
  entry.tensor.type = *type;
  entry.tensor.name = name;
  for (const nlohmann::json& dim : value.at("shape")) {
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return DamagedPart(path, absl::StrCat(where, "bad shape"));
    }
    entry.tensor.shape.push_back(dim.get<int64_t>());
  }
  const nlohmann::json& range = value.at("data_offsets");
  if (range.size() != 2 || !range[0].is_number_unsigned() ||
      !range[1].is_number_unsigned()) {
    return DamagedPart(path, absl::StrCat(where, "bad data_offsets"));
  }
  const uint64_t begin = range[0].get<uint64_t>();
  const uint64_t end = range[1].get<uint64_t>();
  const int64_t bytes = CheckedBytes(entry.tensor);
  if (bytes < 0 || begin > std::numeric_limits<int64_t>::max() || end < begin ||
      end - begin != static_cast<uint64_t>(bytes)) {
    return DamagedPart(path,
                       absl::StrCat(where, "shape and data_offsets differ"));
  }
  entry.offset = static_cast<int64_t>(begin);
  return entry;
}

absl::StatusOr<SafetensorsHeader> ParseHeader(const std::string& text,
                                              const std::string& path) {
  SafetensorsHeader header;
  const absl::StatusOr<nlohmann::json> parsed = ParseJsonOnce(text);
  if (!parsed.ok()) return DamagedPart(path, parsed.status().message());
  const nlohmann::json& json = *parsed;
  try {
    if (!json.is_object())
      return DamagedPart(path, "the header is no JSON object");
    for (const auto& [name, value] : json.items()) {
      if (name == "__metadata__") {
        header.metadata = value.get<std::map<std::string, std::string>>();
        continue;
      }
      ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value, path));
      header.entries.push_back(std::move(entry));
    }
  } catch (const nlohmann::json::exception& error) {
    return DamagedPart(path, error.what());
  }
  return header;
}

absl::StatusOr<std::string> EncodeHeader(
    const std::string& path, const std::vector<SafetensorsTensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  // Kept in the order of the data, which is easier to read than sorted names.
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::set<std::string> names;
  int64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "two tensors for ", path, " are both named ", tensor.name));
    }
    const int64_t end = offset + tensor.num_bytes();
    // Pushed to the underlying vector: looking each name up in an ordered
    // object would take time quadratic in the number of tensors.
    json.get_ref<nlohmann::ordered_json::object_t&>().emplace_back(
        tensor.name,
        nlohmann::ordered_json{{"dtype", SafetensorsDtype(tensor.type)},
                               {"shape", tensor.shape},
                               {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = JsonText(json);
  text.resize(RoundUp(kLengthBytes + static_cast<int64_t>(text.size()),
                      kDataAlignment) -
                  kLengthBytes,
              ' ');
  const uint64_t length = text.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + text;
}

}  // namespace

int64_t SafetensorsTensor::num_elements() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product *= dim;
  return product;
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(
    FileSystem& files, const std::string& path,
    std::vector<SafetensorsTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  SafetensorsWriter writer;
  ASSIGN_OR_RETURN(writer.header_, EncodeHeader(path, tensors, metadata));
  for (const SafetensorsTensor& tensor : tensors) {
    writer.elements_left_ += tensor.num_elements();
  }
  writer.tensors_ = std::move(tensors);
  ASSIGN_OR_RETURN(writer.file_, files.Create(path));
  RETURN_IF_ERROR(writer.file_->Append(
      writer.header_.data(), static_cast<int64_t>(writer.header_.size())));
  return writer;
}

absl::Status SafetensorsWriter::Append(const float* data,
                                       int64_t num_elements) {
  if (num_elements > elements_left_) {
    return absl::InvalidArgumentError(absl::StrCat(
        num_elements, " elements appended where ", elements_left_, " remain"));
  }
  elements_left_ -= num_elements;
  while (num_elements > 0) {
    const SafetensorsTensor& tensor = tensors_[tensor_idx_];
    const int64_t left = tensor.num_elements() - tensor_elements_;
    if (left == 0) {
      ++tensor_idx_;
      tensor_elements_ = 0;
      continue;
    }
    int64_t count = std::min(left, num_elements);
    if (tensor.type == ElementType::kFp32) {
      RETURN_IF_ERROR(file_->Append(data, count * ElementBytes(tensor.type)));
    } else {
      count = std::min(count, kNarrowedElements);
      narrowed_.resize(static_cast<size_t>(count * ElementBytes(tensor.type)));
      NarrowFromFp32(tensor.type, data, count, narrowed_.data());
      RETURN_IF_ERROR(file_->Append(narrowed_.data(),
                                    static_cast<int64_t>(narrowed_.size())));
    }
    data += count;
    num_elements -= count;
    tensor_elements_ += count;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::AppendStored(const void* data,
                                             int64_t num_elements) {
  while (tensor_idx_ < tensors_.size() &&
         tensor_elements_ == tensors_[tensor_idx_].num_elements()) {
    ++tensor_idx_;
    tensor_elements_ = 0;
  }
  if (tensor_idx_ == tensors_.size() ||
      num_elements > tensors_[tensor_idx_].num_elements() - tensor_elements_) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_elements,
                     " elements appended to a tensor that lacks "
                     "fewer"));
  }
  elements_left_ -= num_elements;
  tensor_elements_ += num_elements;
  return file_->Append(data,
                       num_elements * ElementBytes(tensors_[tensor_idx_].type));
}

absl::Status SafetensorsWriter::Finish() {
  if (elements_left_ != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(elements_left_, " elements were never appended"));
  }
  RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(
    const RandomAccessFile& file, const std::string& path) {
  if (file.size() < kLengthBytes) return DamagedPart(path, "it is too short");
  uint64_t length = 0;
  RETURN_IF_ERROR(file.Read(0, kLengthBytes, &length));
  // Both limits come before the allocation: the length may be anything.
  if (length > static_cast<uint64_t>(file.size() - kLengthBytes) ||
      length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return DamagedPart(path, absl::StrCat("it claims a header of ", length,
                                          " bytes in a file of ", file.size()));
  }
  std::string text(length, '\0');
  RETURN_IF_ERROR(
      file.Read(kLengthBytes, static_cast<int64_t>(length), text.data()));
  ASSIGN_OR_RETURN(SafetensorsHeader header, ParseHeader(text, path));
  header.bytes = kLengthBytes + static_cast<int64_t>(length);
  header.checksum = Checksum(text.data(), static_cast<int64_t>(length));

  std::stable_sort(header.entries.begin(), header.entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     // An empty tensor lies before the one that starts there.
                     return std::pair(a.offset, a.tensor.num_elements()) <
                            std::pair(b.offset, b.tensor.num_elements());
                   });
  int64_t end = 0;
  const int64_t data_bytes = file.size() - header.bytes;
  for (SafetensorsEntry& entry : header.entries) {
    const int64_t bytes = entry.tensor.num_bytes();
    if (entry.offset != end || bytes > data_bytes - end) {
      return DamagedPart(path,
                         absl::StrCat("tensor ", entry.tensor.name,
                                      " is not where the one before ends, "
                                      "or is beyond the end of the file"));
    }
    end += bytes;
    entry.offset += header.bytes;
  }
  if (end != data_bytes) {
    return DamagedPart(
        path, absl::StrCat(data_bytes - end, " bytes follow the last tensor"));
  }
  return header;
}

}  // namespace millrace
