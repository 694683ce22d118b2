#include "kernels/c_api/embedding.h"

#include "kernels/c_api/result.h"
#include "kernels/vocabulary/embedding_bf16.h"

extern "C" {

int millrace_embedding_forward_bf16(const millrace_embedding_forward_args* args,
                                    void* stream) {
  return millrace::CResult(
      millrace::LaunchEmbeddingForwardBf16({.x = args->x,
                                            .tokens = args->tokens,
                                            .weight = args->weight,
                                            .num_tokens = args->num_tokens,
                                            .hidden = args->hidden,
                                            .vocab_begin = args->vocab_begin,
                                            .vocab_rows = args->vocab_rows},
                                           static_cast<cudaStream_t>(stream)));
}

int64_t millrace_embedding_backward_bf16_workspace_bytes(
    const millrace_embedding_backward_args* args) {
  return millrace::EmbeddingBackwardBf16WorkspaceBytes(args->num_tokens,
                                                       args->hidden);
}

int millrace_embedding_backward_bf16(
    const millrace_embedding_backward_args* args, void* stream) {
  return millrace::CResult(millrace::LaunchEmbeddingBackwardBf16(
      {.d_weight = args->d_weight,
       .tokens = args->tokens,
       .d_x = args->d_x,
       .num_tokens = args->num_tokens,
       .hidden = args->hidden,
       .vocab_begin = args->vocab_begin,
       .vocab_rows = args->vocab_rows,
       .accumulate = args->accumulate != 0,
       .deterministic = args->deterministic != 0,
       .workspace = args->workspace},
      static_cast<cudaStream_t>(stream)));
}

}  // extern "C"
