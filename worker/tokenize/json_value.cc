#include "worker/tokenize/json_value.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

constexpr size_t kMaxShownBytes = 60;

std::string ShownValue(const nlohmann::json& json) {
  if (json.is_structured()) {
    return absl::StrCat(json.is_array() ? "a list" : "an object", " of ",
                        json.size());
  }
  const std::string text = JsonText(json);
  if (text.size() <= kMaxShownBytes) return text;
  size_t cut = kMaxShownBytes;
  while ((static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

}  // namespace

absl::Status JsonValue::Refused(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(
      path_.empty() ? "the file" : path_, ": ", ShownValue(*json_), " ", what));
}

absl::Status JsonValue::CheckKeys(
    std::initializer_list<absl::string_view> known) const {
  if (!json_->is_object()) return Refused("is not an object");
  for (const auto& [key, value] : json_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return JsonValue(value, path_.empty() ? key : path_ + "." + key)
          .Refused(absl::StrCat("is not supported; known keys here: ",
                                absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

bool JsonValue::Has(const std::string& key) const {
  const auto found = json_->find(key);
  return found != json_->end() && !found->is_null();
}

absl::StatusOr<JsonValue> JsonValue::Get(const std::string& key) const {
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (!json_->is_object()) return Refused("is not an object");
  const auto found = json_->find(key);
  if (found == json_->end()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is missing"));
  }
  return JsonValue(*found, path);
}

absl::StatusOr<std::vector<JsonValue>> JsonValue::List(
    const std::string& key) const {
  ASSIGN_OR_RETURN(const JsonValue list, Get(key));
  if (!list.json().is_array()) return list.Refused("is not a list");
  std::vector<JsonValue> values;
  for (size_t i = 0; i < list.json().size(); ++i) {
    values.emplace_back(list.json()[i], absl::StrCat(list.path(), "[", i, "]"));
  }
  return values;
}

absl::StatusOr<std::string> JsonValue::Text(const std::string& key) const {
  ASSIGN_OR_RETURN(const JsonValue value, Get(key));
  return value.AsText();
}

absl::StatusOr<bool> JsonValue::Bool(const std::string& key) const {
  ASSIGN_OR_RETURN(const JsonValue value, Get(key));
  if (!value.json().is_boolean()) return value.Refused("is not true or false");
  return value.json().get<bool>();
}

absl::StatusOr<bool> JsonValue::BoolOr(const std::string& key,
                                       bool otherwise) const {
  return Has(key) ? Bool(key) : otherwise;
}

absl::StatusOr<int64_t> JsonValue::Whole(const std::string& key,
                                         int64_t most) const {
  ASSIGN_OR_RETURN(const JsonValue value, Get(key));
  return value.AsWhole(most);
}

absl::StatusOr<std::string> JsonValue::AsText() const {
  if (!json_->is_string()) return Refused("is not a text");
  return json_->get<std::string>();
}

absl::StatusOr<int64_t> JsonValue::AsWhole(int64_t most) const {
  if (!json_->is_number_unsigned() ||
      json_->get<uint64_t>() > static_cast<uint64_t>(most)) {
    return Refused(absl::StrCat("is not a whole number from 0 to ", most));
  }
  return static_cast<int64_t>(json_->get<uint64_t>());
}

}  // namespace millrace
