#include "kernels/attention/attention.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

absl::Status CheckAttention(absl::string_view kernel,
                            const AttentionShape& shape,
                            const int32_t* document_starts, int num_threads) {
  RETURN_IF_ERROR(CheckRowsAndThreads(kernel, shape.num_sequences,
                                      shape.sequence_length, num_threads));
  if (shape.num_kv_heads < 1 || shape.num_heads < 1 ||
      shape.num_heads % shape.num_kv_heads != 0 || shape.head_dim < 1 ||
      shape.head_dim > kMaxAttentionHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        kernel, " got ", shape.num_heads, " query and ", shape.num_kv_heads,
        " key-value heads of head_dim ", shape.head_dim,
        "; needs a multiple and a head_dim in [1, ", kMaxAttentionHeadDim,
        "]"));
  }
  if (shape.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel, " got a window of ", shape.window,
                     " keys; needs one above zero, or 0 for none"));
  }
  for (int64_t t = 0; t < shape.num_sequences * shape.sequence_length; ++t) {
    const int64_t position = t % shape.sequence_length;
    if (document_starts[t] < 0 || document_starts[t] > position) {
      return absl::InvalidArgumentError(
          absl::StrCat(kernel, ": token ", t, " has position ", position,
                       " in its sequence, but its document starts at ",
                       document_starts[t], "; needs a start in [0, position]"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AttentionForward(const AttentionForwardArgs& args,
                              int num_threads) {
  const AttentionShape& shape = args.shape;
  RETURN_IF_ERROR(CheckAttention("AttentionForward", shape,
                                 args.document_starts, num_threads));
  const int64_t num_tiles =
      (shape.sequence_length + kAttentionTile - 1) / kAttentionTile;
  const int64_t num_heads = shape.num_sequences * shape.num_heads;
  // Late tiles see the most keys: they go first, so that no thread is left with
  // a long one at the end.
  ParallelItems(num_threads, num_tiles * num_heads, [&](int64_t item) {
    const int64_t tile = num_tiles - 1 - item / num_heads;
    const int64_t head = item % num_heads;
    Loops().attention_forward_tile(args, head / shape.num_heads,
                                   head % shape.num_heads,
                                   tile * kAttentionTile);
  });
  return absl::OkStatus();
}

absl::Status AttentionBackward(const AttentionBackwardArgs& args,
                               int num_threads) {
  const AttentionShape& shape = args.shape;
  RETURN_IF_ERROR(CheckAttention("AttentionBackward", shape,
                                 args.document_starts, num_threads));
  ParallelItems(
      num_threads, shape.num_sequences * shape.num_kv_heads, [&](int64_t item) {
        Loops().attention_backward_head(args, item / shape.num_kv_heads,
                                        item % shape.num_kv_heads);
      });
  return absl::OkStatus();
}

}  // namespace millrace
