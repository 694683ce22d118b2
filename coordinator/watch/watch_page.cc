#include "coordinator/watch/watch_page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "coordinator/report/report_summary.h"
#include "coordinator/watch/slowest_rank.h"

namespace millrace {
namespace {

constexpr size_t kCurveRows = 5;
constexpr size_t kMostRanks = 8;
constexpr size_t kLabelWidth = 12;
// A run whose files do not change for so long, and for so many steps, may hang.
constexpr double kSilentSeconds = 30;
constexpr double kSilentSteps = 10;

// The start of a line: what it is about.
std::string Labelled(const std::string& label, const std::string& text) {
  return absl::StrFormat("%-*s%s", static_cast<int>(kLabelWidth), label, text);
}

std::string ProgressText(const WatchedRun& run, const WatchLook& look) {
  const int64_t step = run.step.has_value() ? run.step->step : 0;
  if (run.num_steps <= 0) return absl::StrCat("step ", step);
  const double share = std::clamp(
      static_cast<double>(step) / static_cast<double>(run.num_steps), 0.0, 1.0);
  const size_t width = std::clamp<size_t>(look.width / 3, 10, 40);
  const auto done =
      static_cast<size_t>(std::floor(share * static_cast<double>(width)));
  std::string text = absl::StrFormat(
      "[%s%s] %3.0f %%  step %d of %d", std::string(done, '#'),
      std::string(width - done, '.'), 100 * share, step, run.num_steps);
  if (!run.over && run.step.has_value()) {
    absl::StrAppend(&text, "  ",
                    FormatSeconds(static_cast<double>(run.num_steps - step) *
                                  run.mean_step_time_s),
                    " left");
  }
  return text;
}

std::string LossText(const WatchedRun& run) {
  std::string text = run.step->loss.has_value()
                         ? absl::StrFormat("%.4f", *run.step->loss)
                         : "not a number";
  if (run.first_loss.has_value()) {
    absl::StrAppendFormat(&text, ", from %.4f", *run.first_loss);
  }
  if (run.validation_loss.has_value()) {
    absl::StrAppendFormat(&text, "; validation %.4f", *run.validation_loss);
  }
  return text;
}

std::string SpeedText(const WatchedRun& run) {
  const WatchedStep& step = *run.step;
  std::string text =
      absl::StrCat(FormatCount(step.tokens_per_s), " tokens/s, step ",
                   FormatSeconds(run.mean_step_time_s));
  if (step.predicted_step_time_s > 0) {
    absl::StrAppendFormat(&text, ", predicted %s: %.0f %% of predicted speed",
                          FormatSeconds(step.predicted_step_time_s),
                          100 * step.predicted_step_time_s /
                              std::max(run.mean_step_time_s, 1e-9));
  }
  return text;
}

// The loss as a curve of asterisks, newest on the right.
std::vector<std::string> CurveLines(const std::vector<double>& curve,
                                    size_t width) {
  if (curve.size() < 2 || width < kLabelWidth + 10) return {};
  const size_t columns =
      std::min(curve.size(), std::min<size_t>(width - kLabelWidth, 64));
  std::vector<double> means;
  for (size_t column = 0; column < columns; ++column) {
    const size_t begin = column * curve.size() / columns;
    const size_t end = (column + 1) * curve.size() / columns;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += curve[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double span = std::max(*high - *low, 1e-12);
  std::vector<std::string> rows(kCurveRows, std::string(columns, ' '));
  for (size_t column = 0; column < columns; ++column) {
    const double height = (means[column] - *low) / span;
    const auto row = static_cast<size_t>(
        std::lround((1 - height) * static_cast<double>(kCurveRows - 1)));
    rows[row][column] = '*';
  }
  for (size_t row = 0; row < kCurveRows; ++row) {
    const bool labelled = row == 0 || row + 1 == kCurveRows;
    rows[row] = absl::StrFormat(
        "%*s  %s", static_cast<int>(kLabelWidth - 2),
        labelled ? absl::StrFormat("%.3f", row == 0 ? *high : *low) : "",
        rows[row]);
  }
  return rows;
}

// One line a rank: where its time went, parts of at least a percent.
std::vector<std::string> RankLines(const WatchedRun& run) {
  std::vector<std::string> lines;
  for (const WatchedRank& rank : run.ranks) {
    if (lines.size() == kMostRanks) {
      lines.push_back(Labelled(
          "", absl::StrCat("and ", run.ranks.size() - kMostRanks, " more")));
      break;
    }
    double total = 0;
    for (const double seconds : rank.seconds) total += seconds;
    std::vector<std::string> parts;
    for (size_t i = 0; i < rank.seconds.size(); ++i) {
      const double percent = 100 * rank.seconds[i] / std::max(total, 1e-9);
      if (percent < 1) continue;
      parts.push_back(
          absl::StrFormat("%s %.0f %%", kTimeCategories[i].label, percent));
    }
    lines.push_back(Labelled(
        absl::StrCat("rank ", rank.rank),
        absl::StrCat("stage ", rank.stage,
                     rank.host.empty() ? "" : absl::StrCat(", ", rank.host),
                     ": ", absl::StrJoin(parts, ", "))));
  }
  return lines;
}

// "node1: ranks 0, 1; node2: ranks 2, 3". Empty if hosts are not known.
std::string HostsText(const WatchedRun& run) {
  std::vector<std::string> hosts;  // In the order of their first ranks.
  std::map<std::string, std::vector<int64_t>> ranks;
  for (const WatchedRank& rank : run.ranks) {
    if (rank.host.empty()) continue;
    if (!ranks.contains(rank.host)) hosts.push_back(rank.host);
    ranks[rank.host].push_back(rank.rank);
  }
  return absl::StrJoin(
      hosts, "; ", [&](std::string* out, const std::string& host) {
        absl::StrAppend(out, host,
                        ranks[host].size() == 1 ? ": rank " : ": ranks ",
                        absl::StrJoin(ranks[host], ", "));
      });
}

std::string SlowestText(const SlowestRank& slowest) {
  return absl::StrFormat(
      "rank %d%s works %.0f %% longer than the median of its stage: %s",
      slowest.rank,
      slowest.host.empty() ? "" : absl::StrCat(" (", slowest.host, ")"),
      100 * slowest.excess, slowest.why);
}

std::string FaultText(const WatchedRun& run) {
  std::string text =
      run.num_deaths == 0
          ? "none"
          : absl::StrCat(run.num_deaths,
                         run.num_deaths == 1 ? " worker" : " workers", " died");
  if (run.checkpoint_step.has_value()) {
    absl::StrAppend(&text, "; newest checkpoint after step ",
                    *run.checkpoint_step);
  }
  return text;
}

// Printable and at most `width` long.
std::string Fitted(const std::string& line, size_t width) {
  std::string fitted;
  for (const unsigned char c : line) {
    if (c >= 0x80 && c < 0xC0) continue;  // The rest of a character.
    fitted.push_back(absl::ascii_isprint(c) ? static_cast<char>(c) : '?');
  }
  absl::StripTrailingAsciiWhitespace(&fitted);
  if (fitted.size() > width) {
    fitted.resize(width);
    if (width > 3) fitted.replace(width - 3, 3, "...");
  }
  return fitted;
}

const char* ColourOf(const WatchedRun& run, bool is_silent) {
  if (run.status == "failed" || is_silent) return "\x1b[31m";
  if (run.status == "recovering" || run.status == "stopped") return "\x1b[33m";
  return "\x1b[32m";
}

}  // namespace

std::vector<std::string> WatchLines(const WatchedRun& run,
                                    const WatchLook& look) {
  const double silent_s = look.now_unix_s - run.newest_unix_s;
  const bool is_silent = !run.over && run.newest_unix_s > 0 &&
                         silent_s > kSilentSeconds &&
                         silent_s > kSilentSteps * run.mean_step_time_s;
  std::string status = run.status;
  if (is_silent) {
    absl::StrAppend(&status, ", but nothing new for ", FormatSeconds(silent_s));
  }
  if (!run.reason.empty()) absl::StrAppend(&status, ": ", run.reason);
  std::vector<std::string> lines = {absl::StrCat(run.name, "  ", status)};
  lines.push_back(Labelled("progress", ProgressText(run, look)));
  if (!run.plan.empty()) lines.push_back(Labelled("plan", run.plan));
  if (run.step.has_value()) {
    lines.push_back(Labelled("speed", SpeedText(run)));
    lines.push_back(Labelled("loss", LossText(run)));
    for (std::string& row : CurveLines(run.curve, look.width)) {
      lines.push_back(std::move(row));
    }
  }
  for (const auto& [set, loss] : run.evaluation) {
    lines.push_back(
        Labelled("evaluation", absl::StrFormat("%s: loss %.4f, perplexity %.4g",
                                               set, loss, std::exp(loss))));
  }
  lines.push_back(Labelled("faults", FaultText(run)));
  if (const std::string hosts = HostsText(run); !hosts.empty()) {
    lines.push_back(Labelled("hosts", hosts));
  }
  for (const auto& [rank, detail] : run.slow_ranks) {
    lines.push_back(Labelled("slow", absl::StrCat("rank ", rank, " ", detail)));
  }
  if (const auto slowest = FindSlowestRank(run.ranks); slowest.has_value()) {
    lines.push_back(Labelled("slowest", SlowestText(*slowest)));
  }
  for (std::string& rank : RankLines(run)) lines.push_back(std::move(rank));
  for (size_t i = 0; i < run.events.size(); ++i) {
    lines.push_back(Labelled(i == 0 ? "events" : "", run.events[i]));
  }
  if (lines.size() > look.height) lines.resize(look.height);
  for (std::string& line : lines) line = Fitted(line, look.width);
  if (look.colours) {
    const size_t begin = std::min(run.name.size() + 2, lines[0].size());
    lines[0] = absl::StrCat(lines[0].substr(0, begin), ColourOf(run, is_silent),
                            lines[0].substr(begin), "\x1b[0m");
  }
  return lines;
}

nlohmann::json WatchJson(const WatchedRun& run, double now_unix_s) {
  nlohmann::json json = {{"name", run.name},
                         {"status", run.status},
                         {"over", run.over},
                         {"num_deaths", run.num_deaths},
                         {"events", run.events}};
  if (!run.reason.empty()) json["reason"] = run.reason;
  if (!run.plan.empty()) json["plan"] = run.plan;
  if (run.num_steps > 0) json["num_steps"] = run.num_steps;
  if (run.newest_unix_s > 0) {
    json["silent_s"] = std::max(0.0, now_unix_s - run.newest_unix_s);
  }
  if (run.checkpoint_step.has_value()) {
    json["checkpoint_step"] = *run.checkpoint_step;
  }
  if (run.step.has_value()) {
    json["step"] = run.step->step;
    json["step_time_s"] = run.mean_step_time_s;
    json["tokens_per_s"] = run.step->tokens_per_s;
    if (run.step->loss.has_value()) json["loss"] = *run.step->loss;
    if (run.step->predicted_step_time_s > 0) {
      json["predicted_step_time_s"] = run.step->predicted_step_time_s;
    }
  }
  nlohmann::json ranks = nlohmann::json::array();
  for (const WatchedRank& rank : run.ranks) {
    ranks.push_back(
        {{"rank", rank.rank}, {"stage", rank.stage}, {"host", rank.host}});
  }
  if (!ranks.empty()) json["ranks"] = std::move(ranks);
  for (const auto& [rank, detail] : run.slow_ranks) {
    json["slow_ranks"].push_back({{"rank", rank}, {"detail", detail}});
  }
  if (const auto slowest = FindSlowestRank(run.ranks); slowest.has_value()) {
    json["slowest"] = {{"rank", slowest->rank},
                       {"host", slowest->host},
                       {"excess", slowest->excess},
                       {"why", slowest->why}};
  }
  return json;
}

}  // namespace millrace
