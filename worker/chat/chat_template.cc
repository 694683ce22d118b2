#include "worker/chat/chat_template.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "worker/chat/template_run.h"
#include "worker/chat/template_syntax.h"
#include "worker/tokenize/unicode_door.h"

namespace millrace {
namespace {

// Templates of models are below 64 KiB.
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
// The budget of one rendering: some seconds, and the memory of its results.
constexpr int64_t kBudget = int64_t{1} << 28;
constexpr int64_t kMaxValueBytes = 32 * kMiB;

}  // namespace

struct ChatTemplate::Impl {
  std::string name;
  TemplateTree tree;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(absl::string_view source,
                                                 const std::string& name) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": a chat template of ", source.size(),
                     " bytes; at most ", kMaxTemplateBytes, " are read"));
  }
  if (RepairUtf8(source) != source) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the chat template is not UTF-8"));
  }
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  absl::StatusOr<TemplateTree> tree = ParseTemplate(source);
  if (!tree.ok()) {
    return absl::Status(tree.status().code(),
                        absl::StrCat(name, ":", tree.status().message()));
  }
  impl->tree = *std::move(tree);
  return ChatTemplate(std::move(impl));
}

bool ChatTemplate::marks_generation() const {
  return impl_->tree.has_generation;
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(
    const nlohmann::ordered_json& variables, const std::string& date) const {
  TemplateDict names;
  for (const auto& [name, value] : variables.items()) {
    names.emplace_back(name, TemplateValue::FromJson(value));
  }
  TemplateMeter meter(kBudget, kMaxValueBytes);
  absl::StatusOr<TemplateRunResult> result =
      RunTemplate(impl_->tree, names, date, meter);
  if (!result.ok()) {
    return absl::Status(
        result.status().code(),
        absl::StrCat(impl_->name, ":", result.status().message()));
  }
  return RenderedChat{std::move(result->text), std::move(result->generated)};
}

}  // namespace millrace
