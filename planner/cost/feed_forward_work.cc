#include "planner/cost/layer_work_builder.h"

namespace millrace {
namespace {

// Up (and gate), activation, down: `rows` tokens through `count` alike of this
// inner width. `inner` and `activation` are what recompute takes the first
// products and the activation for.
void AddProducts(LayerBuilder& builder, Piece inner, Piece activation,
                 int64_t rows, int64_t width, int64_t count) {
  const ModelSpec& model = builder.model();
  const int64_t projections = model.num_inner_projections();
  const int64_t tokens = (rows + count - 1) / count;
  const auto elements = AsDouble(rows * width);
  if (inner == Piece::kGateUp && projections == 2 &&
      builder.RepeatsSecondProducts()) {
    builder.Linear(inner, {tokens, width, model.hidden, count});
    builder.Linear(Piece::kSecondProduct, {tokens, width, model.hidden, count});
    builder.KeepElements(inner, elements);
    builder.KeepElements(Piece::kSecondProduct, elements);
    // The last product's output, which nothing reads, is kept as well.
    builder.KeepElements(Piece::kProduct, AsDouble(rows * model.hidden));
  } else {
    builder.Linear(inner, {tokens, projections * width, model.hidden, count});
    builder.KeepElements(inner, AsDouble(projections) * elements);
  }
  builder.Elementwise(activation, AsDouble(projections + 1) * elements,
                      AsDouble(2 * projections + 1) * elements);
  builder.Keep(activation, elements * builder.product_input_bytes());
  builder.Linear(Piece::kLast, {tokens, model.hidden, width, count});
  // Backward: gradients of output and input, of the activation and before it.
  builder.Work(builder.element_bytes() *
               (2 * AsDouble(rows * model.hidden) +
                AsDouble(projections + 1) * elements));
}

// What gpt-oss's experts do beside their products where no kernel does it with
// them, as Megatron-Core 0.15 to 0.17 writes it and PyTorch's autograd runs it
// (weighted_bias_quick_geglu_impl, TEGroupedMLP._apply_bias). In bytes of an
// element read and written, activations in 16 bits.
void AddExpertBiases(LayerBuilder& builder, Piece activation, int64_t rows,
                     int64_t width, int64_t num_experts) {
  // Of an element of both halves: clamped, and joined again. Backward what lies
  // in bounds is found (one bound for the gate, two for the other half), the
  // gradient taken there, and both halves joined.
  constexpr double kClamp = 4 + 4;
  constexpr double kGateBack = 3 + 5, kOtherBack = 3 + 3 + 3 + 5, kJoined = 4;
  constexpr int32_t kClampLaunches = 3;
  const auto half = AsDouble(rows * width);
  builder.Bandwidth(activation, 2 * kClamp * half,
                    (kGateBack + kOtherBack + 2 * kJoined) * half,
                    kClampLaunches);
  builder.KeepElements(activation, 2 * half);
  // Of an element returned: the expert's bias times the token's weight, added,
  // all experts joined. Backward times weight and times bias, each summed, and
  // joined. DeepEP's and HybridEP's weights are fp32, and so is what they touch
  // until it is cast.
  constexpr double kBias = 2 + 6 + 4, kBiasBack = 6 + 6 + 4;
  constexpr double kBiasInFloat = 4 + 10 + 8 + 6;
  constexpr double kBiasInFloatBack = 6 + 6 + 12 + 12 + 4;
  const bool in_float = builder.implementation().sends_tokens_once;
  const auto returned = AsDouble(rows * builder.model().hidden);
  builder.Bandwidth(Piece::kLast, (in_float ? kBiasInFloat : kBias) * returned,
                    (in_float ? kBiasInFloatBack : kBiasBack) * returned,
                    static_cast<int32_t>(2 * num_experts + 1));
}

}  // namespace

void AddFeedForward(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const auto normed = AsDouble(builder.norm_tokens() * model.hidden);
  builder.Begin(LayerPart::kOther);
  builder.KeepElements(Piece::kOutput, normed);  // The stream.
  builder.Norm(builder.norm_tokens(), model.hidden);
  builder.KeepNormed(model.hidden);
  builder.EnterTensor(Piece::kGateUp, model.hidden);
  AddProducts(builder, Piece::kGateUp, Piece::kActivation, builder.tokens(),
              model.ffn_hidden / builder.layout().tensor, 1);
  builder.LeaveTensor(Piece::kLast, model.hidden);
  if (builder.implementation().dropout) builder.Keep(Piece::kProduct, normed);
}

void AddExperts(LayerBuilder& builder) {
  const ModelSpec& model = builder.model();
  const MixtureOfExperts& moe = model.moe;
  const Layout& layout = builder.layout();
  const int64_t tokens = builder.shard_tokens();
  const auto stream = AsDouble(tokens * model.hidden);
  builder.Begin(LayerPart::kRouter);
  builder.KeepElements(Piece::kOutput, stream);
  builder.Norm(tokens, model.hidden);
  // The router reads it as stored.
  builder.KeepElements(Piece::kNorm, stream);

  builder.Linear(Piece::kExperts, {.tokens = tokens,
                                   .out = moe.num_experts,
                                   .in = model.hidden,
                                   .low_precision = false});
  // Scores and what is chosen of them in fp32, and which were.
  constexpr double kScoreBytes = 4 + 4 + 1;
  const auto scores = AsDouble(tokens * moe.num_experts);
  builder.Keep(Piece::kExperts, kScoreBytes * scores);
  constexpr int32_t kRouterLaunches = 6;
  builder.Bandwidth(Piece::kExperts, 2 * kScoreBytes * scores,
                    2 * kScoreBytes * scores, kRouterLaunches);

  builder.Begin(LayerPart::kExperts);
  // Rows in the order of their experts, to the ranks that have them, there
  // joined by what the tensor ranks got for the same shards of experts.
  const double sent = stream * AsDouble(moe.experts_per_token);
  const double received = sent * layout.expert_tensor;
  const int64_t rows = tokens * moe.experts_per_token * layout.expert_tensor;
  const int64_t local_experts = moe.num_experts / layout.expert;
  builder.Elementwise(Piece::kExperts, stream + sent, stream + sent);
  if (layout.expert > 1) {
    builder.Exchange(Piece::kExperts, sent);
    if (local_experts > 1) {
      builder.Elementwise(Piece::kExperts, 2 * received, 2 * received);
    }
  }
  if (layout.expert_tensor > 1) {
    builder.Communicate(Piece::kExperts, CommAxis::kTensor,
                        CommKind::kAllGather, received);
    builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                                CommKind::kReduceScatter, received);
  }
  builder.Keep(Piece::kExperts, received * builder.product_input_bytes());
  const int64_t width = moe.expert_hidden / layout.expert_tensor;
  AddProducts(builder, Piece::kExpertProducts, Piece::kExpertActivation, rows,
              width, local_experts);
  if (builder.implementation().adds_expert_biases) {
    AddExpertBiases(builder, Piece::kExpertActivation, rows, width,
                    local_experts);
  }

  // And back, to be weighed and summed.
  if (layout.expert_tensor > 1) {
    builder.Communicate(Piece::kLast, CommAxis::kTensor,
                        CommKind::kReduceScatter, received);
    builder.CommunicateBackward(WorkPhase::kInputGradient, CommAxis::kTensor,
                                CommKind::kAllGather, received);
  }
  if (layout.expert > 1) {
    if (local_experts > 1) {
      builder.Elementwise(Piece::kLast, 2 * received, 2 * received);
    }
    builder.Exchange(Piece::kLast, sent);
  }
  builder.Elementwise(Piece::kLast, stream + sent, stream + sent);

  if (moe.num_shared_experts == 0) return;
  builder.Begin(LayerPart::kOther);
  builder.EnterTensor(Piece::kGateUp, model.hidden);
  AddProducts(builder, Piece::kExpertProducts, Piece::kExpertActivation,
              builder.tokens(),
              moe.num_shared_experts * moe.expert_hidden / layout.tensor, 1);
  builder.LeaveTensor(Piece::kLast, model.hidden);
}

}  // namespace millrace
