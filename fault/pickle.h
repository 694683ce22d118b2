// Python pickles, read as data. Nothing is imported, called or built: a class
// stays its name, an object stays its class with arguments and state. Opcodes
// and names come from lists, everything else is refused, so a file from anybody
// can be read.
//
// Values lie side by side and refer to each other by number. A value may be
// referred to often, even by itself, so readers follow a fixed structure and do
// not walk the whole graph.

#ifndef MILLRACE_FAULT_PICKLE_H_
#define MILLRACE_FAULT_PICKLE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

// Far above what a checkpoint of thousands of ranks needs.
inline constexpr int64_t kMaxPickleBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxPickleValues = int64_t{32} << 20;
// Tuples, lists, maps and objects within each other.
inline constexpr int kMaxPickleNesting = 64;

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kTuple,
  kList,
  kMap,     // OrderedDict and defaultdict, too, where the list has them.
  kGlobal,  // "module name", one of the list.
  kObject,
  kPersistent,  // Stands for something that another file member holds.
};

class Pickle;

// Refers to a value of a Pickle, which must outlive it.
class PickleValue {
 public:
  PickleKind kind() const;
  // The value of a kInt or kBool.
  int64_t number() const;
  // The characters of a kText, the name of a kGlobal.
  absl::string_view text() const;
  // The children of a value. A kTuple or kList has its items, a kMap keys and
  // values in turn, a kObject what it was made by, its arguments and, where it
  // has one, its state, a kPersistent its id.
  size_t size() const;
  PickleValue item(size_t i) const;

  bool IsNone() const { return kind() == PickleKind::kNone; }
  bool IsGlobal(absl::string_view name) const {
    return kind() == PickleKind::kGlobal && text() == name;
  }
  // An object made by the global of that name.
  bool IsObjectOf(absl::string_view name) const {
    return kind() == PickleKind::kObject && item(0).IsGlobal(name);
  }
  // The value of a text key, among the first few, of a kMap or of the map that
  // is a kObject's state.
  std::optional<PickleValue> Find(absl::string_view key) const;

 private:
  friend class Pickle;
  PickleValue(const Pickle* pickle, uint32_t idx)
      : pickle_(pickle), idx_(idx) {}
  const Pickle* pickle_;
  uint32_t idx_;
};

class Pickle {
 public:
  // Parses a whole pickle of protocol 2 to 5. `globals` are the names that may
  // occur, as "module name"; the texts must outlive the Pickle.
  // InvalidArgument "PATH: byte N: what was found; what to do".
  static absl::StatusOr<Pickle> Parse(std::string content,
                                      const std::string& path,
                                      std::span<const char* const> globals);

  Pickle(Pickle&&) = default;
  Pickle& operator=(Pickle&&) = default;

  PickleValue root() const { return {this, root_}; }

 private:
  friend class PickleValue;
  class Reader;
  struct Node {
    PickleKind kind;
    uint8_t depth = 0;
    uint32_t list = 0;   // Index in lists_ of a value that holds others.
    int64_t number = 0;  // Also a text's first byte in content_.
    int64_t length = 0;  // A text's; for a global, its index in globals_.
  };
  Pickle() = default;

  std::string content_;
  std::span<const char* const> globals_;
  std::vector<Node> nodes_;
  std::vector<std::vector<uint32_t>> lists_;
  uint32_t root_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_FAULT_PICKLE_H_
