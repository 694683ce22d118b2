// A launcher asks here for a launch parameter that only measuring can choose.
// This header is small so that CUDA sources may include it; tuning.h has the
// rest.

#ifndef MILLRACE_KERNELS_TUNING_TUNED_CHOICE_H_
#define MILLRACE_KERNELS_TUNING_TUNED_CHOICE_H_

#include <array>
#include <cstdint>

namespace millrace {

// tuning_families.cc says what of a shape matters to each and what its knobs
// mean.
enum class TunedKernel {
  kNormForward,
  kNormBackward,
  kSwigluForward,
  kSwigluBackward,
  kRopeNormForward,
  kAttentionForward,
  kCrossEntropyRows,
};

inline constexpr int kMaxTuningDims = 4;

// One value a class dim or knob; the rest is zero.
using TuningValues = std::array<int64_t, kMaxTuningDims>;

// Whether a kernel's tensors stay in the second-level cache, so that its
// latency counts and not the bandwidth of memory: a class of its own.
inline int64_t IsCachedClass(int64_t num_bytes) {
  return num_bytes <= int64_t{32} << 20 ? 1 : 0;
}

// Sizes fall into one class up to the next power of two.
int64_t SizeClass(int64_t size);

// The choice for a shape class: what a scope on this thread or the installed
// table says (tuning.h), or else `start`. A class holds many shapes: where the
// choice does not suit one of them, its launcher takes the nearest that does.
TuningValues TunedChoice(TunedKernel kernel, const TuningValues& shape_class,
                         const TuningValues& start);

}  // namespace millrace

#endif  // MILLRACE_KERNELS_TUNING_TUNED_CHOICE_H_
