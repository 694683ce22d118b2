// XXH3 (64 bits) over a stream of values.

#ifndef MILLRACE_WORKER_DATA_HASHER_H_
#define MILLRACE_WORKER_DATA_HASHER_H_

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/check.h"

namespace millrace {

class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) {
    CHECK(state_ != nullptr) << "out of memory";
    XXH3_64bits_reset(state_.get());
  }
  void Add(const void* data, size_t num_bytes) {
    XXH3_64bits_update(state_.get(), data, num_bytes);
  }
  // Adds the size first, so that neighbouring strings cannot be confused.
  void AddString(absl::string_view text) {
    const uint64_t size = text.size();
    Add(&size, sizeof(size));
    Add(text.data(), text.size());
  }
  void AddNumber(int64_t value) { Add(&value, sizeof(value)); }
  uint64_t Digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_DATA_HASHER_H_
