#include "tests/worker/cuda/ops/op_cases.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

void AddNorms(std::vector<OpCase>& cases) {
  for (const auto& [num_tokens, hidden] :
       std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {37, 72}, {130, 2048}, {19, 4096}, {45, 100}, {7, 33}}) {
    for (const bool accumulate : {false, true}) {
      const NormAttributes shape = {.num_tokens = num_tokens,
                                    .hidden = hidden,
                                    .epsilon = 1e-5,
                                    .accumulate = accumulate};
      for (const OpKind kind :
           {OpKind::kRmsNormBackward, OpKind::kLayerNormBackward}) {
        cases.push_back({"", kind, shape});
        cases.push_back({.what = "first",
                         .kind = kind,
                         .attributes = shape,
                         .has_d_residual = false});
      }
      NormAttributes one_more = shape;
      one_more.adds_one = true;
      cases.push_back({"", OpKind::kRmsNormBackward, one_more});
      if (accumulate) continue;
      cases.push_back({"", OpKind::kRmsNormForward, one_more});
      cases.push_back({"", OpKind::kResidualRmsNormForward, one_more});
      for (const OpKind kind :
           {OpKind::kRmsNormForward, OpKind::kResidualRmsNormForward,
            OpKind::kLayerNormForward, OpKind::kResidualLayerNormForward}) {
        cases.push_back({"", kind, shape});
      }
    }
  }
}

void AddElementwise(std::vector<OpCase>& cases) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 7}, {33, 96}, {50, 1000}, {21, 1365}}) {
    for (const OpKind kind : {OpKind::kAdd, OpKind::kZero,
                              OpKind::kSwigluForward, OpKind::kSwigluBackward,
                              OpKind::kGegluForward, OpKind::kGegluBackward,
                              OpKind::kGeluForward, OpKind::kGeluBackward}) {
      cases.push_back({"", kind, ElementwiseAttributes{rows, cols}});
    }
    for (const OpKind kind : {OpKind::kGeluForward, OpKind::kGeluBackward}) {
      cases.push_back(
          {"", kind,
           ElementwiseAttributes{.rows = rows, .cols = cols, .erf = true}});
    }
  }
  cases.push_back({.what = "second",
                   .kind = OpKind::kLoadBatch,
                   .attributes = ElementwiseAttributes{3, 17},
                   .layout = {.micro_batch = 3, .num_microbatches = 2}});
}

// Forward against weights [out, in], the gradients of its input and of its
// weight.
void AddGemms(std::vector<OpCase>& cases) {
  struct Shape {
    int64_t tokens, in, out;
  };
  for (const auto& [tokens, in, out] : std::vector<Shape>{{1, 8, 16},
                                                          {64, 128, 192},
                                                          {200, 264, 1000},
                                                          {130, 512, 256},
                                                          {33, 65, 47},
                                                          {5, 3, 1}}) {
    cases.push_back({"forward", OpKind::kGemm,
                     GemmAttributes{tokens, out, in, false, true}});
    cases.push_back(
        {"forward", OpKind::kGemm,
         GemmAttributes{
             .m = tokens, .n = out, .k = in, .trans_b = true, .bias = true}});
    cases.push_back({"input_gradient", OpKind::kGemm,
                     GemmAttributes{tokens, in, out, false, false}});
    for (const bool accumulate : {false, true}) {
      cases.push_back(
          {"weight_gradient", OpKind::kGemm,
           GemmAttributes{out, in, tokens, true, false, accumulate}});
      cases.push_back({"", OpKind::kBiasGradient,
                       ElementwiseAttributes{tokens, out, accumulate}});
    }
  }
}

// Forward and backward, with and without documents.
void AddAttentionOf(const AttentionAttributes& shape,
                    std::vector<OpCase>& cases) {
  // As many as a plan has room for (planner/program/workspace.h).
  const int64_t room =
      shape.num_sequences + shape.num_sequences * shape.sequence_length / 128;
  for (const int64_t num_documents : {int64_t{0}, room, int64_t{-1}}) {
    cases.push_back({.what = "",
                     .kind = OpKind::kAttentionForward,
                     .attributes = shape,
                     .num_documents = num_documents});
    for (const bool deterministic : {false, true}) {
      cases.push_back({.what = deterministic ? "deterministic" : "",
                       .kind = OpKind::kAttentionBackward,
                       .attributes = shape,
                       .num_documents = num_documents,
                       .deterministic = deterministic});
    }
  }
}

void AddAttention(std::vector<OpCase>& cases) {
  std::vector<AttentionAttributes> shapes = {
      {2, 65, 4, 2, 64},  {1, 1, 1, 1, 64},    {3, 130, 2, 1, 128},
      {1, 257, 4, 4, 96}, {2, 70, 2, 1, 256},  {2, 40, 4, 2, 32},
      {1, 33, 3, 1, 48},  {1, 512, 8, 2, 128},
  };
  for (AttentionAttributes& shape : shapes) {
    shape.rope_theta = 10000;
    for (const bool inverse : {false, true}) {
      shape.inverse = inverse;
      cases.push_back({"", OpKind::kRope, shape});
      // The fast kernel turns sixteens.
      for (const int64_t part : {int64_t{16}, shape.head_dim - 2}) {
        AttentionAttributes partial = shape;
        partial.rotary_dim = part;
        partial.rotary_scale = 1.25;
        cases.push_back({"", OpKind::kRope, partial});
      }
    }
    shape.inverse = false;
    AttentionAttributes normed = shape;
    normed.norm_epsilon = 1e-5;
    normed.rope_scaling = {.kind = RopeScalingKind::kLlama3,
                           .factor = 8,
                           .low_freq_factor = 1,
                           .high_freq_factor = 4,
                           .original_max_position_embeddings = 64};
    cases.push_back({"", OpKind::kQkNormRopeForward, normed});
    AttentionAttributes one_more = normed;
    one_more.adds_one = true;
    one_more.rope_scaling = {.kind = RopeScalingKind::kLinear, .factor = 8};
    cases.push_back({"", OpKind::kQkNormRopeForward, one_more});
    cases.push_back({"", OpKind::kQkNormRopeBackward, one_more});
    for (const bool accumulate : {false, true}) {
      normed.accumulate = accumulate;
      cases.push_back({"", OpKind::kQkNormRopeBackward, normed});
    }
    AddAttentionOf(shape, cases);
    AttentionAttributes capped = shape;
    capped.softcap = 2;
    AddAttentionOf(capped, cases);
    // Within a tile, and across tiles.
    for (const int64_t window : {5, 70}) {
      if (window >= shape.sequence_length) continue;
      AttentionAttributes windowed = shape;
      windowed.window = window;
      AddAttentionOf(windowed, cases);
    }
  }
}

// A table as long as a sequence, a longer one, and a part of one.
void AddPositions(std::vector<OpCase>& cases) {
  struct Shape {
    int64_t tokens, length, hidden, rows;
  };
  for (const auto& [tokens, length, hidden, rows] :
       std::vector<Shape>{{12, 4, 8, 4}, {60, 20, 33, 31}, {64, 32, 72, 16}}) {
    VocabAttributes shape = {.num_tokens = tokens,
                             .hidden = hidden,
                             .vocab_rows = rows,
                             .sequence_length = length};
    cases.push_back({"", OpKind::kPositionForward, shape});
    for (const bool accumulate : {false, true}) {
      shape.accumulate = accumulate;
      cases.push_back({"", OpKind::kPositionBackward, shape});
    }
  }
}

void AddVocabulary(std::vector<OpCase>& cases) {
  struct Shape {
    int64_t tokens, hidden, rows, chunk;
  };
  const std::vector<Shape> shapes = {{1, 8, 16, 1},       {40, 64, 96, 40},
                                     {100, 136, 515, 33}, {64, 256, 1024, 16},
                                     {21, 20, 37, 10},    {30, 33, 50, 30}};
  for (const auto& [tokens, hidden, rows, chunk] : shapes) {
    for (const bool accumulate : {false, true}) {
      const VocabAttributes shape = {.num_tokens = tokens,
                                     .hidden = hidden,
                                     .vocab_rows = rows,
                                     .chunk_tokens = chunk,
                                     .token_scale = 1.0 / 64,
                                     .loss_share = 1,
                                     .accumulate = accumulate};
      cases.push_back({"", OpKind::kLinearCrossEntropy, shape});
      VocabAttributes capped = shape;
      capped.softcap = 3;
      cases.push_back({"", OpKind::kLinearCrossEntropy, capped});
      VocabAttributes scaled = shape;
      scaled.embedding_scale = 8.5;
      for (const bool deterministic : {false, true}) {
        for (const VocabAttributes& embedding : {shape, scaled}) {
          cases.push_back({.what = deterministic ? "deterministic" : "",
                           .kind = OpKind::kEmbeddingBackward,
                           .attributes = embedding,
                           .layout = {.tensor = 2},
                           .coordinates = {.tensor = 1},
                           .deterministic = deterministic});
        }
      }
      capped.loss_share = 0.5;
      cases.push_back({.what = "sharded",
                       .kind = OpKind::kCrossEntropyGradient,
                       .attributes = capped,
                       .layout = {.tensor = 2},
                       .coordinates = {.tensor = 1}});
      VocabAttributes shard = shape;
      shard.loss_share = 0.5;
      for (const int32_t idx : {0, 1}) {
        cases.push_back({.what = "sharded",
                         .kind = OpKind::kCrossEntropyGradient,
                         .attributes = shard,
                         .layout = {.tensor = 2},
                         .coordinates = {.tensor = idx}});
        if (chunk == tokens) {
          VocabAttributes kept = shard;
          kept.keeps_logits = true;
          cases.push_back({.what = "sharded",
                           .kind = OpKind::kCrossEntropyGradient,
                           .attributes = kept,
                           .layout = {.tensor = 2},
                           .coordinates = {.tensor = idx}});
        }
        if (accumulate) continue;
        cases.push_back({.what = "sharded",
                         .kind = OpKind::kCrossEntropyStats,
                         .attributes = capped,
                         .layout = {.tensor = 2},
                         .coordinates = {.tensor = idx}});
        cases.push_back({.what = "sharded",
                         .kind = OpKind::kEmbeddingForward,
                         .attributes = scaled,
                         .layout = {.tensor = 2},
                         .coordinates = {.tensor = idx}});
        for (const OpKind kind :
             {OpKind::kEmbeddingForward, OpKind::kCrossEntropyStats,
              OpKind::kCrossEntropyLoss}) {
          cases.push_back({.what = "sharded",
                           .kind = kind,
                           .attributes = shard,
                           .layout = {.tensor = 2},
                           .coordinates = {.tensor = idx}});
        }
      }
    }
  }
}

void AddPreferences(std::vector<OpCase>& cases) {
  for (const int32_t tensor : {1, 2}) {
    const Layout layout = {.tensor = tensor,
                           .objective = Objective::kPreference};
    for (const int64_t length : {20, 150}) {
      cases.push_back({.what = "",
                       .kind = OpKind::kPreferenceLoss,
                       .attributes = VocabAttributes{.num_tokens = 3 * length,
                                                     .hidden = 16,
                                                     .vocab_rows = 60,
                                                     .token_scale = 1.0 / 64,
                                                     .loss_share = 1.0 / tensor,
                                                     .sequence_length = length},
                       .layout = layout});
    }
    for (const bool keeps_logits : {false, true}) {
      cases.push_back(
          {.what = "weighted",
           .kind = OpKind::kCrossEntropyGradient,
           .attributes = VocabAttributes{.num_tokens = 40,
                                         .hidden = 64,
                                         .vocab_rows = 96,
                                         .chunk_tokens = 40,
                                         .token_scale = 1.0 / 64,
                                         .loss_share = 1.0 / tensor,
                                         .keeps_logits = keeps_logits},
           .layout = layout});
    }
  }
}

void AddOptimizer(std::vector<OpCase>& cases) {
  for (const int64_t num_elements : {128, 640, 25600}) {
    for (const bool data_sharded : {false, true}) {
      const Layout layout = {.data = data_sharded ? 2 : 1,
                             .zero = data_sharded ? 1 : 0};
      const MeshCoordinates coordinates = {.data = data_sharded ? 1 : 0};
      for (const bool weight_decay : {false, true}) {
        for (const bool skip : {false, true}) {
          cases.push_back(
              {.what = "",
               .kind = OpKind::kAdamW,
               .attributes = OptimizerAttributes{num_elements, data_sharded,
                                                 weight_decay},
               .layout = layout,
               .coordinates = coordinates,
               .skip = skip});
        }
      }
      for (const OpKind kind : {OpKind::kAdamW, OpKind::kCastParameters}) {
        cases.push_back(
            {.what = "norms",
             .kind = kind,
             .attributes = OptimizerAttributes{num_elements, data_sharded},
             .layout = layout,
             .coordinates = coordinates,
             .fp32_parameters = true});
      }
      for (const OpKind kind :
           {OpKind::kSquaredNorm, OpKind::kCastParameters,
            OpKind::kAccumulateGradients, OpKind::kRoundGradients,
            OpKind::kWidenGradients}) {
        cases.push_back(
            {.what = "",
             .kind = kind,
             .attributes = OptimizerAttributes{.num_elements = num_elements,
                                               .data_sharded = data_sharded,
                                               .share = 0.25},
             .layout = layout,
             .coordinates = coordinates});
      }
    }
    // The slice that groups of the data axis send each other in bf16.
    for (const int32_t zero : {0, 2}) {
      for (const OpKind kind :
           {OpKind::kRoundGradients, OpKind::kWidenGradients}) {
        cases.push_back(
            {.what = "across",
             .kind = kind,
             .attributes = OptimizerAttributes{.num_elements = num_elements,
                                               .data_sharded = true},
             .layout = {.data = 4,
                        .data_groups = 2,
                        .zero = zero,
                        .gradient_reduction =
                            GradientReduction::kBfloat16Across},
             .coordinates = {.data = 3}});
      }
    }
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  struct Scalars {
    const char* what;
    double clip_norm, loss, squared_norm;
  };
  for (const auto& [what, clip_norm, loss, squared_norm] :
       std::vector<Scalars>{{"clips", 1, 2.5, 7},
                            {"large_limit", 100, 2.5, 7},
                            {"no_limit", 0, 2.5, 1e6},
                            {"nan_loss", 1, std::nan(""), 7},
                            {"infinite_norm", 1, 2.5, kInfinity}}) {
    cases.push_back({.what = what,
                     .kind = OpKind::kClipFactor,
                     .attributes = NoAttributes{},
                     .clip_norm = clip_norm,
                     .loss = loss,
                     .squared_norm = squared_norm});
  }
}

}  // namespace

std::string OpCase::Name() const {
  return absl::StrCat(
      OpKindName(kind), " ", AttributesToString(attributes),
      what.empty() ? "" : " ", what,
      num_documents == 0 ? "" : absl::StrCat(" documents ", num_documents),
      skip ? " skip" : "");
}

std::vector<OpCase> AllOpCases() {
  std::vector<OpCase> cases;
  AddNorms(cases);
  AddElementwise(cases);
  AddGemms(cases);
  AddAttention(cases);
  AddPositions(cases);
  AddVocabulary(cases);
  AddPreferences(cases);
  AddOptimizer(cases);
  return cases;
}

}  // namespace millrace
