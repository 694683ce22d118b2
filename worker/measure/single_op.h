// A Program of one op over and over, for measuring it.

#ifndef MILLRACE_WORKER_MEASURE_SINGLE_OP_H_
#define MILLRACE_WORKER_MEASURE_SINGLE_OP_H_

#include <cstdint>

#include "planner/program/ops.h"
#include "planner/program/program.h"
#include "worker/train/arena.h"

namespace millrace {

// All operands lie in the step arena, in as many copies as fit `arena_bytes`
// (at least one) or are needed; repetitions take turns on them, so that an
// operand is as cold as it is in a step. Any kind but collectives and
// transfers. In bf16 the compute lane's scratch memory lies there too.
Program SingleOpProgram(Precision precision, OpKind kind,
                        const OpAttributes& attributes, int32_t num_repetitions,
                        int64_t arena_bytes);

// Values any op can work on: small positive floats, tokens of the vocabulary.
void FillOperands(const Program& program, const Arenas& arenas);

}  // namespace millrace

#endif  // MILLRACE_WORKER_MEASURE_SINGLE_OP_H_
