#include "tests/fault/state_fixture.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "planner/program/parameters.h"

namespace millrace {
namespace {

// Calls visit(element of the piece, row, col) for each.
template <typename Visit>
void ForEachElement(const StatePiece& piece, Visit visit) {
  const int64_t width = piece.box.col_end - piece.box.col_begin;
  for (int64_t i = piece.begin; i < piece.end; ++i) {
    visit(piece.data[i - piece.begin], piece.box.row_begin + i / width,
          piece.box.col_begin + i % width);
  }
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t TensorHash(const std::string& tensor, int64_t salt) {
  uint64_t hash = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(salt + 1);
  for (const char c : tensor) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  }
  return hash;
}

float ValueOf(uint64_t tensor_hash, int64_t row, int64_t col) {
  uint64_t hash = tensor_hash ^ (static_cast<uint64_t>(row) << 32 |
                                 static_cast<uint64_t>(col));
  hash = (hash ^ (hash >> 31)) * 0xBF58476D1CE4E5B9u;
  hash ^= hash >> 29;
  // Exponents 126 and 127: finite, normal, not zero.
  const uint32_t bits =
      (static_cast<uint32_t>(hash) & 0x80FFFFFFu) | 0x3F000000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

ModelSpec TinyModel() {
  return {.vocab_size = 44,
          .hidden = 24,
          .num_layers = 4,
          .num_heads = 4,
          .num_kv_heads = 4,
          .head_dim = 6,
          .ffn_hidden = 20,
          .sequence_length = 8};
}

std::vector<RankState> MakeState(const ModelSpec& model, const Layout& layout,
                                 bool master) {
  std::vector<RankState> state(static_cast<size_t>(layout.num_ranks()));
  for (int32_t i = 0; i < layout.num_ranks(); ++i) {
    RankState& rank = state[i];
    rank.rank = Rank{i};
    const MeshCoordinates coordinates = CoordinatesOf(layout, rank.rank);
    const StageParameters parameters =
        BuildStageParameters(model, layout, coordinates.pipeline);
    rank.parameters.resize(master || layout.shards_parameters()
                               ? parameters.num_optimizer_elements
                               : parameters.num_elements);
    rank.exp_avg.resize(parameters.num_optimizer_elements);
    rank.exp_avg_sq.resize(parameters.num_optimizer_elements);
    rank.pieces = DescribeState(parameters, layout, coordinates,
                                {.parameters = rank.parameters.data(),
                                 .exp_avg = rank.exp_avg.data(),
                                 .exp_avg_sq = rank.exp_avg_sq.data(),
                                 .master = master});
  }
  return state;
}

float ElementValue(const std::string& tensor, int64_t row, int64_t col,
                   int64_t salt) {
  return ValueOf(TensorHash(tensor, salt), row, col);
}

void FillState(std::vector<RankState>& state, int64_t salt) {
  for (RankState& rank : state) {
    for (StatePiece& piece : rank.pieces) {
      const uint64_t hash = TensorHash(piece.tensor, salt);
      ForEachElement(piece, [&](float& element, int64_t row, int64_t col) {
        element = ValueOf(hash, row, col);
      });
    }
  }
}

int64_t CountWrong(const std::vector<RankState>& state, int64_t salt) {
  int64_t num_wrong = 0;
  for (const RankState& rank : state) {
    for (const StatePiece& piece : rank.pieces) {
      const uint64_t hash = TensorHash(piece.tensor, salt);
      ForEachElement(piece, [&](float& element, int64_t row, int64_t col) {
        num_wrong += Bits(element) != Bits(ValueOf(hash, row, col));
      });
    }
  }
  return num_wrong;
}

std::vector<Layout> AllLayouts(int32_t max_ranks) {
  std::vector<Layout> layouts;
  for (const int32_t pipeline : {1, 2, 4}) {
    for (const int32_t tensor : {1, 2, 4}) {
      for (const int32_t data : {1, 2, 4}) {
        for (const int32_t zero : {0, 1, 2, 3}) {
          if (pipeline * tensor * data > max_ranks) continue;
          layouts.push_back({.pipeline = pipeline,
                             .data = data,
                             .tensor = tensor,
                             .micro_batch = 1,
                             .num_microbatches = 8 / data,
                             .zero = zero});
          if (data < 4) continue;
          layouts.push_back(layouts.back());
          layouts.back().data_groups = 2;
        }
      }
    }
  }
  return layouts;
}

CheckpointInfo InfoOf(const Layout& layout, int64_t step, int64_t generation) {
  return {.step = step,
          .generation = Generation{generation},
          .seed = 0xFFFF'FFFF'FFFF'FFFEu,
          .samples_consumed = step * 8,
          .layout = layout,
          .job_yaml = "name: \"tiny\"\n"};
}

absl::Status Save(FileSystem& files, const std::string& directory,
                  const CheckpointInfo& info,
                  const std::vector<RankState>& state, int32_t keep) {
  std::vector<std::string> parts;
  for (const RankState& rank : state) {
    ASSIGN_OR_RETURN(
        std::string part,
        WriteCheckpointPart(files, directory, info, rank.rank, rank.pieces));
    parts.push_back(std::move(part));
  }
  return CommitCheckpoint(files, directory, info, parts, keep);
}

}  // namespace millrace
