#include "kernels/autotune/tuning_cases.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/attention/attention_bf16.h"
#include "kernels/autotune/tuning_case_makers.h"

namespace millrace {
namespace {

// Adds makers to a list.
class List {
 public:
  void Norms(int64_t num_tokens, int64_t hidden) {
    for (const bool is_layer : {false, true}) {
      const std::string what = absl::StrCat(is_layer ? "LayerNorm" : "RMSNorm",
                                            ", ", num_tokens, " x ", hidden);
      for (const bool has_residual : {false, true}) {
        const NormCase c = {is_layer, has_residual, num_tokens, hidden};
        Add(TunedKernel::kNormForward,
            absl::StrCat("norm_forward: ", what,
                         has_residual ? ", of a sum" : ""),
            [c] { return MakeNormForward(c); });
      }
      const NormCase c = {is_layer, true, num_tokens, hidden};
      Add(TunedKernel::kNormBackward, absl::StrCat("norm_backward: ", what),
          [c] { return MakeNormBackward(c); });
    }
  }
  void Swiglu(int64_t num_tokens, int64_t ffn_hidden) {
    const std::string what = absl::StrCat(num_tokens, " x ", ffn_hidden);
    Add(TunedKernel::kSwigluForward, absl::StrCat("swiglu_forward: ", what),
        [=] { return MakeSwiglu(false, num_tokens, ffn_hidden); });
    Add(TunedKernel::kSwigluBackward, absl::StrCat("swiglu_backward: ", what),
        [=] { return MakeSwiglu(true, num_tokens, ffn_hidden); });
  }
  void RopeNorm(int64_t num_tokens, int64_t head_dim, int64_t num_heads,
                int64_t num_kv_heads) {
    Add(TunedKernel::kRopeNormForward,
        absl::StrCat("rope_norm_forward: ", num_tokens, " tokens, ", num_heads,
                     " + ", num_kv_heads, " heads of ", head_dim),
        [=] {
          return MakeRopeNorm(num_tokens, head_dim, num_heads, num_kv_heads);
        });
  }
  void Attention(const AttentionBf16Shape& shape) {
    Add(TunedKernel::kAttentionForward,
        absl::StrCat(
            "attention_forward: ", shape.num_sequences, " x ",
            shape.sequence_length, ", ", shape.num_heads, " heads of ",
            shape.head_dim,
            shape.window != 0 ? absl::StrCat(", window ", shape.window) : "",
            shape.causal ? ", causal" : ""),
        [shape] { return MakeAttention(shape); });
  }
  void CrossEntropyRows(int64_t num_rows, int64_t vocabulary) {
    Add(TunedKernel::kCrossEntropyRows,
        absl::StrCat("cross_entropy_rows: ", num_rows, " x ", vocabulary),
        [=] { return MakeCrossEntropyRows(num_rows, vocabulary); });
  }

  std::vector<TuningCaseMaker> Take() { return std::move(makers_); }

 private:
  void Add(TunedKernel kernel, std::string name,
           std::function<absl::StatusOr<TuningCase>()> make) {
    makers_.push_back({std::move(name), kernel, std::move(make)});
  }

  std::vector<TuningCaseMaker> makers_;
};

}  // namespace

std::vector<TuningCaseMaker> TrainingTuningCases() {
  List list;
  for (const int64_t hidden : {1024, 2048, 4096, 8192}) {
    list.Norms(16384, hidden);
    list.Norms(512, hidden);  // Cached.
  }
  list.Swiglu(16384, 14336);
  list.Swiglu(256, 4096);  // Cached.
  list.RopeNorm(16384, 128, 32, 8);
  list.RopeNorm(16384, 64, 32, 8);
  constexpr int64_t kTokens = 16384;
  constexpr int64_t kHidden = 2048;
  for (const int64_t head_dim : {64, 128}) {
    const int64_t num_heads = kHidden / head_dim;
    for (const bool causal : {false, true}) {
      for (int64_t length = 512; length <= kTokens; length *= 2) {
        list.Attention({.num_sequences = kTokens / length,
                        .sequence_length = length,
                        .num_heads = num_heads,
                        .num_kv_heads = num_heads,
                        .head_dim = head_dim,
                        .causal = causal});
      }
      // Few tiles.
      for (const int64_t length : {512, 1024, 2048}) {
        list.Attention({.num_sequences = 1,
                        .sequence_length = length,
                        .num_heads = 8,
                        .num_kv_heads = 8,
                        .head_dim = head_dim,
                        .causal = causal});
      }
    }
    list.Attention({.num_sequences = 2,
                    .sequence_length = 8192,
                    .num_heads = num_heads,
                    .num_kv_heads = num_heads,
                    .head_dim = head_dim,
                    .causal = true,
                    .window = 1024});
  }
  for (const int64_t vocabulary : {32000, 50264, 128256, 151936}) {
    list.CrossEntropyRows(1024, vocabulary);
  }
  return list.Take();
}

std::vector<TuningCaseMaker> SmallTuningCases() {
  List list;
  for (const int64_t hidden : {64, 136, 512, 1000, 2048, 4088, 5120, 16384}) {
    list.Norms(301, hidden);
  }
  list.Swiglu(37, 1368);
  list.RopeNorm(123, 128, 5, 2);
  list.RopeNorm(77, 64, 3, 1);
  for (const int64_t head_dim : {64, 128}) {
    for (const bool causal : {false, true}) {
      list.Attention({.num_sequences = 2,
                      .sequence_length = 777,
                      .num_heads = 16,
                      .num_kv_heads = 16,
                      .head_dim = head_dim,
                      .causal = causal});
    }
    list.Attention({.num_sequences = 1,
                    .sequence_length = 600,
                    .num_heads = 4,
                    .num_kv_heads = 4,
                    .head_dim = head_dim,
                    .causal = true,
                    .window = 100});
  }
  list.CrossEntropyRows(50, 30001);
  list.CrossEntropyRows(20, 128256);
  return list.Take();
}

}  // namespace millrace
