#include "planner/explain/layout_name.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/layout/recompute.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

// The indent of a name that does not fit at the end of its row.
constexpr size_t kOwnLineIndent = 6;

const char* ShortOp(Recompute op) {
  switch (op) {
    case Recompute::kActivation:
      return "act";
    case Recompute::kGateUp:
      return "up";
    case Recompute::kOutput:
      return "out";
    case Recompute::kAttention:
      return "attn";
    case Recompute::kDispatch:
      return "disp";
    default:
      return nullptr;  // The name is short already.
  }
}

std::string ShortRecompute(const Layout& layout) {
  const Recompute set = layout.recompute;
  std::string name;
  if (set == Recompute::kFull || set == Recompute::kPolicy) {
    name = RecomputeName(set);
  } else {
    std::vector<std::string> ops;
    for (const Recompute op : kRecomputeOps) {
      if (!Has(set, op)) continue;
      const char* short_name = ShortOp(op);
      ops.push_back(short_name != nullptr ? short_name : RecomputeName(op));
    }
    name = absl::StrJoin(ops, "+");
  }
  const std::vector<Recompute>& stages = layout.recompute_by_stage;
  if (stages.empty()) return absl::StrCat("rc-", name);
  return absl::StrCat(
      "rc-", name, "@",
      stages.size() - std::ranges::count(stages, Recompute::kNone));
}

}  // namespace

std::string LayoutName(const Layout& layout, bool passes_listed) {
  std::vector<std::string> words;
  for (const LayoutSize& row : LayoutSizes()) {
    const int32_t size = layout.*row.size;
    if (size > 1 || row.size == &Layout::micro_batch) {
      words.push_back(absl::StrCat(row.short_name, size));
    }
  }
  if (layout.zero > 0) words.push_back(absl::StrCat("zero", layout.zero));
  if (layout.recompute != Recompute::kNone) {
    words.push_back(ShortRecompute(layout));
  }
  if (layout.gemm_format != GemmFormat::kAsStored) {
    words.emplace_back(PrecisionName(layout));
  }
  if (layout.rounds_gradients()) {
    words.emplace_back("gr-bf16");
  } else if (layout.rounds_across()) {
    words.emplace_back("gr-across");
  }
  if (passes_listed || layout.schedule == Schedule::kListScheduled) {
    words.emplace_back("list");
  } else if (layout.schedule == Schedule::kZeroBubble) {
    words.emplace_back("zb");
  }
  if (layout.copy_engines.any()) words.emplace_back("ce");
  return absl::StrJoin(words, " ");
}

std::string NameOf(const Plan& plan) {
  return LayoutName(plan.layout, !plan.listed_bytes.empty());
}

std::string RowWithName(const std::string& cells, const std::string& name) {
  if (cells.size() + name.size() <= kPageColumns) {
    return absl::StrCat(cells, name);
  }
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(cells), "\n",
                      std::string(kOwnLineIndent, ' '), name);
}

}  // namespace millrace
