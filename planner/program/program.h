// A Program is one rank's training step: every kernel, collective and copy, the
// lane it runs on, what it waits for, and where every buffer lies. The
// simulator predicts it, the worker executes it.
//
// Ranks that differ only in data or tensor index share one Program: what
// differs (slice offsets, vocabulary rows) follows from the rank's coordinates.
// In an uneven layout, a stage has two, which differ in their micro-batches.

#ifndef MILLRACE_PLANNER_PROGRAM_PROGRAM_H_
#define MILLRACE_PLANNER_PROGRAM_PROGRAM_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/layout/layout.h"
#include "planner/layout/mesh.h"
#include "planner/program/ops.h"
#include "planner/program/parameters.h"

namespace millrace {

// In-order queues of one rank. On a CPU each is a thread, on a GPU a stream.
// Each lane of transfers carries one direction of one link, in the same order
// at both ends, so that no order of sends and receives can block another while
// each has a queue of its own (planner/lower/common_order.h).
enum class Lane : uint8_t {
  kCompute,
  kTensorComm,
  kDataComm,
  kSendNext,
  kReceivePrevious,
  kSendPrevious,
  kReceiveNext,
  kHost,
};
inline constexpr int kNumLanes = static_cast<int>(Lane::kHost) + 1;
const char* LaneName(Lane lane);
// The lane that ops of this kind and these attributes run on, by the op table:
// tensor collectives kTensorComm, data and world collectives kDataComm,
// transfers by direction.
Lane LaneOf(OpKind kind, const OpAttributes& attributes);

enum class Phase : uint8_t {
  kForward,
  kInputGradient,
  kWeightGradient,
  kRecompute,  // The forward pass once more, in the backward pass.
  kGradientReduce,
  kOptimizer,
  kParameterGather,
};
const char* PhaseName(Phase phase);

// The two arenas. Persistent: parameters, gradients, moments, scalars (what the
// rank keeps of each under ZeRO); lives as long as the training. Step:
// everything else; contents end with the step.
enum class Arena : uint8_t { kPersistent, kStep };

// The alignment of every buffer in its arena, in bytes: as GPU kernels ask of a
// workspace, and more than a cache line. A bucket's part of moments in blocks
// is aligned to 4 bytes alone.
inline constexpr int64_t kBufferAlignment = 256;

using BufferId = int32_t;
struct Buffer {
  std::string name;  // "mb3/layers.2/qkv".
  DType dtype;
  // Up to two dims are held without an allocation.
  absl::InlinedVector<int64_t, 2> dims;
  Arena arena;
  int64_t offset_bytes;  // From the start of its arena; kBufferAlignment.
  int64_t bytes;
  // The step buffer that this one is a part of; -1: none.
  BufferId parent = -1;
};

using InstructionId = int32_t;  // Index into Program::instructions.

// Up to four ids, as most instructions have, are held without an allocation.
using Operands = absl::InlinedVector<BufferId, 4>;
using Waits = absl::InlinedVector<InstructionId, 4>;

struct Instruction {
  OpKind kind;
  Phase phase;
  Lane lane;
  int32_t microbatch_idx;  // -1 for ops of the whole step.
  std::string name;        // "layers.2/attention/qkv".
  OpAttributes attributes;
  Operands inputs;
  Operands outputs;
  // Instructions on other lanes that must have finished. Earlier instructions
  // on the same lane are implied.
  Waits waits;
};

// kPublish makes the parameters that kernels read from the master weights,
// after these were initialized or loaded; empty in fp32. Weights in 8 bits are
// made at the start of the other Programs.
enum class ProgramKind : uint8_t { kTraining, kValidation, kPublish };

// The training Program of a rank among those of all ranks: one a stage, in
// order, of the data replicas with the most micro-batches; and behind these, in
// an uneven layout, one a stage of the other replicas.
inline size_t NumPrograms(const Layout& layout) {
  return static_cast<size_t>(layout.pipeline) * (layout.is_uneven() ? 2 : 1);
}
inline size_t ProgramIdx(const Layout& layout, const MeshCoordinates& rank) {
  const bool has_most =
      layout.num_microbatches_of(rank.data) == layout.most_microbatches();
  return static_cast<size_t>(rank.pipeline + (has_most ? 0 : layout.pipeline));
}

struct Program {
  ProgramKind kind;
  Layout layout;
  int32_t stage;
  // A valid sequential order: running them one by one means the same.
  std::vector<Instruction> instructions;
  std::array<std::vector<InstructionId>, kNumLanes> lanes;
  std::vector<Buffer> buffers;
  StageParameters parameters;
  // Where the worker finds the flat buffers (all kPersistent). Moments hold
  // num_optimizer_elements: the rank's slices of all buckets, in bucket order.
  BufferId parameters_buffer;
  BufferId gradients_buffer;
  BufferId exp_avg_buffer;     // -1 in a validation Program.
  BufferId exp_avg_sq_buffer;  // -1 in a validation Program.
  BufferId scalars_buffer;
  // fp32 master weights, num_optimizer_elements like the moments, where the
  // flat parameters are bf16, which are without those in 8 bits then; else -1.
  BufferId master_buffer = -1;
  // Weights of norms in fp32 (planner/program/parameters.h: the bucket "norms",
  // or its slice) where the flat parameters are bf16, which end before them;
  // else -1.
  BufferId norms_buffer = -1;
  // Weights in 8 bits, bucket after bucket (Bucket::in_float8()): all of them,
  // and then all transposed; or under ZeRO-3 the rank's slices. -1: none.
  BufferId float8_weights_buffer = -1;
  // Scratch memory of the compute lane's kernels, which no instruction names;
  // -1 in fp32.
  BufferId scratch_buffer = -1;
  // The log-probabilities of a validation pass's answers, [data, tokens of a
  // micro-batch] in fp32, each where its answer begins and zero elsewhere. In
  // the last stage's validation Program where preferences are trained; else -1.
  BufferId answers_buffer = -1;
  int64_t persistent_arena_bytes;
  int64_t step_arena_bytes;
};

// The whole Program as text, one instruction a line; equal Programs print
// alike. The hash is over this text.
std::string ProgramToString(const Program& program);
uint64_t ProgramHash(const Program& program);

// Buffers that an instruction writes: its outputs, and inputs that it may use
// as scratch, as a reduce-scatter does.
Operands WrittenBuffers(const Instruction& instruction);

// Returns Internal naming the first violation: an instruction on a wrong lane,
// a wait that points forward in the sequential order or to the same lane, an
// operand out of its arena, attributes, a phase or operands that the op table
// does not give the kind, bytes read before they are written, or bytes that
// two instructions touch, one writing, with neither certain to finish before
// the other starts (which two step buffers that share bytes must not do
// either). For tests and debug builds.
absl::Status CheckProgram(const Program& program);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_PROGRAM_PROGRAM_H_
