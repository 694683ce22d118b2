// A value of a JSON document together with the path of keys to it, so that
// errors name the key and the value.

#ifndef MILLRACE_WORKER_TOKENIZE_JSON_VALUE_H_
#define MILLRACE_WORKER_TOKENIZE_JSON_VALUE_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace millrace {

class JsonValue {
 public:
  // `json` outlives the value.
  JsonValue(const nlohmann::json& json, std::string path)
      : json_(&json), path_(std::move(path)) {}

  const nlohmann::json& json() const { return *json_; }
  const std::string& path() const { return path_; }

  // InvalidArgument "PATH: VALUE WHAT", with a long value cut.
  absl::Status Refused(absl::string_view what) const;

  // Refuses keys of an object that are not `known`, and what is no object.
  absl::Status CheckKeys(std::initializer_list<absl::string_view> known) const;

  // True if the object has the key and its value is not null.
  bool Has(const std::string& key) const;
  absl::StatusOr<JsonValue> Get(const std::string& key) const;
  absl::StatusOr<std::vector<JsonValue>> List(const std::string& key) const;
  absl::StatusOr<std::string> Text(const std::string& key) const;
  absl::StatusOr<bool> Bool(const std::string& key) const;
  // With a value for a key that is absent or null.
  absl::StatusOr<bool> BoolOr(const std::string& key, bool otherwise) const;
  // A whole number from 0 to `most`.
  absl::StatusOr<int64_t> Whole(const std::string& key, int64_t most) const;

  absl::StatusOr<std::string> AsText() const;
  absl::StatusOr<int64_t> AsWhole(int64_t most) const;

 private:
  const nlohmann::json* json_;
  std::string path_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_TOKENIZE_JSON_VALUE_H_
