#include "coordinator/objects/xml_leaves.h"

#include <expat.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {

constexpr size_t kMaxDepth = 16;

// Expat's callbacks.
class XmlReader {
 public:
  XmlReader() : parser_(XML_ParserCreate(nullptr), XML_ParserFree) {
    if (parser_ == nullptr) return;
    XML_SetUserData(parser_.get(), this);
    XML_SetElementHandler(parser_.get(), OnStart, OnEnd);
    XML_SetCharacterDataHandler(parser_.get(), OnText);
    XML_SetEntityDeclHandler(parser_.get(), OnEntity);
  }

  absl::StatusOr<XmlLeaves> Read(absl::string_view text) {
    if (parser_ == nullptr) {
      return absl::ResourceExhaustedError("no memory to read XML");
    }
    const XML_Status status = XML_Parse(
        parser_.get(), text.data(), static_cast<int>(text.size()), XML_TRUE);
    if (!problem_.empty()) return absl::InvalidArgumentError(problem_);
    if (status != XML_STATUS_OK) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no XML: ", XML_ErrorString(XML_GetErrorCode(parser_.get())),
          " in line ", XML_GetCurrentLineNumber(parser_.get())));
    }
    return std::move(leaves_);
  }

 private:
  static XmlReader& Of(void* self) { return *static_cast<XmlReader*>(self); }

  static void OnStart(void* self, const XML_Char* name, const XML_Char**) {
    XmlReader& reader = Of(self);
    if (reader.open_.size() == kMaxDepth) {
      return reader.Stop(absl::StrCat("elements nest deeper than ", kMaxDepth));
    }
    absl::string_view plain = name;
    if (const size_t colon = plain.find(':'); colon != plain.npos) {
      plain.remove_prefix(colon + 1);
    }
    if (reader.open_.empty()) reader.leaves_.root_ = std::string(plain);
    reader.open_.emplace_back(plain);
    reader.text_.clear();
    reader.is_leaf_ = true;
  }

  static void OnEnd(void* self, const XML_Char*) {
    XmlReader& reader = Of(self);
    if (reader.is_leaf_) {
      reader.leaves_.leaves_.push_back(
          {absl::StrJoin(reader.open_.begin() + 1, reader.open_.end(), "/"),
           std::exchange(reader.text_, {})});
    }
    reader.is_leaf_ = false;
    reader.open_.pop_back();
  }

  static void OnText(void* self, const XML_Char* text, int size) {
    Of(self).text_.append(text, static_cast<size_t>(size));
  }

  // No store declares any, and they are how XML becomes a bomb.
  static void OnEntity(void* self, const XML_Char*, int, const XML_Char*, int,
                       const XML_Char*, const XML_Char*, const XML_Char*,
                       const XML_Char*) {
    Of(self).Stop("an entity is declared");
  }

  void Stop(std::string problem) {
    problem_ = std::move(problem);
    XML_StopParser(parser_.get(), XML_FALSE);
  }

  const std::unique_ptr<XML_ParserStruct, void (*)(XML_Parser)> parser_;
  std::vector<std::string> open_;
  std::string text_;
  bool is_leaf_ = false;
  std::string problem_;
  XmlLeaves leaves_;
};

absl::StatusOr<XmlLeaves> XmlLeaves::Parse(absl::string_view text) {
  return XmlReader().Read(text);
}

std::string XmlLeaves::First(absl::string_view path) const {
  for (const Leaf& leaf : leaves_) {
    if (leaf.path == path) return leaf.text;
  }
  return "";
}

std::vector<std::string> XmlLeaves::All(absl::string_view path) const {
  std::vector<std::string> texts;
  for (const Leaf& leaf : leaves_) {
    if (leaf.path == path) texts.push_back(leaf.text);
  }
  return texts;
}

}  // namespace millrace
