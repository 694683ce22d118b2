#include "base/json.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace millrace {
namespace {

absl::Status JsonErrorAt(absl::string_view text, size_t position,
                         absl::string_view what) {
  const absl::string_view before = text.substr(0, position);
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", 1 + std::count(before.begin(), before.end(), '\n'), ": ", what));
}

// The library's message without its own name and its count of columns.
std::string JsonExplanation(const std::string& what) {
  for (const absl::string_view start : {"syntax error", "] "}) {
    const size_t at = what.find(start.data(), 0, start.size());
    if (at == what.npos) continue;
    return what.substr(start == "] " ? at + start.size() : at);
  }
  return what;
}

// Watches a text being parsed for keys of one object that are there twice.
class RepeatedKeys {
 public:
  template <typename Json>
  bool See(typename Json::parse_event_t event, const Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key && first_.empty()) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!open_.back().insert(key).second) first_ = key;
    }
    return true;
  }
  // Empty: none.
  const std::string& first() const { return first_; }

 private:
  std::vector<std::set<std::string>> open_;  // Keys of the objects around.
  std::string first_;
};

template <typename Json>
absl::StatusOr<Json> ParseAs(absl::string_view text,
                             RepeatedKeys* repeated = nullptr) {
  RETURN_IF_ERROR(CheckJsonNesting(text));
  typename Json::parser_callback_t callback = nullptr;
  if (repeated != nullptr) {
    callback = [repeated](int, typename Json::parse_event_t event,
                          Json& parsed) {
      return repeated->See<Json>(event, parsed);
    };
  }
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const typename Json::parse_error& error) {
    return JsonErrorAt(
        text, error.byte,
        absl::StrCat("not valid JSON: ", JsonExplanation(error.what())));
  } catch (const typename Json::exception& error) {
    // Too large a number; the library names it, but not its place.
    const std::string what = JsonExplanation(error.what());
    const size_t open = what.find('\'');
    const size_t at =
        open == what.npos
            ? text.npos
            : text.find(what.substr(open + 1, what.rfind('\'') - open - 1));
    return JsonErrorAt(text, at == text.npos ? 0 : at,
                       absl::StrCat("not valid JSON: ", what));
  }
}

template <typename Json>
std::string TextOf(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

}  // namespace

absl::Status CheckJsonNesting(absl::string_view text) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxNesting) {
        return JsonErrorAt(text, i,
                           absl::StrCat("lists and objects are nested deeper "
                                        "than ",
                                        kMaxNesting, " levels"));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text) {
  return ParseAs<nlohmann::json>(text);
}

absl::StatusOr<nlohmann::json> ParseJsonOnce(absl::string_view text) {
  RepeatedKeys repeated;
  ASSIGN_OR_RETURN(nlohmann::json json,
                   ParseAs<nlohmann::json>(text, &repeated));
  if (repeated.first().empty()) return json;
  const std::string key = absl::StrCat("\"", repeated.first(), "\"");
  size_t at = text.find(key);
  if (at != text.npos) at = text.find(key, at + 1);
  return JsonErrorAt(text, at == text.npos ? 0 : at,
                     absl::StrCat(key, " is there twice in one object"));
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedJson(
    absl::string_view text) {
  return ParseAs<nlohmann::ordered_json>(text);
}

std::string JsonText(const nlohmann::json& json, int indent) {
  return TextOf(json, indent);
}

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  return TextOf(json, indent);
}

}  // namespace millrace
