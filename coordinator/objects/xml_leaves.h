// The answers of S3-compatible stores, which are XML: the texts of an answer,
// each under the names of the elements around it.

#ifndef MILLRACE_COORDINATOR_OBJECTS_XML_LEAVES_H_
#define MILLRACE_COORDINATOR_OBJECTS_XML_LEAVES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class XmlLeaves {
 public:
  // InvalidArgument if `text` is no XML, has an entity of its own or nests
  // deeper than 16.
  static absl::StatusOr<XmlLeaves> Parse(absl::string_view text);

  // The name of the outermost element, without its namespace.
  const std::string& root() const { return root_; }
  // The text of the first element, or of all in the document's order, whose
  // path below the root is "Contents/Key", say. Empty if there is none.
  std::string First(absl::string_view path) const;
  std::vector<std::string> All(absl::string_view path) const;

 private:
  friend class XmlReader;
  struct Leaf {
    std::string path;
    std::string text;
  };
  std::string root_;
  std::vector<Leaf> leaves_;
};

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_OBJECTS_XML_LEAVES_H_
