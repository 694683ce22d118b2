// Programs of given ops, for measuring one or for keeping a device busy.

#ifndef MILLRACE_WORKER_MEASURE_SINGLE_OP_H_
#define MILLRACE_WORKER_MEASURE_SINGLE_OP_H_

#include <cstdint>
#include <span>

#include "planner/learn/step_mix.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/train/arena.h"

namespace millrace {

// The ops one after the other. All operands lie in the step arena, in as many
// copies as fit `arena_bytes` (at least one) or are needed. Equal ops take
// turns on the copies, so that an operand is as cold as it is in a step. With
// `Inputs::kJustWritten` the copies share the operand that the op before has
// just written in a step, so that it is as warm. Any kinds but collectives and
// transfers. In bf16 the compute lane's scratch memory lies there too.
enum class Inputs : uint8_t { kCold, kJustWritten };
Program OpsProgram(Precision precision, std::span<const ProfileOp> ops,
                   int64_t arena_bytes, Inputs inputs = Inputs::kCold);
// One op over and over, on cold operands.
Program SingleOpProgram(Precision precision, OpKind kind,
                        const OpAttributes& attributes, int32_t num_repetitions,
                        int64_t arena_bytes);

// Values any op can work on: small positive floats, tokens of the vocabulary.
void FillOperands(const Program& program, const Arenas& arenas);

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_SINGLE_OP_H_
