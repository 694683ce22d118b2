#include "fault/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/manifest.h"
#include "fault/reshard.h"
#include "fault/safetensors.h"
#include "fault/weight_export.h"
#include "planner/program/parameters.h"
#include "tests/fault/state_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr char kDirectory[] = "run/checkpoints";

void SaveNew(FileSystem& files, const Layout& layout, int64_t step,
             int32_t keep = 100, int64_t generation = 1) {
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  FillState(state, step);
  const absl::Status status =
      Save(files, kDirectory, InfoOf(layout, step, generation), state, keep);
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<int64_t> Steps(FileSystem& files) {
  std::vector<int64_t> steps;
  const auto entries = ListCheckpoints(files, kDirectory);
  for (const CheckpointEntry& entry : *entries) {
    steps.push_back(entry.step);
  }
  return steps;
}

// Goal: what any layout wrote, any other loads bit by bit, owned pieces and
// copies, together with the data cursor. Method: every pair of layouts up to
// four ranks, with values that tell each element from all others.
TEST(CheckpointTest, EveryLayoutLoadsEveryOther) {
  const std::vector<Layout> layouts = AllLayouts(4);
  for (const Layout& written : Sampled(layouts, 7)) {
    FaultyFileSystem files;
    SaveNew(files, written, 7);
    const std::string path = ListCheckpoints(files, kDirectory)->front().path;
    ASSERT_TRUE(VerifyCheckpoint(files, path).ok());
    for (const Layout& loaded : Sampled(layouts, 5)) {
      SCOPED_TRACE(LayoutToString(written) + " -> " + LayoutToString(loaded));
      std::vector<RankState> state = MakeState(TinyModel(), loaded);
      for (const RankState& rank : state) {
        const auto info = LoadCheckpoint(files, path, rank.pieces);
        ASSERT_TRUE(info.ok()) << info.status();
        EXPECT_EQ(info->step, 7);
        EXPECT_EQ(info->samples_consumed, 56);
        EXPECT_EQ(info->seed, 0xFFFF'FFFF'FFFF'FFFEu);
        EXPECT_EQ(info->layout, written);
        EXPECT_EQ(info->job_yaml, "name: \"tiny\"\n");
      }
      ASSERT_EQ(CountWrong(state, 7), 0);
    }
  }
}

// Goal: the same for eight ranks, against both ends of the range. Method: each
// layout of eight to one rank and back.
TEST(CheckpointTest, EightRanksToOneAndBack) {
  const Layout single;
  for (const Layout& layout : Sampled(AllLayouts(8), 3)) {
    if (layout.num_ranks() != 8) continue;
    SCOPED_TRACE(LayoutToString(layout));
    for (const auto& [from, to] :
         {std::pair{layout, single}, std::pair{single, layout}}) {
      FaultyFileSystem files;
      SaveNew(files, from, 2);
      const std::string path = ListCheckpoints(files, kDirectory)->front().path;
      std::vector<RankState> state = MakeState(TinyModel(), to);
      for (const RankState& rank : state) {
        ASSERT_TRUE(LoadCheckpoint(files, path, rank.pieces).ok());
      }
      ASSERT_EQ(CountWrong(state, 2), 0);
    }
  }
}

// Goal: a piece of several chunks, whose chunk borders fall inside rows, loads
// into other boxes. Method: one tensor of 13 MiB cut by columns and by flat
// runs, loaded as rows.
TEST(CheckpointTest, LoadsAcrossChunkBorders) {
  constexpr int64_t kRows = 1037, kCols = 3301;
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.5f * i;
  // The left 1000 columns as one piece, the rest as two runs of a box.
  const ParameterBox left = {0, kRows, 0, 1000};
  const ParameterBox right = {0, kRows, 1000, kCols};
  std::vector<float> left_values, right_values;
  for (int64_t row = 0; row < kRows; ++row) {
    const float* data = values.data() + row * kCols;
    left_values.insert(left_values.end(), data, data + 1000);
    right_values.insert(right_values.end(), data + 1000, data + kCols);
  }
  auto piece = [&](const ParameterBox& box, int64_t begin, int64_t end,
                   float* data) {
    return StatePiece{"t", kRows, kCols, false, box, begin, end, data, true};
  };
  const int64_t cut = 1'234'567;
  std::vector<RankState> state(2);
  state[0].rank = Rank{0};
  state[0].pieces = {
      piece(right, cut, right.num_elements(), right_values.data() + cut)};
  state[1].rank = Rank{1};
  state[1].pieces = {piece(left, 0, left.num_elements(), left_values.data()),
                     piece(right, 0, cut, right_values.data())};
  FaultyFileSystem files;
  const Layout layout = {.tensor = 2};
  ASSERT_TRUE(Save(files, kDirectory, InfoOf(layout, 1), state, 1).ok());

  std::vector<float> loaded(values.size());
  const ParameterBox whole = {0, kRows, 0, kCols};
  std::vector<StatePiece> wanted;
  for (int64_t begin = 0; begin < kRows * kCols; begin += 700'001) {
    wanted.push_back(piece(whole, begin,
                           std::min(begin + 700'001, kRows * kCols),
                           loaded.data() + begin));
  }
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  ASSERT_TRUE(LoadCheckpoint(files, path, wanted).ok());
  EXPECT_EQ(loaded, values);
}

// Memory that takes copies when their lane waits for them, as a device may:
// what is read into a buffer before then would come out wrong.
class LateTarget : public LoadTarget {
 public:
  absl::StatusOr<std::unique_ptr<Lane>> OpenLane() override {
    return std::make_unique<LateLane>();
  }

 private:
  class LateLane : public Lane {
   public:
    absl::StatusOr<float*> Buffer() override {
      current_ = 1 - current_;
      Do(copies_[current_]);
      buffers_[current_].resize(kChunkBytes / sizeof(float));
      return buffers_[current_].data();
    }
    absl::Status Copy(float* to, const float* from, int64_t count) override {
      copies_[current_].push_back({to, from, count});
      return absl::OkStatus();
    }
    absl::Status Finish() override {
      for (std::vector<LateCopy>& copies : copies_) Do(copies);
      return absl::OkStatus();
    }

   private:
    struct LateCopy {
      float* to;
      const float* from;
      int64_t count;
    };
    static void Do(std::vector<LateCopy>& copies) {
      for (const LateCopy& copy : copies) {
        std::copy_n(copy.from, copy.count, copy.to);
      }
      copies.clear();
    }
    std::array<std::vector<float>, 2> buffers_;
    std::array<std::vector<LateCopy>, 2> copies_;
    size_t current_ = 0;
  };
};

// Goal: what is loaded to a device's memory is complete when the call returns,
// under another layout too. Method: a target that copies as late as it may.
TEST(CheckpointTest, LoadsToADevice) {
  const Layout written = {.data = 2, .zero = 1};
  FaultyFileSystem files;
  SaveNew(files, written, 7);
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  for (const Layout& loaded : {written, Layout{.tensor = 2}}) {
    std::vector<RankState> state = MakeState(TinyModel(), loaded);
    for (const RankState& rank : state) {
      LateTarget target;
      const auto info = LoadCheckpoint(files, path, rank.pieces, &target);
      ASSERT_TRUE(info.ok()) << info.status();
    }
    EXPECT_EQ(CountWrong(state, 7), 0) << LayoutToString(loaded);
  }
}

// Asks for an end with the first chunk, and counts chunks.
class EndingTarget : public LoadTarget {
 public:
  std::atomic<bool> stop = false;
  std::atomic<int> num_chunks = 0;

  absl::StatusOr<std::unique_ptr<Lane>> OpenLane() override {
    return std::make_unique<EndingLane>(this);
  }

 private:
  class EndingLane : public Lane {
   public:
    explicit EndingLane(EndingTarget* target)
        : target_(*target), buffer_(kChunkBytes / sizeof(float)) {}
    absl::StatusOr<float*> Buffer() override {
      target_.stop = true;
      ++target_.num_chunks;
      return buffer_.data();
    }
    absl::Status Copy(float*, const float*, int64_t) override {
      return absl::OkStatus();
    }
    absl::Status Finish() override { return absl::OkStatus(); }

   private:
    EndingTarget& target_;
    std::vector<float> buffer_;
  };
};

// Goal: a load that is told to stop begins no further chunk, and is an error.
// Method: it is told so in its first chunk.
TEST(CheckpointTest, LoadingStops) {
  FaultyFileSystem files;
  SaveNew(files, {}, 7);
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  const std::vector<RankState> state = MakeState(TinyModel(), {});
  const std::vector<StatePiece>& pieces = state.front().pieces;
  EndingTarget target;
  const auto info = LoadCheckpoint(files, path, pieces, &target, &target.stop);
  EXPECT_EQ(info.status().code(), absl::StatusCode::kAborted) << info.status();
  // Each thread may have begun one.
  EXPECT_LE(target.num_chunks, NumCopyThreads());
  EXPECT_GT(pieces.size(), static_cast<size_t>(NumCopyThreads()));
  EXPECT_EQ(LoadCheckpoint(files, path, pieces, nullptr, &target.stop)
                .status()
                .code(),
            absl::StatusCode::kAborted);
}

// Goal: `keep` holds, remains of saves that never committed go away, and later
// steps of another history stay. Method: leave such remains, commit, list.
TEST(CheckpointTest, KeepsTheNewestAndRemovesRemains) {
  FaultyFileSystem files;
  const Layout layout = {.data = 2, .zero = 1};
  SaveNew(files, layout, 900);
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  ASSERT_TRUE(WriteCheckpointPart(files, kDirectory, InfoOf(layout, 15),
                                  Rank{0}, state[0].pieces)
                  .ok());
  for (const int64_t step : {10, 20, 30}) SaveNew(files, layout, step, 2);
  EXPECT_EQ(Steps(files), (std::vector<int64_t>{900, 30, 20}));
  EXPECT_FALSE(files.Exists("run/checkpoints/step-00000015"));
  EXPECT_FALSE(files.Exists("run/checkpoints/step-00000010"));
}

// Goal: saving a step again, in the same generation or a later one, replaces
// the checkpoint as a whole and never mixes parts. Method: save twice with
// other values, with a stray part of an older generation in the folder.
TEST(CheckpointTest, SavingAStepAgainNeverMixesParts) {
  for (const int64_t generation : {1, 2}) {
    FaultyFileSystem files;
    const Layout layout = {.data = 2};
    SaveNew(files, layout, 5);
    std::vector<RankState> state = MakeState(TinyModel(), layout);
    FillState(state, 77);
    ASSERT_TRUE(
        Save(files, kDirectory, InfoOf(layout, 5, generation), state, 2).ok());
    const std::string path = ListCheckpoints(files, kDirectory)->front().path;
    std::vector<RankState> loaded = MakeState(TinyModel(), layout);
    for (const RankState& rank : loaded) {
      ASSERT_TRUE(LoadCheckpoint(files, path, rank.pieces).ok());
    }
    EXPECT_EQ(CountWrong(loaded, 77), 0);
    EXPECT_EQ(files.List(path)->size(), 3u) << "two parts and a manifest";
  }
}

// Files of memory that flip a bit of `memory` before one operation on them.
class FlippingFiles : public FaultyFileSystem {
 public:
  FlippingFiles(int flip_at, float* memory)
      : operations_left_(flip_at), memory_(memory) {}
  bool has_flipped() const { return operations_left_ < 0; }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(
      const std::string& path) override {
    BeginOperation();
    auto file = FaultyFileSystem::Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<File>(this, *std::move(file));
  }

 private:
  class File : public WritableFile {
   public:
    File(FlippingFiles* files, std::unique_ptr<WritableFile> file)
        : files_(*files), file_(std::move(file)) {}
    absl::Status Append(const void* data, int64_t num_bytes) override {
      files_.BeginOperation();
      return file_->Append(data, num_bytes);
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    FlippingFiles& files_;
    const std::unique_ptr<WritableFile> file_;
  };

  void BeginOperation() {
    if (operations_left_-- != 0) return;
    *memory_ = std::bit_cast<float>(std::bit_cast<uint32_t>(*memory_) ^ 1u);
  }

  int operations_left_;
  float* const memory_;
};

// Goal: a bit that flips in memory after its checksum was taken is never
// restored as if it were right: the part is not that of the checksums, or its
// bytes are not those of its entry, or the bit had been written before. Method:
// flips at every moment of a write, in a piece amid the others; the checkpoint
// is committed all the same and loaded.
TEST(CheckpointTest, FindsBitsThatFlipWhileAPartIsWritten) {
  const Layout layout;
  int num_refused = 0, num_damaged = 0, num_harmless = 0;
  for (int moment = 0;; ++moment) {
    std::vector<RankState> state = MakeState(TinyModel(), layout);
    FillState(state, 7);
    const std::vector<StatePiece> owned = OwnedPieces(state[0].pieces);
    const auto checksums = ChecksumsOf(owned);
    FlippingFiles files(moment, owned[owned.size() / 2].data);
    const CheckpointInfo info = InfoOf(layout, 5);
    const absl::StatusOr<std::string> entry =
        WriteCheckpointPart(files, kDirectory, info, Rank{0}, state[0].pieces);
    ASSERT_TRUE(entry.ok()) << entry.status();
    const bool is_part = IsPartOf(*entry, checksums);
    if (!files.has_flipped()) {
      EXPECT_TRUE(is_part);
      break;
    }
    if (!is_part) {
      ++num_refused;
      continue;
    }
    ASSERT_TRUE(CommitCheckpoint(files, kDirectory, info, {*entry}, 1).ok());
    std::vector<RankState> loaded = MakeState(TinyModel(), layout);
    const absl::Status status =
        LoadCheckpoint(files, ListCheckpoints(files, kDirectory)->front().path,
                       loaded[0].pieces)
            .status();
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      ++num_damaged;
      continue;
    }
    EXPECT_EQ(CountWrong(loaded, 7), 0) << "moment " << moment;
    ++num_harmless;
  }
  EXPECT_GT(num_refused, 1);
  EXPECT_EQ(num_damaged, 1);
  EXPECT_GT(num_harmless, 1);
}

// Goal: the checksums that a part is held against belong to its pieces and no
// others. Method: one checksum wrong, one piece too few, no entry.
TEST(CheckpointTest, TellsWhoseChecksumsAPartHas) {
  FaultyFileSystem files;
  const Layout layout = {.data = 2, .zero = 1};
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  FillState(state, 7);
  const std::string entry = *WriteCheckpointPart(
      files, kDirectory, InfoOf(layout, 5), Rank{1}, state[1].pieces);
  auto checksums = ChecksumsOf(OwnedPieces(state[1].pieces));
  EXPECT_TRUE(IsPartOf(entry, checksums));
  EXPECT_FALSE(IsPartOf(entry, ChecksumsOf(OwnedPieces(state[0].pieces))));
  EXPECT_FALSE(IsPartOf("{}", checksums));
  checksums.back().back() ^= 1;
  EXPECT_FALSE(IsPartOf(entry, checksums));
  checksums.pop_back();
  EXPECT_FALSE(IsPartOf(entry, checksums));
}

// Goal: parts that do not make a whole are refused and nothing is committed.
// Method: a part missing, doubled, of another generation, of another step, of
// another shape, garbled, and gone from disk.
TEST(CheckpointTest, RefusesPartsThatDoNotMakeAWhole) {
  FaultyFileSystem files;
  const Layout layout = {.data = 2, .zero = 1};
  const CheckpointInfo info = InfoOf(layout, 4, 3);
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  auto write = [&](const CheckpointInfo& of, int rank) {
    return *WriteCheckpointPart(files, kDirectory, of, Rank{rank},
                                state[rank].pieces);
  };
  const std::string first = write(info, 0);
  const std::string second = write(info, 1);
  auto commit = [&](const std::vector<std::string>& parts) {
    return CommitCheckpoint(files, kDirectory, info, parts, 2);
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(commit({}).code(), kInvalid);
  EXPECT_EQ(commit({first}).code(), kInvalid);
  EXPECT_THAT(std::string(commit({first}).message()), HasSubstr("missing"));
  EXPECT_EQ(commit({first, second, second}).code(), kInvalid);
  EXPECT_EQ(commit({first, write(InfoOf(layout, 4, 2), 1)}).code(), kInvalid);
  EXPECT_EQ(commit({first, write(InfoOf(layout, 3, 3), 1)}).code(), kInvalid);
  EXPECT_EQ(commit({first, second.substr(0, 100)}).code(), kInvalid);
  EXPECT_EQ(commit({first, "{}"}).code(), kInvalid);

  std::vector<StatePiece> misshapen = state[1].pieces;
  for (StatePiece& piece : misshapen) piece.rows *= 2;
  const std::string wrong_shape =
      *WriteCheckpointPart(files, kDirectory, info, Rank{1}, misshapen);
  EXPECT_EQ(commit({first, wrong_shape}).code(), kInvalid);

  EXPECT_TRUE(Steps(files).empty());
  ASSERT_TRUE(commit({first, second}).ok());
  ASSERT_TRUE(files.Remove("run/checkpoints/step-00000004").ok());
  EXPECT_EQ(commit({first, second}).code(), absl::StatusCode::kNotFound);
}

// Goal: a checkpoint of another model is refused with the tensor's name.
// Method: load with one more layer, and with another hidden size.
TEST(CheckpointTest, RefusesAnotherModel) {
  FaultyFileSystem files;
  SaveNew(files, Layout{}, 1);
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  ModelSpec deeper = TinyModel();
  ++deeper.num_layers;
  ModelSpec wider = TinyModel();
  wider.hidden *= 2;
  for (const auto& [model, tensor] :
       {std::pair{deeper, "model.layers.4."},
        std::pair{wider, "model.embed_tokens.weight"}}) {
    const auto info =
        LoadCheckpoint(files, path, MakeState(model, Layout{}).front().pieces);
    EXPECT_EQ(info.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(info.status().message()), HasSubstr(tensor));
  }
}

// Goal: no directory, no checkpoint and no manifest say so. Method: ask for
// each.
TEST(CheckpointTest, AbsentIsNotFound) {
  FaultyFileSystem files;
  EXPECT_TRUE(ListCheckpoints(files, kDirectory)->empty());
  EXPECT_EQ(FindNewestCheckpoint(files, kDirectory, nullptr).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadCheckpointInfo(files, "nowhere").status().code(),
            absl::StatusCode::kNotFound);
}

// Goal: the export holds each parameter once, whole, under its Hugging Face
// name and shape, and no optimizer state. Method: export from a sharded layout
// and compare every element.
TEST(CheckpointTest, ExportsWholeParameters) {
  FaultyFileSystem files;
  SaveNew(files, {.pipeline = 2, .data = 2, .tensor = 2, .zero = 1}, 6);
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  ASSERT_TRUE(ExportWeightFile(files,
                               {.checkpoint = path, .type = ElementType::kFp32},
                               "model.safetensors")
                  .ok());
  const auto file = files.Open("model.safetensors");
  ASSERT_TRUE(file.ok());
  const auto header = ReadSafetensorsHeader(**file, "model.safetensors");
  ASSERT_TRUE(header.ok()) << header.status();
  std::map<std::string, SafetensorsEntry> entries;
  for (const SafetensorsEntry& entry : header->entries) {
    entries[entry.tensor.name] = entry;
  }
  const std::vector<Parameter> parameters = ModelParameters(TinyModel());
  ASSERT_EQ(entries.size(), parameters.size());
  for (const Parameter& parameter : parameters) {
    ASSERT_TRUE(entries.contains(parameter.name)) << parameter.name;
    const SafetensorsEntry& entry = entries[parameter.name];
    const std::vector<int64_t> shape =
        parameter.is_vector
            ? std::vector<int64_t>{parameter.cols}
            : std::vector<int64_t>{parameter.rows, parameter.cols};
    EXPECT_EQ(entry.tensor.shape, shape);
    std::vector<float> values(parameter.rows * parameter.cols);
    ASSERT_TRUE(
        (*file)
            ->Read(entry.offset, values.size() * sizeof(float), values.data())
            .ok());
    for (int64_t i = 0; i < parameter.rows * parameter.cols; ++i) {
      ASSERT_EQ(values[i], ElementValue(parameter.name, i / parameter.cols,
                                        i % parameter.cols, 6));
    }
  }
}

// Goal: a reshard writes what a run under the new layout would have written.
// Method: reshard to an even and an uneven layout, load under a third layout,
// compare; then into a folder that has the step, and to a layout the model
// cannot have.
TEST(CheckpointTest, Reshards) {
  FaultyFileSystem files;
  SaveNew(files, {.data = 2, .tensor = 2, .num_microbatches = 4}, 9);
  const std::string path = ListCheckpoints(files, kDirectory)->front().path;
  const Layout even = {
      .pipeline = 4, .data = 2, .num_microbatches = 4, .zero = 1};
  const Layout uneven = {
      .data = 3, .num_microbatches = 2, .extra_microbatches = 2, .zero = 1};
  for (const Layout& layout : {even, uneven}) {
    SCOPED_TRACE(LayoutToString(layout));
    const std::string folder =
        absl::StrCat("resharded-", layout.extra_microbatches);
    const auto entry =
        ReshardCheckpoint(files, path, folder, TinyModel(), layout);
    ASSERT_TRUE(entry.ok()) << entry.status();
    EXPECT_EQ(ReadManifest(files, entry->path)->files.size(),
              static_cast<size_t>(layout.num_ranks()));
    EXPECT_EQ(ReadCheckpointInfo(files, entry->path)->layout, layout);
    ASSERT_TRUE(VerifyCheckpoint(files, entry->path).ok());
    std::vector<RankState> state = MakeState(TinyModel(), {.tensor = 4});
    for (const RankState& rank : state) {
      ASSERT_TRUE(LoadCheckpoint(files, entry->path, rank.pieces).ok());
    }
    EXPECT_EQ(CountWrong(state, 9), 0);
    EXPECT_EQ(ReshardCheckpoint(files, path, folder, TinyModel(), layout)
                  .status()
                  .code(),
              absl::StatusCode::kAlreadyExists);
  }
  EXPECT_EQ(ReshardCheckpoint(files, path, "other", TinyModel(), {.tensor = 3})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

// Goal: the machine's own file system does what the one in memory does. Method:
// save twice, find, load and remove in a temporary folder.
TEST(CheckpointTest, WorksOnTheMachinesFiles) {
  FileSystem& files = *PosixFileSystem();
  const std::string directory = ::testing::TempDir() + "millrace_checkpoint_" +
                                std::to_string(::getpid()) + "/deep/down";
  const Layout layout = {.data = 2, .tensor = 2, .zero = 1};
  std::vector<RankState> state = MakeState(TinyModel(), layout);
  for (const int64_t step : {1, 2}) {
    FillState(state, step);
    const absl::Status status =
        Save(files, directory, InfoOf(layout, step), state, 1);
    ASSERT_TRUE(status.ok()) << status;
  }
  std::vector<std::string> skipped;
  const auto newest = FindNewestCheckpoint(files, directory, &skipped);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->step, 2);
  EXPECT_TRUE(skipped.empty());
  EXPECT_EQ(ListCheckpoints(files, directory)->size(), 1u);
  std::vector<RankState> loaded = MakeState(TinyModel(), {.pipeline = 4});
  for (const RankState& rank : loaded) {
    ASSERT_TRUE(LoadCheckpoint(files, newest->path, rank.pieces).ok());
  }
  EXPECT_EQ(CountWrong(loaded, 2), 0);
  ASSERT_TRUE(files.Remove(ParentPath(ParentPath(directory))).ok());
}

}  // namespace
}  // namespace millrace
