// Large sweeps, whole in release builds and sampled under the sanitizers, where
// each case takes ten to a hundred times as long and the paths through the code
// are the same.

#ifndef MILLRACE_TESTS_SWEEP_H_
#define MILLRACE_TESTS_SWEEP_H_

#include <cstddef>
#include <vector>

namespace millrace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// How far a sweep steps: every `stride`-th case under a sanitizer. Take a
// prime, so that no axis of a nested sweep is left out.
constexpr int SweepStep(int stride) { return kSanitized ? stride : 1; }

template <typename T>
std::vector<T> Sampled(const std::vector<T>& all, int stride) {
  std::vector<T> some;
  const auto step = static_cast<size_t>(SweepStep(stride));
  for (size_t i = 0; i < all.size(); i += step) some.push_back(all[i]);
  return some;
}

}  // namespace millrace

// Ends a test of minutes under a sanitizer, where shorter tests run the same
// code.
#define MILLRACE_SKIP_LONG_IF_SANITIZED()                           \
  if (millrace::kSanitized) {                                       \
    GTEST_SKIP() << "long under a sanitizer; others run this code"; \
  }                                                                 \
  static_assert(true, "")  // Asks for a semicolon.

#endif  // MILLRACE_TESTS_SWEEP_H_
