#include "planner/text/yaml_tree.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace millrace {
namespace {

constexpr int kMaximumDepth = 32;
// Aliases can make a short text stand for an enormous tree.
constexpr int64_t kMaximumNodes = 4'000'000;

std::string TooDeep() {
  return absl::StrCat("nested deeper than ", kMaximumDepth,
                      " levels; an alias may contain itself");
}

// Returns the first line on which so many more brackets have opened than closed
// that the library would need gigabytes; 0 if there is none. It also counts
// brackets in quoted text and comments, so the limit is far above
// kMaximumDepth.
int LineOfDeepBrackets(absl::string_view text) {
  constexpr int kMaximumOpen = 10'000;
  int num_open = 0;
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    if (c == '[' || c == '{') ++num_open;
    if (c == ']' || c == '}') num_open = std::max(0, num_open - 1);
    if (num_open > kMaximumOpen) return line;
  }
  return 0;
}

// Returns the first line that is not UTF-8.
int LineOfBadByte(absl::string_view text) {
  int line = 1;
  for (const absl::string_view part : absl::StrSplit(text, '\n')) {
    if (!IsUtf8(part)) break;
    ++line;
  }
  return line;
}

// Throws at the begin of a second document. The library begins one without end
// where text that it does not understand follows the first.
class OneDocument : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ > 1) {
      throw YAML::Exception(mark,
                            "a second YAML document, or text behind the end "
                            "of the first; one file holds one");
    }
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  int num_documents_ = 0;
};

class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& file_name) : file_name_(file_name) {}

  absl::Status Build(const YAML::Node& node, int depth, YamlTree* tree) {
    // A missing value has no position and keeps its key's line.
    if (node.Mark().line >= 0) tree->line = node.Mark().line + 1;
    if (depth > kMaximumDepth) {
      return Error(tree->line, TooDeep());
    }
    if (++num_nodes_ > kMaximumNodes) {
      return Error(tree->line, "more nodes than any job or profile has");
    }
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        tree->kind = YamlTree::Kind::kNull;
        return absl::OkStatus();
      case YAML::NodeType::Scalar:
        tree->kind = YamlTree::Kind::kScalar;
        tree->scalar = node.Scalar();
        tree->is_quoted = node.Tag() == "!";
        return absl::OkStatus();
      case YAML::NodeType::Sequence:
        tree->kind = YamlTree::Kind::kList;
        tree->children.reserve(node.size());
        for (const YAML::Node& item : node) {
          tree->children.push_back({.line = tree->line});
          RETURN_IF_ERROR(Build(item, depth + 1, &tree->children.back()));
        }
        return absl::OkStatus();
      case YAML::NodeType::Map:
        return BuildMap(node, depth, tree);
    }
    return Error(tree->line, "an unknown kind of YAML node");
  }

  absl::Status Error(int line, const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name_, ":", line, ": ", what));
  }

 private:
  absl::Status BuildMap(const YAML::Node& node, int depth, YamlTree* tree) {
    tree->kind = YamlTree::Kind::kMap;
    for (const auto& entry : node) {
      const int line = entry.first.Mark().line + 1;
      if (!entry.first.IsScalar()) {
        return Error(line, "a key must be a plain word");
      }
      tree->children.push_back({.line = line, .key = entry.first.Scalar()});
      YamlTree& child = tree->children.back();
      RETURN_IF_ERROR(Build(entry.second, depth + 1, &child));
      // Messages point at the key, even if its value starts on a later line.
      child.line = line;
    }
    return absl::OkStatus();
  }

  const std::string& file_name_;
  int64_t num_nodes_ = 0;
};

}  // namespace

std::string DescribeYaml(const YamlTree& tree) {
  switch (tree.kind) {
    case YamlTree::Kind::kNull:
      return "nothing";
    case YamlTree::Kind::kScalar:
      return absl::StrCat("'", tree.scalar, "'");
    case YamlTree::Kind::kList:
      return "a list";
    case YamlTree::Kind::kMap:
      return "a map";
  }
  return "nothing";
}

absl::StatusOr<YamlTree> ParseYaml(absl::string_view yaml,
                                   const std::string& file_name) {
  TreeBuilder builder(file_name);
  YamlTree tree;
  if (static_cast<int64_t>(yaml.size()) > kMaxWrittenBytes) {
    return builder.Error(
        1, absl::StrCat(yaml.size(), " bytes; the most is ", kMaxWrittenBytes));
  }
  if (!IsUtf8(yaml)) {
    return builder.Error(LineOfBadByte(yaml),
                         "not UTF-8 text; save the file as UTF-8");
  }
  if (const int line = LineOfDeepBrackets(yaml); line > 0) {
    return builder.Error(line, TooDeep());
  }
  try {
    const std::string text(yaml);
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    OneDocument one_document;
    while (parser.HandleNextDocument(one_document)) {
    }
    RETURN_IF_ERROR(builder.Build(YAML::Load(text), 0, &tree));
  } catch (const YAML::DeepRecursion& error) {  // At some hundred levels.
    return builder.Error(std::max(error.mark.line, 0) + 1, TooDeep());
  } catch (const YAML::Exception& error) {
    return builder.Error(std::max(error.mark.line, 0) + 1,
                         absl::StrCat("not valid YAML: ", error.msg));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file_name, ": no memory to read it"));
    // Thrown inside the standard library.
  } catch (const std::exception& error) {
    return builder.Error(1, absl::StrCat("not valid YAML: ", error.what()));
  }
  return tree;
}

std::string QuoteYaml(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      absl::StrAppend(&quoted, "\\", std::string(1, c));
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&quoted, "\\x%02x", byte);
    } else {
      quoted.push_back(c);
    }
  }
  quoted.push_back('"');
  return quoted;
}

std::string NumberToText(double value) {
  std::array<char, 32> text;
  const std::to_chars_result result =
      std::to_chars(text.data(), text.data() + text.size(), value);
  return std::string(text.data(), result.ptr);
}

}  // namespace millrace
