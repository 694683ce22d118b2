#include "fault/weight_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/manifest.h"
#include "planner/program/parameters.h"
#include "tests/fault/state_fixture.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFolder[] = "model";
constexpr int64_t kSalt = 5;

struct FolderShape {
  ElementType type = ElementType::kFp32;
  int num_shards = 1;
};

// The values of a parameter, in the order of its elements.
std::vector<float> ValuesOf(const Parameter& parameter) {
  std::vector<float> values;
  for (int64_t row = 0; row < parameter.rows; ++row) {
    for (int64_t col = 0; col < parameter.cols; ++col) {
      values.push_back(ElementValue(parameter.name, row, col, kSalt));
    }
  }
  return values;
}

std::vector<int64_t> ShapeOfParameter(const Parameter& parameter) {
  if (parameter.is_vector) return {parameter.cols};
  return {parameter.rows, parameter.cols};
}

void WriteOne(FileSystem& files, const std::string& name, ElementType type,
              const std::vector<Parameter>& parameters) {
  std::vector<SafetensorsTensor> tensors;
  for (const Parameter& parameter : parameters) {
    tensors.push_back({parameter.name, ShapeOfParameter(parameter), type});
  }
  auto writer = SafetensorsWriter::Create(files, JoinPath(kFolder, name),
                                          tensors, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Parameter& parameter : parameters) {
    const std::vector<float> values = ValuesOf(parameter);
    ASSERT_TRUE(
        writer->Append(values.data(), static_cast<int64_t>(values.size()))
            .ok());
  }
  ASSERT_TRUE(writer->Finish().ok());
}

void WriteText(FileSystem& files, const std::string& name,
               const std::string& text) {
  auto file = files.Create(JoinPath(kFolder, name));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(
      (*file)->Append(text.data(), static_cast<int64_t>(text.size())).ok());
  ASSERT_TRUE((*file)->Close().ok());
}

std::string ShardName(int shard, int num_shards) {
  return absl::StrCat("model-", shard + 1, "-of-", num_shards, ".safetensors");
}

// Parameters go to the shards in turn.
void WriteFolder(FileSystem& files, const std::vector<Parameter>& parameters,
                 const FolderShape& shape = {}) {
  ASSERT_TRUE(files.MakeDirectories(kFolder).ok());
  if (shape.num_shards == 1) {
    WriteOne(files, kWeightFile, shape.type, parameters);
    return;
  }
  std::vector<std::vector<Parameter>> shards(shape.num_shards);
  std::string map;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int shard = static_cast<int>(i) % shape.num_shards;
    shards[shard].push_back(parameters[i]);
    absl::StrAppend(&map, i == 0 ? "" : ", ", "\"", parameters[i].name,
                    "\": \"", ShardName(shard, shape.num_shards), "\"");
  }
  for (int shard = 0; shard < shape.num_shards; ++shard) {
    WriteOne(files, ShardName(shard, shape.num_shards), shape.type,
             shards[shard]);
  }
  WriteText(files, kWeightIndex,
            absl::StrCat("{\"metadata\": {}, \"weight_map\": {", map, "}}"));
}

float Rounded(ElementType type, float value) {
  char narrow[4];
  NarrowFromFp32(type, &value, 1, narrow);
  WidenToFp32(type, narrow, 1, &value);
  return value;
}

int64_t CountWrongWeights(const std::vector<RankState>& state,
                          ElementType type) {
  int64_t num_wrong = 0;
  for (const RankState& rank : state) {
    for (const StatePiece& piece : rank.pieces) {
      const int64_t width = piece.box.col_end - piece.box.col_begin;
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        const int64_t row = piece.box.row_begin + i / width;
        const int64_t col = piece.box.col_begin + i % width;
        const float expected =
            IsOptimizerState(piece.tensor)
                ? 0
                : Rounded(type, ElementValue(piece.tensor, row, col, kSalt));
        num_wrong += piece.data[i - piece.begin] != expected;
      }
    }
  }
  return num_wrong;
}

// Goal: every rank of every layout gets its own slices, widened, and moments of
// zero, from one file and from several, of any type. Method: all layouts of up
// to eight ranks; each element holds a value that says which it is.
TEST(WeightFolderTest, EveryLayoutLoadsItsSlices) {
  const ModelSpec model = TinyModel();
  const FolderShape shapes[] = {{ElementType::kFp32, 1},
                                {ElementType::kBf16, 3},
                                {ElementType::kFp16, 2}};
  for (const FolderShape& shape : shapes) {
    FaultyFileSystem files;
    WriteFolder(files, ModelParameters(model), shape);
    const auto weights = WeightFolder::Open(files, kFolder);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(weights->CheckIsOfModel(model).ok());
    for (const Layout& layout : Sampled(AllLayouts(8), 3)) {
      for (const bool master : {false, true}) {
        std::vector<RankState> state = MakeState(model, layout, master);
        FillState(state, kSalt + 1);
        for (const RankState& rank : state) {
          ZeroMoments(rank.pieces);
          const absl::Status status = weights->Load(rank.pieces);
          ASSERT_TRUE(status.ok()) << status;
        }
        EXPECT_EQ(CountWrongWeights(state, shape.type), 0)
            << LayoutToString(layout);
      }
    }
  }
}

// Goal: rows longer than a read, and parts of long rows, are read right.
// Method: one tensor whose rows have 1.2 MB, half of its columns, a run that
// begins and ends within rows.
TEST(WeightFolderTest, LoadsPartsOfLongRows) {
  constexpr int64_t kCols = 300'000;
  const Parameter parameter = {.name = "a",
                               .rows = 3,
                               .cols = kCols,
                               .is_vector = false,
                               .shard = TensorShard::kColumns};
  FaultyFileSystem files;
  WriteFolder(files, {parameter});
  const auto weights = WeightFolder::Open(files, kFolder);
  ASSERT_TRUE(weights.ok()) << weights.status();
  constexpr int64_t kBegin = 7, kEnd = 3 * kCols / 2 - 9;
  std::vector<float> loaded(kEnd - kBegin);
  ASSERT_TRUE(weights
                  ->Load({{.tensor = "a",
                           .rows = 3,
                           .cols = kCols,
                           .is_vector = false,
                           .box = {0, 3, kCols / 2, kCols},
                           .begin = kBegin,
                           .end = kEnd,
                           .data = loaded.data(),
                           .is_owner = true}})
                  .ok());
  const std::vector<float> values = ValuesOf(parameter);
  int64_t num_wrong = 0;
  for (int64_t i = kBegin; i < kEnd; ++i) {
    const int64_t row = i / (kCols / 2);
    const int64_t col = kCols / 2 + i % (kCols / 2);
    num_wrong += loaded[i - kBegin] != values[row * kCols + col];
  }
  EXPECT_EQ(num_wrong, 0);
}

std::string OpenError(FileSystem& files) {
  const auto weights = WeightFolder::Open(files, kFolder);
  if (weights.ok()) return "no error";
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(weights.status().message());
}

// Goal: a folder that lies is refused, naming file and place. Method: one lie
// each in a good folder of three files.
TEST(WeightFolderTest, RefusesFoldersThatLie) {
  const std::vector<Parameter> parameters = ModelParameters(TinyModel());
  const std::string first = ShardName(0, 3);
  const std::string path = JoinPath(kFolder, first);
  FaultyFileSystem good;
  WriteFolder(good, parameters, {ElementType::kBf16, 3});
  const std::string content = *good.Content(path);
  const std::string index = *good.Content(JoinPath(kFolder, kWeightIndex));
  const auto with_first = [&](const std::string& damaged) {
    FaultyFileSystem files;
    WriteFolder(files, parameters, {ElementType::kBf16, 3});
    EXPECT_TRUE(files.SetContent(path, damaged).ok());
    return OpenError(files);
  };
  const auto with_index = [&](const std::string& text) {
    FaultyFileSystem files;
    WriteFolder(files, parameters, {ElementType::kBf16, 3});
    WriteText(files, kWeightIndex, text);
    return OpenError(files);
  };
  EXPECT_EQ(OpenError(good), "no error");
  EXPECT_THAT(with_first(content.substr(0, content.size() - 1)),
              AllOf(HasSubstr(path), HasSubstr("beyond the end of the file"),
                    HasSubstr("Copy or download")));
  EXPECT_THAT(with_first(content + "x"), HasSubstr("bytes follow"));
  EXPECT_THAT(with_first(content.substr(0, 7)), HasSubstr("too short"));
  EXPECT_THAT(with_first(std::string(8, '\xff') + content.substr(8)),
              HasSubstr("claims a header of"));
  std::string other_type = content;
  other_type.replace(other_type.find("BF16"), 4, "F8_E");
  EXPECT_THAT(with_first(other_type),
              HasSubstr("its dtype is 'F8_E', expected F32, F16 or BF16"));

  const std::string map = "{\"weight_map\": {\"a\": \"";
  for (const char* name : {"../x.safetensors", "/etc/passwd", "", ".", "a/b"}) {
    EXPECT_THAT(with_index(absl::StrCat(map, name, "\"}}")),
                AllOf(HasSubstr("weight_map: a: "),
                      HasSubstr("not the name of a file in this folder")));
  }
  EXPECT_THAT(with_index("{\"weight_map\": {\"a\": 5}}"),
              HasSubstr("expected the name of a file"));
  EXPECT_THAT(with_index("{\"weight_map\": []}"), HasSubstr("weight_map"));
  EXPECT_THAT(with_index("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(with_index("{"), HasSubstr("line 1: not valid JSON"));
  EXPECT_THAT(with_index(map + first + "\", \"a\": \"" + first + "\"}}"),
              HasSubstr("\"a\" is there twice"));
  EXPECT_THAT(with_index(map + "gone.safetensors\"}}"),
              HasSubstr("gone.safetensors: missing, though"));
  // Tensors that the index does not know, or looks for elsewhere.
  EXPECT_THAT(with_index(map + first + "\"}}"),
              AllOf(HasSubstr("the index and its files disagree on"),
                    HasSubstr(absl::StrCat("a (not in ", first, ")")),
                    HasSubstr(absl::StrCat(parameters[0].name, " (only in "))));
  // One name in two files.
  FaultyFileSystem doubled;
  WriteFolder(doubled, parameters, {ElementType::kBf16, 3});
  ASSERT_TRUE(
      doubled.SetContent(JoinPath(kFolder, ShardName(1, 3)), content).ok());
  EXPECT_THAT(OpenError(doubled), HasSubstr("is also in"));

  FaultyFileSystem none;
  ASSERT_TRUE(none.MakeDirectories(kFolder).ok());
  WriteText(none, "pytorch_model.bin", "x");
  EXPECT_THAT(OpenError(none), AllOf(HasSubstr("neither model.safetensors nor"),
                                     HasSubstr("(it has pytorch_model.bin)")));
}

// Goal: all tensors that a model lacks, has too many or of another shape are
// named at once, and nothing is loaded. Method: one change of each kind, and so
// many that only some are named.
TEST(WeightFolderTest, NamesTheTensorsThatDiffer) {
  const ModelSpec model = TinyModel();
  std::vector<Parameter> parameters = ModelParameters(model);
  const std::string missing = parameters[1].name;
  const std::string misshapen = parameters[0].name;
  parameters[1].name = "model.layers.0.adapter.weight";
  parameters[0].rows += 2;
  // Follows from the configuration and is passed over.
  parameters.push_back({.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                        .rows = 1,
                        .cols = 2,
                        .is_vector = true,
                        .shard = TensorShard::kReplicated});
  FaultyFileSystem files;
  WriteFolder(files, parameters);
  const auto weights = WeightFolder::Open(files, kFolder);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const absl::Status status = weights->CheckIsOfModel(model);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(absl::StrCat("missing (1): ", missing)),
            HasSubstr("not of this model (1): model.layers.0.adapter.weight"),
            HasSubstr(absl::StrCat("of another shape (1): ", misshapen, " is [",
                                   model.vocab_size + 2, ", ", model.hidden,
                                   "], expected [", model.vocab_size, ", ",
                                   model.hidden, "]")),
            Not(HasSubstr("inv_freq"))));
  std::vector<RankState> state = MakeState(model, Layout{});
  FillState(state, kSalt + 1);
  EXPECT_EQ(weights->Load(state[0].pieces).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CountWrong(state, kSalt + 1), 0);

  ModelSpec deep = model;
  deep.num_layers += 3;
  EXPECT_THAT(std::string(weights->CheckIsOfModel(deep).message()),
              AllOf(HasSubstr("missing (28): "), HasSubstr(" and 16 more")));
}

// Goal: the head of a model that ties it may be absent or the embedding again,
// but not something else. Method: the three folders.
TEST(WeightFolderTest, TiedHeadIsAbsentOrEqual) {
  ModelSpec tied = TinyModel();
  tied.ties_embedding = true;
  std::vector<Parameter> parameters = ModelParameters(TinyModel());
  const auto check = [&](const std::vector<Parameter>& kept) {
    FaultyFileSystem files;
    WriteFolder(files, kept, {ElementType::kBf16, 2});
    const auto weights = WeightFolder::Open(files, kFolder);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return std::string(weights->CheckIsOfModel(tied).message());
  };
  EXPECT_THAT(check(parameters),
              HasSubstr("lm_head.weight differs from model.embed_tokens"));
  std::vector<Parameter> without = parameters;
  std::erase_if(without, [](const Parameter& parameter) {
    return parameter.name == "lm_head.weight";
  });
  EXPECT_EQ(check(without), "");
}

// Goal: the fingerprint follows from what the files are, not from where they
// lie or how often they are opened. Method: equal folders, and one difference.
TEST(WeightFolderTest, FingerprintIsOfTheFiles) {
  std::vector<Parameter> parameters = ModelParameters(TinyModel());
  const auto fingerprint = [&](const FolderShape& shape) {
    FaultyFileSystem files;
    WriteFolder(files, parameters, shape);
    return WeightFolder::Open(files, kFolder)->Fingerprint();
  };
  const std::string one = fingerprint({});
  EXPECT_EQ(one.size(), 16u);
  EXPECT_EQ(fingerprint({}), one);
  EXPECT_NE(fingerprint({ElementType::kBf16, 1}), one);
  EXPECT_NE(fingerprint({ElementType::kFp32, 2}), one);
  std::swap(parameters[0].name, parameters.back().name);
  EXPECT_NE(fingerprint({}), one);
}

}  // namespace
}  // namespace millrace
