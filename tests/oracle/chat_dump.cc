// Renders chat templates for chat_template_test.py: a line of JSON in,
// {"template", "variables", "date"}, a line out, {"text", "generated"} or
// {"error"}.

#include <iostream>
#include <string>

#include "base/json.h"
#include "worker/chat/chat_template.h"

namespace millrace {
namespace {

nlohmann::ordered_json Answer(const std::string& line) {
  const auto request = ParseOrderedJson(line);
  if (!request.ok()) return {{"error", request.status().ToString()}};
  const auto chat_template =
      ChatTemplate::Parse(request->at("template").get<std::string>(), "T");
  if (!chat_template.ok()) {
    return {{"error", chat_template.status().ToString()}};
  }
  const auto rendered = chat_template->Render(
      request->at("variables"), request->at("date").get<std::string>());
  if (!rendered.ok()) return {{"error", rendered.status().ToString()}};
  return {{"text", rendered->text}, {"generated", rendered->generated}};
}

}  // namespace
}  // namespace millrace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << millrace::JsonText(millrace::Answer(line)) << std::endl;
  }
}
