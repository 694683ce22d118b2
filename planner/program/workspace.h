// Workspaces of the GPU kernels, as far as the plan must know them: upper
// bounds of what the kernels ask for, which the worker checks when it binds an
// op.

#ifndef MILLRACE_PLANNER_PROGRAM_WORKSPACE_H_
#define MILLRACE_PLANNER_PROGRAM_WORKSPACE_H_

#include <cstdint>

#include "planner/program/ops.h"

namespace millrace {

// Program::scratch_buffer: GEMM workspaces, norm and embedding gradients. One
// size for all, so that plans do not depend on kernels' choices.
inline constexpr int64_t kComputeScratchBytes = int64_t{64} << 20;
// GEMM workspace of the cross entropies, beside their logits.
inline constexpr int64_t kLossGemmWorkspaceBytes = int64_t{32} << 20;
// Logits of a chunk in bf16; in fp32 kLogitsWorkspaceBytes.
inline constexpr int64_t kBf16LogitsBytes = int64_t{1} << 30;
// Bytes of one token's logits: rows begin at multiples of 16 bytes.
int64_t Bf16LogitsRowBytes(int64_t vocab_rows);

// The query gradient in fp32, two statistics a row and counters, rows of each
// sequence rounded up to whole tiles: enough for sequences of full length, and
// for packed documents that number at most num_sequences + T / 128. Head dims
// that the tensor-core kernels lack need only two statistics a row.
int64_t AttentionBackwardWorkspaceBytes(const AttentionAttributes& attention);
// Logits of chunk_tokens tokens, a loss of each token, and a GEMM's workspace.
int64_t CrossEntropyWorkspaceBytes(const VocabAttributes& vocabulary);

// Tokens whose logits live at once in the cross-entropy ops, never more than
// there are. In fp32 as many as fit kLogitsWorkspaceBytes, a multiple of 64 for
// the GEMM's sake and at least 64. In bf16 chunks of one size, as few as fit
// kBf16LogitsBytes, a multiple of 256 and at least 256.
inline constexpr int64_t kLogitsWorkspaceBytes = int64_t{4} << 20;
int64_t ChunkTokens(Precision precision, int64_t num_tokens,
                    int64_t vocab_rows);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_WORKSPACE_H_
