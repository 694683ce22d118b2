// Lets a backend say in which number formats it runs Programs, and which op
// kinds, by a binder for each. A binder prepares an instruction: it finds
// operands, plans kernels and looks up peers. Each file that calls kernels
// registers its binders in a function of its own, and the backend calls these
// functions one by one.

#ifndef MILLRACE_WORKER_TRAIN_OP_BINDERS_H_
#define MILLRACE_WORKER_TRAIN_OP_BINDERS_H_

#include <algorithm>
#include <array>
#include <bitset>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "planner/layout/numeric_format.h"
#include "planner/program/ops.h"
#include "planner/program/program.h"

namespace millrace {

// The number formats of Programs (planner/layout/numeric_format.h).
struct BoundFormat {
  Precision precision;
  GemmFormat gemm_format = GemmFormat::kAsStored;
};

struct BoundKinds {
  const char* backend;               // "cpu", for errors.
  std::vector<BoundFormat> formats;  // Those that the binders have kernels for.
  std::bitset<kNumOpKinds> kinds;

  bool Has(OpKind kind) const { return kinds[static_cast<size_t>(kind)]; }
  bool Has(const PrecisionRecipe& recipe) const {
    return std::any_of(formats.begin(), formats.end(),
                       [&](const BoundFormat& format) {
                         return format.precision == recipe.precision &&
                                format.gemm_format == recipe.gemm_format;
                       });
  }
};

// InvalidArgument naming the backend, the op kind and the instruction if the
// backend has no binder for it.
absl::Status CheckBinding(const BoundKinds& bound,
                          const Instruction& instruction);
// The same for the first such instruction, and for the number formats of the
// Programs. Call before memory is allocated or a kernel is planned.
absl::Status CheckBindings(const BoundKinds& bound,
                           std::initializer_list<const Program*> programs);

// `Binder` is a function of the backend's context and an instruction.
template <typename Binder>
class OpBinders {
 public:
  OpBinders(const char* backend, std::vector<BoundFormat> formats)
      : bound_{.backend = backend, .formats = std::move(formats)} {}

  // Once for each kind.
  void Bind(OpKind kind, Binder binder) {
    CHECK(!bound_.Has(kind))
        << bound_.backend << " binds " << OpKindName(kind) << " twice";
    bound_.kinds.set(static_cast<size_t>(kind));
    binders_[static_cast<size_t>(kind)] = std::move(binder);
  }

  const BoundKinds& bound() const { return bound_; }
  // Must be bound.
  const Binder& For(OpKind kind) const {
    CHECK(bound_.Has(kind)) << OpKindName(kind);
    return binders_[static_cast<size_t>(kind)];
  }

 private:
  BoundKinds bound_;
  std::array<Binder, kNumOpKinds> binders_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TRAIN_OP_BINDERS_H_
