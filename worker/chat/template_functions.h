// The functions that templates call: filters, tests, methods and subscripts, as
// Jinja's sandbox and Python define them. Pure but for the meter, which bounds
// what a run may cost.

#ifndef MILLRACE_WORKER_CHAT_TEMPLATE_FUNCTIONS_H_
#define MILLRACE_WORKER_CHAT_TEMPLATE_FUNCTIONS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/chat/template_value.h"

namespace millrace {

// The budget that one run has left. A step costs one, and its result costs its
// weight, so neither time nor memory grows beyond the budget.
class TemplateMeter {
 public:
  TemplateMeter(int64_t budget, int64_t max_weight)
      : budget_(budget), max_weight_(max_weight) {}

  // ResourceExhausted when nothing is left.
  absl::Status Charge(int64_t cost);
  // Charges for a new value; refuses one that is too large or nests too deep.
  absl::Status ChargeFor(const TemplateValue& value);
  // Above the largest text that is allowed.
  size_t max_bytes() const { return static_cast<size_t>(max_weight_) + 1; }

 private:
  int64_t budget_;
  const int64_t max_weight_;
};

struct TemplateArguments {
  TemplateList positional;
  std::vector<std::pair<std::string, TemplateValue>> named;

  // Null where it is not given.
  const TemplateValue* Get(size_t idx, absl::string_view name) const;
  // InvalidArgument for arguments beyond these.
  absl::Status Allow(absl::string_view function,
                     std::initializer_list<absl::string_view> names) const;
};

// `value[key]`; undefined where there is no such item.
absl::StatusOr<TemplateValue> GetTemplateItem(const TemplateValue& value,
                                              const TemplateValue& key);
// `value.name`: a method, else an item, else undefined.
absl::StatusOr<TemplateValue> GetTemplateAttribute(const TemplateValue& value,
                                                   const std::string& name);
// `value[begin:end:step]`; null: not given.
absl::StatusOr<TemplateValue> SliceTemplateValue(const TemplateValue& value,
                                                 const TemplateValue* begin,
                                                 const TemplateValue* end,
                                                 const TemplateValue* step);

bool HasTemplateMethod(const TemplateValue& owner, absl::string_view name);
absl::StatusOr<TemplateValue> CallTemplateMethod(const TemplateValue& owner,
                                                 const std::string& name,
                                                 const TemplateArguments& args,
                                                 TemplateMeter& meter);

absl::StatusOr<TemplateValue> ApplyTemplateFilter(const std::string& name,
                                                  const TemplateValue& value,
                                                  const TemplateArguments& args,
                                                  TemplateMeter& meter);
absl::StatusOr<bool> ApplyTemplateTest(const std::string& name,
                                       const TemplateValue& value,
                                       const TemplateArguments& args,
                                       TemplateMeter& meter);

// The functions that every template sees. `date` as for RunTemplate().
bool IsTemplateBuiltin(absl::string_view name, const std::string& date);
// A namespace is given as the dict that it begins with.
absl::StatusOr<TemplateValue> CallTemplateBuiltin(const std::string& name,
                                                  const TemplateArguments& args,
                                                  const std::string& date,
                                                  TemplateMeter& meter);
// `loop.name` of the loop over `items` that is at `idx`.
TemplateValue TemplateLoopAttribute(const TemplateList& items, size_t idx,
                                    int64_t depth, const std::string& name);
// dict[key] = value
void SetTemplateKey(const std::string& key, TemplateValue value,
                    TemplateDict* dict);

// `a op b` for + - * / // % ** ~; `a op b` for == != < <= > >= in.
absl::StatusOr<TemplateValue> TemplateBinary(const std::string& op,
                                             const TemplateValue& a,
                                             const TemplateValue& b,
                                             TemplateMeter& meter);
absl::StatusOr<bool> TemplateRelation(absl::string_view op,
                                      const TemplateValue& a,
                                      const TemplateValue& b,
                                      TemplateMeter& meter);

// The error for the use of an undefined value.
absl::Status UndefinedError(const TemplateValue& value);

}  // namespace millrace

#endif  // MILLRACE_WORKER_CHAT_TEMPLATE_FUNCTIONS_H_
