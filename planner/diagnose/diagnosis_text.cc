#include "planner/diagnose/diagnosis_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/units.h"
#include "planner/diagnose/hints.h"
#include "planner/text/page.h"

namespace millrace {
namespace {

constexpr size_t kNameWidth = 64;
constexpr size_t kGapNameWidth = 40;  // Leaves room for an operator and a call.

std::string Time(int64_t ns) { return FormatSeconds(ns * 1e-9); }

std::string Share(int64_t part_ns, int64_t whole_ns) {
  if (whole_ns <= 0) return "-";
  return absl::StrFormat("%.1f %%", 100.0 * part_ns / whole_ns);
}

// A demangled template fills pages, but its beginning tells what it is.
std::string ShortName(absl::string_view name, size_t width) {
  absl::ConsumePrefix(&name, "void ");
  if (name.size() <= width) return std::string(name);
  return absl::StrCat(name.substr(0, width - 3), "...");
}

// On lines that all begin with `indent` spaces.
std::string Indented(absl::string_view text, size_t indent) {
  return absl::StrCat(
      WrapLine(absl::StrCat(std::string(indent, ' '), text), indent), "\n");
}

std::string Row(absl::string_view label, int64_t part_ns, int64_t whole_ns,
                absl::string_view note) {
  std::string row = absl::StrFormat("  %-28s %9s %8s  %s", label, Time(part_ns),
                                    Share(part_ns, whole_ns), note);
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(row), "\n");
}

std::string Kernels(int64_t count) {
  return absl::StrCat(count, count == 1 ? " kernel" : " kernels");
}

std::string HeaderText(const std::string& name, const Trace& trace,
                       const Diagnosis& diagnosis) {
  std::string out =
      absl::StrCat("trace    ", name, ": ", trace.gpu_events.size(),
                   " GPU events of ", trace.num_events, "\n");
  if (trace.rank.has_value() && trace.world_size.has_value()) {
    absl::StrAppend(&out, "job      rank ", *trace.rank, " of ",
                    *trace.world_size, "\n");
  }
  if (trace.num_skipped > 0) {
    absl::StrAppend(&out, "skipped  ", trace.num_skipped,
                    " GPU events without a usable ts or dur; the figures lack "
                    "them\n");
  }
  if (!diagnosis.step.has_value()) {
    absl::StrAppend(&out, "window   all that was recorded",
                    diagnosis.steps.empty()
                        ? "; no ProfilerStep# annotations tell steps apart"
                        : "",
                    "\n");
  } else {
    absl::StrAppend(&out, "window   step ", *diagnosis.step,
                    diagnosis.step == diagnosis.median_step
                        ? absl::StrCat(", the median of ",
                                       diagnosis.steps.size(), " by length")
                        : "",
                    "\n");
  }
  return out;
}

std::string StepsText(const Diagnosis& diagnosis) {
  if (diagnosis.steps.empty()) return "";
  std::string out =
      absl::StrFormat("\n%-8s %9s %10s %14s %13s %10s\n", "step", "length",
                      "compute", "exposed comm.", "exposed copy", "idle");
  for (const RecordedStep& step : diagnosis.steps) {
    absl::StrAppendFormat(
        &out, "%-8s %9s %10s %14s %13s %10s\n",
        absl::StrCat(step.step,
                     step.step == diagnosis.median_step ? " med" : ""),
        Time(step.length_ns), Time(step.split.compute_ns),
        Time(step.split.exposed_communication_ns),
        Time(step.split.exposed_copy_ns), Time(step.split.idle_ns));
  }
  return out;
}

std::string CommunicationText(const DeviceTime& device) {
  std::string out =
      Row("communication, exposed", device.split.exposed_communication_ns,
          device.split.window_ns,
          device.communication_ns == 0
              ? ""
              : absl::StrCat("of ", Time(device.communication_ns),
                             "; the rest runs beside compute"));
  for (int i = 0; i < kNumCollectives; ++i) {
    const CollectiveTime& time = device.collectives[i];
    if (time.num_kernels == 0) continue;
    absl::StrAppend(
        &out,
        Row(absl::StrCat("  ", CollectiveName(static_cast<Collective>(i))),
            time.exposed_ns, device.split.window_ns,
            absl::StrCat("of ", Time(time.busy_ns), ", overlapped ",
                         Time(time.overlapped_ns), ", ",
                         Kernels(time.num_kernels))));
  }
  return out;
}

std::string GapCausesText(const DeviceTime& device) {
  std::string out;
  for (int i = 0; i < kNumGapCauses; ++i) {
    const GapTotal& total = device.gaps_by_cause[i];
    if (total.num_gaps == 0) continue;
    const auto cause = static_cast<GapCause>(i);
    std::string note =
        absl::StrCat(total.num_gaps, total.num_gaps == 1 ? " gap" : " gaps");
    if (cause == GapCause::kLaunch) {
      absl::StrAppend(&note, ", ", Time(device.launch_call_ns),
                      " within launching calls");
    }
    absl::StrAppend(&out, Row(absl::StrCat("  ", GapCauseName(cause)),
                              total.idle_ns, device.split.window_ns, note));
  }
  return out;
}

std::string SplitText(const DeviceTime& device) {
  const TimeSplit& split = device.split;
  std::string out = Row("window", split.window_ns, split.window_ns, "");
  absl::StrAppend(&out, Row("compute", split.compute_ns, split.window_ns,
                            Kernels(device.num_compute_kernels)));
  for (int i = 0; i < kNumKernelCategories; ++i) {
    const auto category = static_cast<KernelCategory>(i);
    const CategoryTime& time = device.categories[i];
    if (time.num_kernels == 0 || category == KernelCategory::kCommunication) {
      continue;
    }
    absl::StrAppend(
        &out, Row(absl::StrCat("  ", CategoryName(category)), time.share_ns,
                  split.window_ns, Kernels(time.num_kernels)));
  }
  absl::StrAppend(&out, CommunicationText(device));
  absl::StrAppend(
      &out,
      Row("copies and fills, exposed", split.exposed_copy_ns, split.window_ns,
          device.copy_ns == 0 ? ""
                              : absl::StrCat("of ", Time(device.copy_ns))));
  for (const CopyTime& copy : device.copies) {
    absl::StrAppend(&out, "    ", copy.num_copies, " x ", copy.name, ", ",
                    Time(copy.sum_ns), "\n");
  }
  absl::StrAppend(&out, Row("idle", split.idle_ns, split.window_ns, ""),
                  GapCausesText(device));
  return out;
}

std::string StreamsText(const DeviceTime& device) {
  std::string out = absl::StrFormat("\n  %-8s %8s %8s %10s %14s %10s %10s\n",
                                    "stream", "kernels", "copies", "compute",
                                    "communication", "copies", "idle");
  for (const StreamTime& stream : device.streams) {
    absl::StrAppendFormat(
        &out, "  %-8d %8d %8d %10s %14s %10s %10s\n", stream.stream,
        stream.num_kernels, stream.num_copies, Time(stream.split.compute_ns),
        Time(stream.split.exposed_communication_ns),
        Time(stream.split.exposed_copy_ns), Time(stream.split.idle_ns));
  }
  return out;
}

std::string LargestGapsText(const DeviceTime& device) {
  if (device.largest_gaps.empty()) return "";
  std::string out = "\n  largest gaps    at         cause        then\n";
  for (const Gap& gap : device.largest_gaps) {
    std::vector<std::string> then;
    if (!gap.op.empty()) then.push_back(gap.op);
    if (!gap.launched_by.empty()) then.push_back(gap.launched_by);
    if (!gap.next.empty()) then.push_back(ShortName(gap.next, kGapNameWidth));
    absl::StrAppendFormat(
        &out, "  %-15s %-10s %-12s %s\n", Time(gap.time.length_ns()),
        Time(gap.time.start_ns - device.window.start_ns),
        GapCauseName(gap.cause),
        then.empty() ? "(the end)" : absl::StrJoin(then, " > "));
  }
  return out;
}

std::string LongestKernelsText(const Diagnosis& diagnosis) {
  std::string out = absl::StrFormat("\n%9s %7s %9s  %-16s %s\n", "total",
                                    "count", "mean", "category", "kernel");
  for (const KernelTotal& kernel : diagnosis.longest_kernels) {
    absl::StrAppendFormat(&out, "%9s %7d %9s  %-16s %s\n", Time(kernel.sum_ns),
                          kernel.count, Time(kernel.sum_ns / kernel.count),
                          CategoryName(kernel.category),
                          ShortName(kernel.name, kNameWidth));
  }
  return out;
}

std::string HintsText(const Diagnosis& diagnosis) {
  const std::vector<Hint> hints = HintsFor(diagnosis);
  if (hints.empty()) {
    return "\nhints: nothing found that could save a hundredth of the window\n";
  }
  std::string out =
      "\nhints: each with the most it could save; bounds may speak of the same "
      "time and do not add up\n";
  for (const Hint& hint : hints) {
    absl::StrAppend(
        &out, "  ", hint.id, ": at most ", Time(hint.saves_at_most_ns), " (",
        Share(hint.saves_at_most_ns, diagnosis.total.split.window_ns), ")\n",
        Indented(absl::StrCat(hint.evidence, "."), 4),
        Indented(hint.remedy, 4));
  }
  return out;
}

std::string LayoutShareText(const Diagnosis& diagnosis) {
  const LayoutShare share = LayoutShareOf(diagnosis);
  return absl::StrCat("\nplan: another layout could save at most\n",
                      Row("communication, exposed",
                          share.exposed_communication_ns, share.window_ns, ""),
                      Row("idle behind work queued", share.waiting_ns,
                          share.window_ns, "for transfers, mostly"));
}

std::string PlannedRow(absl::string_view label, const PlannedLayout& planned) {
  const Prediction& prediction = planned.prediction;
  return absl::StrFormat("  %-18s %9s %8.1f %% %8.1f %%  %s\n", label,
                         FormatSeconds(prediction.step_time_s),
                         100 * prediction.exposed_communication_fraction,
                         100 * prediction.bubble_fraction,
                         LayoutToString(planned.layout));
}

std::string AdviceText(const Diagnosis& diagnosis, const Advice& advice) {
  const TimeSplit& split = diagnosis.total.split;
  const double window = std::max<double>(1, split.window_ns);
  std::string out = absl::StrFormat(
      "  on %d devices, by profile %s\n"
      "  %-18s %9s %10s %10s\n  %-18s %9s %8.1f %% %8.1f %%\n",
      advice.num_devices, advice.profile, "", "step", "comm.", "idle",
      "recorded", FormatSeconds(advice.measured_s),
      100 * split.exposed_communication_ns / window,
      100 * split.idle_ns / window);
  absl::StrAppend(&out, PlannedRow("predicted, as is", advice.recorded),
                  PlannedRow("predicted, best", advice.best));
  if (advice.changes.empty()) {
    absl::StrAppend(&out, "  change  none: this is the layout to plan\n");
  } else {
    absl::StrAppendFormat(&out, "  change  %s\n  gain    %.2fx predicted\n",
                          absl::StrJoin(advice.changes, ", "),
                          advice.speedup());
    if (advice.fits_trace()) {
      absl::StrAppend(
          &out, Indented(absl::StrCat(FormatSeconds(advice.measured_s),
                                      " would become ",
                                      FormatSeconds(advice.expected_s()),
                                      ", if the step falls as far short of its "
                                      "prediction in the one as in the other."),
                         10));
    }
  }
  for (const std::string& caveat : advice.caveats) {
    absl::StrAppend(&out, Indented(absl::StrCat("but ", caveat), 4));
  }
  return out;
}

std::string PlanText(const Diagnosis& diagnosis, const Advice* advice) {
  if (advice != nullptr) {
    return LayoutShareText(diagnosis) + AdviceText(diagnosis, *advice);
  }
  return LayoutShareText(diagnosis) +
         Indented(
             "Which one, the trace cannot say: it knows neither model nor "
             "batch nor layout. Name them with --job JOB (millrace import "
             "makes one) and the hardware with --profile NAME.",
             4);
}

}  // namespace

const char* GapCauseName(GapCause cause) {
  constexpr const char* kNames[kNumGapCauses] = {
      "launch", "synchronize", "allocate", "queued", "unknown", "end"};
  return kNames[static_cast<int>(cause)];
}

std::string DiagnosisToText(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis, const Advice* advice) {
  std::string out =
      absl::StrCat(HeaderText(name, trace, diagnosis), StepsText(diagnosis));
  for (const DeviceTime& device : diagnosis.devices) {
    const auto model = trace.device_names.find(device.device);
    absl::StrAppend(
        &out, "\nGPU ", device.device,
        model == trace.device_names.end() ? ""
                                          : absl::StrCat(", ", model->second),
        "\n", SplitText(device), StreamsText(device), LargestGapsText(device));
  }
  if (diagnosis.devices.size() > 1) {
    absl::StrAppend(&out, "\nall GPUs, in device-seconds\n",
                    SplitText(diagnosis.total));
  }
  absl::StrAppend(&out, LongestKernelsText(diagnosis), HintsText(diagnosis),
                  PlanText(diagnosis, advice));
  return out;
}

}  // namespace millrace
