// The backends that run Programs, and sets of them.

#ifndef MILLRACE_PLANNER_LAYOUT_BACKENDS_H_
#define MILLRACE_PLANNER_LAYOUT_BACKENDS_H_

#include <cstdint>
#include <initializer_list>

namespace millrace {

enum class Backend : uint8_t { kCpu, kCuda };

// The backends that run something. The planner states these sets in its tables;
// tests/worker checks that they are what the backends have kernels for.
class BackendSet {
 public:
  constexpr BackendSet(std::initializer_list<Backend> backends) {
    for (const Backend backend : backends) bits_ |= Bit(backend);
  }
  constexpr bool Has(Backend backend) const {
    return (bits_ & Bit(backend)) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  static constexpr unsigned Bit(Backend backend) {
    return 1u << static_cast<unsigned>(backend);
  }
  unsigned bits_ = 0;
};
inline constexpr BackendSet kAllBackends = {Backend::kCpu, Backend::kCuda};
// The backends of an op, axis or format that can be planned only.
inline constexpr BackendSet kNoBackend = {};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_LAYOUT_BACKENDS_H_
