#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "planner/fleet/disturbance.h"

namespace millrace {
namespace {

// Reads "20%" or "0.2".
std::optional<double> ParseShare(absl::string_view text) {
  const bool is_percent = absl::ConsumeSuffix(&text, "%");
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value) || value < 0) {
    return std::nullopt;
  }
  return is_percent ? value / 100 : value;
}

// The settings "KEY=VALUE,KEY=VALUE" of one option.
class OptionSettings {
 public:
  static absl::StatusOr<OptionSettings> Read(absl::string_view option,
                                             absl::string_view text,
                                             absl::string_view example) {
    OptionSettings settings(
        absl::StrCat(option, " ", text, ": expected ", example));
    for (const absl::string_view part : absl::StrSplit(text, ',')) {
      const std::pair<std::string, std::string> setting =
          absl::StrSplit(part, absl::MaxSplits('=', 1));
      if (setting.second.empty() || !settings.values_.insert(setting).second) {
        return settings.Wrong(absl::StrCat("found '", part, "'"));
      }
    }
    return settings;
  }

  absl::Status Wrong(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(expected_, "; ", what));
  }
  // Removes the setting and returns it; nothing if it is not there.
  std::optional<std::string> Take(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    std::string value = std::move(found->second);
    values_.erase(found);
    return value;
  }
  absl::StatusOr<double> TakeShare(const std::string& key, double most) {
    const std::optional<std::string> text = Take(key);
    if (!text.has_value()) return Wrong(absl::StrCat("without ", key));
    const std::optional<double> share = ParseShare(*text);
    if (!share.has_value() || *share > most) {
      return Wrong(absl::StrCat(key, " is from 0 to ", most * 100,
                                " %, found '", *text, "'"));
    }
    return *share;
  }
  absl::StatusOr<int32_t> TakeIndex(const std::string& key) {
    const std::optional<std::string> text = Take(key);
    int32_t idx = 0;
    if (!text.has_value() || !absl::SimpleAtoi(*text, &idx) || idx < 0) {
      return Wrong(absl::StrCat(key, " is a number from 0, found '",
                                text.value_or(""), "'"));
    }
    return idx;
  }
  bool Has(const std::string& key) const { return values_.contains(key); }
  absl::Status NothingLeft() const {
    if (values_.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat("unknown or too much: ", values_.begin()->first));
  }

 private:
  explicit OptionSettings(std::string expected)
      : expected_(std::move(expected)) {}

  std::string expected_;
  std::map<std::string, std::string> values_;
};

constexpr double kMostNoise = 1;
constexpr double kMostSlower = 99;

}  // namespace

absl::Status ParseNoise(absl::string_view text, const StepNoise& noise,
                        DisturbanceSpec* spec) {
  if (text == "profile") {
    spec->pass_noise = noise.pass;
    return absl::OkStatus();
  }
  constexpr char kExample[] = "2% of each pass, passes=2%,steps=1%, or profile";
  const std::string settings_text = absl::StrContains(text, '=')
                                        ? std::string(text)
                                        : absl::StrCat("passes=", text);
  ASSIGN_OR_RETURN(OptionSettings settings,
                   OptionSettings::Read("--noise", settings_text, kExample));
  if (settings.Has("passes")) {
    ASSIGN_OR_RETURN(spec->pass_noise,
                     settings.TakeShare("passes", kMostNoise));
  }
  if (settings.Has("steps")) {
    ASSIGN_OR_RETURN(spec->step_noise, settings.TakeShare("steps", kMostNoise));
  }
  return settings.NothingLeft();
}

absl::Status ParseStraggler(absl::string_view text, DisturbanceSpec* spec) {
  ASSIGN_OR_RETURN(
      OptionSettings settings,
      OptionSettings::Read("--straggler", text,
                           "node=3,slower=20%, device=17,slower=20% or "
                           "nodes=0.5%,slower=20%"));
  Straggler straggler;
  if (settings.Has("nodes")) {
    straggler.what = Straggler::What::kShareOfNodes;
    ASSIGN_OR_RETURN(straggler.share, settings.TakeShare("nodes", 1));
    for (const Straggler& other : spec->stragglers) {
      if (other.what != Straggler::What::kShareOfNodes) continue;
      return settings.Wrong("a share of nodes may be given once");
    }
  } else if (settings.Has("node")) {
    straggler.what = Straggler::What::kNode;
    ASSIGN_OR_RETURN(straggler.idx, settings.TakeIndex("node"));
  } else {
    straggler.what = Straggler::What::kDevice;
    ASSIGN_OR_RETURN(straggler.idx, settings.TakeIndex("device"));
  }
  ASSIGN_OR_RETURN(const double slower,
                   settings.TakeShare("slower", kMostSlower));
  straggler.factor = 1 + slower;
  RETURN_IF_ERROR(settings.NothingLeft());
  spec->stragglers.push_back(straggler);
  return absl::OkStatus();
}

absl::Status ParseSlowLink(absl::string_view text, DisturbanceSpec* spec) {
  ASSIGN_OR_RETURN(OptionSettings settings,
                   OptionSettings::Read("--slow-link", text,
                                        "node=3,link=inter_node,rate=50%"));
  DegradedLink link;
  ASSIGN_OR_RETURN(link.node, settings.TakeIndex("node"));
  link.level = settings.Take("link").value_or("");
  if (link.level.empty()) return settings.Wrong("without link");
  ASSIGN_OR_RETURN(link.rate, settings.TakeShare("rate", 1));
  if (link.rate <= 0) return settings.Wrong("rate is above 0");
  RETURN_IF_ERROR(settings.NothingLeft());
  spec->links.push_back(std::move(link));
  return absl::OkStatus();
}

}  // namespace millrace
