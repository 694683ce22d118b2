// Writes diagnosis_text.h's JSON for programs.

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "planner/diagnose/diagnosis_text.h"
#include "planner/diagnose/hints.h"

namespace millrace {
namespace {

// Keys keep the order of writing, which is that of docs/diagnose.md.
using OrderedJson = nlohmann::ordered_json;

double Seconds(int64_t ns) { return ns * 1e-9; }

OrderedJson SplitJson(const TimeSplit& split) {
  return {{"window_s", Seconds(split.window_ns)},
          {"compute_s", Seconds(split.compute_ns)},
          {"exposed_communication_s", Seconds(split.exposed_communication_ns)},
          {"exposed_copy_s", Seconds(split.exposed_copy_ns)},
          {"idle_s", Seconds(split.idle_ns)}};
}

OrderedJson CategoriesJson(const DeviceTime& device) {
  OrderedJson categories = OrderedJson::object();
  for (int i = 0; i < kNumKernelCategories; ++i) {
    const auto category = static_cast<KernelCategory>(i);
    const CategoryTime& time = device.categories[i];
    if (time.num_kernels == 0 || category == KernelCategory::kCommunication) {
      continue;
    }
    categories[std::string(CategoryName(category))] = {
        {"kernels", time.num_kernels},
        {"sum_s", Seconds(time.sum_ns)},
        {"share_s", Seconds(time.share_ns)}};
  }
  return categories;
}

OrderedJson CollectivesJson(const DeviceTime& device) {
  OrderedJson collectives = OrderedJson::object();
  for (int i = 0; i < kNumCollectives; ++i) {
    const CollectiveTime& time = device.collectives[i];
    if (time.num_kernels == 0) continue;
    collectives[std::string(CollectiveName(static_cast<Collective>(i)))] = {
        {"kernels", time.num_kernels},
        {"busy_s", Seconds(time.busy_ns)},
        {"overlapped_s", Seconds(time.overlapped_ns)},
        {"exposed_s", Seconds(time.exposed_ns)}};
  }
  return collectives;
}

OrderedJson GapsJson(const DeviceTime& device) {
  OrderedJson by_cause = OrderedJson::object();
  for (int i = 0; i < kNumGapCauses; ++i) {
    const GapTotal& total = device.gaps_by_cause[i];
    if (total.num_gaps == 0) continue;
    by_cause[GapCauseName(static_cast<GapCause>(i))] = {
        {"gaps", total.num_gaps}, {"idle_s", Seconds(total.idle_ns)}};
  }
  return by_cause;
}

OrderedJson DeviceJson(const DeviceTime& device) {
  OrderedJson copies = OrderedJson::array();
  for (const CopyTime& copy : device.copies) {
    copies.push_back({{"name", copy.name},
                      {"copies", copy.num_copies},
                      {"sum_s", Seconds(copy.sum_ns)}});
  }
  return {{"time", SplitJson(device.split)},
          {"kernels", device.num_kernels},
          {"compute_by_category", CategoriesJson(device)},
          {"communication_s", Seconds(device.communication_ns)},
          {"collectives", CollectivesJson(device)},
          {"copy_s", Seconds(device.copy_ns)},
          {"copies", std::move(copies)},
          {"gaps", GapsJson(device)},
          {"launch_call_s", Seconds(device.launch_call_ns)},
          {"compute_kernels", device.num_compute_kernels},
          {"short_kernels", device.num_short_kernels},
          {"short_kernel_s", Seconds(device.short_kernel_ns)}};
}

OrderedJson StreamsJson(const DeviceTime& device) {
  OrderedJson streams = OrderedJson::array();
  for (const StreamTime& stream : device.streams) {
    streams.push_back({{"stream", stream.stream},
                       {"kernels", stream.num_kernels},
                       {"copies", stream.num_copies},
                       {"time", SplitJson(stream.split)}});
  }
  return streams;
}

OrderedJson LargestGapsJson(const DeviceTime& device) {
  OrderedJson gaps = OrderedJson::array();
  for (const Gap& gap : device.largest_gaps) {
    gaps.push_back(
        {{"start_s", Seconds(gap.time.start_ns - device.window.start_ns)},
         {"idle_s", Seconds(gap.time.length_ns())},
         {"cause", GapCauseName(gap.cause)},
         {"next", gap.next},
         {"launched_by", gap.launched_by},
         {"op", gap.op}});
  }
  return gaps;
}

template <typename T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value.has_value() ? OrderedJson(*value) : OrderedJson(nullptr);
}

OrderedJson PlannedJson(const PlannedLayout& planned) {
  const Prediction& prediction = planned.prediction;
  return {{"layout", LayoutToString(planned.layout)},
          {"step_time_s", prediction.step_time_s},
          {"bubble_fraction", prediction.bubble_fraction},
          {"exposed_communication_fraction",
           prediction.exposed_communication_fraction}};
}

OrderedJson AdviceJson(const Advice& advice) {
  return {{"profile", advice.profile},
          {"devices", advice.num_devices},
          {"measured_step_time_s", advice.measured_s},
          {"recorded", PlannedJson(advice.recorded)},
          {"best", PlannedJson(advice.best)},
          {"changes", advice.changes},
          {"predicted_speedup", advice.speedup()},
          {"expected_step_time_s", advice.fits_trace()
                                       ? OrderedJson(advice.expected_s())
                                       : OrderedJson(nullptr)},
          {"measured_over_predicted", advice.shortfall()},
          {"caveats", advice.caveats}};
}

}  // namespace

std::string DiagnosisToJson(const std::string& name, const Trace& trace,
                            const Diagnosis& diagnosis, const Advice* advice) {
  OrderedJson root = {{"trace", name},
                      {"events", trace.num_events},
                      {"gpu_events", trace.gpu_events.size()},
                      {"skipped_gpu_events", trace.num_skipped},
                      {"rank", OrNull(trace.rank)},
                      {"world_size", OrNull(trace.world_size)},
                      {"step", OrNull(diagnosis.step)},
                      {"median_step", OrNull(diagnosis.median_step)}};
  root["steps"] = OrderedJson::array();
  for (const RecordedStep& step : diagnosis.steps) {
    root["steps"].push_back({{"step", step.step},
                             {"length_s", Seconds(step.length_ns)},
                             {"time", SplitJson(step.split)}});
  }
  root["total"] = DeviceJson(diagnosis.total);
  root["devices"] = OrderedJson::array();
  for (const DeviceTime& device : diagnosis.devices) {
    OrderedJson one = {{"device", device.device}};
    one.update(DeviceJson(device));
    one["streams"] = StreamsJson(device);
    one["largest_gaps"] = LargestGapsJson(device);
    root["devices"].push_back(std::move(one));
  }
  root["longest_kernels"] = OrderedJson::array();
  for (const KernelTotal& kernel : diagnosis.longest_kernels) {
    root["longest_kernels"].push_back(
        {{"name", kernel.name},
         {"category", std::string(CategoryName(kernel.category))},
         {"count", kernel.count},
         {"sum_s", Seconds(kernel.sum_ns)},
         {"mean_s", Seconds(kernel.sum_ns) / kernel.count}});
  }
  root["hints"] = OrderedJson::array();
  for (const Hint& hint : HintsFor(diagnosis)) {
    root["hints"].push_back(
        {{"id", hint.id},
         {"evidence", hint.evidence},
         {"remedy", hint.remedy},
         {"saves_at_most_s", Seconds(hint.saves_at_most_ns)}});
  }
  const LayoutShare share = LayoutShareOf(diagnosis);
  root["layout_saves_at_most"] = {
      {"exposed_communication_s", Seconds(share.exposed_communication_ns)},
      {"waiting_s", Seconds(share.waiting_ns)}};
  root["plan"] = advice == nullptr ? OrderedJson(nullptr) : AdviceJson(*advice);
  // Names may hold any bytes. Bytes that are not UTF-8 are replaced, since the
  // library would throw.
  return absl::StrCat(JsonText(root, 2), "\n");
}

}  // namespace millrace
