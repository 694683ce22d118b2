#include "fault/manifest.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "fault/safetensors.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "millrace-checkpoint";
constexpr int64_t kVersion = 1;
constexpr char kChecksumKey[] = ",\"checksum\":\"";
constexpr int64_t kHexDigits = 16;

std::string Hex(uint64_t value) {
  return absl::StrCat(absl::Hex(value, absl::kZeroPad16));
}

// The readers below throw on anything unexpected; Parse() turns that into a
// Status, so that no key of a manifest is trusted and none needs its own check.
struct FormatError {
  std::string what;
};

int64_t ReadInt(const Json& json) {
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() &&
       json.get<uint64_t>() > uint64_t{INT64_MAX})) {
    throw FormatError{"expected an integer, found " + JsonText(json)};
  }
  return json.get<int64_t>();
}

int32_t ReadInt32(const Json& json) {
  const int64_t value = ReadInt(json);
  if (value < INT32_MIN || value > INT32_MAX) {
    throw FormatError{"out of range: " + JsonText(json)};
  }
  return static_cast<int32_t>(value);
}

uint64_t ReadHex(const Json& json) {
  const std::string text = json.get<std::string>();
  uint64_t value = 0;
  if (text.size() != kHexDigits || !absl::SimpleHexAtoi(text, &value)) {
    throw FormatError{"expected 16 hexadecimal digits, found " + text};
  }
  return value;
}

Json ShapeToJson(const TensorShape& shape) {
  if (shape.is_vector) return Json::array({shape.cols});
  return Json::array({shape.rows, shape.cols});
}

TensorShape ReadShape(const Json& json) {
  TensorShape shape = {.rows = 1, .is_vector = json.size() == 1};
  if (!json.is_array() || json.empty() || json.size() > 2) {
    throw FormatError{"expected a shape of one or two dims"};
  }
  if (!shape.is_vector) shape.rows = ReadInt(json[0]);
  shape.cols = ReadInt(json.back());
  int64_t bytes = sizeof(float);
  if (shape.rows < 0 || shape.cols < 0 ||
      __builtin_mul_overflow(bytes, shape.rows, &bytes) ||
      __builtin_mul_overflow(bytes, shape.cols, &bytes)) {
    throw FormatError{"impossible shape " + JsonText(json)};
  }
  return shape;
}

Json PieceToJson(const ManifestPiece& piece) {
  const ParameterBox& box = piece.run.box;
  Json checksums = Json::array();
  for (const uint64_t checksum : piece.checksums) {
    checksums.push_back(Hex(checksum));
  }
  return {{"tensor", piece.tensor},
          {"rows", {box.row_begin, box.row_end}},
          {"cols", {box.col_begin, box.col_end}},
          {"elements", {piece.run.begin, piece.run.end}},
          {"offset", piece.offset},
          {"checksums", std::move(checksums)}};
}

ManifestPiece ReadPiece(const Json& json) {
  ManifestPiece piece;
  piece.tensor = json.at("tensor").get<std::string>();
  piece.run.box = {.row_begin = ReadInt(json.at("rows").at(0)),
                   .row_end = ReadInt(json.at("rows").at(1)),
                   .col_begin = ReadInt(json.at("cols").at(0)),
                   .col_end = ReadInt(json.at("cols").at(1))};
  piece.run.begin = ReadInt(json.at("elements").at(0));
  piece.run.end = ReadInt(json.at("elements").at(1));
  piece.offset = ReadInt(json.at("offset"));
  for (const Json& checksum : json.at("checksums")) {
    piece.checksums.push_back(ReadHex(checksum));
  }
  return piece;
}

Json FileToJson(const ManifestFile& file) {
  Json json = {{"file", file.name},
               {"rank", ToInt(file.rank)},
               {"step", file.step},
               {"generation", ToInt(file.generation)},
               {"bytes", file.bytes},
               {"header_bytes", file.header_bytes},
               {"header_checksum", Hex(file.header_checksum)}};
  if (!file.hosts.empty()) json["hosts"] = file.hosts;
  Json& tensors = json["tensors"] = Json::object();
  for (const auto& [name, shape] : file.shapes) {
    tensors.push_back({name, ShapeToJson(shape)});
  }
  Json& pieces = json["pieces"] = Json::array();
  for (const ManifestPiece& piece : file.pieces) {
    pieces.push_back(PieceToJson(piece));
  }
  return json;
}

// Checks what follows from the file alone: every byte of it is header or
// belongs to exactly one piece, and every piece is a run of a known tensor.
void CheckFile(const ManifestFile& file) {
  if (file.name.empty() || absl::StrContains(file.name, "/") ||
      absl::StartsWith(file.name, ".")) {
    throw FormatError{"bad file name " + file.name};
  }
  if (file.header_bytes < 0 || file.header_bytes > kMaxSafetensorsHeaderBytes) {
    throw FormatError{absl::StrCat(file.name, ": header_bytes is ",
                                   file.header_bytes, ", expected 0 to ",
                                   kMaxSafetensorsHeaderBytes)};
  }
  int64_t end = file.header_bytes;
  for (const ManifestPiece& piece : file.pieces) {
    const auto shape = file.shapes.find(piece.tensor);
    if (shape == file.shapes.end() ||
        !IsValidRun(piece.run, shape->second.rows, shape->second.cols)) {
      throw FormatError{file.name + ": a piece is outside " + piece.tensor};
    }
    const int64_t num_chunks = (piece.bytes() + kChunkBytes - 1) / kChunkBytes;
    if (piece.offset != end ||
        static_cast<int64_t>(piece.checksums.size()) != num_chunks ||
        __builtin_add_overflow(end, piece.bytes(), &end)) {
      throw FormatError{file.name + ": pieces of " + piece.tensor +
                        " do not follow each other"};
    }
  }
  if (end != file.bytes) {
    throw FormatError{file.name + ": pieces do not fill the file"};
  }
}

ManifestFile ReadFileEntry(const Json& json) {
  ManifestFile file;
  file.name = json.at("file").get<std::string>();
  file.rank = Rank{ReadInt32(json.at("rank"))};
  file.step = ReadInt(json.at("step"));
  file.generation = Generation{ReadInt(json.at("generation"))};
  file.bytes = ReadInt(json.at("bytes"));
  file.header_bytes = ReadInt(json.at("header_bytes"));
  file.header_checksum = ReadHex(json.at("header_checksum"));
  if (json.contains("hosts")) {
    file.hosts = json.at("hosts").get<std::vector<std::string>>();
  }
  for (const auto& [name, shape] : json.at("tensors").items()) {
    file.shapes[name] = ReadShape(shape);
  }
  for (const Json& piece : json.at("pieces")) {
    file.pieces.push_back(ReadPiece(piece));
  }
  CheckFile(file);
  return file;
}

Json LayoutToJson(const Layout& layout) {
  Json json = {{"pipeline", layout.pipeline},
               {"data", layout.data},
               {"tensor", layout.tensor},
               {"micro_batch", layout.micro_batch},
               {"num_microbatches", layout.num_microbatches},
               {"zero", layout.zero}};
  if (layout.data_groups > 1) json["data_groups"] = layout.data_groups;
  if (layout.is_uneven()) {
    json["extra_microbatches"] = layout.extra_microbatches;
  }
  return json;
}

// Reads a count of at least one and multiplies `total` by it. Throws
// FormatError if the product does not fit 32 bits.
int32_t ReadCount(const Json& json, const char* key, int32_t* total) {
  const int32_t count = ReadInt32(json.at(key));
  if (count < 1) {
    throw FormatError{absl::StrCat("layout.", key,
                                   ": expected an integer of at least 1, "
                                   "found ",
                                   count)};
  }
  if (__builtin_mul_overflow(*total, count, total)) {
    throw FormatError{
        absl::StrCat("layout.", key, ": ", count, " is too large")};
  }
  return count;
}

Layout ReadLayout(const Json& json) {
  int32_t num_ranks = 1;
  int32_t global_batch = 1;
  Layout layout;
  layout.pipeline = ReadCount(json, "pipeline", &num_ranks);
  layout.tensor = ReadCount(json, "tensor", &num_ranks);
  layout.data = ReadCount(json, "data", &num_ranks);
  layout.micro_batch = ReadCount(json, "micro_batch", &global_batch);
  layout.num_microbatches = ReadCount(json, "num_microbatches", &global_batch);
  if (json.contains("extra_microbatches")) {
    layout.extra_microbatches = ReadInt32(json.at("extra_microbatches"));
    if (layout.extra_microbatches < 0 ||
        layout.extra_microbatches >= layout.data) {
      throw FormatError{absl::StrCat(
          "layout.extra_microbatches: expected 0 to ", layout.data - 1,
          ", one less than data, found ", layout.extra_microbatches)};
    }
  }
  int32_t extra = 0;
  if (__builtin_mul_overflow(global_batch, layout.data, &global_batch) ||
      __builtin_mul_overflow(layout.micro_batch, layout.extra_microbatches,
                             &extra) ||
      __builtin_add_overflow(global_batch, extra, &global_batch)) {
    throw FormatError{"layout: the global batch is too large"};
  }
  layout.zero = ReadInt32(json.at("zero"));
  if (layout.zero < 0 || layout.zero > 3) {
    throw FormatError{
        absl::StrCat("layout.zero: expected 0 to 3, found ", layout.zero)};
  }
  if (json.contains("data_groups")) {
    layout.data_groups = ReadInt32(json.at("data_groups"));
    if (layout.data_groups < 1 || layout.data % layout.data_groups != 0) {
      throw FormatError{
          absl::StrCat("layout.data_groups: expected a divisor of data, ",
                       layout.data, ", found ", layout.data_groups)};
    }
  }
  return layout;
}

CheckpointInfo ReadInfo(const Json& json) {
  CheckpointInfo info;
  info.step = ReadInt(json.at("step"));
  info.generation = Generation{ReadInt(json.at("generation"))};
  info.seed = json.at("seed").get<uint64_t>();
  info.samples_consumed = ReadInt(json.at("samples_consumed"));
  info.layout = ReadLayout(json.at("layout"));
  info.job_yaml = json.at("job_yaml").get<std::string>();
  return info;
}

// Runs `read` on the parsed text; the door behind which JSON exceptions stay.
template <typename Read>
auto Parse(absl::string_view text, Read read)
    -> absl::StatusOr<decltype(read(std::declval<const Json&>()))> {
  ASSIGN_OR_RETURN(const Json json, ParseOrderedJson(text));
  try {
    return read(json);
  } catch (const FormatError& error) {
    return absl::InvalidArgumentError(error.what);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, " is damaged: ", what,
                   ". Use another checkpoint or restore this file."));
}

}  // namespace

bool IsOptimizerState(const std::string& tensor) {
  return tensor.ends_with(".exp_avg") || tensor.ends_with(".exp_avg_sq");
}

uint64_t Checksum(const void* data, int64_t num_bytes) {
  return XXH3_64bits(data, static_cast<size_t>(num_bytes));
}

std::string PlacesText(const ManifestFile& file) {
  if (file.hosts.empty()) return "";
  return absl::StrCat(" on ", absl::StrJoin(file.hosts, " and "));
}

std::string EncodePart(const ManifestFile& file) {
  return JsonText(FileToJson(file));
}

absl::StatusOr<ManifestFile> ParsePart(absl::string_view text) {
  auto file = Parse(text, ReadFileEntry);
  if (file.ok()) return file;
  return absl::InvalidArgumentError(absl::StrCat(
      "a rank's checkpoint entry is malformed: ", file.status().message()));
}

absl::StatusOr<Manifest> JoinParts(const CheckpointInfo& info,
                                   std::vector<ManifestFile> files) {
  Manifest manifest = {.info = info, .files = std::move(files)};
  std::map<std::string, std::vector<BoxRun>> runs;
  std::map<std::string, Rank> ranks_by_file;
  for (const ManifestFile& file : manifest.files) {
    if (file.step != info.step || file.generation != info.generation) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.name, " belongs to step ", file.step, " of generation ",
          ToInt(file.generation), ", the checkpoint is of step ", info.step,
          " of generation ", ToInt(info.generation)));
    }
    if (!ranks_by_file.emplace(file.name, file.rank).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, " is listed twice"));
    }
    for (const auto& [name, shape] : file.shapes) {
      const auto known = manifest.shapes.emplace(name, shape).first;
      if (!(known->second == shape)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "ranks disagree on the shape of ", name, " (see ", file.name, ")"));
      }
    }
    for (const ManifestPiece& piece : file.pieces) {
      runs[piece.tensor].push_back(piece.run);
    }
  }
  for (const auto& [name, shape] : manifest.shapes) {
    RETURN_IF_ERROR(CheckExactCover(name, shape.rows, shape.cols, runs[name]));
  }
  return manifest;
}

std::string EncodeManifest(const Manifest& manifest) {
  const CheckpointInfo& info = manifest.info;
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"step", info.step},
               {"generation", ToInt(info.generation)},
               {"seed", info.seed},
               {"samples_consumed", info.samples_consumed},
               {"layout", LayoutToJson(info.layout)},
               {"job_yaml", info.job_yaml}};
  Json& files = json["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back(FileToJson(file));
  }
  std::string text = JsonText(json);
  text.pop_back();  // The closing brace comes after the checksum.
  return absl::StrCat(
      text, kChecksumKey,
      Hex(Checksum(text.data(), static_cast<int64_t>(text.size()))), "\"}\n");
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text,
                                       const std::string& path) {
  // The end of the text has a fixed form and a known length, so that a flip in
  // any byte, the checksum's own included, shows.
  constexpr int64_t kTailBytes =
      static_cast<int64_t>(sizeof(kChecksumKey)) - 1 + kHexDigits + 3;
  const int64_t body_bytes = static_cast<int64_t>(text.size()) - kTailBytes;
  if (body_bytes < 0) return Damaged(path, "it is too short");
  const absl::string_view body = text.substr(0, body_bytes);
  const std::string tail = absl::StrCat(
      kChecksumKey, Hex(Checksum(body.data(), body_bytes)), "\"}\n");
  if (text.substr(body_bytes) != tail) {
    return Damaged(path, "its checksum does not match its content");
  }
  struct Content {
    int64_t version;
    CheckpointInfo info;
    std::vector<ManifestFile> files;
  };
  absl::StatusOr<Content> content = Parse(text, [](const Json& json) {
    if (json.at("format") != kFormat) throw FormatError{"unknown format"};
    Content content = {.version = ReadInt(json.at("version"))};
    if (content.version != kVersion) return content;
    content.info = ReadInfo(json);
    for (const Json& file : json.at("files")) {
      content.files.push_back(ReadFileEntry(file));
    }
    return content;
  });
  if (!content.ok()) return Damaged(path, content.status().message());
  if (content->version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has format version ", content->version, ", expected ", kVersion,
        ". Read it with the release of Millrace that wrote it."));
  }
  auto manifest = JoinParts(content->info, std::move(content->files));
  if (!manifest.ok()) return Damaged(path, manifest.status().message());
  return manifest;
}

}  // namespace millrace
