#include "kernels/vocabulary/embedding.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/check_shape.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"

namespace millrace {
namespace {

absl::Status CheckShard(int64_t vocab_begin, int64_t vocab_rows) {
  if (vocab_begin >= 0 && vocab_rows >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("embedding got vocabulary rows from ", vocab_begin, ", ",
                   vocab_rows, " of them; needs zero or more, one or more"));
}

}  // namespace

absl::Status EmbeddingForward(const EmbeddingForwardArgs& args,
                              int num_threads) {
  RETURN_IF_ERROR(CheckShard(args.vocab_begin, args.vocab_rows));
  RETURN_IF_ERROR(CheckRowsAndThreads("EmbeddingForward", args.num_tokens,
                                      args.hidden, num_threads));
  const size_t row_bytes = args.hidden * sizeof(float);
  ParallelRanges(ThreadsForFloats(num_threads, args.num_tokens * args.hidden),
                 args.num_tokens, [&](int64_t begin, int64_t end) {
                   for (int64_t t = begin; t < end; ++t) {
                     const int64_t row = args.tokens[t] - args.vocab_begin;
                     float* x = args.x + t * args.hidden;
                     if (row >= 0 && row < args.vocab_rows) {
                       std::memcpy(x, args.weight + row * args.hidden,
                                   row_bytes);
                       if (args.scale != 1) {
                         Loops().scale(x, args.hidden, args.scale);
                       }
                     } else {
                       std::memset(x, 0, row_bytes);
                     }
                   }
                 });
  return absl::OkStatus();
}

absl::Status EmbeddingBackward(const EmbeddingBackwardArgs& args,
                               int num_threads) {
  RETURN_IF_ERROR(CheckShard(args.vocab_begin, args.vocab_rows));
  RETURN_IF_ERROR(CheckRowsAndThreads("EmbeddingBackward", args.num_tokens,
                                      args.hidden, num_threads));
  // Threads share out columns, so that each row is summed in token order by
  // whoever has the column; in whole cache lines.
  constexpr int64_t kLine = 16;
  const int64_t num_lines = (args.hidden + kLine - 1) / kLine;
  const int64_t rows_touched =
      args.num_tokens + (args.accumulate ? 0 : args.vocab_rows);
  ParallelRanges(ThreadsForFloats(num_threads, rows_touched * args.hidden),
                 num_lines, [&](int64_t begin, int64_t end) {
                   Loops().embedding_backward(
                       args, begin * kLine, std::min(end * kLine, args.hidden));
                 });
  return absl::OkStatus();
}

}  // namespace millrace
