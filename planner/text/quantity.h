// Reads and writes numbers with units as people type them: "800Gb/s", "141 GB",
// "2us", "1.25x".

#ifndef MILLRACE_PLANNER_TEXT_QUANTITY_H_
#define MILLRACE_PLANNER_TEXT_QUANTITY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

enum class Dimension : uint8_t {
  kBytes,           // "141GB", "80 GiB".
  kBytesPerSecond,  // "800Gb/s", "100GB/s": b is a bit, B a byte.
  kFlopsPerSecond,  // "989TFLOP/s".
  kSeconds,         // "2us".
};

struct Quantity {
  double value = 0;  // In bytes, bytes/s, FLOP/s or seconds.
  std::string unit;  // As it was typed: "Gb/s".
};

// Reads a number above zero (seconds: at least zero) with a unit of
// `dimension`. Returns InvalidArgument that says what was expected for other
// text. A unit that differs from a known one only in case is refused too, since
// Gb and GB are not the same.
absl::StatusOr<Quantity> ParseQuantity(absl::string_view text,
                                       Dimension dimension);

// Returns the factor of "2x" or "1.25x"; nothing for other text or a factor
// that is not above zero.
std::optional<double> ParseFactor(absl::string_view text);

// Writes `value` in a unit of `dimension`: "800 Gb/s". If `unit` is empty,
// takes the largest usual unit that gives at least 1.
std::string FormatQuantity(double value, Dimension dimension,
                           absl::string_view unit);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_TEXT_QUANTITY_H_
