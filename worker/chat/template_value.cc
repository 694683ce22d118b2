#include "worker/chat/template_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

using Kind = TemplateValue::Kind;

bool BeginsCharacter(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

// As Python's repr(): the shortest text that reads back.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double magnitude = std::abs(value);
  const bool scientific =
      magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  char buffer[400];
  const auto end = std::to_chars(
      buffer, buffer + sizeof(buffer), value,
      scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, end.ptr);
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void AppendQuoted(absl::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const bool has_double = text.find('"') != absl::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out->push_back(quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out->push_back(c);
    }
  }
  out->push_back(quote);
}

void AppendRepr(const TemplateValue& value, size_t max_bytes, std::string* out);

void AppendItems(const TemplateList& items, size_t max_bytes,
                 std::string* out) {
  bool first = true;
  for (const TemplateValue& item : items) {
    if (out->size() > max_bytes) return;
    if (!first) out->append(", ");
    first = false;
    AppendRepr(item, max_bytes, out);
  }
}

void AppendRepr(const TemplateValue& value, size_t max_bytes,
                std::string* out) {
  switch (value.kind()) {
    case Kind::kUndefined:
      out->append("Undefined");
      return;
    case Kind::kNone:
      out->append("None");
      return;
    case Kind::kBool:
      out->append(value.integer() != 0 ? "True" : "False");
      return;
    case Kind::kInteger:
      absl::StrAppend(out, value.integer());
      return;
    case Kind::kFloat:
      out->append(FloatText(value.number()));
      return;
    case Kind::kString:
      AppendQuoted(value.text(), out);
      return;
    case Kind::kList:
      out->push_back('[');
      AppendItems(value.items(), max_bytes, out);
      out->push_back(']');
      return;
    case Kind::kTuple:
      out->push_back('(');
      AppendItems(value.items(), max_bytes, out);
      if (value.items().size() == 1) out->push_back(',');
      out->push_back(')');
      return;
    case Kind::kDict: {
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.dict()) {
        if (out->size() > max_bytes) return;
        if (!first) out->append(", ");
        first = false;
        AppendQuoted(key, out);
        out->append(": ");
        AppendRepr(item, max_bytes, out);
      }
      out->push_back('}');
      return;
    }
    case Kind::kNamespace:
      out->append("<Namespace>");
      return;
    case Kind::kFunction:
      absl::StrAppend(out, "<function ", value.text(), ">");
      return;
  }
}

class JsonWriter {
 public:
  JsonWriter(const TojsonOptions& options, size_t max_bytes)
      : options_(options), max_bytes_(max_bytes) {}

  absl::Status Write(const TemplateValue& value, int64_t level) {
    if (text_.size() > max_bytes_) return absl::OkStatus();
    switch (value.kind()) {
      case Kind::kNone:
        text_ += "null";
        return absl::OkStatus();
      case Kind::kBool:
        text_ += value.integer() != 0 ? "true" : "false";
        return absl::OkStatus();
      case Kind::kInteger:
        absl::StrAppend(&text_, value.integer());
        return absl::OkStatus();
      case Kind::kFloat:
        WriteFloat(value.number());
        return absl::OkStatus();
      case Kind::kString:
        WriteString(value.text());
        return absl::OkStatus();
      case Kind::kList:
      case Kind::kTuple:
        return WriteList(value.items(), level);
      case Kind::kDict:
        return WriteDict(value.dict(), level);
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("tojson: Object of type ", value.TypeName(),
                         " is not JSON serializable"));
    }
  }

  std::string Take() { return std::move(text_); }

 private:
  void WriteFloat(double value) {
    text_ += std::isnan(value)   ? "NaN"
             : std::isinf(value) ? (value > 0 ? "Infinity" : "-Infinity")
                                 : FloatText(value);
  }

  void WriteString(const std::string& text) {
    text_.push_back('"');
    const std::vector<size_t> offsets =
        options_.ensure_ascii ? CharacterOffsets(text) : std::vector<size_t>();
    size_t character = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_.push_back('\\');
        text_.push_back(c);
      } else if (c == '\n') {
        text_ += "\\n";
      } else if (c == '\r') {
        text_ += "\\r";
      } else if (c == '\t') {
        text_ += "\\t";
      } else if (c == '\b') {
        text_ += "\\b";
      } else if (c == '\f') {
        text_ += "\\f";
      } else if (byte < 0x20) {
        absl::StrAppendFormat(&text_, "\\u%04x", byte);
      } else if (byte >= 0x80 && options_.ensure_ascii) {
        while (offsets[character] != i) ++character;
        const size_t end = offsets[character + 1];
        WriteEscaped(absl::string_view(text).substr(i, end - i));
        i = end - 1;
      } else {
        text_.push_back(c);
      }
    }
    text_.push_back('"');
  }

  // One character beyond ASCII as UTF-16 escapes.
  void WriteEscaped(absl::string_view character) {
    const auto lead = static_cast<unsigned char>(character[0]);
    uint32_t code = lead >= 0xF0   ? lead & 7
                    : lead >= 0xE0 ? lead & 15
                                   : lead & 31;
    for (const char c : character.substr(1)) {
      code = code << 6 | (static_cast<unsigned char>(c) & 63);
    }
    if (code >= 0x10000) {
      code -= 0x10000;
      absl::StrAppendFormat(&text_, "\\u%04x", 0xD800 + (code >> 10));
      code = 0xDC00 + (code & 0x3FF);
    }
    absl::StrAppendFormat(&text_, "\\u%04x", code);
  }

  // Between items; `first` writes no separator.
  void BeginItem(bool first, int64_t level) {
    if (!first) text_ += options_.item_separator;
    NewLine(level);
  }
  void NewLine(int64_t level) {
    if (options_.indent < 0) return;
    text_.push_back('\n');
    const int64_t spaces = options_.indent * level;
    if (static_cast<size_t>(spaces) <= max_bytes_) {
      text_.append(static_cast<size_t>(spaces), ' ');
    } else {
      text_.append(max_bytes_ + 1, ' ');
    }
  }

  absl::Status WriteList(const TemplateList& items, int64_t level) {
    text_.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      BeginItem(i == 0, level + 1);
      RETURN_IF_ERROR(Write(items[i], level + 1));
    }
    if (!items.empty()) NewLine(level);
    text_.push_back(']');
    return absl::OkStatus();
  }

  absl::Status WriteDict(const TemplateDict& dict, int64_t level) {
    std::vector<const std::pair<std::string, TemplateValue>*> items;
    for (const auto& item : dict) items.push_back(&item);
    if (options_.sort_keys) {
      std::sort(items.begin(), items.end(),
                [](auto* a, auto* b) { return a->first < b->first; });
    }
    text_.push_back('{');
    for (size_t i = 0; i < items.size(); ++i) {
      BeginItem(i == 0, level + 1);
      WriteString(items[i]->first);
      text_ += options_.key_separator;
      RETURN_IF_ERROR(Write(items[i]->second, level + 1));
    }
    if (!items.empty()) NewLine(level);
    text_.push_back('}');
    return absl::OkStatus();
  }

  const TojsonOptions options_;
  const size_t max_bytes_;
  std::string text_;
};

}  // namespace

TemplateValue TemplateValue::Undefined(std::string name) {
  return {Kind::kUndefined,
          std::make_shared<const std::string>(std::move(name))};
}
TemplateValue TemplateValue::Bool(bool value) {
  return {Kind::kBool, int64_t{value}};
}
TemplateValue TemplateValue::Integer(int64_t value) {
  return {Kind::kInteger, value};
}
TemplateValue TemplateValue::Float(double value) {
  return {Kind::kFloat, value};
}
TemplateValue TemplateValue::String(std::string value) {
  TemplateValue string(Kind::kString,
                       std::make_shared<const std::string>(std::move(value)));
  string.weight_ += static_cast<int64_t>(string.text().size());
  return string;
}
TemplateValue TemplateValue::List(TemplateList items) {
  TemplateValue list(Kind::kList,
                     std::make_shared<const TemplateList>(std::move(items)));
  list.depth_ = 1;
  for (const TemplateValue& item : list.items()) list.Contain(item);
  return list;
}
TemplateValue TemplateValue::Tuple(TemplateList items) {
  TemplateValue tuple = List(std::move(items));
  tuple.kind_ = Kind::kTuple;
  return tuple;
}
TemplateValue TemplateValue::Dict(TemplateDict items) {
  TemplateValue dict(Kind::kDict,
                     std::make_shared<const TemplateDict>(std::move(items)));
  dict.depth_ = 1;
  for (const auto& [key, item] : dict.dict()) {
    dict.weight_ += static_cast<int64_t>(key.size());
    dict.Contain(item);
  }
  return dict;
}
void TemplateValue::Contain(const TemplateValue& item) {
  // Far above what a run allows, and far below where the sum overflows.
  constexpr int64_t kMaxWeight = int64_t{1} << 50;
  depth_ = std::max(depth_, item.depth_ + 1);
  weight_ = std::min(kMaxWeight, weight_ + item.weight_);
}
TemplateValue TemplateValue::Namespace(int64_t idx) {
  return {Kind::kNamespace, idx};
}
TemplateValue TemplateValue::Function(std::string name, int64_t macro_idx,
                                      const TemplateValue& owner) {
  TemplateValue value(Kind::kFunction,
                      std::make_shared<const std::string>(std::move(name)));
  value.macro_idx_ = macro_idx;
  if (!owner.IsUndefined()) {
    value.owner_ = std::make_shared<const TemplateValue>(owner);
  }
  return value;
}

TemplateValue TemplateValue::FromJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return None();
  if (json.is_boolean()) return Bool(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return Float(json.get<double>());
  }
  if (json.is_number_integer()) return Integer(json.get<int64_t>());
  if (json.is_number()) return Float(json.get<double>());
  if (json.is_string()) return String(json.get<std::string>());
  if (json.is_array()) {
    TemplateList items;
    for (const auto& item : json) items.push_back(FromJson(item));
    return List(std::move(items));
  }
  TemplateDict items;
  for (const auto& [key, item] : json.items()) {
    items.emplace_back(key, FromJson(item));
  }
  return Dict(std::move(items));
}

double TemplateValue::number() const {
  return kind_ == Kind::kFloat ? std::get<double>(data_)
                               : static_cast<double>(integer());
}

const std::string& TemplateValue::text() const {
  static const auto& empty = *new std::string;
  const auto* text = std::get_if<std::shared_ptr<const std::string>>(&data_);
  return text == nullptr ? empty : **text;
}

const TemplateList& TemplateValue::items() const {
  return *std::get<std::shared_ptr<const TemplateList>>(data_);
}

const TemplateDict& TemplateValue::dict() const {
  return *std::get<std::shared_ptr<const TemplateDict>>(data_);
}

const TemplateValue* TemplateValue::Find(absl::string_view key) const {
  for (const auto& [name, value] : dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

TemplateValue TemplateValue::FunctionOwner() const {
  return owner_ == nullptr ? TemplateValue() : *owner_;
}

bool TemplateValue::IsTrue() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return integer() != 0;
    case Kind::kFloat:
      return number() != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !items().empty();
    case Kind::kDict:
      return !dict().empty();
    case Kind::kNamespace:
    case Kind::kFunction:
      return true;
  }
  return false;
}

const char* TemplateValue::TypeName() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kFunction:
      return "function";
  }
  return "";
}

int64_t TemplateValue::Length() const {
  if (IsString()) {
    return std::count_if(text().begin(), text().end(), BeginsCharacter);
  }
  if (IsSequence()) return static_cast<int64_t>(items().size());
  return IsDict() ? static_cast<int64_t>(dict().size()) : 0;
}

absl::StatusOr<TemplateList> TemplateValue::Elements() const {
  if (IsSequence()) return items();
  TemplateList elements;
  if (IsUndefined()) return elements;
  if (IsDict()) {
    for (const auto& [key, value] : dict()) elements.push_back(String(key));
    return elements;
  }
  if (IsString()) {
    const std::vector<size_t> offsets = CharacterOffsets(text());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      elements.push_back(
          String(text().substr(offsets[i], offsets[i + 1] - offsets[i])));
    }
    return elements;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", TypeName(), "' object is not iterable"));
}

bool TemplateEquals(const TemplateValue& a, const TemplateValue& b) {
  if (a.IsInteger() && b.IsInteger()) return a.integer() == b.integer();
  if (a.IsNumber() && b.IsNumber()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                        b.items().end(), TemplateEquals);
    case Kind::kDict:
      return a.dict().size() == b.dict().size() &&
             std::all_of(a.dict().begin(), a.dict().end(),
                         [&](const auto& item) {
                           const TemplateValue* other = b.Find(item.first);
                           return other != nullptr &&
                                  TemplateEquals(item.second, *other);
                         });
    case Kind::kNamespace:
      return a.integer() == b.integer();
    case Kind::kFunction:
      return a.text() == b.text() && a.macro_idx() == b.macro_idx();
    default:
      return true;  // Undefined, None.
  }
}

absl::StatusOr<int> TemplateCompare(const TemplateValue& a,
                                    const TemplateValue& b) {
  if (a.IsInteger() && b.IsInteger()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  }
  if (a.IsNumber() && b.IsNumber()) {
    return a.number() < b.number() ? -1 : a.number() > b.number();
  }
  if (a.IsString() && b.IsString()) {
    const int order = a.text().compare(b.text());
    return order < 0 ? -1 : order > 0;
  }
  if (a.IsSequence() && a.kind() == b.kind()) {
    for (size_t i = 0; i < a.items().size() && i < b.items().size(); ++i) {
      if (TemplateEquals(a.items()[i], b.items()[i])) continue;
      return TemplateCompare(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size()
               ? -1
               : a.items().size() > b.items().size();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a '", a.TypeName(), "' and a '", b.TypeName(),
                   "' have no order (a comparison or sort)"));
}

std::string TemplateText(const TemplateValue& value, size_t max_bytes) {
  if (value.IsString()) return value.text();
  if (value.IsUndefined()) return "";
  return TemplateRepr(value, max_bytes);
}

std::string TemplateRepr(const TemplateValue& value, size_t max_bytes) {
  std::string text;
  AppendRepr(value, max_bytes, &text);
  return text;
}

absl::StatusOr<std::string> TemplateJson(const TemplateValue& value,
                                         const TojsonOptions& options,
                                         size_t max_bytes) {
  JsonWriter writer(options, max_bytes);
  RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

std::vector<size_t> CharacterOffsets(absl::string_view text) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 0 || BeginsCharacter(text[i])) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

}  // namespace millrace
