#include "fault/pickle.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

// The opcodes that pickles of plain data and of dataclasses are made of. Those
// that make instances by other ways (INST, OBJ, NEWOBJ_EX, EXT) are not here.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneCode = 'N',
  kPersistentId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobalCode = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleCode = 't',
  kSetItems = 'u',
  kEmptyMap = '}',
  kEmptyTuple = ')',
  kProtocol = 0x80,
  kNewObject = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTrue = 0x88,
  kFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

constexpr uint32_t kNoneIdx = 0;
constexpr uint32_t kFalseIdx = 1;
constexpr uint32_t kTrueIdx = 2;
// Small numbers are one value each, which saves most of the memory.
constexpr uint32_t kFirstSmall = 3;
constexpr int64_t kNumSmall = 256;
// Objects have some ten fields; one map may be the state of many.
constexpr size_t kMaxKeysSearched = 128;
// Longer names of modules and classes are damage.
constexpr int64_t kMaxNameBytes = 256;

constexpr char kSaveAgain[] =
    "the file is damaged or no checkpoint of weights; copy it again, or save "
    "the checkpoint again with torch.distributed.checkpoint";

std::string Printable(absl::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxNameBytes)) {
    out += c >= ' ' && c < 0x7f ? c : '?';
  }
  return out;
}

}  // namespace

class Pickle::Reader {
 public:
  Reader(Pickle& pickle, const std::string& path)
      : pickle_(pickle), path_(path), text_(pickle.content_) {}

  absl::Status Read() {
    AddConstants();
    while (true) {
      op_at_ = at_;
      uint8_t code = 0;
      RETURN_IF_ERROR(Number(&code));
      if (code == kStop) return Finish();
      RETURN_IF_ERROR(Do(code));
      if (std::max({pickle_.nodes_.size(), stack_.size(), memo_.size()}) >
          static_cast<size_t>(kMaxPickleValues)) {
        return Wrong(absl::StrCat("more than ", kMaxPickleValues, " values"),
                     kSaveAgain);
      }
    }
  }

 private:
  absl::Status Wrong(absl::string_view found,
                     absl::string_view to_do = kSaveAgain) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": byte ", op_at_, ": ", found, "; ", to_do));
  }

  void AddConstants() {
    pickle_.nodes_.push_back({.kind = PickleKind::kNone});
    pickle_.nodes_.push_back({.kind = PickleKind::kBool, .number = 0});
    pickle_.nodes_.push_back({.kind = PickleKind::kBool, .number = 1});
    for (int64_t i = 0; i < kNumSmall; ++i) {
      pickle_.nodes_.push_back({.kind = PickleKind::kInt, .number = i});
    }
  }

  // The next bytes as a little-endian number.
  template <typename T>
  absl::Status Number(T* value) {
    if (text_.size() - at_ < sizeof(T)) {
      return Wrong("the file ends within an opcode");
    }
    std::memcpy(value, text_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status PushInt() {
    T value = 0;
    RETURN_IF_ERROR(Number(&value));
    Push(static_cast<int64_t>(value));
    return absl::OkStatus();
  }

  // An integer of up to eight bytes; Python has longer ones.
  absl::Status PushLong() {
    uint8_t num_bytes = 0;
    RETURN_IF_ERROR(Number(&num_bytes));
    if (num_bytes > sizeof(int64_t)) {
      return Wrong(absl::StrCat("an integer of ", num_bytes, " bytes"));
    }
    if (text_.size() - at_ < num_bytes) {
      return Wrong("the file ends within an opcode");
    }
    const bool is_negative =
        num_bytes > 0 && (text_[at_ + num_bytes - 1] & 0x80) != 0;
    uint64_t bits = is_negative ? ~uint64_t{0} : 0;
    std::memcpy(&bits, text_.data() + at_, num_bytes);
    at_ += num_bytes;
    Push(static_cast<int64_t>(bits));
    return absl::OkStatus();
  }

  void Push(int64_t number) {
    if (number >= 0 && number < kNumSmall) {
      stack_.push_back(kFirstSmall + static_cast<uint32_t>(number));
      return;
    }
    PushNode({.kind = PickleKind::kInt, .number = number});
  }

  void PushNode(const Node& node) {
    stack_.push_back(static_cast<uint32_t>(pickle_.nodes_.size()));
    pickle_.nodes_.push_back(node);
  }

  template <typename T>
  absl::Status PushText() {
    T length = 0;
    RETURN_IF_ERROR(Number(&length));
    if (length > text_.size() - at_) {
      return Wrong(absl::StrCat("a text of ", length, " bytes where ",
                                text_.size() - at_, " are left"));
    }
    PushNode({.kind = PickleKind::kText,
              .number = static_cast<int64_t>(at_),
              .length = static_cast<int64_t>(length)});
    at_ += length;
    return absl::OkStatus();
  }

  // The values above the last mark, which goes too.
  absl::Status PopToMark(std::vector<uint32_t>* values) {
    if (marks_.empty()) return Wrong("the end of a list that never began");
    const size_t mark = marks_.back();
    marks_.pop_back();
    values->assign(stack_.begin() + static_cast<int64_t>(mark), stack_.end());
    stack_.resize(mark);
    return absl::OkStatus();
  }

  // The last `count` values; those below the last mark are out of reach.
  absl::Status Pop(size_t count, std::vector<uint32_t>* values) {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) return Wrong("a value is missing");
    values->assign(stack_.end() - static_cast<int64_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return absl::OkStatus();
  }

  absl::Status Hold(uint32_t idx, const std::vector<uint32_t>& values) {
    int depth = pickle_.nodes_[idx].depth;
    for (const uint32_t value : values) {
      depth = std::max(depth, pickle_.nodes_[value].depth + 1);
    }
    if (depth > kMaxPickleNesting) {
      return Wrong(
          absl::StrCat("values nested more than ", kMaxPickleNesting, " deep"));
    }
    pickle_.nodes_[idx].depth = static_cast<uint8_t>(depth);
    num_held_ += static_cast<int64_t>(values.size());
    if (num_held_ > 2 * kMaxPickleValues) {
      return Wrong(
          absl::StrCat("more than ", 2 * kMaxPickleValues, " values in lists"));
    }
    std::vector<uint32_t>& list = pickle_.lists_[pickle_.nodes_[idx].list];
    list.insert(list.end(), values.begin(), values.end());
    return absl::OkStatus();
  }

  absl::Status PushHolder(PickleKind kind,
                          const std::vector<uint32_t>& values) {
    PushNode(
        {.kind = kind, .list = static_cast<uint32_t>(pickle_.lists_.size())});
    pickle_.lists_.emplace_back();
    return Hold(stack_.back(), values);
  }

  absl::Status PushTuple(size_t count) {
    std::vector<uint32_t> values;
    RETURN_IF_ERROR(Pop(count, &values));
    return PushHolder(PickleKind::kTuple, values);
  }

  // Adds values to the list or map below them.
  absl::Status AddTo(PickleKind kind, const std::vector<uint32_t>& values) {
    std::vector<uint32_t> holder;
    RETURN_IF_ERROR(Pop(1, &holder));
    // Some classes are maps themselves; what is set there is not data of ours.
    if (pickle_.nodes_[holder[0]].kind != kind ||
        (kind == PickleKind::kMap && values.size() % 2 != 0)) {
      return Wrong("items for what is neither a list nor a map");
    }
    stack_.push_back(holder[0]);
    return Hold(holder[0], values);
  }

  absl::Status PushObject() {
    std::vector<uint32_t> values;
    RETURN_IF_ERROR(Pop(2, &values));
    if (pickle_.nodes_[values[0]].kind != PickleKind::kGlobal ||
        pickle_.nodes_[values[1]].kind != PickleKind::kTuple) {
      return Wrong("an object whose class is no name");
    }
    return PushHolder(PickleKind::kObject, values);
  }

  absl::Status Build() {
    std::vector<uint32_t> values;
    RETURN_IF_ERROR(Pop(2, &values));
    const Node& object = pickle_.nodes_[values[0]];
    if (object.kind != PickleKind::kObject ||
        pickle_.lists_[object.list].size() != 2) {
      return Wrong("a state for what is no object");
    }
    stack_.push_back(values[0]);
    return Hold(values[0], {values[1]});
  }

  absl::Status PushGlobal(absl::string_view module, absl::string_view name) {
    const std::string full = absl::StrCat(module, " ", name);
    for (size_t i = 0; i < pickle_.globals_.size(); ++i) {
      if (full != pickle_.globals_[i]) continue;
      PushNode(
          {.kind = PickleKind::kGlobal, .length = static_cast<int64_t>(i)});
      return absl::OkStatus();
    }
    return Wrong(
        absl::StrCat("the name '", Printable(full),
                     "', which no checkpoint of weights needs"),
        "nothing of it was executed. If the file is yours, save the weights "
        "alone again; else do not open it with Python");
  }

  absl::Status PushGlobalByLines() {
    absl::string_view parts[2];
    for (absl::string_view& part : parts) {
      const absl::string_view left = text_.substr(at_, kMaxNameBytes);
      const size_t end = left.find('\n');
      if (end == absl::string_view::npos) {
        return Wrong(
            absl::StrCat("a name of more than ", kMaxNameBytes, " bytes"));
      }
      part = left.substr(0, end);
      at_ += end + 1;
    }
    return PushGlobal(parts[0], parts[1]);
  }

  absl::Status PushGlobalOfStack() {
    std::vector<uint32_t> values;
    RETURN_IF_ERROR(Pop(2, &values));
    for (const uint32_t value : values) {
      const Node& node = pickle_.nodes_[value];
      if (node.kind != PickleKind::kText || node.length > kMaxNameBytes) {
        return Wrong("a name that is no text, or too long");
      }
    }
    return PushGlobal(PickleValue(&pickle_, values[0]).text(),
                      PickleValue(&pickle_, values[1]).text());
  }

  absl::Status Remember(uint64_t idx) {
    std::vector<uint32_t> value;
    RETURN_IF_ERROR(Pop(1, &value));
    stack_.push_back(value[0]);
    // Python numbers what it remembers without gaps.
    if (idx > memo_.size()) {
      return Wrong(absl::StrCat("the number ", idx, " for value ", memo_.size(),
                                " that is remembered"));
    }
    if (idx == memo_.size()) memo_.push_back(0);
    memo_[idx] = value[0];
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status RememberAs() {
    T idx = 0;
    RETURN_IF_ERROR(Number(&idx));
    return Remember(idx);
  }

  template <typename T>
  absl::Status Recall() {
    T idx = 0;
    RETURN_IF_ERROR(Number(&idx));
    if (idx >= memo_.size()) {
      return Wrong(absl::StrCat("value ", idx, " is recalled, but only ",
                                memo_.size(), " were remembered"));
    }
    stack_.push_back(memo_[idx]);
    return absl::OkStatus();
  }

  absl::Status BeginMark() {
    marks_.push_back(stack_.size());
    if (marks_.size() <= 2 * kMaxPickleNesting) return absl::OkStatus();
    return Wrong(absl::StrCat("more than ", 2 * kMaxPickleNesting,
                              " lists that do not end"));
  }

  absl::Status CheckProtocol() {
    uint8_t protocol = 0;
    RETURN_IF_ERROR(Number(&protocol));
    if (protocol >= 2 && protocol <= 5) return absl::OkStatus();
    return Wrong(
        absl::StrCat("pickle protocol ", protocol, ", expected 2 to 5"));
  }

  absl::Status CheckFrame() {
    uint64_t length = 0;
    RETURN_IF_ERROR(Number(&length));
    if (length <= text_.size() - at_) return absl::OkStatus();
    return Wrong(absl::StrCat("a frame of ", length, " bytes where ",
                              text_.size() - at_, " are left"));
  }

  absl::Status PushFloat() {
    double value = 0;
    RETURN_IF_ERROR(Number(&value));  // No reader asks for it.
    PushNode({.kind = PickleKind::kFloat});
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (stack_.size() != 1 || !marks_.empty()) {
      return Wrong("an end with other than one value");
    }
    if (at_ != text_.size()) {
      return Wrong(absl::StrCat(text_.size() - at_, " bytes follow the end"));
    }
    pickle_.root_ = stack_[0];
    return absl::OkStatus();
  }

  absl::Status Do(uint8_t code) {
    std::vector<uint32_t> values;
    switch (code) {
      case kProtocol:
        return CheckProtocol();
      case kFrame:
        return CheckFrame();
      case kMark:
        return BeginMark();
      case kNoneCode:
        stack_.push_back(kNoneIdx);
        return absl::OkStatus();
      case kTrue:
        stack_.push_back(kTrueIdx);
        return absl::OkStatus();
      case kFalse:
        stack_.push_back(kFalseIdx);
        return absl::OkStatus();
      case kBinInt:
        return PushInt<int32_t>();
      case kBinInt1:
        return PushInt<uint8_t>();
      case kBinInt2:
        return PushInt<uint16_t>();
      case kLong1:
        return PushLong();
      case kBinFloat:
        return PushFloat();
      case kBinUnicode:
        return PushText<uint32_t>();
      case kShortBinUnicode:
        return PushText<uint8_t>();
      case kEmptyTuple:
        return PushTuple(0);
      case kTuple1:
        return PushTuple(1);
      case kTuple2:
        return PushTuple(2);
      case kTuple3:
        return PushTuple(3);
      case kTupleCode:
        RETURN_IF_ERROR(PopToMark(&values));
        return PushHolder(PickleKind::kTuple, values);
      case kEmptyList:
        return PushHolder(PickleKind::kList, {});
      case kEmptyMap:
        return PushHolder(PickleKind::kMap, {});
      case kAppend:
        RETURN_IF_ERROR(Pop(1, &values));
        return AddTo(PickleKind::kList, values);
      case kAppends:
        RETURN_IF_ERROR(PopToMark(&values));
        return AddTo(PickleKind::kList, values);
      case kSetItem:
        RETURN_IF_ERROR(Pop(2, &values));
        return AddTo(PickleKind::kMap, values);
      case kSetItems:
        RETURN_IF_ERROR(PopToMark(&values));
        return AddTo(PickleKind::kMap, values);
      case kGlobalCode:
        return PushGlobalByLines();
      case kStackGlobal:
        return PushGlobalOfStack();
      case kReduce:
      case kNewObject:
        return PushObject();
      case kBuild:
        return Build();
      case kPersistentId:
        RETURN_IF_ERROR(Pop(1, &values));
        return PushHolder(PickleKind::kPersistent, values);
      case kMemoize:
        return Remember(memo_.size());
      case kBinPut:
        return RememberAs<uint8_t>();
      case kLongBinPut:
        return RememberAs<uint32_t>();
      case kBinGet:
        return Recall<uint8_t>();
      case kLongBinGet:
        return Recall<uint32_t>();
      default:
        return Wrong(
            absl::StrFormat("opcode 0x%02x, which no checkpoint of "
                            "weights needs",
                            code));
    }
  }

  Pickle& pickle_;
  const std::string& path_;
  const absl::string_view text_;
  size_t at_ = 0;
  size_t op_at_ = 0;
  int64_t num_held_ = 0;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;  // Sizes of the stack.
  std::vector<uint32_t> memo_;
};

PickleKind PickleValue::kind() const { return pickle_->nodes_[idx_].kind; }

int64_t PickleValue::number() const { return pickle_->nodes_[idx_].number; }

absl::string_view PickleValue::text() const {
  const Pickle::Node& node = pickle_->nodes_[idx_];
  if (node.kind == PickleKind::kGlobal) return pickle_->globals_[node.length];
  CHECK(node.kind == PickleKind::kText);
  return absl::string_view(pickle_->content_).substr(node.number, node.length);
}

size_t PickleValue::size() const {
  const Pickle::Node& node = pickle_->nodes_[idx_];
  if (node.kind < PickleKind::kTuple || node.kind == PickleKind::kGlobal) {
    return 0;
  }
  return pickle_->lists_[node.list].size();
}

PickleValue PickleValue::item(size_t i) const {
  CHECK(i < size());
  return {pickle_, pickle_->lists_[pickle_->nodes_[idx_].list][i]};
}

std::optional<PickleValue> PickleValue::Find(absl::string_view key) const {
  if (kind() == PickleKind::kObject) {
    return size() < 3                           ? std::nullopt
           : item(2).kind() == PickleKind::kMap ? item(2).Find(key)
                                                : std::nullopt;
  }
  if (kind() != PickleKind::kMap) return std::nullopt;
  for (size_t i = 0; i + 1 < std::min(size(), kMaxKeysSearched); i += 2) {
    if (item(i).kind() == PickleKind::kText && item(i).text() == key) {
      return item(i + 1);
    }
  }
  return std::nullopt;
}

absl::StatusOr<Pickle> Pickle::Parse(std::string content,
                                     const std::string& path,
                                     std::span<const char* const> globals) {
  if (static_cast<int64_t>(content.size()) > kMaxPickleBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": a pickle of ", content.size(), " bytes, expected ",
        kMaxPickleBytes, " at most; ", kSaveAgain));
  }
  Pickle pickle;
  pickle.content_ = std::move(content);
  pickle.globals_ = globals;
  RETURN_IF_ERROR(Reader(pickle, path).Read());
  return pickle;
}

}  // namespace millrace
