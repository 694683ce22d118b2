#include "fault/weight_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "fault/checkpoint_files.h"
#include "fault/faulty_file_system.h"
#include "fault/weight_export.h"
#include "fault/weight_folder.h"
#include "tests/fault/torch_files.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSource[] = "checkpoint";

using Renamed = std::function<std::string(const std::string&)>;

// The folder that an import should give.
std::string ExpectedFile(ElementType type, const ModelSpec& model) {
  FaultyFileSystem files;
  WeightFolderContent content;
  const std::vector<Parameter> parameters = ModelParameters(model);
  for (const Parameter& parameter : parameters) {
    content.tensors.push_back({parameter.name, DimsOf(parameter), type});
  }
  content.append = [&](const SafetensorsTensor& tensor,
                       SafetensorsWriter& writer) {
    const auto parameter =
        std::ranges::find(parameters, tensor.name, &Parameter::name);
    const std::string bytes = AllOfIt(type, *parameter);
    return writer.AppendStored(bytes.data(), tensor.num_elements());
  };
  EXPECT_TRUE(WriteWeightFolder(files, content, "expected").ok());
  return *files.Content(JoinPath("expected", kWeightFile));
}

// Imports, checks that it is the model's folder, and returns its one file.
std::string Imported(FileSystem& files, const std::string& source,
                     const ModelSpec& model) {
  const auto import = WeightImport::Open(files, source, model);
  EXPECT_TRUE(import.ok()) << import.status();
  if (!import.ok()) return "";
  files.Remove("out").IgnoreError();
  const absl::Status status =
      import->Write(files, {{"config.json", "{}"}}, kMaxShardBytes, "out");
  EXPECT_TRUE(status.ok()) << status;
  const auto folder = WeightFolder::Open(files, "out");
  EXPECT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(folder->CheckIsOfModel(model).ok())
      << folder->CheckIsOfModel(model);
  EXPECT_TRUE(files.Exists("out/config.json"));
  return *static_cast<FaultyFileSystem&>(files).Content(
      JoinPath("out", kWeightFile));
}

// Goal: a checkpoint with Hugging Face's names, however it is sharded, gives
// the folder bit for bit. Method: all types; one to four ranks over dim 0, over
// dim 1 and over both; optimizer state beside it.
TEST(WeightImportTest, EveryShardingGivesTheFolder) {
  const ModelSpec model = GroupedModel();
  const std::vector<int64_t> grids[] = {{1, 1}, {2, 1}, {4, 1}, {3, 1},
                                        {1, 2}, {1, 4}, {2, 2}, {2, 4}};
  for (const ElementType type :
       {ElementType::kBf16, ElementType::kFp32, ElementType::kFp16}) {
    const std::string expected = ExpectedFile(type, model);
    for (const std::vector<int64_t>& grid : grids) {
      FaultyFileSystem files;
      std::vector<TorchTestTensor> tensors =
          HuggingFaceTensors(model, type, grid);
      TorchTestTensor moment = tensors[0];
      moment.name = "optimizer.state." + moment.name + ".exp_avg";
      tensors.push_back(moment);
      WriteTorchCheckpoint(files, kSource, tensors,
                           static_cast<int>(grid[0] * grid[1]));
      EXPECT_EQ(Imported(files, kSource, model), expected)
          << grid[0] << " x " << grid[1];
    }
  }
}

// Goal: what wrappers and outer keys add to names is left out. Method: the
// names of torch.compile, FSDP 1, activation checkpointing and of state dicts
// that hold the model under a key.
TEST(WeightImportTest, LeavesOutWhatWrappersAdd) {
  const ModelSpec model = GroupedModel();
  const std::string expected = ExpectedFile(ElementType::kBf16, model);
  const Renamed renames[] = {
      [](const std::string& name) { return "model." + name; },
      [](const std::string& name) { return "_orig_mod." + name; },
      [](const std::string& name) { return "app.model." + name; },
      [](const std::string& name) { return "module." + name; },
      [](const std::string& name) {
        return "_fsdp_wrapped_module." +
               absl::StrReplaceAll(
                   name,
                   {{".self_attn.", "._checkpoint_wrapped_module.self_attn."}});
      }};
  for (const Renamed& rename : renames) {
    FaultyFileSystem files;
    WriteTorchCheckpoint(
        files, kSource,
        HuggingFaceTensors(model, ElementType::kBf16, {2, 1}, rename), 2);
    EXPECT_EQ(Imported(files, kSource, model), expected);
  }
  // Two of one name are refused.
  std::vector<TorchTestTensor> tensors =
      HuggingFaceTensors(model, ElementType::kBf16, {1, 1});
  tensors.push_back(tensors[0]);
  tensors.back().name = "_orig_mod." + tensors[0].name;
  FaultyFileSystem files;
  WriteTorchCheckpoint(files, kSource, tensors, 1);
  EXPECT_THAT(ImportError(files, kSource, model),
              HasSubstr("are one name where wrappers are left out"));
}

const Parameter& Find(const std::vector<Parameter>& parameters,
                      const std::string& name) {
  return *std::ranges::find(parameters, name, &Parameter::name);
}

// Rows of a group of heads: its queries, its key, its value.
std::string FusedQkv(const ModelSpec& model,
                     const std::vector<Parameter>& parameters,
                     const std::string& prefix, const std::string& end) {
  const Parameter& q = Find(parameters, prefix + "q_proj" + end);
  const Parameter& k = Find(parameters, prefix + "k_proj" + end);
  const Parameter& v = Find(parameters, prefix + "v_proj" + end);
  const int64_t head_dim = model.head_dim;
  const int64_t queries = model.num_heads / model.num_kv_heads;
  std::string bytes;
  for (int64_t group = 0; group < model.num_kv_heads; ++group) {
    for (int64_t i = 0; i < queries * head_dim; ++i) {
      bytes += RowOf(ElementType::kBf16, q, group * queries * head_dim + i);
    }
    for (int64_t i = 0; i < head_dim; ++i) {
      bytes += RowOf(ElementType::kBf16, k, group * head_dim + i);
    }
    for (int64_t i = 0; i < head_dim; ++i) {
      bytes += RowOf(ElementType::kBf16, v, group * head_dim + i);
    }
  }
  return bytes;
}

struct MegatronForm {
  bool is_stacked = false;
  bool splits_gate = false;
  int64_t tensor = 1;
  int64_t padding_rows = 0;
};

std::vector<TorchTestTensor> MegatronTensors(const ModelSpec& model,
                                             const MegatronForm& form) {
  constexpr ElementType kType = ElementType::kBf16;
  const std::vector<Parameter> parameters = ModelParameters(model);
  const int64_t hidden = model.hidden;
  const int64_t tensor = form.tensor;
  std::vector<TorchTestTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape,
                       std::string bytes, std::vector<int64_t> parts) {
    tensors.push_back({.name = name,
                       .type = kType,
                       .shape = shape,
                       .bytes = std::move(bytes),
                       .boxes = GridOf(shape, parts)});
  };
  const int64_t padded = model.vocab_size + form.padding_rows;
  const std::string padding(form.padding_rows * hidden * 2, 'p');
  add("embedding.word_embeddings.weight", {padded, hidden},
      AllOfIt(kType, Find(parameters, "model.embed_tokens.weight")) + padding,
      {tensor});
  add("output_layer.weight", {padded, hidden},
      AllOfIt(kType, Find(parameters, "lm_head.weight")) + padding, {tensor});
  add("decoder.final_layernorm.weight", {hidden},
      AllOfIt(kType, Find(parameters, "model.norm.weight")), {1});
  const int64_t head_dim = model.head_dim;
  const int64_t qkv = (model.num_heads + 2 * model.num_kv_heads) * head_dim;
  const int64_t ffn = model.ffn_hidden;
  struct LayerTensor {
    std::string name;
    std::vector<int64_t> shape;
    std::vector<int64_t> parts;
    std::function<std::string(const std::string& prefix)> bytes;
  };
  const auto whole = [&](const std::string& end) {
    return [&parameters, end](const std::string& prefix) {
      return AllOfIt(kType, Find(parameters, prefix + end));
    };
  };
  std::vector<LayerTensor> of_layer = {
      {"self_attention.linear_qkv.layer_norm_weight",
       {hidden},
       {1},
       whole("input_layernorm.weight")},
      {"self_attention.linear_qkv.weight",
       {qkv, hidden},
       {tensor},
       [&](const std::string& prefix) {
         return FusedQkv(model, parameters, prefix + "self_attn.", ".weight");
       }},
      {"self_attention.linear_proj.weight",
       {hidden, model.num_heads * head_dim},
       {1, tensor},
       whole("self_attn.o_proj.weight")},
      {"mlp.linear_fc1.layer_norm_weight",
       {hidden},
       {1},
       whole("post_attention_layernorm.weight")},
      {"mlp.linear_fc2.weight",
       {hidden, ffn},
       {1, tensor},
       whole("mlp.down_proj.weight")}};
  if (model.qkv_bias) {
    of_layer.push_back({"self_attention.linear_qkv.bias",
                        {qkv},
                        {tensor},
                        [&](const std::string& prefix) {
                          return FusedQkv(model, parameters,
                                          prefix + "self_attn.", ".bias");
                        }});
  }
  if (form.splits_gate) {
    of_layer.push_back({"mlp.linear_fc1.weight_w",
                        {ffn, hidden},
                        {tensor},
                        whole("mlp.gate_proj.weight")});
    of_layer.push_back({"mlp.linear_fc1.weight_v",
                        {ffn, hidden},
                        {tensor},
                        whole("mlp.up_proj.weight")});
  } else {
    of_layer.push_back({"mlp.linear_fc1.weight",
                        {2 * ffn, hidden},
                        {2 * tensor},
                        [&](const std::string& prefix) {
                          return whole("mlp.gate_proj.weight")(prefix) +
                                 whole("mlp.up_proj.weight")(prefix);
                        }});
  }
  for (const LayerTensor& one : of_layer) {
    std::string stack;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
      const std::string bytes =
          one.bytes(absl::StrCat("model.layers.", layer, "."));
      if (form.is_stacked) {
        stack += bytes;
      } else {
        add(absl::StrCat("decoder.layers.", layer, ".", one.name), one.shape,
            bytes, one.parts);
      }
    }
    if (!form.is_stacked) continue;
    std::vector<int64_t> shape = one.shape, parts = one.parts;
    shape.insert(shape.begin(), model.num_layers);
    parts.insert(parts.begin(), model.num_layers);
    add("decoder.layers." + one.name, shape, stack, parts);
  }
  // The import leaves this tensor behind.
  add("optimizer.state.exp_avg.decoder.final_layernorm.weight", {hidden},
      std::string(2 * hidden, 'm'), {1});
  return tensors;
}

// Goal: Megatron-Core's fused, stacked and padded tensors give the folder bit
// for bit. Method: layers one each and stacked, gate and up as one tensor and
// as two, tensor axes of 1 and 2, biases of query, key and value.
TEST(WeightImportTest, MegatronGivesTheFolder) {
  ModelSpec model = GroupedModel();
  model.qkv_bias = true;
  const std::string expected = ExpectedFile(ElementType::kBf16, model);
  for (const bool is_stacked : {false, true}) {
    for (const bool splits_gate : {false, true}) {
      for (const int64_t tensor : {1, 2}) {
        FaultyFileSystem files;
        const std::string folder = absl::StrCat(kSource, "/iter_0000100");
        WriteTorchCheckpoint(files, folder,
                             MegatronTensors(model, {.is_stacked = is_stacked,
                                                     .splits_gate = splits_gate,
                                                     .tensor = tensor,
                                                     .padding_rows = 4}),
                             static_cast<int>(tensor));
        WriteTestFile(files,
                      JoinPath(kSource, "latest_checkpointed_iteration.txt"),
                      "100\n");
        WriteTestFile(files, JoinPath(folder, "metadata.json"),
                      "{\"sharded_backend\": \"torch_dist\"}");
        EXPECT_EQ(Imported(files, kSource, model), expected)
            << is_stacked << splits_gate << tensor;
        const auto import = WeightImport::Open(files, kSource, model);
        ASSERT_TRUE(import.ok());
        EXPECT_EQ(import->naming(), "Megatron-Core");
        EXPECT_EQ(import->num_padding_rows(), 8);
        EXPECT_EQ(import->num_skipped(), 1);
      }
    }
  }
}

// Goal: torchtitan's Llama, whose rotary pairs are neighbours, gives the folder
// bit for bit. Method: its names and order of rows, written by its rule.
TEST(WeightImportTest, TorchtitanGivesTheFolder) {
  const ModelSpec model = GroupedModel();
  const std::pair<const char*, const char*> names[] = {
      {"self_attn.q_proj", "attention.wq"},
      {"self_attn.k_proj", "attention.wk"},
      {"self_attn.v_proj", "attention.wv"},
      {"self_attn.o_proj", "attention.wo"},
      {"input_layernorm", "attention_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"mlp.gate_proj", "feed_forward.w1"},
      {"mlp.down_proj", "feed_forward.w2"},
      {"mlp.up_proj", "feed_forward.w3"},
      {"model.embed_tokens", "tok_embeddings"},
      {"model.norm", "norm"},
      {"lm_head", "output"}};
  std::vector<TorchTestTensor> tensors;
  for (const Parameter& parameter : ModelParameters(model)) {
    std::string name = parameter.name;
    for (const auto& [ours, theirs] : names) {
      name = absl::StrReplaceAll(name, {{ours, theirs}});
    }
    name = std::string(absl::StripPrefix(name, "model."));
    std::string bytes = AllOfIt(ElementType::kBf16, parameter);
    if (absl::EndsWith(name, "wq.weight") ||
        absl::EndsWith(name, "wk.weight")) {
      bytes.clear();
      const int64_t half = model.head_dim / 2;
      for (int64_t row = 0; row < parameter.rows; ++row) {
        const int64_t within = row % model.head_dim;
        bytes += RowOf(ElementType::kBf16, parameter,
                       row - within + within / 2 + within % 2 * half);
      }
    }
    tensors.push_back({.name = "model." + name,
                       .shape = DimsOf(parameter),
                       .bytes = bytes,
                       .boxes = GridOf(DimsOf(parameter), {2, 2})});
  }
  FaultyFileSystem files;
  WriteTorchCheckpoint(files, kSource, tensors, 4);
  EXPECT_EQ(Imported(files, kSource, model),
            ExpectedFile(ElementType::kBf16, model));
}

// Goal: a checkpoint of another model is refused, naming all that differs.
// Method: one tensor missing, one surplus, one misshapen; a head that is not
// the embedding it should be tied to.
TEST(WeightImportTest, NamesTheTensorsThatDiffer) {
  ModelSpec model = GroupedModel();
  std::vector<TorchTestTensor> tensors =
      HuggingFaceTensors(model, ElementType::kBf16, {1, 1});
  const std::string missing = tensors[1].name;
  tensors[1].name = "model.layers.0.adapter.weight";
  model.vocab_size += 4;
  FaultyFileSystem files;
  WriteTorchCheckpoint(files, kSource, tensors, 1);
  EXPECT_THAT(
      ImportError(files, kSource, model),
      AllOf(HasSubstr(absl::StrCat("missing (1): ", missing)),
            HasSubstr("not of this model (1): model.layers.0.adapter.weight"),
            HasSubstr("of another shape (2): model.embed_tokens.weight is [44, "
                      "24], expected [48, 24]")));
  ModelSpec tied = GroupedModel();
  tensors = HuggingFaceTensors(tied, ElementType::kBf16, {2, 1});
  tied.ties_embedding = true;
  FaultyFileSystem untied;
  WriteTorchCheckpoint(untied, kSource, tensors, 2);
  EXPECT_THAT(ImportError(untied, kSource, tied),
              HasSubstr("lm_head.weight differs from model.embed_tokens"));
  tensors.back().bytes = tensors.front().bytes;
  FaultyFileSystem equal;
  WriteTorchCheckpoint(equal, kSource, tensors, 2);
  EXPECT_EQ(Imported(equal, kSource, tied),
            ExpectedFile(ElementType::kBf16, tied));
}

// Goal: folders that are no checkpoint, or one of another format, say what to
// name instead. Method: each of them.
TEST(WeightImportTest, NamesTheFolderToGive) {
  const ModelSpec model = GroupedModel();
  FaultyFileSystem files;
  EXPECT_THAT(ImportError(files, "none", model), HasSubstr("no such folder"));
  ASSERT_TRUE(files.MakeDirectories("all/step-100").ok());
  EXPECT_THAT(ImportError(files, "all", model),
              AllOf(HasSubstr("no .metadata is there (it has step-100)"),
                    HasSubstr("name the folder of one step")));
  ASSERT_TRUE(files.MakeDirectories("megatron/iter_0000007").ok());
  const std::string latest = "megatron/latest_checkpointed_iteration.txt";
  WriteTestFile(files, latest, "7");
  EXPECT_THAT(ImportError(files, "megatron", model),
              HasSubstr("megatron/iter_0000007: no .metadata is there"));
  for (const char* wrong : {"", "-1", "../x", "7 8"}) {
    WriteTestFile(files, latest, wrong);
    EXPECT_THAT(ImportError(files, "megatron", model),
                HasSubstr("expected the number of an iteration"));
  }
  WriteTorchCheckpoint(files, "megatron/release",
                       MegatronTensors(model, {.tensor = 1}), 1);
  WriteTestFile(files, latest, "release");
  WriteTestFile(files, "megatron/release/metadata.json",
                "{\"sharded_backend\": \"zarr\"}");
  EXPECT_THAT(ImportError(files, "megatron", model),
              HasSubstr("sharded_backend is \"zarr\", expected"));
}

}  // namespace
}  // namespace millrace
