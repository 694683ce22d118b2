#include "planner/graph/layer_graph.h"

#include <map>
#include <string>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/lower/graph.h"
#include "planner/program/op_table.h"
#include "planner/program/op_work.h"
#include "tests/planner/known_models.h"
#include "tests/planner/planner_testing.h"
#include "tests/sweep.h"

namespace millrace {
namespace {

// Sums over the ops of one phase.
template <typename Value>
double SumOf(const LayerGraph& graph, Phase phase, const Value& value_of) {
  double sum = 0;
  for (const LayerOp& op : graph.ops) {
    if (op.phase == phase) sum += value_of(op);
  }
  return sum;
}

OpWork WorkOfOp(const LayerOp& op) {
  return WorkOf({.precision = Precision::kBfloat16}, op.kind, op.attributes);
}

double GemmFlops(const LayerGraph& graph, Phase phase) {
  return SumOf(graph, phase, [](const LayerOp& op) {
    const bool is_product = op.kind == OpKind::kGemm ||
                            op.kind == OpKind::kGroupedGemm ||
                            op.kind == OpKind::kScaledGemm;
    return is_product ? WorkOfOp(op).flops : 0;
  });
}

double AttentionFlops(const LayerGraph& graph) {
  return SumOf(graph, Phase::kForward, [](const LayerOp& op) {
    const bool is_attention = op.kind == OpKind::kAttentionForward ||
                              op.kind == OpKind::kGeneralAttentionForward;
    return is_attention ? WorkOfOp(op).flops : 0;
  });
}

double ElementwiseBytes(const LayerGraph& graph, Phase phase) {
  return SumOf(graph, phase, [](const LayerOp& op) {
    return op.kind == OpKind::kElementwise ? WorkOfOp(op).bytes : 0;
  });
}

double TensorBytes(const LayerGraph& graph) {
  double bytes = 0;
  for (const LayerOp& op : graph.ops) {
    if (const auto* a = std::get_if<CollectiveAttributes>(&op.attributes)) {
      bytes += static_cast<double>(a->num_elements * DTypeBytes(a->dtype));
    }
  }
  return bytes;
}

double ExchangeBytes(const LayerGraph& graph, OpKind kind) {
  double bytes = 0;
  for (const LayerOp& op : graph.ops) {
    if (op.kind == kind)
      bytes += std::get<ExchangeAttributes>(op.attributes).bytes;
  }
  return bytes;
}

// Goal: a token costs what CountTokenFlops says, whatever the kind of model.
// Method: sum of all layers and the head on one rank, each gradient of the
// inputs and of the weights costing what the forward pass does.
TEST(GraphOfLayerTest, CostsTheFlopsOfActiveParameters) {
  ModelSpec windowed = Llama3_8B();
  windowed.sliding_window = windowed.sequence_length / 4;
  ModelSpec gemma = windowed;  // 32 layers, of which 5 have no window.
  gemma.global_layer_period = 6;
  gemma.feed_forward = FeedForward::kGeglu;
  gemma.output_norms = gemma.qk_norm = gemma.ties_embedding = true;
  for (const ModelSpec& model :
       {Llama3_8B(), windowed, gemma, Gpt3_175B(), Nemotron4_15B(),
        Mixtral8x7B(), Qwen3_30B_A3B(), DeepSeekV3(), Moonlight16B()}) {
    // Longer than the window and shorter than the sequence.
    const Layout layout{.precision = Precision::kBfloat16,
                        .document_length = 1500};
    double attention = 0;
    double products[3] = {};
    const Phase phases[3] = {Phase::kForward, Phase::kInputGradient,
                             Phase::kWeightGradient};
    for (int64_t layer = 0; layer <= model.num_layers; ++layer) {
      const LayerGraph graph =
          layer == model.num_layers
              ? GraphOfHead(model, layout, {.chunks_logits = false})
              : GraphOfLayer(model, layout, KindOfLayer(model, layer), {});
      attention += AttentionFlops(graph);
      for (int i = 0; i < 3; ++i) products[i] += GemmFlops(graph, phases[i]);
    }
    const TokenFlops flops = CountTokenFlops(model, layout.document_length);
    const auto tokens = static_cast<double>(model.sequence_length);
    // Norms have parameters and no product.
    for (const double product : products) {
      EXPECT_NEAR(product / (flops.linear * tokens / 3), 1, 1e-4);
    }
    EXPECT_NEAR(attention / (flops.attention_causal * tokens / 3), 1, 1e-12);
  }
}

// Goal: sharding divides the work and adds nothing. Method: ranks of a layout
// cut by tensor, context and expert axes do together what one rank does, as far
// as the axis cuts it.
TEST(GraphOfLayerTest, ShardsDivideTheWork) {
  const ModelSpec model = Qwen3_30B_A3B();
  const Layout whole{.precision = Precision::kBfloat16};
  Layout cut = whole;
  cut.tensor = 2;
  cut.context = 4;
  cut.data = 4;
  cut.expert = 32;
  const LayerGraph one = GraphOfLayer(model, whole, LayerKind::kExperts, {});
  const LayerGraph part = GraphOfLayer(model, cut, LayerKind::kExperts, {});
  EXPECT_DOUBLE_EQ(GemmFlops(part, Phase::kForward) * 8,
                   GemmFlops(one, Phase::kForward));
  EXPECT_DOUBLE_EQ(AttentionFlops(part) * 8, AttentionFlops(one));

  // Keys and values of a whole sequence, once forward and twice back.
  const double key_values = 2.0 * 4096 * (2 * 2 * 128);
  EXPECT_DOUBLE_EQ(ExchangeBytes(part, OpKind::kContextRing), 3 * key_values);
  // Each of the rank's 512 tokens for eight experts there and back, twice.
  const double exchanged = 2.0 * 512 * 8 * 2048;
  EXPECT_DOUBLE_EQ(ExchangeBytes(part, OpKind::kExpertExchange), 4 * exchanged);
  // Attention gathers and scatters; experts work on the tensor shares.
  EXPECT_DOUBLE_EQ(TensorBytes(part), 5 * 2.0 * 1024 * 2048);
  cut.expert = 16;
  cut.expert_tensor = 2;
  const LayerGraph joined = GraphOfLayer(model, cut, LayerKind::kExperts, {});
  EXPECT_DOUBLE_EQ(GemmFlops(joined, Phase::kForward),
                   GemmFlops(part, Phase::kForward));
  EXPECT_DOUBLE_EQ(TensorBytes(joined),
                   5 * 2.0 * 1024 * 2048 + 4 * 2 * exchanged);

  Implementation once;
  once.sends_tokens_once = true;
  const LayerGraph fewer = GraphOfLayer(model, cut, LayerKind::kExperts, once);
  EXPECT_DOUBLE_EQ(ExchangeBytes(fewer, OpKind::kExpertExchange),
                   ExchangeBytes(joined, OpKind::kExpertExchange));
  for (const LayerOp& op : fewer.ops) {
    if (op.kind != OpKind::kExpertExchange) continue;
    EXPECT_EQ(std::get<ExchangeAttributes>(op.attributes).experts_per_row, 8);
  }
}

// Goal: experts that multiply one by one are as many kernels, with their copies
// of a low precision; graphs hold the attention or the router and nothing else.
// Method: count kernels of Qwen3-30B's layer by implementation.
TEST(GraphOfLayerTest, CountsKernelsOfExpertsAndGraphs) {
  const ModelSpec model = Qwen3_30B_A3B();
  const Layout layout{.data = 8,
                      .expert = 8,
                      .precision = Precision::kBfloat16,
                      .gemm_format = GemmFormat::kFloat8};
  auto kernels = [&](const Implementation& implementation, bool in_graph) {
    const LayerGraph graph =
        GraphOfLayer(model, layout, LayerKind::kExperts, implementation);
    int64_t sum = 0;
    for (const LayerOp& op : graph.ops) {
      const bool is_kernel =
          Describe(op.kind).profile != ProfileTable::kCommunication;
      if (is_kernel && op.in_graph == in_graph) sum += op.launches;
    }
    return sum;
  };
  const Implementation together;
  Implementation apart;
  apart.fuses_experts = false;
  // 16 experts, two products of three phases each, and copies of both operands.
  EXPECT_EQ(kernels(apart, false) - kernels(together, false),
            6 * (16 - 1) + 4 * 16);
  EXPECT_EQ(kernels(together, true), 0);

  Implementation graphs;
  graphs.graphs_attention = true;
  const int64_t attention = kernels(graphs, true);
  EXPECT_GT(attention, 0);
  graphs.graphs_router = true;
  EXPECT_GT(kernels(graphs, true), attention);
  EXPECT_EQ(kernels(graphs, true) + kernels(graphs, false),
            kernels(together, false));
}

// Goal: clamps and biases of experts cost what PyTorch's operators read and
// write, more where tokens' weights are fp32, and the clamps once more where
// activations are computed again. Method: bytes beside those of the same layer
// without, per element, counted by hand from the operators.
TEST(GraphOfLayerTest, CountsBytesOfExpertBiases) {
  const ModelSpec model = Qwen3_30B_A3B();
  Layout layout{.data = 8, .expert = 8, .precision = Precision::kBfloat16};
  const auto more = [&](Phase phase, Implementation implementation) {
    const LayerGraph without =
        GraphOfLayer(model, layout, LayerKind::kExperts, implementation);
    implementation.adds_expert_biases = true;
    const LayerGraph with =
        GraphOfLayer(model, layout, LayerKind::kExperts, implementation);
    return ElementwiseBytes(with, phase) - ElementwiseBytes(without, phase);
  };
  const double rows =
      static_cast<double>(model.sequence_length * model.moe.experts_per_token);
  const double half = rows * static_cast<double>(model.moe.expert_hidden);
  const double returned = rows * static_cast<double>(model.hidden);
  Implementation implementation;
  EXPECT_DOUBLE_EQ(more(Phase::kForward, implementation),
                   16 * half + 12 * returned);
  EXPECT_DOUBLE_EQ(more(Phase::kInputGradient, implementation),
                   30 * half + 16 * returned);
  EXPECT_DOUBLE_EQ(more(Phase::kRecompute, implementation), 0);
  implementation.sends_tokens_once = true;
  EXPECT_DOUBLE_EQ(more(Phase::kForward, implementation),
                   16 * half + 28 * returned);
  EXPECT_DOUBLE_EQ(more(Phase::kInputGradient, implementation),
                   30 * half + 40 * returned);
  layout.recompute = Recompute::kPolicy;
  EXPECT_DOUBLE_EQ(more(Phase::kRecompute, implementation), 16 * half);
}

// Goal: kept activations are those of the literature. Method: bytes a layer of
// Korthikanti et al. (2022), table 2, with its dropout and without flash, s
// tokens, b sequences, h hidden, a heads, t tensor ranks.
TEST(GraphOfLayerTest, KeepsThePublishedActivations) {
  ModelSpec model = Gpt3_175B();
  Implementation megatron;
  megatron.flash_attention = false;
  megatron.dropout = true;
  megatron.selective = {.norms = false, .activation = false, .attention = true};
  const double sbh = 2048.0 * 12288;
  const double scores = 5 * 96 * 2048.0 / 12288;
  for (const int32_t tensor : {1, 8}) {
    Layout layout{.tensor = tensor, .precision = Precision::kBfloat16};
    const auto kept = [&] {
      return static_cast<double>(
          GraphOfLayer(model, layout, LayerKind::kDense, megatron)
              .activation_bytes);
    };
    layout.recompute = Recompute::kNone;
    megatron.sequence_parallel = true;
    EXPECT_DOUBLE_EQ(kept(), sbh * (34 + scores) / tensor);
    megatron.sequence_parallel = false;
    EXPECT_DOUBLE_EQ(kept(), sbh * (10 + (24 + scores) / tensor));
    layout.recompute = Recompute::kFull;
    EXPECT_DOUBLE_EQ(kept(), 2 * sbh);
    layout.recompute = Recompute::kPolicy;
    megatron.sequence_parallel = true;
    EXPECT_DOUBLE_EQ(kept(), sbh * 34 / tensor);
  }
}

// Goal: recompute does again what it drops and nothing else. Method: FLOPs of
// the recompute phase and bytes kept, for what each setting means.
TEST(GraphOfLayerTest, RecomputeDoesAgainWhatItDrops) {
  const ModelSpec model = DeepSeekV3();
  Layout layout{.precision = Precision::kBfloat16};
  Implementation implementation;
  const auto work = [&] {
    return GraphOfLayer(model, layout, LayerKind::kExperts, implementation);
  };
  const LayerGraph none = work();
  EXPECT_EQ(GemmFlops(none, Phase::kRecompute), 0);

  layout.recompute = Recompute::kCheap;
  const LayerGraph selective = work();
  EXPECT_EQ(GemmFlops(selective, Phase::kRecompute), 0);
  EXPECT_LT(selective.activation_bytes, none.activation_bytes);
  EXPECT_GT(selective.working_bytes, none.working_bytes);

  implementation.selective.latent_projections = true;
  layout.recompute = Recompute::kPolicy;
  const LayerGraph latent = work();
  EXPECT_DOUBLE_EQ(GemmFlops(latent, Phase::kRecompute),
                   2.0 * 4096 * 128 * (192 * 1536 + 256 * 512));
  EXPECT_LT(latent.activation_bytes, selective.activation_bytes);

  layout.recompute = Recompute::kFull;
  const LayerGraph full = work();
  EXPECT_EQ(full.activation_bytes, 2 * 4096 * 7168);
  EXPECT_LT(GemmFlops(full, Phase::kRecompute),
            GemmFlops(full, Phase::kForward));
  implementation.recomputes_whole_layer = true;
  EXPECT_DOUBLE_EQ(GemmFlops(work(), Phase::kRecompute),
                   GemmFlops(full, Phase::kForward));
}

// How often a list has each op, by its text.
using OpCounts = std::map<std::string, int>;

void Count(OpKind kind, Phase phase, const OpAttributes& attributes,
           OpCounts* counts) {
  ++(*counts)[absl::StrCat(PhaseName(phase), " ", OpKindName(kind), " ",
                           AttributesToString(attributes))];
}

// The ops of a stage's graph whose names begin with one of these. Weights are
// transposed, or copied in blocks of 8 bits, once a step, which is no op of a
// layer.
OpCounts OpsNamed(const Graph& graph,
                  const std::vector<std::string>& prefixes) {
  OpCounts counts;
  for (const auto* ops : {&graph.forward, &graph.backward}) {
    for (const GraphOp& op : *ops) {
      if (absl::EndsWith(op.name, "/transpose_weight") ||
          absl::EndsWith(op.name, "/quantize_weight")) {
        continue;
      }
      for (const std::string& prefix : prefixes) {
        if (!absl::StartsWith(op.name, prefix)) continue;
        Count(op.kind, op.phase, op.attributes, &counts);
      }
    }
  }
  return counts;
}

OpCounts OpsOf(const LayerGraph& graph) {
  OpCounts counts;
  for (const LayerOp& op : graph.ops) {
    Count(op.kind, op.phase, op.attributes, &counts);
  }
  return counts;
}

void ExpectProgramsHaveTheOps(const ModelSpec& model, const Layout& layout) {
  SCOPED_TRACE(LayoutToString(layout));
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    const Graph graph = BuildTrainingGraph(model, layout, stage);
    Layout on_stage = layout;
    on_stage.recompute = layout.recompute_of(stage);
    const LayerRange layers = StageLayers(model, layout, stage);
    for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
      const StreamInput input =
          layer == layers.begin ? StreamInput::kWhole : StreamInput::kSum;
      EXPECT_EQ(OpsNamed(graph, {absl::StrCat("layers.", layer, "/")}),
                OpsOf(GraphOfLayer(model, on_stage, KindOfLayer(model, layer),
                                   {}, input)))
          << layer;
    }
    if (stage == 0) {
      EXPECT_EQ(OpsNamed(graph, {"embedding"}),
                OpsOf(GraphOfEmbedding(model, layout, {})));
    }
    if (stage + 1 == layout.pipeline) {
      EXPECT_EQ(OpsNamed(graph, {"final_norm", "head/"}),
                OpsOf(GraphOfHead(model, layout, {})));
    }
  }
}

// Goal: attention in 8 bits is its copies and the op that reads them, forward
// and where it is recomputed; the backward pass, what it keeps and the end
// layers stay as they are. Method: the ops and bytes of one layer in both
// formats.
TEST(GraphOfLayerTest, AttendsInFloat8) {
  const ModelSpec stored = Llama3_8B();
  ModelSpec model = stored;
  model.attention_format = AttentionFormat::kFloat8;
  model.stored_end_layers = 1;
  const auto count = [](const LayerGraph& graph, Phase phase, OpKind kind) {
    return std::count_if(graph.ops.begin(), graph.ops.end(),
                         [&](const LayerOp& op) {
                           return op.phase == phase && op.kind == kind;
                         });
  };
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kAttention, Recompute::kFull}) {
    const Layout layout{.micro_batch = 2,
                        .precision = Precision::kBfloat16,
                        .recompute = recompute};
    const LayerGraph before =
        GraphOfLayer(stored, layout, LayerKind::kDense, {});
    const LayerGraph after = GraphOfLayer(model, layout, LayerKind::kDense, {});
    EXPECT_EQ(after.activation_bytes, before.activation_bytes);
    EXPECT_EQ(after.working_bytes, before.working_bytes);
    for (const Phase phase : {Phase::kForward, Phase::kRecompute}) {
      const auto num = count(before, phase, OpKind::kAttentionForward);
      EXPECT_EQ(num, phase == Phase::kForward || recompute != Recompute::kNone);
      EXPECT_EQ(count(after, phase, OpKind::kQuantizeAttention), num);
      EXPECT_EQ(count(after, phase, OpKind::kFloat8AttentionForward), num);
      EXPECT_EQ(count(after, phase, OpKind::kAttentionForward), 0);
    }
    EXPECT_EQ(count(after, Phase::kInputGradient, OpKind::kAttentionBackward),
              1);
    const LayerGraph of_end =
        GraphOfLayer(model, layout, LayerKind::kStoredDense, {});
    EXPECT_EQ(of_end.ops.size(), before.ops.size());
    EXPECT_EQ(count(of_end, Phase::kForward, OpKind::kAttentionForward), 1);
  }
}

// Goal: what is planned is what workers run: the ops of our own style are those
// of Programs. Method: kind, phase and attributes of every op of each layer and
// end, over the layouts that planner tests sweep in both precisions, and
// layouts of large models with all sets that are recomputed, with and without
// 8-bit products.
TEST(GraphOfLayerTest, HasTheOpsOfPrograms) {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBfloat16}) {
    for (const Layout& layout : TestLayouts(precision)) {
      if (layout.num_microbatches > 1) continue;  // The ops are the same.
      ExpectProgramsHaveTheOps(TestModel(), layout);
    }
  }
  for (ModelSpec model : {Llama3_8B(), Llama3_405B()}) {
    model.num_layers = 6;
    for (const int32_t tensor : {1, 2, 4}) {
      for (int set = 0; set < static_cast<int>(Recompute::kFull);
           set += SweepStep(3)) {
        Layout layout{.pipeline = 2,
                      .tensor = tensor,
                      .micro_batch = 2,
                      .num_microbatches = 4,
                      .precision = Precision::kBfloat16,
                      .recompute = static_cast<Recompute>(set)};
        if (!ValidateLayout(model, layout, layout.global_batch()).ok())
          continue;
        ExpectProgramsHaveTheOps(model, layout);
        layout.gemm_format = GemmFormat::kFloat8Blocks;
        ExpectProgramsHaveTheOps(model, layout);
        layout.gemm_format = GemmFormat::kFloat8;
        ExpectProgramsHaveTheOps(model, layout);
        ModelSpec with_ends = model;
        with_ends.stored_end_layers = 2;
        ExpectProgramsHaveTheOps(with_ends, layout);
        with_ends.attention_format = AttentionFormat::kFloat8;
        ExpectProgramsHaveTheOps(with_ends, layout);
      }
    }
  }
}

}  // namespace
}  // namespace millrace
