#include "planner/diagnose/trace_reader.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <streambuf>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "planner/diagnose/gunzip.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// The places of the document whose values are read. All others are skipped.
enum class Place {
  kOutside,
  kRoot,
  kEvents,
  kEvent,
  kArgs,
  kDistributed,  // The rank of the process.
  kDevices,
  kDevice,
  kSkipped,
};

// The keys that are read.
constexpr absl::string_view kKeys[] = {
    // In an event.
    "ph", "cat", "name", "ts", "dur", "pid", "tid",
    // In its arguments.
    "args.device", "args.stream", "args.correlation", "args.external id",
    "args.collective name",
    // In the objects of a GPU and of the process.
    "id", "rank", "world_size"};

// The values of one object, collected until its closing brace completes it. A
// number has the digits of the document, since a double would round times in
// microseconds with a fraction.
class Fields {
 public:
  void Clear() {
    for (std::string& value : values_) value.clear();
  }
  // Keeps the value if its key is one of kKeys; the last of several. Versions
  // differ in the case of keys.
  void Set(absl::string_view prefix, absl::string_view key, std::string value) {
    for (size_t i = 0; i < std::size(kKeys); ++i) {
      absl::string_view name = kKeys[i];
      if (absl::ConsumePrefix(&name, prefix) &&
          absl::EqualsIgnoreCase(name, key)) {
        values_[i] = std::move(value);
        return;
      }
    }
  }
  // `key` must be one of kKeys. Returns "" if the object lacks it.
  const std::string& Text(absl::string_view key) const {
    return values_[std::ranges::find(kKeys, key) - std::begin(kKeys)];
  }
  // Some versions write integers as text.
  std::optional<int64_t> Integer(absl::string_view key) const {
    int64_t value = 0;
    if (!absl::SimpleAtoi(Text(key), &value)) return std::nullopt;
    return value;
  }
  // Zero stands for an unknown id.
  int64_t Id(absl::string_view key) const {
    const int64_t id = Integer(key).value_or(0);
    return id > 0 ? id : kNoId;
  }

 private:
  std::array<std::string, std::size(kKeys)> values_;
};

// Larger times in microseconds (from the year 2255) do not fit into
// nanoseconds.
constexpr int64_t kMaxMicroseconds = 9'000'000'000'000'000;
// No recorded event is a day long or starts so long before the profiler's
// clock. So ends, windows and sums of times fit as well.
constexpr int64_t kMaxEventNs = 100'000'000'000'000;

std::optional<int64_t> Nanoseconds(absl::string_view microseconds) {
  int64_t whole = 0;
  double value = 0;
  if (!absl::SimpleAtod(microseconds, &value) ||
      !(std::fabs(value) <= kMaxMicroseconds)) {
    return std::nullopt;
  }
  if (absl::SimpleAtoi(microseconds, &whole)) return whole * 1000;
  const size_t point = microseconds.find('.');
  if (point == microseconds.npos ||
      microseconds.find_first_not_of("-.0123456789") != microseconds.npos) {
    return std::llround(value * 1000);
  }
  const bool negative = absl::ConsumePrefix(&microseconds, "-");
  const size_t digits = point - (negative ? 1 : 0);
  int64_t ns = 0;
  for (const char digit : microseconds.substr(0, digits)) {
    ns = ns * 10 + (digit - '0');
  }
  const absl::string_view fraction = microseconds.substr(digits + 1);
  for (size_t i = 0; i < 3; ++i) {
    ns = ns * 10 + (i < fraction.size() ? fraction[i] - '0' : 0);
  }
  if (fraction.size() > 3 && fraction[3] >= '5') ++ns;
  return negative ? -ns : ns;
}

// Whether the call launches work, waits or allocates, since such calls explain
// gaps.
bool ExplainsGaps(absl::string_view name) {
  for (const char* piece :
       {"Launch", "Memcpy", "Memset", "Synchronize", "Malloc", "Free",
        "MemAlloc", "MemMap", "MemUnmap", "MemCreate", "MemRelease"}) {
    if (absl::StrContains(name, piece)) return true;
  }
  return false;
}

// Limits the length of a text or number and of the space between two of them,
// since the parser keeps a whole one in memory.
constexpr int64_t kMaxTokenBytes = int64_t{16} << 20;

// Passes on another buffer's bytes in blocks. It ends early when more than
// kMaxTokenBytes have passed since `*since_token` was last set to zero.
class TokenLimit : public std::streambuf {
 public:
  TokenLimit(std::streambuf* source, int64_t* since_token)
      : source_(source), since_token_(*since_token) {}

  bool is_exceeded() const { return is_exceeded_; }

 protected:
  int_type underflow() override {
    if (since_token_ > kMaxTokenBytes) {
      is_exceeded_ = true;
      return traits_type::eof();
    }
    const std::streamsize count = source_->sgetn(
        block_.data(), static_cast<std::streamsize>(block_.size()));
    since_token_ += count;
    setg(block_.data(), block_.data(), block_.data() + count);
    return count == 0 ? traits_type::eof()
                      : traits_type::to_int_type(block_.front());
  }

 private:
  std::streambuf* const source_;
  int64_t& since_token_;
  bool is_exceeded_ = false;
  std::vector<char> block_ = std::vector<char>(size_t{256} << 10);
};

class TraceHandler : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return SeeToken(); }
  bool boolean(bool) override { return SeeToken(); }
  bool binary(binary_t&) override { return SeeToken(); }

  bool number_integer(number_integer_t value) override {
    return Take(absl::StrCat(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return Take(absl::StrCat(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Take(text);
  }
  bool string(string_t& value) override { return Take(std::move(value)); }

  bool key(string_t& value) override {
    SeeToken();
    key_ = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    Place inside = Place::kSkipped;
    switch (place_) {
      case Place::kOutside:
        inside = Place::kRoot;
        saw_object_ = true;
        break;
      case Place::kRoot:
        if (key_ == "distributedInfo") inside = Place::kDistributed;
        fields_.Clear();
        break;
      case Place::kEvents:
        inside = Place::kEvent;
        fields_.Clear();
        saw_object_ = true;
        saw_events_ = true;
        break;
      case Place::kEvent:
        if (key_ == "args") inside = Place::kArgs;
        break;
      case Place::kDevices:
        inside = Place::kDevice;
        fields_.Clear();
        break;
      default:
        break;
    }
    return Enter(inside);
  }

  bool end_object() override {
    if (place_ == Place::kEvent) FinishEvent();
    if (place_ == Place::kDistributed) {
      trace.rank = fields_.Integer("rank");
      trace.world_size = fields_.Integer("world_size");
    }
    if (place_ == Place::kDevice) {
      if (const std::optional<int64_t> id = fields_.Integer("id")) {
        trace.device_names[*id] = fields_.Text("name");
      }
    }
    Leave();
    return true;
  }

  bool start_array(std::size_t) override {
    Place inside = Place::kSkipped;
    if (place_ == Place::kOutside) {
      inside = Place::kEvents;  // Chrome's format also allows a bare list.
    } else if (place_ == Place::kRoot && key_ == "traceEvents") {
      inside = Place::kEvents;
      saw_events_ = true;
    } else if (place_ == Place::kRoot && key_ == "deviceProperties") {
      inside = Place::kDevices;
    }
    return Enter(inside);
  }

  bool end_array() override {
    Leave();
    return true;
  }

  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) override {
    error_position = position;
    // The library's message begins with its own name, a number and a position.
    const std::string text = error.what();
    const size_t reason = text.find(": ");
    error_reason = reason == text.npos ? text : text.substr(reason + 2);
    (void)last_token;
    return false;
  }

  bool saw_object() const { return saw_object_; }
  bool saw_events() const { return saw_events_; }

  Trace trace;
  int64_t bytes_since_token = 0;  // TokenLimit counts them.
  bool is_too_deep = false;
  std::size_t error_position = 0;
  std::string error_reason;

 private:
  bool SeeToken() {
    bytes_since_token = 0;
    return true;
  }

  // Returns false, which ends the reading, if values nest too deeply.
  bool Enter(Place inside) {
    SeeToken();
    outer_.push_back(place_);
    place_ = inside;
    is_too_deep = outer_.size() > static_cast<size_t>(kMaxNesting);
    return !is_too_deep;
  }
  void Leave() {
    place_ = outer_.back();
    outer_.pop_back();
  }

  bool Take(std::string value) {
    SeeToken();
    if (place_ == Place::kArgs) {
      fields_.Set("args.", key_, std::move(value));
    } else if (place_ == Place::kEvent || place_ == Place::kDistributed ||
               place_ == Place::kDevice) {
      fields_.Set("", key_, std::move(value));
    }
    return true;
  }

  int32_t NameIdx(const std::string& name) {
    const auto [found, is_new] = name_indices_.try_emplace(
        name, static_cast<int32_t>(trace.names.size()));
    if (is_new) trace.names.push_back(name);
    return found->second;
  }

  std::optional<Interval> EventTime() const {
    const std::optional<int64_t> start_ns = Nanoseconds(fields_.Text("ts"));
    const std::optional<int64_t> length_ns = Nanoseconds(fields_.Text("dur"));
    if (!start_ns.has_value() || !length_ns.has_value() ||
        *start_ns < -kMaxEventNs || *length_ns < 0 ||
        *length_ns > kMaxEventNs) {
      return std::nullopt;
    }
    return Interval{*start_ns, *start_ns + *length_ns};
  }

  // Returns the argument, or else the event's own value.
  int64_t ArgumentOr(absl::string_view argument, absl::string_view own) const {
    return fields_.Integer(argument).value_or(fields_.Integer(own).value_or(0));
  }
  int32_t Device() const {
    return static_cast<int32_t>(ArgumentOr("args.device", "pid"));
  }

  // PyTorch 1.8 to 1.12 wrote some categories with other names, in capitals.
  void FinishEvent() {
    ++trace.num_events;
    if (fields_.Text("ph") != "X") return;
    const std::string category = absl::AsciiStrToLower(fields_.Text("cat"));
    if (category == "kernel") {
      AddGpuEvent(GpuWork::kKernel);
    } else if (category == "gpu_memcpy" || category == "memcpy") {
      AddGpuEvent(GpuWork::kCopy);
    } else if (category == "gpu_memset" || category == "memset") {
      AddGpuEvent(GpuWork::kFill);
    } else if (category == "cuda_runtime" || category == "cuda_driver" ||
               category == "runtime") {
      AddCall();
    } else if (category == "cpu_op" || category == "operator" ||
               category == "user_annotation") {
      if (!AddStep(std::nullopt)) AddOp();
    } else if (category == "gpu_user_annotation") {
      AddStep(Device());
    }
  }

  void AddGpuEvent(GpuWork work) {
    const std::optional<Interval> time = EventTime();
    if (!time.has_value()) {
      ++trace.num_skipped;
      return;
    }
    const std::string& collective = fields_.Text("args.collective name");
    trace.gpu_events.push_back(
        {.time = *time,
         .device = Device(),
         .stream = ArgumentOr("args.stream", "tid"),
         .work = work,
         .name_idx = NameIdx(fields_.Text("name")),
         .collective_idx = collective.empty() ? kNoName : NameIdx(collective),
         .correlation = fields_.Id("args.correlation"),
         .external_id = fields_.Id("args.external id")});
  }

  void AddCall() {
    const std::optional<Interval> time = EventTime();
    const std::string& name = fields_.Text("name");
    if (!time.has_value() || !ExplainsGaps(name)) return;
    trace.calls.push_back({.time = *time,
                           .name_idx = NameIdx(name),
                           .correlation = fields_.Id("args.correlation"),
                           .thread = fields_.Integer("tid").value_or(kNoId)});
  }

  void AddOp() {
    const int64_t external_id = fields_.Id("args.external id");
    if (external_id == kNoId) return;
    trace.ops.push_back({.external_id = external_id,
                         .name_idx = NameIdx(fields_.Text("name"))});
  }

  bool AddStep(std::optional<int32_t> device) {
    absl::string_view number = fields_.Text("name");
    int64_t step = 0;
    if (!absl::ConsumePrefix(&number, "ProfilerStep#") ||
        !absl::SimpleAtoi(number, &step)) {
      return false;
    }
    if (const std::optional<Interval> time = EventTime()) {
      trace.steps.push_back({.step = step, .time = *time, .device = device});
    }
    return true;
  }

  Place place_ = Place::kOutside;
  std::vector<Place> outer_;
  std::string key_;
  Fields fields_;  // Fields of the event or other object being read.
  bool saw_object_ = false;
  bool saw_events_ = false;
  std::unordered_map<std::string, int32_t> name_indices_;
};

constexpr char kWhatIsExpected[] =
    "expected the JSON that torch.profiler writes (export_chrome_trace or "
    "tensorboard_trace_handler)";

absl::Status ParseFailure(const TraceHandler& handler, bool ended,
                          const std::string& name) {
  if (ended && handler.saw_object()) {
    return absl::DataLossError(absl::StrCat(
        name, " ends within the JSON, after ", handler.trace.num_events,
        " events and byte ", handler.error_position,
        ": the profiler was still writing it, or the copy was cut short; "
        "export or copy it again"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not valid JSON at byte ", handler.error_position,
                   " (", handler.error_reason, "); ", kWhatIsExpected));
}

absl::StatusOr<Trace> ReadPlainTrace(std::istream& plain,
                                     const std::string& name) {
  TraceHandler handler;
  TokenLimit limit(plain.rdbuf(), &handler.bytes_since_token);
  std::istream input(&limit);
  if (input.peek() == std::istream::traits_type::eof()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is empty; ", kWhatIsExpected));
  }
  if (!Json::sax_parse(input, &handler)) {
    if (handler.is_too_deep || limit.is_exceeded()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ", after ", handler.trace.num_events, " events: ",
          handler.is_too_deep
              ? absl::StrCat("lists and objects are nested deeper than ",
                             kMaxNesting, " levels")
              : absl::StrCat("a text or number of more than ", kMaxTokenBytes,
                             " bytes"),
          "; ", kWhatIsExpected));
    }
    return ParseFailure(handler, input.eof(), name);
  }
  if (!handler.saw_events()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is JSON, but has no list \"traceEvents\", nor is it a list of ",
        "events; ", kWhatIsExpected));
  }
  SortTrace(handler.trace);
  return std::move(handler.trace);
}

}  // namespace

absl::StatusOr<Trace> LoadTrace(const std::string& path) {
  if (path == "-") return ReadTrace(std::cin, "standard input");
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder; name one of the trace files in it"));
  }
  const absl::StatusOr<int> opened = OpenRegularFile(path);
  if (absl::IsInvalidArgument(opened.status())) {
    return absl::InvalidArgumentError(
        absl::StrCat(opened.status().message(),
                     "; pipe a trace into standard input and name it -"));
  }
  if (opened.ok()) close(*opened);
  std::ifstream file(path, std::ios::binary);
  if (!opened.ok() || !file.is_open()) {
    return absl::NotFoundError(
        absl::StrCat(path, " cannot be opened; is the path right?"));
  }
  return ReadTrace(file, path);
}

absl::StatusOr<Trace> ReadTrace(std::istream& input, const std::string& name) {
  constexpr int kGzipFirstByte = 0x1f;  // No JSON starts with it.
  if (input.peek() != kGzipFirstByte) return ReadPlainTrace(input, name);
  GunzipBuffer buffer(input);
  std::istream plain(&buffer);
  absl::StatusOr<Trace> trace = ReadPlainTrace(plain, name);
  if (!buffer.error().empty()) {
    return absl::DataLossError(absl::StrCat(
        name, ": ", buffer.error(),
        ": the profiler was still writing it, or the copy was cut short; "
        "export or copy it again"));
  }
  return trace;
}

}  // namespace millrace
