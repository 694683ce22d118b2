// Sizes, durations and counts as people read them.

#ifndef MILLRACE_BASE_UNITS_H_
#define MILLRACE_BASE_UNITS_H_

#include <cstdint>
#include <string>

namespace millrace {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;

// "512 B", "3.2 KiB", "1.50 GiB": three significant digits.
std::string FormatBytes(int64_t bytes);

// "850 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 05 s", "3 h 07 min".
std::string FormatSeconds(double seconds);

// "950", "12.3 k", "4.56 M", "7.89 G".
std::string FormatCount(double count);

// The smallest multiple of `alignment` (above zero) not below `value`.
constexpr int64_t RoundUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace millrace

#endif  // MILLRACE_BASE_UNITS_H_
