#include "planner/cost/layer_work.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/lower/graph.h"
#include "planner/program/op_work.h"
#include "tests/planner/known_models.h"
#include "tests/planner/planner_testing.h"

namespace millrace {
namespace {

// FLOPs of matrix products and attention, and bytes of collectives of the
// tensor axis by kind, of one micro-batch through all stages.
struct Totals {
  double gemm_flops = 0;
  double attention_flops = 0;
  std::map<std::string, double> tensor_bytes;
};

void AddOps(const Layout& layout, const std::vector<GraphOp>& ops,
            Totals* totals) {
  for (const GraphOp& op : ops) {
    const OpWork work = WorkOf(layout, op.kind, op.attributes);
    switch (op.kind) {
      case OpKind::kGemm:
      case OpKind::kLinearCrossEntropy:
      case OpKind::kCrossEntropyStats:
      case OpKind::kCrossEntropyGradient:
        totals->gemm_flops += work.flops;
        break;
      case OpKind::kAttentionForward:
      case OpKind::kAttentionBackward:
        totals->attention_flops += work.flops;
        break;
      case OpKind::kAllGather:
      case OpKind::kReduceScatter:
        if (std::get<CollectiveAttributes>(op.attributes).group ==
            Group::kTensor) {
          totals->tensor_bytes[OpKindName(op.kind)] += work.bytes;
        }
        break;
      default:
        break;
    }
  }
}

Totals TotalsOfGraphs(const ModelSpec& model, const Layout& layout) {
  Totals totals;
  for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
    const Graph graph = BuildTrainingGraph(model, layout, stage);
    AddOps(layout, graph.forward, &totals);
    AddOps(layout, graph.backward, &totals);
  }
  return totals;
}

void AddWork(const LayerWork& work, Totals* totals) {
  for (const GemmWork& gemm : work.gemms) totals->gemm_flops += FlopsOf(gemm);
  for (const AttentionWork& attention : work.attention) {
    totals->attention_flops += FlopsOf(attention);
  }
  for (const CommWork& comm : work.comm) {
    EXPECT_EQ(comm.axis, CommAxis::kTensor);
    const OpKind kind = comm.kind == CommKind::kAllGather
                            ? OpKind::kAllGather
                            : OpKind::kReduceScatter;
    totals->tensor_bytes[OpKindName(kind)] += comm.bytes;
  }
}

Totals TotalsOfWork(const ModelSpec& model, const Layout& layout) {
  Totals totals;
  AddWork(WorkOfEmbedding(model, layout, {}), &totals);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    AddWork(WorkOfLayer(model, layout, KindOfLayer(model, layer), {}), &totals);
  }
  AddWork(WorkOfHead(model, layout, {}), &totals);
  return totals;
}

// Goal: the closed form does the arithmetic and moves the bytes that workers'
// Programs do. Method: for the Llama family, sums over a micro-batch of all
// stages against those of the graphs that are lowered, over the layouts that
// planner tests sweep in both precisions, and a layout of a large model.
TEST(WorkOfLayerTest, AgreesWithTheGraphsThatWorkersExecute) {
  const auto expect_equal = [](const ModelSpec& model, const Layout& layout) {
    SCOPED_TRACE(LayoutToString(layout));
    const Totals graphs = TotalsOfGraphs(model, layout);
    const Totals work = TotalsOfWork(model, layout);
    EXPECT_NEAR(work.gemm_flops / graphs.gemm_flops, 1, 1e-12);
    EXPECT_NEAR(work.attention_flops / graphs.attention_flops, 1, 1e-12);
    EXPECT_EQ(work.tensor_bytes, graphs.tensor_bytes);
  };
  for (const Precision precision :
       {Precision::kFloat32, Precision::kBfloat16}) {
    for (const Layout& layout : TestLayouts(precision)) {
      expect_equal(TestModel(), layout);
    }
  }
  expect_equal(Llama3_8B(), {.pipeline = 2,
                             .tensor = 4,
                             .micro_batch = 4,
                             .num_microbatches = 4,
                             .precision = Precision::kBfloat16});
}

double ElementsOf(const RankParameters& parameters, const Layout& layout) {
  // Copies of experts are fewer than copies of the rest.
  return parameters.dense + parameters.experts * layout.expert *
                                layout.expert_tensor / layout.tensor;
}

// Goal: the shares of all ranks make the model. Method: one rank holds
// CountParameters' totals; then every rank's share, times the ranks that have
// different ones, differs by what is said to be whole on every tensor rank.
TEST(ParametersOfLayerTest, SharesMakeTheModel) {
  for (const ModelSpec& model :
       {Llama3_8B(), Gpt3_175B(), Nemotron4_15B(), Qwen3_30B_A3B(),
        DeepSeekV3(), Moonlight16B()}) {
    const auto total_of = [&](const Layout& layout) {
      double total = ElementsOf(ParametersOfEmbedding(model, layout), layout) +
                     ElementsOf(ParametersOfHead(model, layout), layout);
      for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        total += ElementsOf(
            ParametersOfLayer(model, layout, KindOfLayer(model, layer)),
            layout);
      }
      return total * layout.tensor;
    };
    const auto expected = static_cast<double>(CountParameters(model).total);
    EXPECT_DOUBLE_EQ(total_of({}), expected);

    const LatentAttention& mla = model.mla;
    const int64_t latent =
        mla.kv_rank > 0 ? (mla.query_rank + mla.kv_rank) * (model.hidden + 1) +
                              mla.rope_head_dim * model.hidden
                        : 0;
    const auto whole = static_cast<double>(
        model.num_layers * (2 * model.hidden + latent) + model.hidden +
        model.num_expert_layers() * model.moe.num_experts * model.hidden);
    Layout cut{.data = 8, .tensor = 4};
    if (model.moe.num_experts > 0) cut.expert = 16;
    EXPECT_NEAR(total_of(cut) / (expected + 3 * whole), 1, 1e-12);
    if (model.moe.num_experts > 0) cut.expert_tensor = 4;
    EXPECT_NEAR(total_of(cut) / (expected + 3 * whole), 1, 1e-12);
  }
}

double GemmFlops(const LayerWork& work, WorkPhase phase) {
  double flops = 0;
  for (const GemmWork& gemm : work.gemms) {
    if (gemm.phase == phase) flops += FlopsOf(gemm);
  }
  return flops;
}

double AttentionFlops(const LayerWork& work) {
  double flops = 0;
  for (const AttentionWork& attention : work.attention) {
    if (attention.phase == WorkPhase::kForward) flops += FlopsOf(attention);
  }
  return flops;
}

double BandwidthBytes(const LayerWork& work, WorkPhase phase) {
  double bytes = 0;
  for (const BandwidthWork& bandwidth : work.bandwidth) {
    if (bandwidth.phase == phase) bytes += bandwidth.bytes;
  }
  return bytes;
}

double CommBytes(const LayerWork& work, CommAxis axis) {
  double bytes = 0;
  for (const CommWork& comm : work.comm) {
    if (comm.axis == axis) bytes += comm.bytes;
  }
  return bytes;
}

// Goal: a token costs what CountTokenFlops says, whatever the kind of model.
// Method: sum of all layers and the head on one rank, each gradient of the
// inputs and of the weights costing what the forward pass does.
TEST(WorkOfLayerTest, CostsTheFlopsOfActiveParameters) {
  for (const ModelSpec& model :
       {Llama3_8B(), Gpt3_175B(), Nemotron4_15B(), Mixtral8x7B(),
        Qwen3_30B_A3B(), DeepSeekV3(), Moonlight16B()}) {
    const Layout layout{.precision = Precision::kBfloat16};
    double attention = 0;
    double products[3] = {};
    const WorkPhase phases[3] = {WorkPhase::kForward, WorkPhase::kInputGradient,
                                 WorkPhase::kWeightGradient};
    for (int64_t layer = 0; layer <= model.num_layers; ++layer) {
      const LayerWork work =
          layer == model.num_layers
              ? WorkOfHead(model, layout, {})
              : WorkOfLayer(model, layout, KindOfLayer(model, layer), {});
      attention += AttentionFlops(work);
      for (int i = 0; i < 3; ++i) products[i] += GemmFlops(work, phases[i]);
    }
    const TokenFlops flops = CountTokenFlops(model);
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
TEST(WorkOfLayerTest, ShardsDivideTheWork) {
  const ModelSpec model = Qwen3_30B_A3B();
  const Layout whole{.precision = Precision::kBfloat16};
  Layout cut = whole;
  cut.tensor = 2;
  cut.context = 4;
  cut.data = 4;
  cut.expert = 32;
  const LayerWork one = WorkOfLayer(model, whole, LayerKind::kExperts, {});
  const LayerWork part = WorkOfLayer(model, cut, LayerKind::kExperts, {});
  EXPECT_DOUBLE_EQ(GemmFlops(part, WorkPhase::kForward) * 8,
                   GemmFlops(one, WorkPhase::kForward));
  EXPECT_DOUBLE_EQ(AttentionFlops(part) * 8, AttentionFlops(one));

  // Keys and values of a whole sequence, once forward and twice back.
  const double key_values = 2.0 * 4096 * (2 * 2 * 128);
  EXPECT_DOUBLE_EQ(CommBytes(part, CommAxis::kContext), 3 * key_values);
  // Each of the rank's 512 tokens for eight experts there and back, twice.
  const double exchanged = 2.0 * 512 * 8 * 2048;
  EXPECT_DOUBLE_EQ(CommBytes(part, CommAxis::kExpert), 4 * exchanged);
  // Attention gathers and scatters; experts work on the tensor shares.
  EXPECT_DOUBLE_EQ(CommBytes(part, CommAxis::kTensor), 5 * 2.0 * 1024 * 2048);
  cut.expert = 16;
  cut.expert_tensor = 2;
  const LayerWork joined = WorkOfLayer(model, cut, LayerKind::kExperts, {});
  EXPECT_DOUBLE_EQ(GemmFlops(joined, WorkPhase::kForward),
                   GemmFlops(part, WorkPhase::kForward));
  EXPECT_DOUBLE_EQ(CommBytes(joined, CommAxis::kTensor),
                   5 * 2.0 * 1024 * 2048 + 4 * 2 * exchanged);

  Implementation once;
  once.sends_tokens_once = true;
  const LayerWork fewer = WorkOfLayer(model, cut, LayerKind::kExperts, once);
  EXPECT_DOUBLE_EQ(CommBytes(fewer, CommAxis::kExpert),
                   CommBytes(joined, CommAxis::kExpert));
  for (const CommWork& comm : fewer.comm) {
    EXPECT_EQ(comm.experts_per_row, comm.axis == CommAxis::kExpert ? 8 : 0);
  }
}

// Goal: experts that multiply one by one are as many kernels, with their copies
// of a low precision; graphs hold the attention or the router and nothing else.
// Method: count kernels of Qwen3-30B's layer by implementation.
TEST(WorkOfLayerTest, CountsKernelsOfExpertsAndGraphs) {
  const ModelSpec model = Qwen3_30B_A3B();
  const Layout layout{.data = 8,
                      .expert = 8,
                      .precision = Precision::kBfloat16,
                      .gemm_format = GemmFormat::kFloat8};
  auto kernels = [&](const Implementation& implementation, bool in_graph) {
    const LayerWork work =
        WorkOfLayer(model, layout, LayerKind::kExperts, implementation);
    int64_t sum = 0;
    for (const GemmWork& gemm : work.gemms) {
      if (gemm.in_graph == in_graph) sum += gemm.launches;
    }
    for (const AttentionWork& attention : work.attention) {
      if (attention.in_graph == in_graph) ++sum;
    }
    for (const BandwidthWork& bandwidth : work.bandwidth) {
      if (bandwidth.in_graph == in_graph) sum += bandwidth.launches;
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
TEST(WorkOfLayerTest, CountsBytesOfExpertBiases) {
  const ModelSpec model = Qwen3_30B_A3B();
  Layout layout{.data = 8, .expert = 8, .precision = Precision::kBfloat16};
  const auto more = [&](WorkPhase phase, Implementation implementation) {
    const LayerWork without =
        WorkOfLayer(model, layout, LayerKind::kExperts, implementation);
    implementation.adds_expert_biases = true;
    const LayerWork with =
        WorkOfLayer(model, layout, LayerKind::kExperts, implementation);
    return BandwidthBytes(with, phase) - BandwidthBytes(without, phase);
  };
  const double rows =
      static_cast<double>(model.sequence_length * model.moe.experts_per_token);
  const double half = rows * static_cast<double>(model.moe.expert_hidden);
  const double returned = rows * static_cast<double>(model.hidden);
  Implementation implementation;
  EXPECT_DOUBLE_EQ(more(WorkPhase::kForward, implementation),
                   16 * half + 12 * returned);
  EXPECT_DOUBLE_EQ(more(WorkPhase::kInputGradient, implementation),
                   30 * half + 16 * returned);
  EXPECT_DOUBLE_EQ(more(WorkPhase::kRecompute, implementation), 0);
  implementation.sends_tokens_once = true;
  EXPECT_DOUBLE_EQ(more(WorkPhase::kForward, implementation),
                   16 * half + 28 * returned);
  EXPECT_DOUBLE_EQ(more(WorkPhase::kInputGradient, implementation),
                   30 * half + 40 * returned);
  layout.recompute = Recompute::kPolicy;
  EXPECT_DOUBLE_EQ(more(WorkPhase::kRecompute, implementation), 16 * half);
}

// Goal: kept activations are those of the literature. Method: bytes a layer of
// Korthikanti et al. (2022), table 2, with its dropout and without flash, s
// tokens, b sequences, h hidden, a heads, t tensor ranks.
TEST(WorkOfLayerTest, KeepsThePublishedActivations) {
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
          WorkOfLayer(model, layout, LayerKind::kDense, megatron)
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
TEST(WorkOfLayerTest, RecomputeDoesAgainWhatItDrops) {
  const ModelSpec model = DeepSeekV3();
  Layout layout{.precision = Precision::kBfloat16};
  Implementation implementation;
  const auto work = [&] {
    return WorkOfLayer(model, layout, LayerKind::kExperts, implementation);
  };
  const LayerWork none = work();
  EXPECT_EQ(GemmFlops(none, WorkPhase::kRecompute), 0);

  layout.recompute = Recompute::kCheap;
  const LayerWork selective = work();
  EXPECT_EQ(GemmFlops(selective, WorkPhase::kRecompute), 0);
  EXPECT_LT(selective.activation_bytes, none.activation_bytes);
  EXPECT_GT(selective.working_bytes, none.working_bytes);

  implementation.selective.latent_projections = true;
  layout.recompute = Recompute::kPolicy;
  const LayerWork latent = work();
  EXPECT_DOUBLE_EQ(GemmFlops(latent, WorkPhase::kRecompute),
                   2.0 * 4096 * 128 * (192 * 1536 + 256 * 512));
  EXPECT_LT(latent.activation_bytes, selective.activation_bytes);

  layout.recompute = Recompute::kFull;
  const LayerWork full = work();
  EXPECT_EQ(full.activation_bytes, 2 * 4096 * 7168);
  EXPECT_LT(GemmFlops(full, WorkPhase::kRecompute),
            GemmFlops(full, WorkPhase::kForward));
  implementation.recomputes_whole_layer = true;
  EXPECT_DOUBLE_EQ(GemmFlops(work(), WorkPhase::kRecompute),
                   GemmFlops(full, WorkPhase::kForward));
}

}  // namespace
}  // namespace millrace
