// A chat template as Hugging Face's models bring it: Jinja that turns messages
// into the text which the model sees.
//
// It gives what `transformers` gives: trim_blocks and lstrip_blocks, loop
// controls, raise_exception, tojson that leaves characters as they are, and
// {% generation %}. A template cannot hang, nor take much memory: steps, bytes
// and depth are bounded. It reads nothing but its variables.

#ifndef MILLRACE_WORKER_CHAT_CHAT_TEMPLATE_H_
#define MILLRACE_WORKER_CHAT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace millrace {

struct RenderedChat {
  std::string text;
  // Bytes [first, second) of `text` from inside {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generated;
};

// Thread-safe once made.
class ChatTemplate {
 public:
  // `name`, a path or key, begins the errors. InvalidArgument "NAME:LINE: what
  // is wrong" for what is not Jinja, or Jinja that is not supported.
  static absl::StatusOr<ChatTemplate> Parse(absl::string_view source,
                                            const std::string& name);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Whether it says itself, by {% generation %}, what a model is to write.
  bool marks_generation() const;

  // `variables`: an object with messages, add_generation_prompt, tools,
  // bos_token and so on. `date` ("2026-11-23") is what strftime_now() formats;
  // empty: a template that asks for it fails, or takes another way where it
  // asks whether it is defined. InvalidArgument where the template raises, or
  // uses a value as it cannot be; ResourceExhausted where it takes too much.
  absl::StatusOr<RenderedChat> Render(const nlohmann::ordered_json& variables,
                                      const std::string& date) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_CHAT_TEMPLATE_H_
