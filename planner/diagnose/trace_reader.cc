#include "planner/diagnose/trace_reader.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <streambuf>
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
  kDistributed,
  kDevices,
  kDevice,
  kSkipped,
};

// The fields of one event, collected until its closing brace completes it.
struct RawEvent {
  std::string phase;
  std::string category;
  std::string name;
  std::optional<int64_t> start_ns;
  std::optional<int64_t> duration_ns;
  std::optional<int64_t> process;
  std::optional<int64_t> thread;
  std::optional<int64_t> device;
  std::optional<int64_t> stream;
  int64_t correlation = kNoId;
  int64_t external_id = kNoId;
  std::string collective;
};

// A number as the document spells it. Times keep every digit, since a double
// would round microseconds with a fraction.
struct Number {
  int64_t integer = 0;
  bool is_integer = true;
  double value = 0;
  absl::string_view text;
};

// Larger times in microseconds (from the year 2255) do not fit into
// nanoseconds.
constexpr int64_t kMaxMicroseconds = 9'000'000'000'000'000;
// No recorded event is a day long or starts so long before the profiler's
// clock. So ends, windows and sums of times fit as well.
constexpr int64_t kMaxEventNs = 100'000'000'000'000;

std::optional<int64_t> Nanoseconds(const Number& microseconds) {
  if (microseconds.is_integer) {
    if (microseconds.integer > kMaxMicroseconds ||
        microseconds.integer < -kMaxMicroseconds) {
      return std::nullopt;
    }
    return microseconds.integer * 1000;
  }
  if (!(std::fabs(microseconds.value) < kMaxMicroseconds)) return std::nullopt;
  absl::string_view text = microseconds.text;
  const size_t point = text.find('.');
  if (point == text.npos || absl::StrContains(text, 'e') ||
      absl::StrContains(text, 'E')) {
    return std::llround(microseconds.value * 1000);
  }
  const bool negative = absl::ConsumePrefix(&text, "-");
  const size_t digits = point - (negative ? 1 : 0);
  int64_t ns = 0;
  for (const char digit : text.substr(0, digits)) {
    ns = ns * 10 + (digit - '0');
  }
  const absl::string_view fraction = text.substr(digits + 1);
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
    SeeToken();
    return TakeNumber({.integer = value});
  }
  bool number_unsigned(number_unsigned_t value) override {
    SeeToken();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return true;  // No id or time is that large.
    }
    return TakeNumber({.integer = static_cast<int64_t>(value)});
  }
  bool number_float(number_float_t value, const string_t& text) override {
    SeeToken();
    return TakeNumber({.is_integer = false, .value = value, .text = text});
  }

  bool string(string_t& value) override {
    SeeToken();
    switch (place_) {
      case Place::kEvent:
        if (key_ == "ph")
          event_.phase = std::move(value);
        else if (key_ == "cat")
          event_.category = std::move(value);
        else if (key_ == "name")
          event_.name = std::move(value);
        else
          TakeDigits(value);
        break;
      case Place::kArgs:
        if (absl::EqualsIgnoreCase(key_, "Collective name")) {
          event_.collective = std::move(value);
        } else {
          TakeDigits(value);
        }
        break;
      case Place::kDevice:
        if (key_ == "name") device_name_ = std::move(value);
        break;
      default:
        break;
    }
    return true;
  }

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
        break;
      case Place::kEvents:
        inside = Place::kEvent;
        event_ = RawEvent();
        saw_object_ = true;
        saw_events_ = true;
        break;
      case Place::kEvent:
        if (key_ == "args") inside = Place::kArgs;
        break;
      case Place::kDevices:
        inside = Place::kDevice;
        device_id_.reset();
        device_name_.clear();
        break;
      default:
        break;
    }
    return Enter(inside);
  }

  bool end_object() override {
    if (place_ == Place::kEvent) FinishEvent();
    if (place_ == Place::kDevice && device_id_.has_value()) {
      trace.device_names[*device_id_] = device_name_;
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

  bool TakeNumber(const Number& number) {
    switch (place_) {
      case Place::kEvent:
        if (key_ == "ts")
          event_.start_ns = Nanoseconds(number);
        else if (key_ == "dur")
          event_.duration_ns = Nanoseconds(number);
        else if (number.is_integer)
          TakeId(number.integer);
        break;
      case Place::kArgs:
        if (number.is_integer) TakeId(number.integer);
        break;
      case Place::kDistributed:
        if (!number.is_integer) break;
        if (key_ == "rank") trace.rank = number.integer;
        if (key_ == "world_size") trace.world_size = number.integer;
        break;
      case Place::kDevice:
        if (key_ == "id" && number.is_integer) device_id_ = number.integer;
        break;
      default:
        break;
    }
    return true;
  }

  // Some versions write ids as text.
  void TakeDigits(absl::string_view text) {
    int64_t value = 0;
    if (absl::SimpleAtoi(text, &value)) TakeId(value);
  }

  void TakeId(int64_t value) {
    if (place_ == Place::kEvent) {
      if (key_ == "pid") event_.process = value;
      if (key_ == "tid") event_.thread = value;
      return;
    }
    if (key_ == "device") event_.device = value;
    if (key_ == "stream") event_.stream = value;
    // Zero stands for an unknown id.
    if (value <= 0) return;
    if (key_ == "correlation") event_.correlation = value;
    // "external id" until PyTorch 1.13 or so.
    if (absl::EqualsIgnoreCase(key_, "External id")) event_.external_id = value;
  }

  int32_t NameIdx(const std::string& name) {
    const auto [found, is_new] = name_indices_.try_emplace(
        name, static_cast<int32_t>(trace.names.size()));
    if (is_new) trace.names.push_back(name);
    return found->second;
  }

  std::optional<Interval> EventTime() const {
    if (!event_.start_ns.has_value() || !event_.duration_ns.has_value() ||
        *event_.start_ns < -kMaxEventNs || *event_.duration_ns < 0 ||
        *event_.duration_ns > kMaxEventNs) {
      return std::nullopt;
    }
    return Interval{*event_.start_ns, *event_.start_ns + *event_.duration_ns};
  }

  // PyTorch 1.8 to 1.12 wrote some categories with other names, in capitals.
  void FinishEvent() {
    ++trace.num_events;
    if (event_.phase != "X") return;
    const std::string category = absl::AsciiStrToLower(event_.category);
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
      const int64_t device = event_.device.value_or(event_.process.value_or(0));
      AddStep(static_cast<int32_t>(device));
    }
  }

  void AddGpuEvent(GpuWork work) {
    const std::optional<Interval> time = EventTime();
    const std::optional<int64_t> device =
        event_.device.has_value() ? event_.device : event_.process;
    const std::optional<int64_t> stream =
        event_.stream.has_value() ? event_.stream : event_.thread;
    if (!time.has_value()) {
      ++trace.num_skipped;
      return;
    }
    trace.gpu_events.push_back(
        {.time = *time,
         .device = static_cast<int32_t>(device.value_or(0)),
         .stream = stream.value_or(0),
         .work = work,
         .name_idx = NameIdx(event_.name),
         .collective_idx =
             event_.collective.empty() ? kNoName : NameIdx(event_.collective),
         .correlation = event_.correlation,
         .external_id = event_.external_id});
  }

  void AddCall() {
    const std::optional<Interval> time = EventTime();
    if (!time.has_value() || !ExplainsGaps(event_.name)) return;
    trace.calls.push_back({.time = *time,
                           .name_idx = NameIdx(event_.name),
                           .correlation = event_.correlation,
                           .thread = event_.thread.value_or(kNoId)});
  }

  void AddOp() {
    if (event_.external_id == kNoId) return;
    trace.ops.push_back(
        {.external_id = event_.external_id, .name_idx = NameIdx(event_.name)});
  }

  bool AddStep(std::optional<int32_t> device) {
    absl::string_view number = event_.name;
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
  RawEvent event_;
  std::optional<int64_t> device_id_;
  std::string device_name_;
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
