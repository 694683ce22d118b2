// Structs as JSON objects, by one list of fields for both directions: a
// function visit(key, field) over the fields is given a FieldWriter or a
// FieldReader.

#ifndef MILLRACE_WORKER_DOCTOR_JSON_FIELDS_H_
#define MILLRACE_WORKER_DOCTOR_JSON_FIELDS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"

namespace millrace {

struct FieldWriter {
  nlohmann::json& json;
  template <typename Value>
  void operator()(const char* key, const Value& value) const {
    json[key] = value;
  }
};

// A key that is missing leaves its field alone. A value of another kind, or a
// number that its field cannot hold, is named in `wrong_key`.
struct FieldReader {
  const nlohmann::json& json;
  std::string& wrong_key;

  template <typename Value>
  void operator()(const char* key, Value& value) const {
    const auto found = json.find(key);
    if (found == json.end()) return;
    if (Fits<Value>(*found)) {
      value = found->template get<Value>();
    } else {
      wrong_key = key;
    }
  }

  template <typename Value>
  static bool Fits(const nlohmann::json& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      return value.is_boolean();
    } else if constexpr (std::is_integral_v<Value>) {
      if (value.is_number_unsigned()) {
        return std::in_range<Value>(value.template get<uint64_t>());
      }
      return value.is_number_integer() &&
             std::in_range<Value>(value.template get<int64_t>());
    } else if constexpr (std::is_floating_point_v<Value>) {
      return value.is_number();
    } else if constexpr (std::is_same_v<Value, std::string>) {
      return value.is_string();
    } else {
      return value.is_array() &&
             std::all_of(value.begin(), value.end(),
                         [](const auto& item) { return item.is_string(); });
    }
  }
};

template <typename Item, typename Visit>
nlohmann::json WriteList(const std::vector<Item>& items, const Visit& visit) {
  nlohmann::json list = nlohmann::json::array();
  for (const Item& item : items) {
    nlohmann::json one = nlohmann::json::object();
    visit(item, FieldWriter{one});
    list.push_back(std::move(one));
  }
  return list;
}

// Appends to `items`. `key` is what `wrong_key` becomes if `list` is no list of
// objects.
template <typename Item, typename Visit>
void ReadList(const nlohmann::json& list, const char* key,
              std::vector<Item>* items, std::string* wrong_key,
              const Visit& visit) {
  if (!list.is_array()) {
    *wrong_key = key;
    return;
  }
  for (const nlohmann::json& item : list) {
    if (!item.is_object()) {
      *wrong_key = key;
      return;
    }
    visit(items->emplace_back(), FieldReader{item, *wrong_key});
  }
}

}  // namespace millrace

#endif  // MILLRACE_WORKER_DOCTOR_JSON_FIELDS_H_
