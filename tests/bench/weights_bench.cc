// How fast ranks load a Hugging Face folder, against a plain read of the same
// bytes from the page cache.
//
//   weights_bench FOLDER [LAYERS [TENSOR PIPELINE DATA ZERO]]
//
// Makes a model of Llama-3.1-8B's widths with so many layers in FOLDER/model
// (bf16, shards of 1 GB) unless it is there, and loads it with a process a
// rank, all at once, into memory that was touched before, as arenas are. First
// every element is compared with what was written. Then it prints the best of
// three loads and of three plain reads: each process reads its share of the
// files' bytes in pieces of a megabyte into memory of that size, with as many
// threads. Loading writes twice as many bytes as it reads, since masters are
// fp32. Moments are left out: those of a CPU's trainer are zero beforehand.

#include <algorithm>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "fault/manifest.h"
#include "fault/weight_folder.h"
#include "planner/layout/layout.h"
#include "planner/program/parameters.h"
#include "tests/bench/timed_ranks.h"

namespace millrace {
namespace {

constexpr int kRepetitions = 3;
constexpr int64_t kReadBytes = 1 << 20;
constexpr int64_t kShardBytes = 1'000'000'000;

ModelSpec BenchModel(int64_t num_layers) {
  return {.vocab_size = 128256,
          .hidden = 4096,
          .num_layers = num_layers,
          .num_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .ffn_hidden = 14336,
          .sequence_length = 8192};
}

// The value of element `idx` of the `tensor`-th parameter: exact in bf16.
float BenchValue(int64_t tensor, int64_t idx) {
  return static_cast<float>((tensor * 31 + idx * 7 + (idx >> 9)) & 127);
}

absl::Status WriteBenchFolder(const ModelSpec& model,
                              const std::string& folder) {
  FileSystem& files = *PosixFileSystem();
  if (files.Exists(absl::StrCat(folder, "/", kWeightIndex))) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(files.MakeDirectories(folder));
  const std::vector<Parameter> parameters = ModelParameters(model);
  std::string map;
  for (size_t begin = 0; begin < parameters.size();) {
    std::vector<SafetensorsTensor> tensors;
    int64_t bytes = 0;
    size_t end = begin;
    const std::string name = absl::StrCat("model-", begin, ".safetensors");
    for (; end < parameters.size() && (tensors.empty() || bytes < kShardBytes);
         ++end) {
      const Parameter& parameter = parameters[end];
      SafetensorsTensor tensor{.name = parameter.name,
                               .type = ElementType::kBf16};
      if (!parameter.is_vector) tensor.shape.push_back(parameter.rows);
      tensor.shape.push_back(parameter.cols);
      bytes += tensor.num_bytes();
      tensors.push_back(tensor);
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", parameter.name,
                      "\":\"", name, "\"");
    }
    ASSIGN_OR_RETURN(
        SafetensorsWriter writer,
        SafetensorsWriter::Create(files, absl::StrCat(folder, "/", name),
                                  tensors, {{"format", "pt"}}));
    std::vector<float> values;
    for (; begin < end; ++begin) {
      values.resize(parameters[begin].rows * parameters[begin].cols);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] =
            BenchValue(static_cast<int64_t>(begin), static_cast<int64_t>(i));
      }
      RETURN_IF_ERROR(
          writer.Append(values.data(), static_cast<int64_t>(values.size())));
    }
    RETURN_IF_ERROR(writer.Finish());
  }
  ASSIGN_OR_RETURN(const auto index,
                   files.Create(absl::StrCat(folder, "/", kWeightIndex)));
  const std::string text = absl::StrCat("{\"weight_map\":{", map, "}}");
  RETURN_IF_ERROR(
      index->Append(text.data(), static_cast<int64_t>(text.size())));
  return index->Close();
}

// The elements of the pieces that do not hold what was written.
int64_t CountWrongElements(const ModelSpec& model,
                           const std::vector<StatePiece>& pieces) {
  std::map<std::string, int64_t> idx_by_name;
  for (const Parameter& parameter : ModelParameters(model)) {
    idx_by_name.emplace(parameter.name, idx_by_name.size());
  }
  int64_t num_wrong = 0;
  for (const StatePiece& piece : pieces) {
    const int64_t tensor = idx_by_name.at(piece.tensor);
    const int64_t width = piece.box.col_end - piece.box.col_begin;
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      const int64_t row = piece.box.row_begin + i / width;
      const int64_t col = piece.box.col_begin + i % width;
      const float expected = BenchValue(tensor, row * piece.cols + col);
      num_wrong += piece.data[i - piece.begin] != expected;
    }
  }
  return num_wrong;
}

struct RankMemory {
  std::vector<float> parameters;
  std::vector<StatePiece> pieces;
};

void FillMemory(const ModelSpec& model, const Layout& layout, Rank rank,
                RankMemory& memory) {
  const MeshCoordinates coordinates = CoordinatesOf(layout, rank);
  const StageParameters stage =
      BuildStageParameters(model, layout, coordinates.pipeline);
  // As where GPUs keep masters: only what the rank's optimizer updates.
  const int64_t count = stage.num_optimizer_elements;
  memory.parameters.assign(count, 1);
  // Moments are described, but neither held nor loaded.
  memory.pieces = DescribeState(stage, layout, coordinates,
                                {.parameters = memory.parameters.data(),
                                 .exp_avg = memory.parameters.data(),
                                 .exp_avg_sq = memory.parameters.data(),
                                 .master = true});
  std::erase_if(memory.pieces, [](const StatePiece& piece) {
    return IsOptimizerState(piece.tensor);
  });
}

absl::Status ReadPlainly(const std::string& folder, int rank, int num_ranks,
                         std::vector<char>& memory) {
  FileSystem& files = *PosixFileSystem();
  std::vector<std::unique_ptr<RandomAccessFile>> open;
  struct Piece {
    const RandomAccessFile* file;
    int64_t offset, bytes;
  };
  std::vector<Piece> pieces;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    ASSIGN_OR_RETURN(auto file, files.Open(absl::StrCat(folder, "/", name)));
    const int64_t share = file->size() / num_ranks;
    for (int64_t at = 0; at < share; at += kReadBytes) {
      pieces.push_back(
          {file.get(), rank * share + at, std::min(kReadBytes, share - at)});
    }
    open.push_back(std::move(file));
  }
  return ParallelFor(static_cast<int64_t>(pieces.size()), NumCopyThreads(),
                     [&](int64_t i) {
                       const Piece& piece = pieces[i];
                       return piece.file->Read(piece.offset, piece.bytes,
                                               memory.data() + i * kReadBytes);
                     });
}

absl::Status RunBench(const std::string& root, int64_t num_layers,
                      const Layout& layout) {
  const ModelSpec model = BenchModel(num_layers);
  const std::string folder = absl::StrCat(root, "/model");
  RETURN_IF_ERROR(WriteBenchFolder(model, folder));
  ASSIGN_OR_RETURN(const WeightFolder weights,
                   WeightFolder::Open(*PosixFileSystem(), folder));
  RETURN_IF_ERROR(weights.CheckIsOfModel(model));
  const int num_ranks = layout.num_ranks();
  const auto bytes = static_cast<double>(weights.num_bytes());

  RankMemory memory;
  RankWork load = {
      .prepare =
          [&](int rank) { FillMemory(model, layout, Rank{rank}, memory); },
      .work = [&](int) { return weights.Load(memory.pieces); },
      .check = [&](int) -> absl::Status {
        const int64_t wrong = CountWrongElements(model, memory.pieces);
        if (wrong == 0) return absl::OkStatus();
        return absl::InternalError(absl::StrCat(wrong, " elements are wrong"));
      }};
  TimeProcesses(num_ranks, load);
  std::cout << "verified: every element of " << num_ranks << " ranks ("
            << LayoutToString(layout) << ")" << std::endl;
  load.check = [](int) { return absl::OkStatus(); };

  std::vector<char> plain;
  const RankWork read = {
      .prepare = [&](int) { plain.assign(bytes / num_ranks + (32 << 20), 1); },
      .work =
          [&](int rank) { return ReadPlainly(folder, rank, num_ranks, plain); },
      .check = [](int) { return absl::OkStatus(); }};
  double load_s = std::numeric_limits<double>::infinity();
  double read_s = load_s;
  for (int i = 0; i < kRepetitions; ++i) {
    load_s = std::min(load_s, TimeProcesses(num_ranks, load));
    read_s = std::min(read_s, TimeProcesses(num_ranks, read));
  }
  std::cout << absl::StrFormat(
      "%.2f GB of bf16 on %d ranks: loaded in %.2f s, %.2f GB/s; plain read "
      "%.2f s, %.2f GB/s: %.0f %% of it\n",
      bytes / 1e9, num_ranks, load_s, bytes / 1e9 / load_s, read_s,
      bytes / 1e9 / read_s, 100 * read_s / load_s);
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  int32_t numbers[] = {4, 4, 1, 1, 0};
  bool is_right = argc >= 2 && (argc <= 3 || argc == 7);
  for (int i = 2; i < argc && is_right; ++i) {
    is_right = absl::SimpleAtoi(argv[i], &numbers[i - 2]) &&
               numbers[i - 2] >= (i == 6 ? 0 : 1);
  }
  if (!is_right) {
    std::cerr << "usage: weights_bench FOLDER [LAYERS [TENSOR PIPELINE DATA "
                 "ZERO]]\n";
    return 2;
  }
  const absl::Status status = millrace::RunBench(argv[1], numbers[0],
                                                 {.pipeline = numbers[2],
                                                  .data = numbers[3],
                                                  .tensor = numbers[1],
                                                  .zero = numbers[4]});
  if (!status.ok()) std::cerr << "weights_bench: " << status << "\n";
  return status.ok() ? 0 : 1;
}
