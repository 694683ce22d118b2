// Puts the loops of RMSNorm and RoPE together: the query heads of a token are
// rows of head_dim, and so are its key heads.

#include "kernels/pointwise/qk_norm_rope.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

absl::Status CheckQkNormRope(const QkNormRopeShape& shape, int num_threads) {
  if (shape.sequence_length < 1 || shape.num_heads < 1 ||
      shape.num_kv_heads < 1 || shape.head_dim < 2 || shape.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("QkNormRope got sequence_length ", shape.sequence_length,
                     ", ", shape.num_heads, " query and ", shape.num_kv_heads,
                     " key-value heads of head_dim ", shape.head_dim,
                     "; needs at least one of each and an even head_dim"));
  }
  return CheckRowsAndThreads("QkNormRope", shape.num_tokens, shape.row(),
                             num_threads);
}

RopeArgs TurnOf(float* qkv, const float* table, const QkNormRopeShape& shape,
                bool inverse) {
  return {.qkv = qkv,
          .table = table,
          .num_tokens = shape.num_tokens,
          .sequence_length = shape.sequence_length,
          .num_heads = shape.num_heads,
          .num_kv_heads = shape.num_kv_heads,
          .head_dim = shape.head_dim,
          .inverse = inverse};
}

// Heads with one weight: the queries, and the keys.
struct Part {
  int64_t first, count;
};
std::array<Part, 2> PartsOf(const QkNormRopeShape& shape) {
  return {{{0, shape.num_heads}, {shape.num_heads, shape.num_kv_heads}}};
}

// The backward pass of one token's heads of a part. d_x is in place of d_y:
// the loops read an element before they write it.
RmsNormBackwardArgs TokenArgs(const QkNormRopeBackwardArgs& args, int64_t token,
                              size_t part) {
  const QkNormRopeShape& shape = args.shape;
  const auto [first, count] = PartsOf(shape)[part];
  float* d_heads = args.d_qkv + token * shape.row() + first * shape.head_dim;
  const int64_t head = token * shape.num_normed() + first;
  return {.d_x = d_heads,
          .d_weight = part == 0 ? args.d_q_weight : args.d_k_weight,
          .d_y = d_heads,
          .x = args.raw + head * shape.head_dim,
          .rstd = args.rstd + head,
          .weight = part == 0 ? args.q_weight : args.k_weight,
          .d_residual = nullptr,
          .num_tokens = count,
          .hidden = shape.head_dim,
          .accumulate = args.accumulate || token > 0,
          .adds_one = shape.adds_one};
}

}  // namespace

absl::Status QkNormRopeForward(const QkNormRopeForwardArgs& args,
                               int num_threads) {
  const QkNormRopeShape& shape = args.shape;
  RETURN_IF_ERROR(CheckQkNormRope(shape, num_threads));
  const RopeArgs turn = TurnOf(args.qkv, args.table, shape, false);
  ParallelRanges(
      ThreadsForFloats(num_threads, shape.num_tokens * shape.row()),
      shape.num_tokens, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
          float* heads = args.qkv + t * shape.row();
          float* raw = args.raw + t * shape.num_normed() * shape.head_dim;
          std::copy_n(heads, shape.num_normed() * shape.head_dim, raw);
          for (const auto& [first, count] : PartsOf(shape)) {
            Loops().rms_norm_forward(
                {.y = heads + first * shape.head_dim,
                 .rstd = args.rstd + t * shape.num_normed() + first,
                 .x = raw + first * shape.head_dim,
                 .weight = first == 0 ? args.q_weight : args.k_weight,
                 .num_tokens = count,
                 .hidden = shape.head_dim,
                 .epsilon = args.epsilon,
                 .adds_one = shape.adds_one},
                0, count);
          }
        }
        Loops().rope(turn, begin, end);
      });
  return absl::OkStatus();
}

absl::Status QkNormRopeBackward(const QkNormRopeBackwardArgs& args,
                                int num_threads) {
  const QkNormRopeShape& shape = args.shape;
  RETURN_IF_ERROR(CheckQkNormRope(shape, num_threads));
  const int threads =
      ThreadsForFloats(num_threads, shape.num_tokens * shape.row());
  const RopeArgs turn = TurnOf(args.d_qkv, args.table, shape, true);
  ParallelRanges(threads, shape.num_tokens, [&](int64_t begin, int64_t end) {
    Loops().rope(turn, begin, end);
  });
  if (shape.num_tokens == 0 && !args.accumulate) {
    std::fill_n(args.d_q_weight, shape.head_dim, 0.0f);
    std::fill_n(args.d_k_weight, shape.head_dim, 0.0f);
  }
  // Parts of whole cache lines, so that no two threads write to one.
  constexpr int64_t kLine = 16;
  ParallelRanges(threads, (shape.head_dim + kLine - 1) / kLine,
                 [&](int64_t begin, int64_t end) {
                   for (int64_t t = 0; t < shape.num_tokens; ++t) {
                     for (const size_t part : {0, 1}) {
                       Loops().rms_norm_weight_gradient(
                           TokenArgs(args, t, part), begin * kLine,
                           std::min(end * kLine, shape.head_dim));
                     }
                   }
                 });
  ParallelRanges(threads, shape.num_tokens, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (const size_t part : {0, 1}) {
        const RmsNormBackwardArgs token = TokenArgs(args, t, part);
        Loops().rms_norm_input_gradient(token, 0, token.num_tokens);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace millrace
